"""The timeline view: the curve, what is live at the cursor, and the selected row in detail."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from snapscope.analyses.ledger import By
from snapscope.tui.background import Background, post_from_thread
from snapscope.tui.phrases import answer_line, head_line
from snapscope.tui.rows import LiveRows, RowsRequest, copy_text, work_out_rows
from snapscope.tui.screens.view import ViewScreen
from snapscope.tui.state import ViewState
from snapscope.tui.widgets.categories import CategoryPane
from snapscope.tui.widgets.detail import DetailPane
from snapscope.tui.widgets.keybar import KeyBar
from snapscope.tui.widgets.live_tree import LiveTree
from snapscope.tui.widgets.timeline import CurvePane, TimelineView

_PAGE_CELLS = 10


class _RowsReady(Message):
    """The thread has grouped what is live."""

    def __init__(self, live: LiveRows) -> None:
        super().__init__()
        self.live = live


class TimelineScreen(ViewScreen):
    """Where memory went over time; every pane follows the cursor of the curve."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (76, "-middle"), (110, "-wide")]
    VERTICAL_BREAKPOINTS = [
        (0, "-tiny"),
        (14, "-short"),
        (22, "-normal"),
        (34, "-tall"),
    ]

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "cells(-1)", "one cell back, or one event when zoomed in", show=False),
        Binding("right", "cells(1)", "move: one cell forward, or one event when zoomed in", key_display="←→"),
        Binding("l", "cells(1)", "move: one cell forward, or one event when zoomed in", show=False),
        Binding("shift+left,less_than_sign", f"cells(-{_PAGE_CELLS})", "ten cells back", show=False),
        Binding("shift+right,greater_than_sign", f"cells({_PAGE_CELLS})", "ten cells forward", show=False),
        Binding("home", "go('start')", "before the first event", show=False),
        Binding("end", "go('end')", "the last event", show=False),
        Binding("plus,equals_sign", "zoom(True)", "zoom: in, around the cursor", key_display="+-"),
        Binding("minus", "zoom(False)", "zoom out", key_display="-", show=False),
        Binding("0", "unzoom", "the whole history", show=False),
        Binding("up,k", "row(-1)", "row up in the tree", show=False),
        Binding("down,j", "row(1)", "row down in the tree", show=False),
        Binding("enter,space", "open_row", "open or close the row", show=False),
        Binding("n", "top_row(1)", "next row of the first level (site, file, …)", show=False),
        Binding("N", "top_row(-1)", "previous row of the first level", show=False),
        Binding("z", "maximise", "maximise: the focused pane over the whole screen, and back"),
        Binding("y", "copy_row", "copy the selected row", show=False),
        Binding("tab", "app.focus_next", "pane: to the next"),
        Binding("shift+tab", "app.focus_previous", "to the previous pane", show=False),
    ]

    def key_order(self) -> tuple[str, ...]:
        """Offer the way back first, where there is one."""
        first = ("maximise",) if self.has_class("-one-pane") else ()
        acts = "cells open go next_oom verdict zoom go_to filter toggle_calls next_by focus_next next_device maximise"
        return (*first, *acts.split())

    def key_names(self) -> dict[str, str]:
        """Say what the keys would switch to."""
        if self.state is None:
            return {}
        return {
            "toggle_calls": f"by {self.state.by.value}" if self.state.shows_calls else "calls",
            "filter": "filter" if self.state.focus is None else "filter (on)",
            "maximise": "all panes" if self.has_class("-one-pane") else "maximise",
        }

    def __init__(self) -> None:
        super().__init__()
        self._work = Background[RowsRequest, LiveRows](
            work_out_rows,
            deliver=lambda live: post_from_thread(self, _RowsReady(live)),
            fail=lambda error: self.shared.fail_from_thread(error),
        )
        self._shown_for: ViewState | None = None
        self.timeline = TimelineView(id="timeline")
        self.categories = CategoryPane(id="categories")
        self.curve = CurvePane(self.timeline, self.categories, id="curve")
        self.live_tree = LiveTree(id="live")
        self.detail = DetailPane(id="detail")

    def compose(self) -> ComposeResult:
        """Lay the panes out."""
        yield Static(id="head", markup=False)
        yield Static(id="answer", markup=False)
        yield self.curve
        with Container(id="lower"):
            yield self.live_tree
            yield self.detail
        yield KeyBar(id="keys", key_order=self.key_order, key_names=self.key_names)

    def on_mount(self) -> None:
        """Start at the curve (Textual calls the base class's handler too)."""
        self.timeline.focus()

    def on_unmount(self) -> None:
        """Let the thread go."""
        self._work.close()

    @property
    def is_settled(self) -> bool:
        """Whether all panes show the shared state."""
        live = self.live_tree.live
        is_current = live is not None and live.state is self.state and self.detail.live is live
        return is_current and not self.live_tree.is_waiting

    # -- following the state ----------------------------------------------------------------

    def show_state(self, state: ViewState) -> None:
        """Draw the curve at once; what is live follows from the thread."""
        before, self._shown_for = self._shown_for, state
        if before is not None and _asks_for_other_rows(before, state):
            self.live_tree.forget_selection()
        self.set_class(not state.opened.has_history, "-no-history")
        self.curve.state = state
        self.detail.shows_all_frames = state.shows_all_frames
        self._write_head(state)
        self._work.submit(RowsRequest(state=state, open_paths=self.live_tree.open_paths))

    def on_resize(self) -> None:
        """Fit the head lines."""
        if self.state is not None:
            self._write_head(self.state)

    def _write_head(self, state: ViewState) -> None:
        width = self.size.width - 2
        self.query_one("#head", Static).update(head_line(state, width))
        self.query_one("#answer", Static).update(answer_line(state, width))

    @on(_RowsReady)
    def show_rows(self, message: _RowsReady) -> None:
        """Show what is live."""
        self.live_tree.live = message.live
        self.categories.show(message.live)

    @on(LiveTree.InsideAsked)
    def look_inside(self) -> None:
        """Find out what is inside the rows that are open."""
        if self.state is not None:
            paths, live = self.live_tree.open_paths, self.live_tree.live
            self._work.submit(RowsRequest(state=self.state, open_paths=paths, before=live))

    @on(LiveTree.RowSelected)
    def show_detail(self, message: LiveTree.RowSelected) -> None:
        """Explain the selected row."""
        if self.live_tree.live is not None:
            self.detail.show(self.live_tree.live, message.row)

    @on(CategoryPane.Chosen)
    def group_by_category(self) -> None:
        """Show the allocations behind the categories."""
        if self.state is not None:
            self.look(replace(self.state, by=By.CATEGORY, shows_calls=False))

    @on(TimelineView.CursorMoved)
    def move_cursor(self, message: TimelineView.CursorMoved) -> None:
        """Follow the mouse."""
        if self.state is not None and message.event != self.state.cursor:
            self.look(self.state.at_event(message.event))

    @on(TimelineView.ZoomAsked)
    def zoom_at_mouse(self, message: TimelineView.ZoomAsked) -> None:
        """Zoom around the mouse."""
        if self.state is not None:
            self.look(self.state.zoomed(is_closer=message.is_closer, state=message.state))

    @on(LiveTree.DetailAsked)
    def enter_detail(self) -> None:
        """Give the detail pane the screen."""
        self.detail.focus()
        self._maximise(self.detail)

    # -- acts -------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys do something for this file."""
        if action in ("cells", "zoom", "unzoom") and self.state is not None:
            return self.state.opened.has_history
        return super().check_action(action, parameters)

    def action_cells(self, num_cells: int) -> None:
        """Move the cursor by cells of the plot."""
        if self.state is not None:
            self.look(self.state.moved_by_cells(num_cells, self.timeline.plot_width))

    def action_zoom(self, is_closer: bool) -> None:
        """Zoom around the cursor."""
        if self.state is not None:
            self.look(self.state.zoomed(is_closer=is_closer))

    def action_unzoom(self) -> None:
        """Show the whole history."""
        if self.state is not None:
            self.look(self.state.unzoomed())

    def action_row(self, step: int) -> None:
        """Move in the tree while the curve has the focus."""
        self.live_tree.action_select(step)

    def action_open_row(self) -> None:
        """Open or close a row while the curve has the focus."""
        self.live_tree.action_open_or_close()

    def action_top_row(self, step: int) -> None:
        """Go to the next row of the first level."""
        self.live_tree.select_top_level(step)

    def action_copy_row(self) -> None:
        """Copy the selected row."""
        row = self.live_tree.selected_row
        if row is not None:
            self.app.copy_to_clipboard(copy_text(row))
            self.notify(f"copied: {copy_text(row)}", markup=False, timeout=2)

    def action_maximise(self) -> None:
        """Give the focused pane the whole screen, or take it back."""
        if self.focused is not None:
            self._maximise(None if self.has_class("-one-pane") else self.focused)

    def action_back(self) -> None:
        """Restore the panes; with all of them there, clear the filter."""
        if self.has_class("-one-pane"):
            self._maximise(None)
        else:
            super().action_back()

    def _maximise(self, pane: Widget | None) -> None:
        self.set_class(pane is not None, "-one-pane")
        self.set_class(pane is self.timeline, "-only-curve")
        pane = self.curve if pane is self.timeline else pane
        for other in (self.curve, self.live_tree, self.detail):
            other.set_class(other is pane, "-the-pane")
        self.refresh_bindings()


def _asks_for_other_rows(before: ViewState, after: ViewState) -> bool:
    """Tell whether rows of one state mean nothing in the other."""
    return (
        before.by is not after.by
        or before.shows_calls != after.shows_calls
        or before.history is not after.history
        or before.focus is not after.focus
    )
