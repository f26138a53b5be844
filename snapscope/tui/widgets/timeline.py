"""The timeline: requested bytes as an area, reserved as a line, a cursor on events."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from snapscope.tui.axis import Axis, AxisInk
from snapscope.tui.curve import Ink, Plot, cell_maxima, draw, highest_state
from snapscope.tui.phrases import caption, pane_title
from snapscope.tui.state import ViewState
from snapscope.tui.widgets.strips import segments
from snapscope.units import format_bytes

_LABEL_CELLS: Final = 11
_MIN_PLOT_CELLS: Final = 8
_FILLED: Final = frozenset((Ink.FILL, Ink.FILL_BELOW_GAP, Ink.FOCUS, Ink.FOCUS_TOP))


class CurvePane(Horizontal):
    """The curve with the categories beside or below it; the title says what the cursor stands on.

    Args:
        timeline: the curve.
        categories: what stands beside it.
        id: of the pane.
    """

    state: reactive[ViewState | None] = reactive(None)

    def __init__(self, timeline: TimelineView, categories: Widget, *, id: str | None = None) -> None:
        super().__init__(timeline, categories, id=id)
        self._timeline = timeline

    def watch_state(self) -> None:
        """Draw the curve, and say where the cursor is."""
        self._timeline.state = self.state
        self._write_title()

    def on_resize(self) -> None:
        """Fit the title."""
        self._write_title()

    def on_descendant_focus(self) -> None:
        """Mark the title of the focused pane."""
        self._write_title()

    def on_descendant_blur(self) -> None:
        """Take the mark away."""
        self._write_title()

    def _write_title(self) -> None:
        state = self.state
        if state is None:
            return
        title = Content("timeline") if not state.opened.has_history else caption(state, self.size.width - 6)
        self.border_title = pane_title(title, has_focus=self._timeline.has_focus)


class TimelineView(Widget, can_focus=True):
    """The curve over events.

    Only the visible cells are drawn, from columns; the plot is kept until the window, the
    size or the filter changes, so that moving the cursor costs next to nothing.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "timeline--fill",
        "timeline--line",
        "timeline--gap",
        "timeline--fill-below-gap",
        "timeline--line-over-gap",
        "timeline--focus",
        "timeline--focus-top",
        "timeline--cursor",
        "timeline--label",
        "timeline--axis",
        "timeline--peak",
        "timeline--oom",
    }

    HELP = """\
The curve shows the bytes after every event of the history.

  █ requested   what the code asked for, of live allocations (filled)
  ─ reserved    what PyTorch holds from the driver (line)
  ◆ peak of requested bytes   × OOM   ▲ the cursor

Beside it stand the five categories of what is live at the cursor, with their bytes and shares;
they add up to the requested bytes. `med`, `low` and `none` say how sure a category is, where
that isn't high; in one line, ? marks a guess.

The title names the step and the phase of the run; `inferred`, or ?, where the program didn't
annotate its steps.

Each cell shows the highest value of its stretch of events, so no peak is lost. The panes below
show what is live at the cursor. Click moves the cursor, dragging too; the wheel zooms. With a
filter the part in focus is solid, the rest is shaded ▒.
Up and down move in the tree below, without leaving the curve.
"""

    state: reactive[ViewState | None] = reactive(None)

    class CursorMoved(Message):
        """The user pointed at an event."""

        def __init__(self, event: int) -> None:
            super().__init__()
            self.event = event

    class ZoomAsked(Message):
        """The user turned the wheel over a state."""

        def __init__(self, state: int, *, is_closer: bool) -> None:
            super().__init__()
            self.state = state
            self.is_closer = is_closer

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._plot: Plot | None = None
        self._plot_key: object = None
        self._axis: Axis | None = None
        self._is_dragging = False

    @property
    def plot_width(self) -> int:
        """Cells of the plot, without the labels at its left."""
        return max(self.content_size.width - self._label_cells - 1, _MIN_PLOT_CELLS)

    @property
    def _label_cells(self) -> int:
        return _LABEL_CELLS if self.content_size.width >= 36 else 0

    def watch_state(self) -> None:
        """Draw anew."""
        self._axis = None
        self.refresh()

    def on_resize(self) -> None:
        """Fit the plot to the new size."""
        self.watch_state()

    # -- drawing ----------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Render one row: of the plot, or the axis below it."""
        state, width, height = self.state, self.content_size.width, self.content_size.height
        if state is None or width < _MIN_PLOT_CELLS or height < 2:
            return Strip.blank(width, self.rich_style)
        if not state.opened.has_history:
            return self._render_empty(state, y, width, height)
        num_rows = height - 1
        if y == num_rows:
            line = self._render_axis(state)
        else:
            line = self._render_plot(state, y, num_rows)
        return Strip(line).adjust_cell_length(width, self.rich_style)

    def _render_empty(self, state: ViewState, y: int, width: int, height: int) -> Strip:
        lines = ["no history in this file: it holds the final state only"]
        for advice in state.opened.coverage.advice:
            code, _, why = advice.partition("  # ")
            lines += [f"to record one, {why}:" if why else "to record one:", f"  {code}"]
        place = y - max((height - len(lines)) // 2, 0)
        text = lines[place] if 0 <= place < len(lines) else ""
        style = self._style("timeline--oom") if place == 0 else self.rich_style
        return Strip([Segment("  ", self.rich_style), Segment(text, style)]).adjust_cell_length(width, self.rich_style)

    def _render_plot(self, state: ViewState, y: int, num_rows: int) -> list[Segment]:
        plot = self._plotted(state, num_rows)
        styles = self._plot_styles()
        characters, inks = plot.characters[y].tolist(), plot.inks[y].tolist()
        label = self._label(state, y, num_rows)
        line = [Segment(label, self._style("timeline--label"))] if label else []
        line.append(Segment("┤" if label.strip() else "│", self._style("timeline--axis")))
        cell = self._cursor_cell(state)
        if cell is None:
            return [*line, *segments(characters, inks, styles)]
        under = characters[cell] if inks[cell] in _FILLED else "│"
        cursor = Segment(under, self._style("timeline--cursor"))
        before = segments(characters[:cell], inks[:cell], styles)
        return [*line, *before, cursor, *segments(characters[cell + 1 :], inks[cell + 1 :], styles)]

    def _render_axis(self, state: ViewState) -> list[Segment]:
        if self._axis is None:
            self._axis = Axis(state, self.plot_width)
        axis = self._axis
        styles = {
            AxisInk.LINE: self._style("timeline--axis"),
            AxisInk.LABEL: self._style("timeline--label"),
            AxisInk.PEAK: self._style("timeline--peak"),
            AxisInk.OOM: self._style("timeline--oom"),
            AxisInk.CURSOR: self._style("timeline--cursor"),
        }
        label = "0 B ".rjust(self._label_cells) if self._label_cells else ""
        line = [Segment(label, self._style("timeline--label"))] if label else []
        return [*line, Segment("┼", styles[AxisInk.LINE]), *segments(axis.characters, axis.inks, styles)]

    def _plotted(self, state: ViewState, num_rows: int) -> Plot:
        width = self.plot_width
        key = (state.history, state.window, state.focus, width, num_rows)
        if self._plot is None or key != self._plot_key:
            totals, window = state.history.totals, state.window
            focus = None if state.focus is None else cell_maxima(state.focus.requested_bytes, window, width)
            self._plot = draw(
                fill=cell_maxima(totals.requested_bytes, window, width),
                line=cell_maxima(totals.reserved_bytes, window, width),
                focus=focus,
                top_bytes=self._top_bytes(state),
                num_rows=num_rows,
            )
            self._plot_key = key
        return self._plot

    @staticmethod
    def _top_bytes(state: ViewState) -> int:
        return max(state.opened.peaks.reserved.bytes, state.opened.peaks.requested.bytes, 1)

    def _label(self, state: ViewState, y: int, num_rows: int) -> str:
        """Return the label of a row, which names the height of the row's upper edge."""
        if not self._label_cells:
            return ""
        if y != 0 and (num_rows < 4 or y != num_rows // 2):
            return " " * self._label_cells
        return format_bytes(self._top_bytes(state) * (num_rows - y) // num_rows).rjust(self._label_cells)

    def _cursor_cell(self, state: ViewState) -> int | None:
        window, at = state.window, state.cursor + 1
        if not window.first <= at < window.first + window.num_states:
            return None
        return window.cell_of(at, self.plot_width)

    def _plot_styles(self) -> dict[int, Style]:
        styles = {int(ink): self._style(f"timeline--{ink.name.lower().replace('_', '-')}") for ink in Ink if ink}
        return {int(Ink.BLANK): self.rich_style, **styles}

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name)

    # -- the mouse --------------------------------------------------------------------------

    def _cell_at(self, event: events.MouseEvent) -> int:
        x = event.x - self.gutter.left - self._label_cells - 1
        return min(max(x, 0), self.plot_width - 1)

    def _point_at(self, event: events.MouseEvent) -> None:
        state = self.state
        if state is None or not state.opened.has_history:
            return
        cell = self._cell_at(event)
        found = highest_state(state.history.totals.requested_bytes, state.window, cell, self.plot_width)
        self.post_message(self.CursorMoved(found - 1))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Move the cursor to where the mouse is."""
        self._is_dragging = True
        self.capture_mouse()
        self._point_at(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the cursor."""
        if self._is_dragging:
            self._point_at(event)

    def on_mouse_up(self) -> None:
        """Let the cursor go."""
        self._is_dragging = False
        self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in around the mouse."""
        self._zoom(event, is_closer=True)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out around the mouse."""
        self._zoom(event, is_closer=False)

    def _zoom(self, event: events.MouseEvent, *, is_closer: bool) -> None:
        state = self.state
        if state is None or not state.opened.has_history:
            return
        event.stop()
        at = int(state.window.edges(self.plot_width)[self._cell_at(event)])
        self.post_message(self.ZoomAsked(at, is_closer=is_closer))
