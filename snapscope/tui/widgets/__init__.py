"""What is on the screens; each widget with its .tcss beside it."""
