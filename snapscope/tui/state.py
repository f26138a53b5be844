"""What is looked at: one frozen value that every view shares.

A view never changes it in place: it asks the app for another one (`dataclasses.replace`),
and every widget follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from snapscope.analyses.coverage import Coverage, Head, find_coverage
from snapscope.analyses.ledger import By
from snapscope.analyses.moments import Peaks, find_moment, find_peaks
from snapscope.analyses.oom import OomReport, find_oom
from snapscope.analyses.selection import select
from snapscope.classify.user_rules import UserRule
from snapscope.history import DeviceHistory
from snapscope.model import Action, BoolColumn, Int64Column
from snapscope.replay import BEFORE, NEVER
from snapscope.tui.curve import Window, highest_state


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """What the user asked to open; see `run_app`.

    Attributes:
        rules_path: the file of the user's own rules.
        rules: what it holds.
    """

    source: str
    device: int | None = None
    at: str | None = None
    focus: str | None = None
    capacity_bytes: int | None = None
    view: str = "timeline"
    rules_path: str | None = None
    rules: tuple[UserRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Focus:
    """A filter on frames.

    Attributes:
        pattern: the regular expression, as typed.
        selection: which rows of the lifetime table it keeps.
        requested_bytes: requested bytes of those after every event, as in `Totals`.
    """

    pattern: str
    selection: BoolColumn
    requested_bytes: Int64Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedDevice:
    """One device, with all that is slow to find out about it.

    Attributes:
        history: the device.
        peaks: its four peaks.
        coverage: what the file tells about it.
        has_history: whether there is a course of events to show, not only a final state.
        oom: why it ran out of memory, for the last `oom` event; None without one.
    """

    history: DeviceHistory
    peaks: Peaks
    coverage: Coverage
    has_history: bool
    oom: OomReport | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewState:
    """What every view shows.

    Attributes:
        request: what was asked to be opened.
        opened: the device.
        cursor: the event looked at; −1 = before the first.
        window: the stretch of the timeline on the screen.
        by: what the live allocations are grouped by.
        shows_calls: a call tree instead of a list of groups.
        focus: the filter.
        shows_all_frames: library and interpreter frames unfolded.
    """

    request: OpenRequest
    opened: OpenedDevice
    cursor: int
    window: Window
    by: By = By.SITE
    shows_calls: bool = False
    focus: Focus | None = None
    shows_all_frames: bool = False

    @property
    def history(self) -> DeviceHistory:
        """The device looked at."""
        return self.opened.history

    @property
    def num_states(self) -> int:
        """States of the whole history: one more than there are events."""
        return self.history.num_events + 1

    def at_event(self, event: int) -> ViewState:
        """Return the state with the cursor at an event (clipped), the window following."""
        event = min(max(event, -1), self.history.num_events - 1)
        return replace(self, cursor=event, window=self.window.around(event + 1, self.num_states))

    def moved_by_cells(self, num_cells: int, width: int) -> ViewState:
        """Return the state with the cursor some cells of a plot of that width further.

        The cursor goes to the highest event of the cell, the one that the cell shows;
        where cells are finer than events, it moves by events.
        """
        if self.window.num_states <= width:
            return self.at_event(self.cursor + num_cells)
        window, state = self.window, self.cursor + 1
        cell = window.cell_of(state, width) + num_cells
        if not 0 <= cell < width:
            beyond = cell - min(max(cell, 0), width - 1)
            window = replace(window, first=window.first + beyond * window.num_states // width).fitted(self.num_states)
            cell = min(max(cell, 0), width - 1)
            if window == self.window:
                return self.at_event(self.history.num_events - 1 if num_cells > 0 else -1)
        found = highest_state(self.history.totals.requested_bytes, window, cell, width)
        return replace(self, cursor=found - 1, window=window)

    def zoomed(self, *, is_closer: bool, state: int | None = None) -> ViewState:
        """Return the state with a window half or twice as long, around the cursor unless told otherwise."""
        around = self.cursor + 1 if state is None else state
        return replace(self, window=self.window.zoomed(around, self.num_states, is_closer=is_closer))

    def unzoomed(self) -> ViewState:
        """Return the state with the whole history on the screen."""
        return replace(self, window=Window(first=0, num_states=self.num_states))

    def next_oom(self) -> int | None:
        """Return the first oom event behind the cursor, else the first; None if there is none."""
        ooms = self.history.tables.events.oom_events
        if not len(ooms):
            return None
        behind = ooms[ooms > self.cursor]
        return int(behind[0] if len(behind) else ooms[0])


def open_device(
    history: DeviceHistory, *, capacity_bytes: int | None = None, on_classify: Callable[[], None] | None = None
) -> OpenedDevice:
    """Work out everything that is slow: the replays, the totals, the coverage, the categories, the steps, the verdict.

    Args:
        history: the device.
        capacity_bytes: the card's size, if the user gave it.
        on_classify: called when the replays are done.
    """
    peaks = find_peaks(history)
    coverage = find_coverage(history)
    if on_classify is not None:
        on_classify()
    # The history keeps it: nothing that draws may have to wait for it.
    _ = history.steps
    moves = history.tables.events.action <= Action.SEGMENT_UNMAP
    return OpenedDevice(
        history=history,
        peaks=peaks,
        coverage=coverage,
        has_history=coverage.head is not Head.NO_HISTORY and bool(moves.any()),
        oom=find_oom(history, capacity_bytes=capacity_bytes) if len(history.tables.events.oom_events) else None,
    )


def answer_event(opened: OpenedDevice) -> int:
    """Return the event to look at first: the last failed request, else the peak, else the end."""
    history = opened.history
    ooms = history.tables.events.oom_events
    if not opened.has_history:
        return history.num_events - 1
    return int(ooms[-1]) if len(ooms) else opened.peaks.requested.event


def first_state(request: OpenRequest, opened: OpenedDevice) -> ViewState:
    """Make the state to open with: at the answer, unless the user asked for another moment.

    Raises:
        UsageError: the moment or the filter means nothing for this file.
    """
    history = opened.history
    return ViewState(
        request=request,
        opened=opened,
        cursor=answer_event(opened) if request.at is None else find_moment(history, request.at).event,
        window=Window(first=0, num_states=history.num_events + 1),
        focus=make_focus(history, request.focus) if request.focus else None,
    )


def make_focus(history: DeviceHistory, pattern: str) -> Focus:
    """Work out which allocations a filter keeps, and their bytes over time.

    Raises:
        UsageError: the pattern is no regular expression.
    """
    selection = select(history, focus=pattern)
    if selection is None:
        selection = np.ones(len(history.lifetimes), bool)
    lifetimes = history.lifetimes
    born, asked = lifetimes.birth_event[selection], lifetimes.free_requested_event[selection]
    sizes = lifetimes.requested_bytes[selection]
    change = np.zeros(history.num_events + 1, np.int64)
    was_live = (asked == NEVER) | (asked >= 0)
    np.add.at(change, np.where(born == BEFORE, 0, born + 1)[was_live], sizes[was_live])
    np.subtract.at(change, asked[asked >= 0] + 1, sizes[asked >= 0])
    return Focus(pattern=pattern, selection=selection, requested_bytes=np.cumsum(change))
