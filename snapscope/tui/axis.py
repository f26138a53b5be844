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
_MAX_OOMS = 200


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
        self._taken: set[int] = set()
        self._marks(state)
        self._ticks(state)

    def _marks(self, state: ViewState) -> None:
        window, history = state.window, state.history
        marks = [(state.cursor, CURSOR_MARK, "", AxisInk.CURSOR)]
        marks.append((state.opened.peaks.requested.event, PEAK_MARK, "peak", AxisInk.PEAK))
        ooms = history.tables.events.oom_events[-_MAX_OOMS:].tolist()
        marks += [(event, OOM_MARK, "OOM", AxisInk.OOM) for event in reversed(ooms)]
        cells = []
        for event, mark, name, ink in marks:
            if window.first <= event + 1 < window.first + window.num_states:
                cell = window.cell_of(event + 1, self._width)
                cells.append((cell, name, ink))
                if cell not in self._taken:
                    self._write(cell, mark, ink)
        # Names after all marks, so that none hides a mark; the failure's before the peak's.
        for cell, name, ink in sorted(cells, key=lambda item: item[2] is not AxisInk.OOM):
            self._name(cell, name, ink)

    def _name(self, cell: int, name: str, ink: AxisInk) -> None:
        """Write a mark's name to its right, else to its left, where nothing else is."""
        for start in (cell + 1, cell - len(name)):
            if self._is_free(start, len(name)):
                self._write(start, name, ink)
                return

    def _ticks(self, state: ViewState) -> None:
        window, history = state.window, state.history
        step = nice_step(window.num_states, max(self._width // _CELLS_PER_TICK, 1))
        event = -(-max(window.first - 1, 0) // step) * step
        while event < window.first + window.num_states - 1:
            cell = window.cell_of(event + 1, self._width)
            offset = format_offset(history, event) if event else ""
            for label in (f"┬{format_count(event)} {offset}".rstrip(), f"┬{format_count(event)}"):
                if self._is_free(cell, len(label) + 1):
                    self._write(cell, label, AxisInk.LABEL)
                    break
            event += step

    def _is_free(self, start: int, length: int) -> bool:
        place = range(start, start + length)
        return start >= 0 and place.stop <= self._width and self._taken.isdisjoint(place)

    def _write(self, start: int, text: str, ink: AxisInk) -> None:
        for cell, character in enumerate(text, start):
            if 0 <= cell < self._width:
                self.characters[cell] = character
                self.inks[cell] = ink
                self._taken.add(cell)
