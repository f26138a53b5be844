"""The axis below the curve: ticks with events and times, and the marks of peak, OOMs and cursor."""

from __future__ import annotations

from enum import IntEnum

from snapscope.tui.curve import nice_step
from snapscope.tui.phrases import format_offset
from snapscope.tui.state import ViewState
from snapscope.units import format_count

PEAK_MARK = "◆"
OOM_MARK = "×"
CURSOR_MARK = "▲"
_CELLS_PER_TICK = 22


class AxisInk(IntEnum):
    """What a cell of the axis shows, hence its colour."""

    LINE = 0
    LABEL = 1
    PEAK = 2
    OOM = 3
    CURSOR = 4


class Axis:
    """One line of the axis, `width` cells of character and ink."""

    def __init__(self, state: ViewState, width: int) -> None:
        self.characters = ["─"] * width
        self.inks = [AxisInk.LINE] * width
        self._width = width
        self._ticks(state)
        self._marks(state)

    def _ticks(self, state: ViewState) -> None:
        window, history = state.window, state.history
        step = nice_step(window.num_states, max(self._width // _CELLS_PER_TICK, 1))
        first = max(window.first - 1, 0)
        event = -(-first // step) * step
        free_from = 0
        while event < window.first + window.num_states - 1:
            cell = window.cell_of(event + 1, self._width)
            offset = format_offset(history, event)
            room = self._width - cell - 1
            for label in (f"{format_count(event)} {offset}".rstrip(), format_count(event)):
                if cell >= free_from and len(label) <= room:
                    self._write(cell, "┬", AxisInk.LINE)
                    self._write(cell + 1, label, AxisInk.LABEL)
                    free_from = cell + len(label) + 2
                    break
            event += step

    def _marks(self, state: ViewState) -> None:
        window, history = state.window, state.history
        marks = [(int(event), OOM_MARK, "OOM", AxisInk.OOM) for event in history.tables.events.oom_events[-200:]]
        marks.append((state.opened.peaks.requested.event, PEAK_MARK, "peak", AxisInk.PEAK))
        taken: set[int] = set()
        # The last one written wins: the cursor over all.
        for event, mark, name, ink in marks:
            if not window.first <= event + 1 < window.first + window.num_states:
                continue
            cell = window.cell_of(event + 1, self._width)
            self._write(cell, mark, ink)
            taken.add(cell)
            self._name(cell, name, ink, taken)
        if window.first <= state.cursor + 1 < window.first + window.num_states:
            self._write(window.cell_of(state.cursor + 1, self._width), CURSOR_MARK, AxisInk.CURSOR)

    def _name(self, cell: int, name: str, ink: AxisInk, taken: set[int]) -> None:
        """Write a mark's name to its right, else to its left, where no other mark's is."""
        for start in (cell + 1, cell - len(name)):
            place = range(start, start + len(name))
            if start >= 0 and place.stop <= self._width and not taken.intersection(place):
                self._write(start, name, ink)
                taken.update(place)
                return

    def _write(self, start: int, text: str, ink: AxisInk) -> None:
        for cell, character in enumerate(text, start):
            if 0 <= cell < self._width:
                self.characters[cell] = character
                self.inks[cell] = ink
