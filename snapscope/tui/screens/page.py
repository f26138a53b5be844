"""A page of text over the view: help, notices, a command."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class PageScreen(ModalScreen[None]):
    """Text to read; most keys close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,i,exclamation_mark,c", "close", "Close", show=False),
        Binding("j", "scroll(1)", "Down", show=False),
        Binding("k", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, *, title: str, text: Content) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text in a frame."""
        with VerticalScroll(id="page"):
            yield Static(self._text, id="page-text", markup=False)

    def on_mount(self) -> None:
        """Name the page."""
        page = self.query_one("#page", VerticalScroll)
        page.border_title = Content(f" {self._title} ")
        page.border_subtitle = Content(" esc closes ")
        page.focus()

    def action_close(self) -> None:
        """Go back to the view."""
        self.dismiss(None)

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one("#page", VerticalScroll).scroll_relative(y=step, animate=False)
