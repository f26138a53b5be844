"""How small reserved memory could have been: an offline packing of the recorded lifetimes.

Packing intervals of fixed length and size into the least height is *dynamic storage allocation*, which is NP-hard
(Garey & Johnson, SR2); a packing that was found is an upper bound, the load is a lower one, and on recordings of
training the two are mostly equal. The heuristics: first fit by decreasing size, as in compilers that plan memory ahead
(Pisarchyk & Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020), repaired where an item fails to
fit; and best fit in the order of events, forwards and backwards, which costs little.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.lifetimes import NEVER
from snapscope.model import HOST_DEVICE, AllocatorSettings, BoolColumn, Int64Column
from snapscope.replay.rounding import MIN_BLOCK_BYTES, round_request

GRANULE_BYTES: Final = 2 << 20
"""What the driver hands out at least, and the unit in which it maps memory (CUDA's allocation granularity)."""

_MAX_TOTAL_BYTES: Final = 1 << 62
"""Sizes are clipped where a hostile file's add up to more: sums must stay below 2⁶³."""

# Budgets count the microseconds that a step takes on an ordinary machine, not the clock: the same file gives the same
# answer everywhere.
_PLACE_BUDGET: Final = 1_500_000
_REPAIR_BUDGET: Final = 400_000
_ITEM_COST: Final = 9
_ROWS_PER_COST: Final = 250
# Of a sweep: entries of lists that are moved, and comparisons with what is to come; about 2 s each.
_MOVE_BUDGET: Final = 2_000_000_000
_COMPARE_BUDGET: Final = 20_000_000

_ITEMS_PER_WINDOW: Final = 512
_MAX_WINDOWS: Final = 1024
_MAX_HOLES_TRIED: Final = 8
_MAX_TO_COME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What the recorded allocations needed at least, beside what was reserved for them.

    The need is every request as the allocator's own rule rounds it, from its alloc to its free_completed; what a block
    is larger than that (a remainder too small to split off) is the allocator's waste, as are holes and unused segments.

    It is a bound, not a recipe: all requests of the device are packed into one address space by somebody who knows the
    future, while blocks belong to a stream and a private pool, and no allocator is told when a free will come.
    And it knows the recorded history only: what was reserved for allocations that were gone when the recording began
    looks avoidable, all the more in a file without events.

    Attributes:
        peak_reserved_bytes: most that was reserved at once within the history.
        lower_bound_bytes: most that lived at once; no packing can be lower.
        packed_bytes: height of a packing that was found, rounded up to 2 MiB, the driver's granule; never more than
            the allocator itself managed with.
        avoidable_bytes: how much of the reserved peak the packing saves.
        num_lifetimes: how many allocations were packed.
    """

    peak_reserved_bytes: int
    lower_bound_bytes: int
    packed_bytes: int
    avoidable_bytes: int
    num_lifetimes: int


def pack_lifetimes(history: DeviceHistory) -> Packing:
    """Pack the lifetimes of a device as tightly as a few heuristics can.

    Takes n log n in ordinary histories and has a budget for all others; a million events cost between one and two
    plain `pickle.load` of their file. The same history always gives the same answer.
    """
    lifetimes = history.lifetimes
    size = lifetimes.requested_bytes
    if history.device != HOST_DEVICE:
        # Pinned host memory records sizes that are rounded already.
        size = round_requests(size, history.snapshot.settings)
    if float(size.sum(dtype=np.float64)) > _MAX_TOTAL_BYTES:
        size = np.minimum(size, _MAX_TOTAL_BYTES // len(size))
    done = lifetimes.free_completed_event
    begin, end = lifetimes.birth_event, np.where(done == NEVER, history.num_events, done)

    peak_reserved = int(history.totals.reserved_bytes.max())
    lower_bound = peak_load(begin, end, size)
    offset = place(begin, end, size)
    packed = _up_to_granule(int((offset + size).max(initial=0)))
    # The allocator's own layout is a packing too. A damaged history can hold more than it reserves.
    packed = min(packed, max(_up_to_granule(peak_reserved), _up_to_granule(lower_bound)))
    return Packing(
        peak_reserved_bytes=peak_reserved,
        lower_bound_bytes=lower_bound,
        packed_bytes=packed,
        avoidable_bytes=max(0, peak_reserved - packed),
        num_lifetimes=len(lifetimes),
    )


def round_requests(num_bytes: Int64Column, settings: AllocatorSettings) -> Int64Column:
    """Round many requests as `round_request` rounds one."""
    # A run has far fewer different sizes than requests.
    different, which = np.unique(num_bytes, return_inverse=True)
    if any(divisions > 1 for divisions in settings.roundup_power2_divisions):
        rounded = np.array([round_request(size, settings) for size in different.tolist()], np.int64)
    else:
        padded = different + settings.request_padding_bytes
        rounded = np.maximum(-(-padded // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES)
    return rounded[which]


def peak_load(begin: Int64Column, end: Int64Column, size: Int64Column) -> int:
    """Return the most bytes that intervals [begin, end) hold at once."""
    lasts = end > begin
    times = np.concatenate((begin[lasts], end[lasts]))
    order = np.argsort(times, kind="stable")
    load = np.cumsum(np.concatenate((size[lasts], -size[lasts]))[order])
    # Only after the last of several changes at one time.
    is_settled = np.append(np.diff(times[order]) != 0, True)
    return int(load[is_settled[: len(load)]].max(initial=0))


def place(begin: Int64Column, end: Int64Column, size: Int64Column) -> Int64Column:
    """Give every interval an offset, so that no two that meet in time meet in address.

    Args:
        begin, end: times; an interval holds [begin, end), one that ends where it begins holds nothing.
        size: bytes, at least 0.

    Returns:
        Offsets in bytes, from 0. The greatest offset + size is the height of the packing; it is not proven to be the
        least, except where it equals `peak_load`.
    """
    offset = np.zeros(len(begin), np.int64)
    rows = np.flatnonzero((end > begin) & (size > 0))
    if not len(rows):
        return offset
    # What is there all the time can lie at the bottom of any packing.
    is_permanent = (begin[rows] == begin[rows].min()) & (end[rows] == end[rows].max())
    bottom, rows = rows[is_permanent], rows[~is_permanent]
    tops = np.cumsum(size[bottom])
    offset[bottom] = tops - size[bottom]
    if len(rows):
        base = int(tops[-1]) if len(tops) else 0
        items = _Items(begin=begin, end=end, size=size).rows(rows)
        # Less than a granule saves nothing.
        goal = _up_to_granule(base + peak_load(items.begin, items.end, items.size)) - base
        offset[rows] = base + _place_temporary(items, goal)
    return offset


def _up_to_granule(num_bytes: int) -> int:
    return -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Intervals [begin, end) of some size; none is empty."""

    begin: Int64Column
    end: Int64Column
    size: Int64Column

    def __len__(self) -> int:
        return len(self.size)

    def rows(self, rows: Int64Column) -> _Items:
        """Return some of the intervals."""
        return _Items(begin=self.begin[rows], end=self.end[rows], size=self.size[rows])

    def reversed(self) -> _Items:
        """Return the same intervals on a clock that runs backwards."""
        return _Items(begin=-self.end, end=-self.begin, size=self.size)

    def height(self, offset: Int64Column) -> int:
        """Return the highest top."""
        return int((offset + self.size).max(initial=0))


def _place_temporary(items: _Items, goal: int) -> Int64Column:
    """Return the best of several packings; stop at the first that is no higher than `goal`."""
    nothing = np.zeros(0, np.int64)
    best = _sweep(items, nothing, nothing)
    height = items.height(best)
    if height > goal:
        offset = _sweep(items.reversed(), nothing, nothing)
        if items.height(offset) < height:
            best, height = offset, items.height(offset)
    if height > goal:
        offset = _place_by_size(items, goal, height)
        if items.height(offset) < height:
            best = offset
    return best


# ------------------------------------------------------------------------------- in order of time


def _sweep(items: _Items, fixed: Int64Column, fixed_offset: Int64Column) -> Int64Column:
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


def _steps(items: _Items, is_fixed: BoolColumn) -> Int64Column:
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


# ------------------------------------------------------------------------------- largest first


def _place_by_size(items: _Items, goal: int, limit: int) -> Int64Column:
    """Place items largest first, each as low as it fits; what the budget doesn't allow is swept around them.

    Args:
        items: all of them.
        goal: a height that need not be undercut.
        limit: height of the best packing known.
    """
    chosen = _choose(items)
    part = items.rows(chosen)
    order = np.lexsort((part.begin, part.begin - part.end, -part.size)).tolist()
    board = _Board(part)
    if len(chosen) == len(items):
        return board.fill(order, goal, limit)
    # Repairing a part of the items was tried, and the whole was never lower for it.
    return _sweep(items, chosen, board.fill(order, _MAX_TOTAL_BYTES, limit))


def _choose(items: _Items) -> Int64Column:
    """Return the rows that the budget allows to place one by one.

    Bytes × events decide: neither a large item that is there for a moment nor a small one that stays is in the way of
    much, and both find room later.
    """
    by_area = np.argsort(-items.size.astype(np.float64) * (items.end - items.begin), kind="stable")
    num_chosen = len(items)
    while True:
        chosen = np.sort(by_area[:num_chosen])
        if _find_windows(items.rows(chosen)).cost <= _PLACE_BUDGET or num_chosen < 2:
            return chosen
        num_chosen = num_chosen * 2 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """Windows of time.

    Attributes:
        first, last: windows that an item touches, both inclusive.
        num_items: that touch a window.
        cost: of placing all items, in microseconds.
    """

    first: Int64Column
    last: Int64Column
    num_items: Int64Column
    cost: int


def _find_windows(items: _Items) -> _Windows:
    """Cut the time into windows in which about equally many items begin."""
    num_windows = min(max(len(items) // _ITEMS_PER_WINDOW, 1), _MAX_WINDOWS)
    births = np.sort(items.begin)
    edges = np.unique(births[np.arange(1, num_windows) * len(births) // num_windows])
    first = np.searchsorted(edges, items.begin, side="right").astype(np.int64)
    last = np.searchsorted(edges, items.end, side="left").astype(np.int64)
    change = np.bincount(first, minlength=len(edges) + 2) - np.bincount(last + 1, minlength=len(edges) + 2)
    num_items = np.cumsum(change)[:-1].astype(np.int64)
    # Every item is put into every window that it touches.
    cost = int((num_items * (_ITEM_COST + num_items // _ROWS_PER_COST)).sum())
    return _Windows(first=first, last=last, num_items=num_items, cost=cost)


class _Board:
    """Placed items by offset, in windows of time, so that only those of an item's own time are looked through."""

    def __init__(self, items: _Items) -> None:
        self._items = items
        windows = _find_windows(items)
        self._first, self._last = windows.first.tolist(), windows.last.tolist()
        self._begin, self._end, self._size = items.begin.tolist(), items.end.tolist(), items.size.tolist()
        # Rows of a table: begin, end, offset, top, rank in the order.
        self._tables = [np.zeros((5, num_items), np.int64) for num_items in windows.num_items.tolist()]
        self._lengths = [0] * len(self._tables)
        self._offset = [0] * len(items)
        self._cost = windows.cost
        self._spent = 0

    def fill(self, order: list[int], goal: int, limit: int) -> Int64Column:
        """Place all items in this order; then, while the budget lasts, repair the order to get lower.

        Args:
            order: items, all of them.
            goal: a height that need not be undercut.
            limit: height of the best packing known from elsewhere.

        Returns:
            Offsets by item.
        """
        self._place_from(0, order, _MAX_TOTAL_BYTES)
        best = np.array(self._offset, np.int64)
        height = self._items.height(best)
        if 2 * self._cost > _REPAIR_BUDGET:
            return best
        self._spent = 0
        # The goal first, then whatever would be lower than what there is.
        for budget in (_REPAIR_BUDGET // 2, _REPAIR_BUDGET):
            current = order.copy()
            while height > goal and self._spent < budget:
                known = min(height, limit)
                aim = goal if budget < _REPAIR_BUDGET else known - 1 - (known - goal) // 4
                if not self._repair(current, aim, budget):
                    break
                best, order = np.array(self._offset, np.int64), current.copy()
                height = self._items.height(best)
        return best

    def _repair(self, order: list[int], aim: int, budget: int) -> bool:
        """Change the order until no item ends above `aim`; False if that was too expensive.

        An item that doesn't fit is moved in front of one that is in its way, and everything from there on is placed
        anew. Which one is left to chance: the first in its way and any of them both lead astray at times.
        """
        chance = random.Random(0)
        self._remove_from(0)
        failed = self._place_from(0, order, aim)
        while failed < len(order):
            if self._spent > budget:
                return False
            ranks = self._ranks_met(order[failed])
            rank = min(ranks) if chance.random() < 0.5 else chance.choice(ranks)
            order.insert(rank, order.pop(failed))
            self._remove_from(rank)
            failed = self._place_from(rank, order, aim)
        return True

    def _place_from(self, rank: int, order: list[int], aim: int) -> int:
        """Place items from a rank on, each as low as it fits; return the rank of the first that would pass `aim`."""
        while rank < len(order):
            item = order[rank]
            size = self._size[item]
            start = self._find(item)
            if start + size > aim:
                break
            self._offset[item] = start
            row = (self._begin[item], self._end[item], start, start + size, rank)
            for window in range(self._first[item], self._last[item] + 1):
                table, length = self._tables[window], self._lengths[window]
                at = int(table[2, :length].searchsorted(start))
                table[:, at + 1 : length + 1] = table[:, at:length]
                table[:, at] = row
                self._lengths[window] = length + 1
            rank += 1
        return rank

    def _find(self, item: int) -> int:
        """Return the lowest offset at which an item meets none of those placed."""
        first, last = self._first[item], self._last[item]
        low, top = self._met(item, first)
        if last > first:
            parts = [(low, top), *(self._met(item, window) for window in range(first + 1, last + 1))]
            low, top = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
            order = low.argsort(kind="stable")
            low, top = low[order], top[order]
        if not len(low):
            return 0
        # What is free below every placed item; those placed may overlap each other in address.
        reach = np.maximum.accumulate(top)
        fits = low >= self._size[item]
        fits[1:] = low[1:] - reach[:-1] >= self._size[item]
        index = int(fits.argmax())
        if not fits[index]:
            return int(reach[-1])
        return int(reach[index - 1]) if index else 0

    def _met(self, item: int, window: int) -> tuple[Int64Column, Int64Column]:
        """Return offset and top of the placed items of a window that live while an item lives, by offset."""
        self._spent += _ITEM_COST + self._lengths[window] // _ROWS_PER_COST
        begin, end, low, top, _ = self._tables[window][:, : self._lengths[window]]
        met = ((begin < self._end[item]) & (end > self._begin[item])).nonzero()[0]
        return low.take(met), top.take(met)

    def _ranks_met(self, item: int) -> list[int]:
        """Return the ranks of the placed items that live while an item lives."""
        ranks: list[int] = []
        for window in range(self._first[item], self._last[item] + 1):
            begin, end, _, _, rank = self._tables[window][:, : self._lengths[window]]
            ranks += rank[(begin < self._end[item]) & (end > self._begin[item])].tolist()
        return ranks

    def _remove_from(self, rank: int) -> None:
        """Take away all items from a rank on."""
        for window, table in enumerate(self._tables):
            length = self._lengths[window]
            kept = table[:, :length].compress(table[4, :length] < rank, axis=1)
            self._lengths[window] = kept.shape[1]
            table[:, : kept.shape[1]] = kept
            self._spent += _ITEM_COST + length // _ROWS_PER_COST
