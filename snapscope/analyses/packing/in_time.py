"""Best fit with coalescing, in the order of time: cheap, and often as good as any."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

import numpy as np

from snapscope.analyses.packing.items import Items
from snapscope.model import BoolColumn, Int64Column

# Entries of lists that are moved, and comparisons with what is to come; about 2 s each.
_MOVE_BUDGET: Final = 2_000_000_000
_COMPARE_BUDGET: Final = 20_000_000
_MAX_HOLES_TRIED: Final = 8
_MAX_TO_COME: Final = 64


def sweep(items: Items, fixed: Int64Column, fixed_offset: Int64Column) -> Int64Column:
    """Place items in the order of time, best fit, around those that have their place already.

    Args:
        items: all of them.
        fixed: rows that were placed before, without overlap.
        fixed_offset: where.

    Returns:
        Offsets by row. Where more holes lie between items than the budget can keep account of, the items that come
        later reuse nothing: valid, and useless.
    """
    num_items = len(items)
    is_fixed = np.zeros(num_items, bool)
    is_fixed[fixed] = True
    offset = np.zeros(num_items, np.int64)
    offset[fixed] = fixed_offset
    by_birth = fixed[np.argsort(items.begin[fixed], kind="stable")]
    # The placed items that come while an item lives: by_birth[come[item]:last[item]].
    come = np.searchsorted(items.begin[by_birth], items.begin, side="right").tolist()
    last = np.searchsorted(items.begin[by_birth], items.end, side="left").tolist()
    to_come = by_birth.tolist()
    roof = int((fixed_offset + items.size[fixed]).max(initial=0))

    at, sizes, placed = offset.tolist(), items.size.tolist(), is_fixed.tolist()
    holes = _Holes()
    compared = 0
    steps = _steps(items, is_fixed)
    for count, step in enumerate(steps.tolist()):
        if step < 0:
            holes.give_back(at[~step], sizes[~step])
        elif placed[step]:
            holes.take_at(at[step], sizes[step])
        elif come[step] >= last[step]:
            at[step] = holes.take_best(sizes[step])
        elif last[step] - come[step] > _MAX_TO_COME or compared > _COMPARE_BUDGET:
            at[step] = holes.take_above(roof, sizes[step])
        else:
            ahead = [(at[row], at[row] + sizes[row]) for row in to_come[come[step] : last[step]]]
            compared += len(ahead) * _MAX_HOLES_TRIED
            at[step] = holes.take_clear(sizes[step], ahead)
        if holes.num_moved > _MOVE_BUDGET:
            late = steps[count + 1 :]
            late = late[late >= 0]
            late = late[~is_fixed[late]]
            offset = np.array(at, np.int64)
            offset[late] = max(roof, holes.top) + np.cumsum(items.size[late]) - items.size[late]
            return offset
    return np.array(at, np.int64)


def _steps(items: Items, is_fixed: BoolColumn) -> Int64Column:
    """Order begins (row) and ends (~row): at one time ends first, then placed items, then large before small."""
    rows = np.arange(len(items))
    kind = np.concatenate((np.zeros(len(items), np.int64), np.where(is_fixed, 1, 2)))
    time = np.concatenate((items.end, items.begin))
    order = np.lexsort((-np.tile(items.size, 2), kind, time))
    return np.concatenate((~rows, rows))[order]


class _Holes:
    """Free ranges below the highest byte in use; above it all is free. Neighbours are always merged.

    Attributes:
        top: end of the highest range in use.
        num_moved: entries of lists that were moved so far, at most; quadratic if there are very many holes.
    """

    def __init__(self) -> None:
        self.top = 0
        self.num_moved = 0
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    def _add(self, start: int, size: int) -> None:
        insort(self._starts, start)
        self._sizes[start] = size
        insort(self._by_size, (size, start))
        self.num_moved += len(self._starts)

    def _remove(self, index: int) -> int:
        start = self._starts.pop(index)
        size = self._sizes.pop(start)
        self.num_moved += len(self._starts)
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size

    def take_best(self, size: int) -> int:
        """Take the start of the smallest hole that is large enough, or else the top."""
        index = bisect_left(self._by_size, (size, -1))
        if index == len(self._by_size):
            self.top += size
            return self.top - size
        hole, start = self._by_size.pop(index)
        self.num_moved += len(self._starts)
        place = bisect_left(self._starts, start)
        del self._sizes[start]
        if hole > size:
            self._starts[place] = start + size
            self._sizes[start + size] = hole - size
            insort(self._by_size, (hole - size, start + size))
        else:
            del self._starts[place]
        return start

    def take_at(self, start: int, size: int) -> None:
        """Take a range that is known to be free."""
        if start >= self.top:
            if start > self.top:
                self._add(self.top, start - self.top)
            self.top = start + size
            return
        index = bisect_right(self._starts, start) - 1
        hole_start = self._starts[index]
        hole_end = hole_start + self._remove(index)
        if start > hole_start:
            self._add(hole_start, start - hole_start)
        if hole_end > start + size:
            self._add(start + size, hole_end - start - size)

    def take_above(self, roof: int, size: int) -> int:
        """Take a range that lies above all that is in use, and above `roof`."""
        start = max(self.top, roof)
        self.take_at(start, size)
        return start

    def take_clear(self, size: int, ahead: list[tuple[int, int]]) -> int:
        """Take a range that none of the ranges `ahead` (start, end) touches: either end of a good hole."""
        first = bisect_left(self._by_size, (size, -1))
        for hole, hole_start in self._by_size[first : first + _MAX_HOLES_TRIED]:
            for start in (hole_start, hole_start + hole - size):
                if all(start >= high or start + size <= low for low, high in ahead):
                    self.take_at(start, size)
                    return start
        return self.take_above(max(high for _, high in ahead), size)

    def give_back(self, start: int, size: int) -> None:
        """Free a range, and merge it with the holes beside it."""
        end = start + size
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == end:
            end += self._remove(index)
        if index:
            before = self._starts[index - 1]
            if before + self._sizes[before] == start:
                self._remove(index - 1)
                start = before
        if end == self.top:
            self.top = start
        else:
            self._add(start, end - start)
