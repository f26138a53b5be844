"""A line to type into, at the bottom of the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from snapscope.errors import UsageError
from snapscope.escaping import escape


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line; returns it, or None where the user changed their mind.

    Args:
        title: what is asked for.
        hint: what may be written.
        text: what stands there at first.
        check: raises UsageError where the line means nothing; said below it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def __init__(self, *, title: str, hint: str, text: str = "", check: Callable[[str], object]) -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._first_text = text
        self._check = check

    def compose(self) -> ComposeResult:
        """Show title, line and hint."""
        with Vertical(id="prompt"):
            yield Static(self._title, id="prompt-title", markup=False)
            yield Input(self._first_text, id="prompt-line", select_on_focus=False)
            yield Static(self._hint, id="prompt-hint", markup=False)

    @on(Input.Changed)
    def forget_error(self) -> None:
        """Show the hint again."""
        hint = self.query_one("#prompt-hint", Static)
        hint.update(self._hint)
        hint.remove_class("-error")

    @on(Input.Submitted)
    def accept(self, event: Input.Submitted) -> None:
        """Close with the line, or say what is wrong with it."""
        try:
            self._check(event.value)
        except UsageError as error:
            hint = self.query_one("#prompt-hint", Static)
            hint.update(escape(str(error)))
            hint.add_class("-error")
            return
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Close without a line."""
        self.dismiss(None)
