"""The curve of the timeline: from columns of bytes to characters, without a terminal.

Positions on the axis are *states*: state 0 is before the first event, state i + 1 after
event i, as in `Totals`. A cell shows the highest value of its stretch of states, so that
no peak is lost, however many events there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from snapscope.model import Int64Column

MIN_STATES: Final = 8
_EIGHTHS: Final = np.array(list(" ▁▂▃▄▅▆▇█"))
# A line has three heights within a cell, the eighths map to them.
_LINE: Final = np.array(list("▁▁▁──▔▔▔"))
_SHADE: Final = "▒"


class Ink(IntEnum):
    """What a cell of the plot shows, hence its colour."""

    BLANK = 0
    FILL = 1
    LINE = 2
    GAP = 3
    FILL_BELOW_GAP = 4
    LINE_OVER_GAP = 5
    FOCUS = 6
    FOCUS_TOP = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The stretch of states on the screen: `num_states` from `first` on."""

    first: int
    num_states: int

    def edges(self, num_cells: int) -> Int64Column:
        """Return the first state of every cell, and the end of the last.

        Where there are fewer states than cells, neighbouring cells show the same state.
        """
        return self.first + np.arange(num_cells + 1, dtype=np.int64) * self.num_states // num_cells

    def cell_of(self, state: int, num_cells: int) -> int:
        """Return the cell that shows a state (the middle one of several); clipped to the window."""
        edges = self.edges(num_cells)[:-1]
        low = int(np.searchsorted(edges, state, side="left"))
        high = int(np.searchsorted(edges, state, side="right")) - 1
        if low > high:
            return min(max(high, 0), num_cells - 1)
        return (low + high) // 2

    def fitted(self, total: int) -> Window:
        """Return the window moved and cut to lie within `total` states."""
        num_states = min(max(self.num_states, 1), total)
        return Window(first=min(max(self.first, 0), total - num_states), num_states=num_states)

    def around(self, state: int, total: int) -> Window:
        """Return the window moved as little as needed to show a state."""
        margin = self.num_states // 10
        first = self.first
        if state < self.first:
            first = state - margin
        elif state >= self.first + self.num_states:
            first = state - self.num_states + 1 + margin
        return Window(first=first, num_states=self.num_states).fitted(total)

    def zoomed(self, state: int, total: int, *, is_closer: bool) -> Window:
        """Return the window with half or twice the states, `state` staying where it is."""
        num_states = self.num_states // 2 if is_closer else self.num_states * 2
        num_states = min(max(num_states, min(MIN_STATES, total)), total)
        share = (state - self.first) / max(self.num_states, 1)
        before = min(round(share * num_states), num_states - 1)
        return Window(first=state - before, num_states=num_states).fitted(total)


def cell_maxima(values: Int64Column, window: Window, num_cells: int) -> Int64Column:
    """Return the highest value of every cell."""
    part = values[window.first : window.first + window.num_states]
    starts = window.edges(num_cells)[:-1] - window.first
    return np.maximum.reduceat(part, starts)


def highest_state(values: Int64Column, window: Window, cell: int, num_cells: int) -> int:
    """Return the first state of a cell at which it is as high as it is drawn."""
    edges = window.edges(num_cells)
    first, end = int(edges[cell]), max(int(edges[cell + 1]), int(edges[cell]) + 1)
    return first + int(np.argmax(values[first:end]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Characters and inks, row by row from the top, all of equal shape."""

    characters: npt.NDArray[np.str_]
    inks: npt.NDArray[np.int8]


def draw(*, fill: Int64Column, line: Int64Column, focus: Int64Column | None, top_bytes: int, num_rows: int) -> Plot:
    """Draw a filled area, a line above it with the gap between, and the part of the area in focus.

    Args:
        fill: height of the area per cell, in bytes.
        line: height of the line.
        focus: height of the part in focus; None = no focus.
        top_bytes: what the upper edge stands for.
        num_rows: rows of the plot.
    """
    steps = num_rows * 8
    fill_level, line_level = _levels(fill, top_bytes, steps), _levels(line, top_bytes, steps)
    base = (np.arange(num_rows)[::-1] * 8)[:, None]
    filled = np.clip(fill_level[None, :] - base, 0, 8)
    characters = _EIGHTHS[filled]
    inks = np.where(filled > 0, Ink.FILL, Ink.BLANK).astype(np.int8)
    # Between the area and the line lies what is reserved but not requested.
    place = line_level[None, :] - 1 - base
    on_line = (place >= 0) & (place < 8) & (filled == 0)
    below_line = place >= 0
    inks[below_line & (filled == 0)] = Ink.GAP
    inks[below_line & (filled > 0) & (filled < 8)] = Ink.FILL_BELOW_GAP
    characters[on_line] = _LINE[place[on_line]]
    inks[on_line] = np.where(place[on_line] >= 6, Ink.LINE_OVER_GAP, Ink.LINE)
    if focus is not None:
        in_focus = np.clip(np.minimum(_levels(focus, top_bytes, steps), fill_level)[None, :] - base, 0, 8)
        # What is out of focus is told by its texture too, not by colour alone.
        characters[(filled == 8) & (in_focus < 8)] = _SHADE
        partly = in_focus > 0
        characters[partly] = _EIGHTHS[in_focus[partly]]
        inks[partly] = Ink.FOCUS
        inks[partly & (in_focus < filled)] = Ink.FOCUS_TOP
    return Plot(characters=characters, inks=inks)


def _levels(values: Int64Column, top_bytes: int, steps: int) -> Int64Column:
    """Scale bytes to eighths of a row; what isn't nothing is at least one."""
    scaled = np.rint(values * (steps / max(top_bytes, 1))).astype(np.int64)
    return np.clip(np.where(values > 0, np.maximum(scaled, 1), 0), 0, steps)


def nice_step(num_states: int, num_ticks: int) -> int:
    """Return 1, 2 or 5 times a power of ten, so that about `num_ticks` of it fit."""
    least = max(num_states / max(num_ticks, 1), 1)
    power = 10 ** int(np.floor(np.log10(least)))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= least)
