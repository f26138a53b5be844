"""Intervals to pack, and how much they hold at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.model import Int64Column

MAX_TOTAL_BYTES: Final = 1 << 62
"""Sizes are clipped where a hostile file's add up to more: sums must stay below 2⁶³."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Intervals [begin, end) of some size; none is empty."""

    begin: Int64Column
    end: Int64Column
    size: Int64Column

    def __len__(self) -> int:
        return len(self.size)

    def rows(self, rows: Int64Column) -> Items:
        """Return some of the intervals."""
        return Items(begin=self.begin[rows], end=self.end[rows], size=self.size[rows])

    def reversed(self) -> Items:
        """Return the same intervals on a clock that runs backwards."""
        return Items(begin=-self.end, end=-self.begin, size=self.size)

    def height(self, offset: Int64Column) -> int:
        """Return the highest top."""
        return int((offset + self.size).max(initial=0))


def peak_load(begin: Int64Column, end: Int64Column, size: Int64Column) -> int:
    """Return the most bytes that intervals [begin, end) hold at once."""
    lasts = end > begin
    times = np.concatenate((begin[lasts], end[lasts]))
    order = np.argsort(times, kind="stable")
    load = np.cumsum(np.concatenate((size[lasts], -size[lasts]))[order])
    # Only after the last of several changes at one time.
    is_settled = np.append(np.diff(times[order]) != 0, True)
    return int(load[is_settled[: len(load)]].max(initial=0))
