"""The detail pane: all there is to say about the selected row."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from snapscope.tui.detail import describe
from snapscope.tui.phrases import pane_title
from snapscope.tui.rows import LiveRows, Row, RowKind

_COMPACT_HEIGHT = 7


class DetailPane(VerticalScroll, can_focus=True):
    """Follows the tree: sizes, life, place and stack of the selected row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "scroll down", show=False),
        Binding("k", "scroll_up", "scroll up", show=False),
    ]

    HELP = """\
The detail pane tells all about the row that is selected in the tree: sizes as requested and as
allocated (`estimated` where the file can't prove a block's size), its category with how sure that
is and what decided it, when it was born and died, the step and the phase of its birth, stream,
pool and segment, what the program noted, and the stack, innermost frame first. The user's own
frames are marked ▪; frames of libraries are folded until f unfolds them.
z gives the pane the whole screen.
"""

    row: reactive[Row | None] = reactive(None)
    shows_all_frames: reactive[bool] = reactive(False)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.live: LiveRows | None = None
        self._text = Static("", id="detail-text", markup=False)

    def compose(self) -> ComposeResult:
        """Hold one text."""
        yield self._text

    @property
    def text(self) -> Content:
        """What the pane says."""
        if self.live is None or self.row is None:
            return Content("")
        is_compact = 0 < self.size.height <= _COMPACT_HEIGHT
        return describe(self.live, self.row, shows_all_frames=self.shows_all_frames, is_compact=is_compact)

    def show(self, live: LiveRows, row: Row) -> None:
        """Explain a row of some rows."""
        is_same = self.row is not None and self.row.key == row.key
        self.live = live
        self.row = row
        if not is_same:
            self.scroll_home(animate=False)

    def watch_row(self) -> None:
        """Write the text anew."""
        self._write()

    def watch_shows_all_frames(self) -> None:
        """Fold or unfold."""
        self._write()

    def on_resize(self) -> None:
        """Choose between running text and a list of frames."""
        self._write()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Mark the title of the focused pane."""
        super().watch_has_focus(has_focus)
        self._write_title()

    def _write(self) -> None:
        self._text.update(self.text)
        self._write_title()

    def _write_title(self) -> None:
        frames = ", all frames" if self.shows_all_frames else ""
        name = "detail" if self.row is None else _kind_name(self.row)
        self.border_title = pane_title(Content(f"{name}{frames}"), has_focus=self.has_focus)


def _kind_name(row: Row) -> str:
    if row.kind is RowKind.GROUP and row.by is not None:
        return row.by.value
    names = {
        RowKind.CALL: "frame",
        RowKind.MORE: "smaller allocations",
        RowKind.LEFT_OUT: "out of focus",
        RowKind.BALANCE: "what the word means",
    }
    return names.get(row.kind, row.kind.value)
