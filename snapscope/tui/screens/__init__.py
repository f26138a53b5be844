"""The screens: one view per mode, and the dialogs over them; each with its .tcss beside it."""
