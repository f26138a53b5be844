"""A page of text over the view: help, notices, a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class PageScreen(ModalScreen[None]):
    """Text to read; most keys close it.

    Args:
        title: of the frame.
        text: makes the text for a width in columns.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,i,exclamation_mark,c,v", "close", "Close", show=False),
        Binding("j", "scroll(1)", "Down", show=False),
        Binding("k", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, *, title: str, text: Callable[[int], Content]) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text in a frame."""
        with VerticalScroll(id="page"):
            yield Static("", id="page-text", markup=False)

    def on_mount(self) -> None:
        """Name the page."""
        page = self.query_one("#page", VerticalScroll)
        page.border_title = Content(self._title)
        page.border_subtitle = Content("esc closes")
        page.focus()
        self._write()

    def on_resize(self) -> None:
        """Wrap anew."""
        self._write()

    def _write(self) -> None:
        # The frame takes 92 % of the screen and at most 110 columns; border, padding and bar 5.
        width = max(min(self.size.width * 92 // 100, 110) - 5, 20)
        self.query_one("#page-text", Static).update(self._text(width))

    def action_close(self) -> None:
        """Go back to the view."""
        self.dismiss(None)

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one("#page", VerticalScroll).scroll_relative(y=step, animate=False)
