"""The live tree: who holds the bytes at the cursor, to be opened row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from snapscope.classify.material import Category
from snapscope.tui.kinds import letter_of
from snapscope.tui.phrases import live_title, pane_title
from snapscope.tui.rows import LiveRows, Row, RowKind, RowPath
from snapscope.units import format_bytes, format_count, format_share

_BAR_CELLS: Final = 8
_LETTER_CELLS: Final = 3
_BAR: Final = " ▏▎▍▌▋▊▉█"
_WIDE: Final = 100
_MIN_ROWS_WITH_HEADER: Final = 5
_HIGH_SHARE: Final = 0.25
_MIDDLE_SHARE: Final = 0.05
_WAITING: Final = (Row(key="waiting", kind=RowKind.NOTE, label="…"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A visible row: where it is in the tree, and whether it is open."""

    row: Row
    path: RowPath
    is_open: bool

    @property
    def depth(self) -> int:
        return len(self.path) - 1


class LiveTree(ScrollView, can_focus=True):
    """Rows with numbers at the left and names at the right, most bytes first.

    Open rows and the selected one are remembered by key, so that they stay when the moment
    changes. Until the user selects a row, the one with most bytes is selected.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "live-tree--cursor",
        "live-tree--cursor-blurred",
        "live-tree--header",
        "live-tree--high",
        "live-tree--middle",
        "live-tree--low",
        "live-tree--name",
        "live-tree--quiet",
        "live-tree--sum",
        "live-tree--bar",
        *(f"live-tree--{category.label}" for category in Category),
    }

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "row up", show=False),
        Binding("down,j", "select(1)", "row down", show=False),
        Binding("right,l", "open", "open: the row; ← closes it", key_display="→←"),
        Binding("left,h", "close", "close the row, or go to the one that it is in", show=False),
        Binding("enter,space", "open_or_close", "open or close; details of an allocation", show=False),
        Binding("home", "select(-1000000000)", "first row", show=False),
        Binding("end", "select(1000000000)", "last row", show=False),
        Binding("pageup", "page(-1)", "a page up", show=False),
        Binding("pagedown", "page(1)", "a page down", show=False),
    ]

    HELP = """\
The tree shows who holds the requested bytes at the cursor, most bytes first; its rows add up.

The letter is the category of most of a row's bytes: P parameter, G gradient, O optimizer state,
A activation, T temporary; ? marks a guess (low confidence).

Open a row (→ or enter) to see what is in it: a site has its callers and its allocations, a
category, file, stream or pool has its sites. In the call tree a row's total counts all that the frame called,
self only what it allocated itself. Below the sum follow the rest of what is reserved: rounding,
pending free, cached (free segments, holes, private pools). The pane beside or below explains the
selected row.
"""

    live: reactive[LiveRows | None] = reactive(None)

    class RowSelected(Message):
        """Another row is selected, or the same one has new numbers."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class InsideAsked(Message):
        """A row was opened whose inside isn't known yet."""

    class DetailAsked(Message):
        """The user pressed enter on a row that has nothing inside."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[_Line] = []
        self._open: set[RowPath] = set()
        self._selected: RowPath = ()
        self._is_touched = False

    # -- what it shows ----------------------------------------------------------------------

    @property
    def selected_row(self) -> Row | None:
        """The row under the cursor."""
        place = self._place()
        return self._lines[place].row if self._lines else None

    @property
    def num_lines(self) -> int:
        """Visible rows, on the screen or scrolled away."""
        return len(self._lines)

    @property
    def open_paths(self) -> frozenset[RowPath]:
        """The rows that are open."""
        return frozenset(self._open)

    @property
    def is_waiting(self) -> bool:
        """Whether the inside of an open row is still to come."""
        return any(line.row is _WAITING[0] for line in self._lines)

    def forget_selection(self) -> None:
        """Select the heaviest row again, from the next rows on."""
        self._is_touched = False
        self._open.clear()

    def watch_live(self) -> None:
        """Show other rows; keep what is open and selected where it is still there."""
        live = self.live
        if live is None:
            return
        if not self._is_touched:
            self._selected = live.first_path
            self._open = {live.first_path[:depth] for depth in range(1, len(live.first_path))}
        self._write_title()
        self._lay_out()

    def on_resize(self) -> None:
        """Fit the title to the new width."""
        self._write_title()
        self._lay_out()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Mark the title of the focused pane."""
        super().watch_has_focus(has_focus)
        self._write_title()
        self.refresh()

    def _write_title(self) -> None:
        if self.live is not None:
            title = live_title(self.live.state, self.live.num_allocations, self.size.width - 6)
            self.border_title = pane_title(title, has_focus=self.has_focus)

    def _lay_out(self) -> None:
        """Flatten the open part of the tree, and keep the selected row in sight."""
        live = self.live
        if live is None:
            return
        old_place = self._place()
        self._lines = list(self._flatten(live, live.rows, ()))
        paths = {line.path for line in self._lines}
        while self._selected and self._selected not in paths:
            # What was selected is gone: its parent stands for it, else its neighbour.
            self._selected = self._selected[:-1]
        if not self._selected and self._lines:
            self._selected = self._lines[min(old_place, len(self._lines) - 1)].path
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines) + self._num_header)
        self._show_selected()
        self.refresh()
        self._announce()

    def _flatten(self, live: LiveRows, rows: tuple[Row, ...], parent: RowPath) -> Iterator[_Line]:
        for row in rows:
            path = (*parent, row.key)
            is_open = row.has_children and path in self._open
            yield _Line(row=row, path=path, is_open=is_open)
            if is_open:
                yield from self._flatten(live, live.inside.get(path, _WAITING), path)

    def _place(self) -> int:
        return next((place for place, line in enumerate(self._lines) if line.path == self._selected), 0)

    def _announce(self) -> None:
        row = self.selected_row
        if row is not None:
            self.post_message(self.RowSelected(row))

    def _show_selected(self) -> None:
        place = self._place()
        if place < self.scroll_offset.y:
            self.scroll_to(y=place, animate=False, immediate=True)
        elif place >= self.scroll_offset.y + self._num_visible:
            self.scroll_to(y=place - self._num_visible + 1, animate=False, immediate=True)

    @property
    def _num_header(self) -> int:
        return 1 if self.size.height - 1 >= _MIN_ROWS_WITH_HEADER else 0

    @property
    def _num_visible(self) -> int:
        return max(self.scrollable_content_region.height - self._num_header, 1)

    # -- moving -----------------------------------------------------------------------------

    def _select_place(self, place: int) -> None:
        if not self._lines:
            return
        self._is_touched = True
        self._selected = self._lines[min(max(place, 0), len(self._lines) - 1)].path
        self._show_selected()
        self.refresh()
        self._announce()

    def action_select(self, step: int) -> None:
        """Move up or down by some rows."""
        self._select_place(self._place() + step)

    def action_page(self, step: int) -> None:
        """Move up or down by what fits on the screen."""
        self._select_place(self._place() + step * max(self._num_visible - 1, 1))

    def select_top_level(self, step: int) -> None:
        """Go to the next or previous row of the first level, past what is open."""
        tops = [place for place, line in enumerate(self._lines) if line.depth == 0]
        here = self._place()
        beyond = [place for place in tops if (place > here if step > 0 else place < here)]
        if beyond:
            self._select_place(beyond[0] if step > 0 else beyond[-1])

    def action_open(self) -> None:
        """Open the row; go into it where it is open already."""
        if not self._lines:
            return
        line = self._lines[self._place()]
        if line.is_open:
            self.action_select(1)
        elif line.row.has_children:
            self._is_touched = True
            self._open.add(line.path)
            self._lay_out()
            if self.live is not None and line.path not in self.live.inside:
                self.post_message(self.InsideAsked())

    def action_close(self) -> None:
        """Close the row, or go to the one that it is in."""
        if not self._lines:
            return
        line = self._lines[self._place()]
        self._is_touched = True
        if line.is_open:
            self._open.discard(line.path)
            self._lay_out()
        elif line.depth:
            self._selected = line.path[:-1]
            self._select_place(self._place())

    def action_open_or_close(self) -> None:
        """Open or close the row; where there is nothing inside, ask for its details."""
        if not self._lines:
            return
        line = self._lines[self._place()]
        if not line.row.has_children:
            self.post_message(self.DetailAsked())
        elif line.is_open:
            self.action_close()
        else:
            self.action_open()

    def on_click(self, event: events.Click) -> None:
        """Select the row under the mouse; open or close it where it is selected already."""
        y = event.y - self.gutter.top - self._num_header
        place = y + self.scroll_offset.y
        if y < 0 or not 0 <= place < len(self._lines):
            return
        if place == self._place() and self._is_touched:
            self.action_open_or_close()
        else:
            self._select_place(place)

    # -- drawing ----------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Render one visible row."""
        width = self.scrollable_content_region.width
        if self.live is None:
            text = "  working out what is live …" if y == 0 else ""
            return Strip([Segment(text, self._style("quiet"))]).adjust_cell_length(width, self.rich_style)
        if y < self._num_header:
            return Strip([Segment(self._header(width), self._style("header"))]).adjust_cell_length(
                width, self.rich_style
            )
        place = y - self._num_header + self.scroll_offset.y
        if not 0 <= place < len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[place]
        is_selected = line.path == self._selected
        segments = list(self._row(line, width, is_selected=is_selected))
        strip = Strip(segments).adjust_cell_length(width, segments[-1].style)
        if not is_selected:
            return strip
        over = self._style("cursor" if self.has_focus else "cursor-blurred")
        return Strip([Segment(segment.text, over) for segment in strip], width)

    def _header(self, width: int) -> str:
        live = self.live
        assert live is not None
        bar = " " * (_BAR_CELLS + 1) if width >= _WIDE else ""
        if live.state.shows_calls:
            return f"  {'total':>10} {'share':>6} {bar}{'self':>10}{'':{_LETTER_CELLS}}   call"
        return f"  {'bytes':>10} {'share':>6} {bar}{'count':>7}{'':{_LETTER_CELLS}}   {live.state.by.value}"

    def _row(self, line: _Line, width: int, *, is_selected: bool) -> Iterator[Segment]:
        live = self.live
        assert live is not None
        row, whole = line.row, live.balance.requested_bytes
        is_balance = row.kind is RowKind.BALANCE
        size = "" if row.bytes is None else format_bytes(row.bytes)
        has_share = row.bytes is not None and not is_balance
        share = format_share(row.bytes or 0, whole) if has_share else ""
        yield Segment(">" if is_selected else " ", self._style("name"))
        yield Segment(f" {size:>10}", self._size_style(row, whole))
        yield Segment(f" {share:>6} ", self._style("quiet"))
        if width >= _WIDE:
            yield Segment(_bar(row.bytes or 0, whole) if has_share else " " * _BAR_CELLS, self._style("bar"))
            yield Segment(" ", self._style("bar"))
        if live.state.shows_calls:
            own = "" if row.self_bytes is None else format_bytes(row.self_bytes)
            yield Segment(f"{own:>10}", self._style("name" if row.self_bytes else "quiet"))
        else:
            count = "" if row.count is None else format_count(row.count)
            yield Segment(f"{count:>7}", self._style("quiet" if is_balance else "name"))
        letter = "" if row.category is None else letter_of(row.category, row.confidence)
        style = "quiet" if row.category is None else row.category.label
        yield Segment(f" {letter:<{_LETTER_CELLS - 1}}", self._style(style))
        knob = ("▾" if line.is_open else "▸") if row.has_children else " "
        used = (
            2
            + 10
            + 8
            + _LETTER_CELLS
            + (_BAR_CELLS + 1 if width >= _WIDE else 0)
            + (10 if live.state.shows_calls else 7)
        )
        indent = min(2 * line.depth, max(width - used - 24, 0))
        room = max(width - used - indent - 3, 1)
        yield Segment(f" {' ' * indent}{knob} ", self._style("quiet"))
        yield Segment(_shorten(_label(row), room), self._name_style(row))

    def _size_style(self, row: Row, whole: int) -> Style:
        if row.kind in (RowKind.BALANCE, RowKind.LEFT_OUT) or row.bytes is None:
            return self._style("sum" if row.sign == "=" else "low")
        share = row.bytes / whole if whole else 0.0
        return self._style("high" if share >= _HIGH_SHARE else "middle" if share >= _MIDDLE_SHARE else "low")

    def _name_style(self, row: Row) -> Style:
        if row.kind in (RowKind.CALLER, RowKind.MORE, RowKind.LEFT_OUT) or row.sign == "+":
            return self._style("quiet")
        return self._style("sum" if row.sign == "=" else "name")

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"live-tree--{name}")

    def refresh_line(self, y: int) -> None:
        """Refresh a row by its place among the visible ones."""
        self.refresh(Region(0, y - self.scroll_offset.y + self._num_header, self.size.width, 1))


def _label(row: Row) -> str:
    if len(row.lines) > 1:
        others = ", ".join(str(line) for line in row.lines[1:])
        return f"{row.label} (also line {others})"
    return row.label


def _bar(part: int, whole: int) -> str:
    eighths = round(part * _BAR_CELLS * 8 / whole) if whole else 0
    full, rest = divmod(min(eighths, _BAR_CELLS * 8), 8)
    return ("█" * full + (_BAR[rest] if rest else "")).ljust(_BAR_CELLS)


def _shorten(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
