"""First fit by decreasing size, repaired where an item fails to fit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.packing.in_time import sweep
from snapscope.analyses.packing.items import MAX_TOTAL_BYTES, Items
from snapscope.model import Int64Column

# Budgets count the microseconds that a step takes on an ordinary machine, not the clock: the same file gives the same
# answer everywhere.
_PLACE_BUDGET: Final = 1_500_000
_REPAIR_BUDGET: Final = 400_000
_ITEM_COST: Final = 9
_ROWS_PER_COST: Final = 250
_ITEMS_PER_WINDOW: Final = 512
_MAX_WINDOWS: Final = 1024


def place_by_size(items: Items, goal: int, limit: int) -> Int64Column:
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
    return sweep(items, chosen, board.fill(order, MAX_TOTAL_BYTES, limit))


def _choose(items: Items) -> Int64Column:
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


def _find_windows(items: Items) -> _Windows:
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

    def __init__(self, items: Items) -> None:
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
        self._place_from(0, order, MAX_TOTAL_BYTES)
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
