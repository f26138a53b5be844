"""How lifetimes relate: who got whose memory, who follows whom, who made room for whom.

Every relation is a list of pairs of rows of the lifetime table, the earlier row first, so
that any graph of them is acyclic. All are found for a whole history at once: two with
sorted columns, `reuses` with one sweep whose work is linear in the number of lifetimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from snapscope.layout import Layout
from snapscope.lifetimes import BEFORE, NEVER, LifetimeTable
from snapscope.model import DEFAULT_POOL, AddressColumn, BoolColumn, DeviceTables, Int64Column, Snapshot, Table
from snapscope.replay import BlockSizes, RangeTable
from snapscope.sites import Site, Sites

_WORD: Final = 10
_IN_WORD: Final = (1 << _WORD) - 1
_NOBODY: Final = -1


class History(Protocol):
    """What the graph needs of a `DeviceHistory`, which stands after it in the flow."""

    @property
    def snapshot(self) -> Snapshot:
        """The whole snapshot."""

    @property
    def tables(self) -> DeviceTables:
        """The device's tables."""

    @property
    def lifetimes(self) -> LifetimeTable:
        """One row per allocation."""

    @property
    def blocks(self) -> BlockSizes:
        """Block size of every row."""

    @property
    def ranges(self) -> RangeTable:
        """Reserved ranges over time."""

    @property
    def sites(self) -> Sites:
        """Sites of the snapshot's stacks."""

    def layout_at(self, event: int) -> Layout:
        """Where everything lies after an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(Table):
    """Pairs of lifetimes that stand in one relation.

    Attributes:
        source: row of the earlier lifetime.
        target: row of the later one; always greater than `source`.
        num_bytes: what the relation is about: see the function that found it.
    """

    source: Int64Column
    target: Int64Column
    num_bytes: Int64Column

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRows:
    """The site of every lifetime.

    Attributes:
        site_of_row: index in `sites`, by row of the lifetime table.
        sites: the sites, each shown by the line of its most bytes.
    """

    site_of_row: Int64Column
    sites: tuple[Site, ...]


def find_sites(history: History) -> SiteRows:
    """Work out sites per distinct stack, then spread them over the lifetimes."""
    lifetimes = history.lifetimes
    # The label of an allocation without a stack depends on whether it predates the history.
    keys = lifetimes.alloc_stack.astype(np.int64) * 2 + (lifetimes.birth_event == BEFORE)
    distinct, which = np.unique(keys, return_inverse=True)
    weight = _sum_by(which, lifetimes.requested_bytes, len(distinct))
    found = [history.sites.of_stack(int(key) >> 1, is_before=bool(key & 1)) for key in distinct.tolist()]
    index: dict[int, int] = {}
    site_of_stack = np.array([index.setdefault(site.number, len(index)) for site in found], np.int64)
    shown: list[Site | None] = [None] * len(index)
    for place in np.argsort(-weight, kind="stable").tolist():
        site = found[place]
        shown[index[site.number]] = shown[index[site.number]] or site
    rows = site_of_stack[which] if len(found) else np.zeros(0, np.int64)
    return SiteRows(site_of_row=rows, sites=tuple(site for site in shown if site is not None))


def find_follows(history: History, rows: SiteRows) -> Pairs:
    """Find, for each allocation, the one before it at the same site; bytes: the later's request.

    What is older than the history has no order, and a bracketed label such as
    `(C++ backward)` is no place in the code: neither takes part.
    """
    lifetimes = history.lifetimes
    is_place = np.array([bool(site.file) for site in rows.sites], bool)
    born = np.flatnonzero(lifetimes.birth_event != BEFORE)
    born = born[is_place[rows.site_of_row[born]]]
    order = born[np.argsort(rows.site_of_row[born], kind="stable")]
    same = np.flatnonzero(np.diff(rows.site_of_row[order]) == 0)
    target = order[same + 1]
    return Pairs(source=order[same], target=target, num_bytes=lifetimes.requested_bytes[target])


def find_made_room(history: History) -> Pairs:
    """Find, for each block that came back, the next request on its stream and pool.

    That is the request since whose predecessor it was freed; bytes: the block that came back.
    """
    lifetimes = history.lifetimes
    group = _group_of(lifetimes)
    span = np.int64(len(history.tables.events) + 2)
    born = np.flatnonzero(lifetimes.birth_event != BEFORE)
    born = born[np.argsort(group[born], kind="stable")]
    keys = group[born] * span + lifetimes.birth_event[born]
    source = np.flatnonzero(lifetimes.free_completed_event != NEVER)
    wanted = group[source] * span + lifetimes.free_completed_event[source]
    at = np.searchsorted(keys, wanted, side="left")
    # A block whose free was lost ended with the next birth; a life of no length with its own.
    is_own = _take(born, at) <= source
    at[is_own] = np.searchsorted(keys, wanted[is_own], side="right")
    target = _take(born, at)
    fits = (target > source) & (group[np.maximum(target, 0)] == group[source])
    source, target = source[fits], target[fits]
    return Pairs(source=source, target=target, num_bytes=history.blocks.block_bytes[source])


def find_reuses(history: History) -> Pairs:
    """Find who got whose memory; bytes: how many of the target's block the source had last.

    For every byte of a block the last owner before counts, whatever its address was, and
    only if its memory stayed reserved in between. So the bytes of all pairs with one target
    come to its block at most.
    """
    lifetimes, ranges = history.lifetimes, history.ranges
    released = np.flatnonzero(ranges.death_event != NEVER)
    # Memory that goes back to the driver belongs to nobody: releases stand before births.
    start = np.concatenate((ranges.addr[released], lifetimes.addr))
    size = np.concatenate((ranges.size_bytes[released], history.blocks.block_bytes))
    event = np.concatenate((ranges.death_event[released], lifetimes.birth_event))
    owner = np.concatenate((np.full(len(released), _NOBODY), np.arange(len(lifetimes))))
    order = np.argsort(event, kind="stable")
    order = order[size[order] > 0]
    sweep = _Sweep(start[order], _end_of(start[order], size[order]), owner[order])
    source, target, num_bytes = sweep.run()
    done = lifetimes.free_completed_event[source]
    # Files that contradict themselves may have blocks that overlap while both are in use.
    is_dead = (done != NEVER) & (done <= lifetimes.birth_event[target])
    return _merge(source[is_dead], target[is_dead], num_bytes[is_dead], len(lifetimes))


class _Sweep:
    """Who owned each byte last: lifetimes paint their blocks in order of birth.

    Addresses are numbered (every start and end of a block is a place), and the painted
    pieces cover all places without gaps: a piece is known by its first place. A birth adds
    at most two pieces and removes those that it covers, so the whole sweep is linear.
    """

    def __init__(self, start: AddressColumn, end: AddressColumn, owner: Int64Column) -> None:
        self._places, index = np.unique(np.concatenate((start, end)), return_inverse=True)
        self._low, self._high = index[: len(start)].tolist(), index[len(start) :].tolist()
        self._owner = owner.tolist()

    def run(self) -> tuple[Int64Column, Int64Column, Int64Column]:
        """Return (former owner, new owner, bytes) of every piece that changed hands."""
        num_places = len(self._places)
        source: list[int] = []
        target: list[int] = []
        left: list[int] = []
        right: list[int] = []
        if num_places:
            self._paint(num_places, source, target, left, right)
        places = self._places
        num_bytes = (places[np.array(right, np.int64)] - places[np.array(left, np.int64)]).astype(np.int64)
        return np.array(source, np.int64), np.array(target, np.int64), num_bytes

    def _paint(self, num_places: int, source: list[int], target: list[int], left: list[int], right: list[int]) -> None:
        end_of = [0] * num_places
        owner_of = [_NOBODY] * num_places
        end_of[0] = num_places - 1
        firsts = _Places(num_places)
        firsts.add(0)
        for owner, low, high in zip(self._owner, self._low, self._high, strict=True):
            if end_of[low] == high:
                # By far the commonest: a block of the same size as the one before it.
                former = owner_of[low]
                owner_of[low] = owner
                if former >= 0 <= owner:
                    source.append(former)
                    target.append(owner)
                    left.append(low)
                    right.append(high)
                continue
            piece = first = low if end_of[low] else firsts.at_or_before(low)
            while True:
                stop, former = end_of[piece], owner_of[piece]
                if former >= 0 <= owner:
                    source.append(former)
                    target.append(owner)
                    left.append(max(piece, low))
                    right.append(min(stop, high))
                if piece > low:
                    end_of[piece] = 0
                    firsts.remove(piece)
                if stop >= high:
                    break
                piece = stop
            if stop > high:
                end_of[high], owner_of[high] = stop, former
                firsts.add(high)
            if first < low:
                end_of[first] = low
                firsts.add(low)
            end_of[low], owner_of[low] = high, owner


class _Places:
    """A set of small numbers that finds the greatest one not above another, in constant time."""

    def __init__(self, size: int) -> None:
        self._words = [0] * ((size >> _WORD) + 1)
        self._filled = 0

    def add(self, place: int) -> None:
        self._words[place >> _WORD] |= 1 << (place & _IN_WORD)
        self._filled |= 1 << (place >> _WORD)

    def remove(self, place: int) -> None:
        word = place >> _WORD
        self._words[word] &= ~(1 << (place & _IN_WORD))
        if not self._words[word]:
            self._filled &= ~(1 << word)

    def at_or_before(self, place: int) -> int:
        """Return the greatest number up to `place`; there must be one."""
        word = place >> _WORD
        inside = self._words[word] & ((2 << (place & _IN_WORD)) - 1)
        if not inside:
            word = (self._filled & ((1 << word) - 1)).bit_length() - 1
            inside = self._words[word]
        return (word << _WORD) + inside.bit_length() - 1


def _end_of(start: AddressColumn, size: Int64Column) -> AddressColumn:
    """Return where ranges end; those that a hostile file lets run over 2⁶⁴ end there."""
    end: AddressColumn = start + size.astype(np.uint64)
    end[end < start] = np.uint64((1 << 64) - 1)
    return end


def _group_of(lifetimes: LifetimeTable) -> Int64Column:
    """Number the pairs of stream and pool: memory never moves between them.

    A pool that isn't recorded counts as the default one: before PyTorch 2.12 only segments
    that are there at the end tell theirs.
    """
    _, stream = np.unique(lifetimes.stream, return_inverse=True)
    pool = np.maximum(lifetimes.pool.astype(np.int64), DEFAULT_POOL)
    group: Int64Column = stream.astype(np.int64) * (pool.max(initial=0) + 1) + pool
    return group


def _take(values: Int64Column, at: Int64Column) -> Int64Column:
    """Return values at these places, −1 beyond the last."""
    out = np.full(len(at), -1, np.int64)
    inside = at < len(values)
    out[inside] = values[at[inside]]
    return out


def _merge(source: Int64Column, target: Int64Column, num_bytes: Int64Column, span: int) -> Pairs:
    """Add up the pieces of each pair; pairs come out by source, then target."""
    keys = source * np.int64(max(span, 1)) + target
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    sums = np.add.reduceat(num_bytes[order], first) if len(first) else num_bytes[:0]
    return Pairs(source=source[order[first]], target=target[order[first]], num_bytes=sums)


def _sum_by(group: Int64Column, values: Int64Column, num_groups: int) -> Int64Column:
    """Sum integers by group, exactly."""
    out = np.zeros(num_groups, np.int64)
    np.add.at(out, group, values)
    return out


def neighbours(pairs: Sequence[Pairs], chosen: BoolColumn) -> BoolColumn:
    """Return the chosen rows and all that stand in one of these relations to them."""
    out = chosen.copy()
    for some in pairs:
        out[some.target[chosen[some.source]]] = True
        out[some.source[chosen[some.target]]] = True
    return out
