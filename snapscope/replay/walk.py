"""The one sequential walk over events: the exact size of every block.

A trace holds requested sizes only. What the allocator really handed out follows from the
free ranges at that moment: it takes the range that starts at the alloc's address and
splits it, or not, by `should_split`. So the walk keeps the free ranges of every segment.
Totals and states at any event are then plain sums over columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np

from snapscope.model import (
    DEFAULT_POOL,
    AddressColumn,
    AllocatorSettings,
    BoolColumn,
    DeviceTables,
    Int8Column,
    Int64Column,
    Notice,
    SizeClass,
)
from snapscope.native import core
from snapscope.replay.pairing import BEFORE, NEVER, Pairing
from snapscope.replay.ranges import RangeTable
from snapscope.replay.rounding import MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES, rounder

_CLOSE: Final = 0
_UNRESERVE: Final = 1
_RESERVE: Final = 2
_OPEN: Final = 3
_CHUNK: Final = 1 << 16
# Looking for the free range around an address is linear; contradictory files may not make
# it quadratic. 20 million steps are about a second.
_SEARCH_BUDGET: Final = 20_000_000


# Bounds within which the compiled walk can't overflow.
_MAX_NATIVE_ADDR: Final = 1 << 60
_MAX_NATIVE_BYTES: Final = 1 << 50
_MAX_PADDING: Final = 1 << 12

_Steps: TypeAlias = tuple[Int8Column, Int64Column, AddressColumn, Int64Column]
"""Operation, row, address, requested or reserved bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of the blocks behind the allocations of a `Pairing`, row by row.

    Attributes:
        block_bytes: rounded size.
        is_exact: False where the file can't prove the size; then it is the request
            rounded up.
        notices: what contradicted the allocator's rules.
    """

    block_bytes: Int64Column
    is_exact: BoolColumn
    notices: tuple[Notice, ...]


def size_blocks(
    tables: DeviceTables,
    pairing: Pairing,
    ranges: RangeTable,
    settings: AllocatorSettings,
    *,
    rounds: bool = True,
) -> BlockSizes:
    """Find the block size of every allocation of one device.

    Args:
        tables: the device.
        pairing: its allocations.
        ranges: its reserved ranges over time.
        settings: what decides rounding and splitting.
        rounds: whether requests are rounded at all (pinned host memory records sizes
            that are rounded already).
    """
    walk = _Walk(tables, pairing, ranges, settings, rounds=rounds)
    walk.run()
    return walk.result()


class _Walk:
    def __init__(
        self,
        tables: DeviceTables,
        pairing: Pairing,
        ranges: RangeTable,
        settings: AllocatorSettings,
        *,
        rounds: bool,
    ) -> None:
        self._tables, self._pairing, self._ranges = tables, pairing, ranges
        self._round = rounder(settings) if rounds else (lambda num_bytes: num_bytes)
        self._alignment = settings.large_alignment_bytes
        self._max_split = settings.max_split_size_bytes or 1 << 62
        self._settings, self._rounds = settings, rounds
        self._sizes: list[int] | Int64Column = [0] * len(pairing.addr)
        self._is_exact = bytearray(b"\x01" * len(pairing.addr))
        # Free ranges: end by start, and start by end, for merging in constant time.
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        # Addresses over which free ranges never merge: starts of segments.
        self._borders: set[int] = set()
        # Expandable pieces: who owns the memory that ends, or starts, at an address.
        self._owner_below: dict[int, tuple[int, int]] = {}
        self._owner_above: dict[int, tuple[int, int]] = {}
        # Old blocks whose size isn't certain, by where they seem to end.
        self._elder_by_end: dict[int, int] = {}
        self._search_budget = _SEARCH_BUDGET
        self._num_odd = 0
        self._odd_bytes = 0
        self._splits_small, self._follows_segments = _expandable_at_first(settings, ranges)

    def run(self) -> None:
        self._seed()
        native = core()
        if native is not None and self._is_in_bounds():
            self._replay_natively(native)
        else:
            self._replay()

    # -- the state before the first event ---------------------------------------------------

    def _seed(self) -> None:
        """Set up the free ranges before the first event: what is reserved but not held."""
        pairing, blocks = self._pairing, self._tables.blocks
        alive = np.flatnonzero(pairing.birth_event == BEFORE)
        alive = alive[np.argsort(pairing.addr[alive], kind="stable")]
        elders = list(
            zip(
                alive.tolist(),
                pairing.addr[alive].tolist(),
                pairing.requested_bytes[alive].tolist(),
                pairing.final_block[alive].tolist(),
                strict=True,
            )
        )
        place = 0
        for row, start, end in self._reserved_at_first():
            while place < len(elders) and elders[place][1] < start:
                self._size_elder(elders[place], elders[place][1], None, is_split_small=True)
                place += 1
            cursor = start
            is_split_small = bool(self._ranges.is_expandable[row]) or self._ranges.size_class[row] == SizeClass.SMALL
            while place < len(elders) and elders[place][1] < end:
                elder = elders[place]
                place += 1
                if elder[1] > cursor:
                    self._add_free(cursor, elder[1])
                following = elders[place][1] if place < len(elders) and elders[place][1] < end else end
                cursor = self._size_elder(elder, following, blocks.size_bytes, is_split_small=is_split_small)
            if cursor < end:
                self._add_free(cursor, end)
        for elder in elders[place:]:
            self._size_elder(elder, elder[1], None, is_split_small=True)

    def _reserved_at_first(self) -> Iterator[tuple[int, int, int]]:
        """Yield (row, start, end) of what is reserved before the first event, by address.

        Touching pieces of one expandable segment are one range, since blocks straddle them.
        """
        ranges = self._ranges
        joined: tuple[int, int, int] | None = None
        for row in ranges.at(BEFORE).tolist():
            start = int(ranges.addr[row])
            end = start + int(ranges.size_bytes[row])
            self._mark_reserved(row, start, end)
            if joined is not None and joined[2] == start and start not in self._borders:
                joined = (joined[0], joined[1], end)
                continue
            if joined is not None:
                yield joined
            joined = (row, start, end)
        if joined is not None:
            yield joined

    def _size_elder(
        self,
        elder: tuple[int, int, int, int],
        following: int,
        final_sizes: Int64Column | None,
        *,
        is_split_small: bool,
    ) -> int:
        """Size one block older than the history; return where it ends.

        Args:
            elder: row, address, requested bytes, final block or -1.
            following: address of the next old block, or the end of the segment.
            final_sizes: sizes of the final blocks; None where the block lies in no segment.
            is_split_small: whether remainders from 512 bytes are split off here (small
                segments and expandable ones).
        """
        row, addr, requested, final_block = elder
        if final_block >= 0:
            self._sizes[row] = int(self._tables.blocks.size_bytes[final_block])
            return addr + self._sizes[row]
        size = self._round(requested)
        if final_sizes is None:
            self._sizes[row] = size
            self._is_exact[row] = 0
            return addr + size
        gap = following - (addr + size)
        if gap < 0:
            size, self._is_exact[row] = following - addr, 0
        elif not is_split_small:
            # Every block of a large segment exceeds 1 MiB, since smaller remainders aren't
            # split off: a smaller gap can only be part of this block.
            if gap <= SMALL_REQUEST_BYTES:
                size += gap
            else:
                self._is_exact[row] = 0
                self._elder_by_end[addr + size] = row
        self._sizes[row] = size
        return addr + size

    # -- the walk ---------------------------------------------------------------------------

    def _script(self) -> Iterator[_Steps]:
        """Yield steps in order of events, a chunk at a time.

        At one event memory is first given back, then reserved, then handed out: events
        that stand in for a lost one have the index of the event that proved it.
        """
        pairing, ranges = self._pairing, self._ranges
        born = np.flatnonzero(pairing.birth_event != BEFORE)
        closed = np.flatnonzero(pairing.free_completed_event != NEVER)
        reserved = np.flatnonzero(ranges.birth_event != BEFORE)
        released = np.flatnonzero(ranges.death_event != NEVER)
        event = np.concatenate(
            (
                pairing.free_completed_event[closed],
                ranges.death_event[released],
                ranges.birth_event[reserved],
                pairing.birth_event[born],
            )
        )
        kind = np.repeat(
            np.array([_CLOSE, _UNRESERVE, _RESERVE, _OPEN], np.int8),
            [len(closed), len(released), len(reserved), len(born)],
        )
        row = np.concatenate((closed, released, reserved, born))
        # A life counted as nothing opens and closes at one event: the close must come last.
        is_nothing = np.concatenate(
            (
                pairing.birth_event[closed] == pairing.free_completed_event[closed],
                np.zeros(len(released) + len(reserved) + len(born), bool),
            )
        )
        is_nothing[len(event) - len(born) :] = pairing.birth_event[born] == pairing.free_completed_event[born]
        keep = ~is_nothing
        event, kind, row = event[keep], kind[keep], row[keep]
        order = np.argsort(event, kind="stable")
        for low in range(0, len(order), _CHUNK):
            part = order[low : low + _CHUNK]
            kinds, rows = kind[part], row[part]
            is_block = (kinds == _CLOSE) | (kinds == _OPEN)
            addr = np.zeros(len(part), np.uint64)
            size = np.zeros(len(part), np.int64)
            for mask, table_addr, table_size in (
                (is_block, pairing.addr, pairing.requested_bytes),
                (~is_block, ranges.addr, ranges.size_bytes),
            ):
                addr[mask] = table_addr[rows[mask]]
                size[mask] = table_size[rows[mask]]
            yield kinds, rows, addr, size

    def _is_in_bounds(self) -> bool:
        """Tell whether all that the walk adds up stays within 64 bits, as it does in real files."""
        tables = ((self._pairing.addr, self._pairing.requested_bytes), (self._ranges.addr, self._ranges.size_bytes))
        sizes = [
            int(size.max()) for size in (*(size for _, size in tables), self._tables.blocks.size_bytes) if len(size)
        ]
        steps = 2 * sum(len(size) for _, size in tables)
        return (
            all(int(addr.max()) < _MAX_NATIVE_ADDR for addr, _ in tables if len(addr))
            and all(int(size.min()) >= 0 for _, size in tables if len(size))
            and max(sizes, default=0) <= _MAX_NATIVE_BYTES
            and steps * (max(sizes, default=0) + _MAX_PADDING) < 1 << 61
        )

    def _replay_natively(self, native: ModuleType) -> None:
        """Do what `_replay` does, compiled."""
        ranges, settings = self._ranges, self._settings
        owners: dict[tuple[int, int], int] = {}
        pairs = zip(ranges.stream.tolist(), ranges.size_class.tolist(), strict=True)
        owner = np.array([owners.setdefault(pair, len(owners)) for pair in pairs], np.int64)
        sizes = np.array(self._sizes, np.int64)
        walk = native.BlockWalk(
            sizes, self._is_exact, ranges.is_expandable.view(np.uint8), owner,
            rounds=self._rounds, splits_small=self._splits_small, follows_segments=self._follows_segments,
            padding=settings.request_padding_bytes, alignment=self._alignment, max_split=self._max_split,
            divisions=settings.roundup_power2_divisions, search_budget=self._search_budget,
        )  # fmt: skip
        walk.seed(
            self._end_of,
            self._start_of,
            self._borders,
            {end: owners[pair] for end, pair in self._owner_below.items()},
            {start: owners[pair] for start, pair in self._owner_above.items()},
            self._elder_by_end,
        )
        for kinds, rows, addr, size in self._script():
            walk.run(kinds, rows, addr.view(np.int64), size)
        self._sizes = sizes
        self._num_odd += walk.num_odd
        self._odd_bytes += walk.odd_bytes

    def _replay(self) -> None:
        end_of, start_of, borders = self._end_of, self._start_of, self._borders
        sizes, round_up = self._sizes, self._round
        steps = (zip(*(column.tolist() for column in chunk), strict=True) for chunk in self._script())
        for kind, row, addr, num_bytes in chain.from_iterable(steps):
            if kind == _OPEN:
                rounded = round_up(num_bytes)
                end = end_of.pop(addr, 0)
                rest = end - addr - rounded
                if not end or rest < 0:
                    if end:
                        end_of[addr] = end
                    self._open_oddly(row, addr, rounded)
                elif rest >= MIN_BLOCK_BYTES and self._splits(rounded, rest):
                    end_of[addr + rounded] = end
                    start_of[end] = addr + rounded
                    sizes[row] = rounded
                else:
                    start_of.pop(end, None)
                    sizes[row] = rounded + rest
            elif kind == _CLOSE:
                size = sizes[row]
                if size < 0:
                    # It lay in no free range when it was born, so it gives none back.
                    sizes[row] = -size
                    continue
                end = addr + size
                if end not in borders:
                    after = end_of.pop(end, 0)
                    if after:
                        end = after
                if addr not in borders:
                    before = start_of.pop(addr, -1)
                    if before >= 0:
                        addr = before
                end_of[addr] = end
                start_of[end] = addr
            elif kind == _RESERVE:
                self._reserve(row, addr, addr + num_bytes)
            else:
                self._unreserve(addr, addr + num_bytes)

    def _splits(self, rounded: int, rest: int) -> bool:
        """Tell whether a free range is split (`should_split`); rest is at least 512."""
        if rounded <= SMALL_REQUEST_BYTES or self._splits_small:
            return True
        return rounded < self._max_split and rest > SMALL_REQUEST_BYTES

    def _open_oddly(self, row: int, addr: int, rounded: int) -> None:
        """Hand out memory that isn't, by the walk's own account, the start of a free range."""
        home = self._find_free(addr, addr + rounded)
        start, stop = home or (0, 0)
        is_aligned_up = home is not None and addr - start < self._alignment and addr % self._alignment == 0
        if not is_aligned_up:
            self._is_exact[row] = 0
            self._num_odd += 1
            self._odd_bytes += rounded
        if home is None:
            # Negative: its end must not give back what was never taken.
            self._sizes[row] = -rounded
            return
        elder = self._elder_by_end.get(start)
        if elder is not None and addr - start <= SMALL_REQUEST_BYTES and self._sizes[elder] > 0:
            # The free range in front was really the tail of an old block of unknown size.
            self._sizes[elder] += addr - start
            self._is_exact[elder] = 1
            if not is_aligned_up:
                self._is_exact[row] = 1
                self._num_odd -= 1
                self._odd_bytes -= rounded
            self._end_of.pop(start, None)
        elif start < addr:
            self._add_free(start, addr)
        self._start_of.pop(stop, None)
        rest = stop - addr - rounded
        if rest >= MIN_BLOCK_BYTES and self._splits(rounded, rest):
            self._add_free(addr + rounded, stop)
            rest = 0
        self._sizes[row] = rounded + rest

    def _find_free(self, start: int, end: int) -> tuple[int, int] | None:
        """Find the free range around [start, end), within the budget for such searches."""
        if self._end_of.get(start, 0) >= end:
            return start, self._end_of[start]
        if self._search_budget <= 0:
            return None
        self._search_budget -= len(self._end_of)
        return next(((low, high) for low, high in self._end_of.items() if low <= start and end <= high), None)

    # -- reserved ranges --------------------------------------------------------------------

    def _add_free(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start

    def _mark_reserved(self, row: int, start: int, end: int) -> None:
        """Note a reserved range: blocks merge across the pieces of one expandable segment only."""
        if not self._ranges.is_expandable[row]:
            self._borders.add(start)
            return
        owner = (int(self._ranges.stream[row]), int(self._ranges.size_class[row]))
        if self._owner_below.get(start) != owner:
            self._borders.add(start)
        if self._owner_above.get(end) == owner:
            self._borders.discard(end)
        self._owner_below[end] = owner
        self._owner_above[start] = owner

    def _reserve(self, row: int, start: int, end: int) -> None:
        if self._follows_segments:
            self._splits_small = bool(self._ranges.is_expandable[row])
        self._mark_reserved(row, start, end)
        if end not in self._borders:
            end = self._end_of.pop(end, end)
        if start not in self._borders:
            start = self._start_of.pop(start, start)
        self._add_free(start, end)

    def _unreserve(self, start: int, end: int) -> None:
        """Take a range out of the free memory: the allocator only gives back what is free."""
        home = self._find_free(start, end)
        if home is None:
            self._num_odd += 1
            self._odd_bytes += end - start
            return
        low, high = home
        # Segments that overlap (a contradictory file) may have lost one of the two.
        self._end_of.pop(low, None)
        self._start_of.pop(high, None)
        if low < start:
            self._add_free(low, start)
        if end < high:
            self._add_free(end, high)
        owner = self._owner_above.pop(start, None) or self._owner_below.get(end)
        if owner is not None:
            # What is left on both sides belongs to the same reservation.
            self._owner_below[start] = owner
            self._owner_above[end] = owner
        self._borders.discard(start)

    # -- the outcome ------------------------------------------------------------------------

    def result(self) -> BlockSizes:
        """Return the sizes, with those of the final picture where it knows better."""
        pairing, blocks = self._pairing, self._tables.blocks
        sizes = np.abs(np.array(self._sizes, np.int64))
        is_exact = np.frombuffer(bytes(self._is_exact), np.bool_).copy()
        # Lives of no length never held a block in the replay, and of two old blocks that
        # overlap (something between them was lost) the lower one was cut short.
        for row in np.flatnonzero(sizes < pairing.requested_bytes).tolist():
            sizes[row] = self._round(int(pairing.requested_bytes[row]))
            is_exact[row] = False
        tied = np.flatnonzero(pairing.final_block >= 0)
        final = blocks.size_bytes[pairing.final_block[tied]]
        differs = sizes[tied] != final
        notices = []
        if differs.any():
            notices.append(Notice(
                code="block_size_differs",
                message="final blocks whose size isn't what the allocator's rules give under these settings",
                count=int(differs.sum()), bytes=int(np.abs(sizes[tied] - final)[differs].sum()),
            ))  # fmt: skip
        sizes[tied] = final
        is_exact[tied] = True
        if self._num_odd:
            notices.append(Notice(
                code="replay_conflict",
                message="events that hand out or give back memory that isn't free in the replay: block sizes there are "
                "estimates",
                count=self._num_odd, bytes=self._odd_bytes,
            ))  # fmt: skip
        return BlockSizes(block_bytes=sizes, is_exact=is_exact, notices=tuple(notices))


def _expandable_at_first(settings: AllocatorSettings, ranges: RangeTable) -> tuple[bool, bool]:
    """Tell whether `expandable_segments` was on at first, and whether to follow the segments.

    The setting in the file is that of the snapshot's moment. Where both kinds of segments
    occur in the default pool, it was switched on the way: then the kind of the latest one
    reserved tells.
    """
    kinds = ranges.is_expandable[ranges.pool <= DEFAULT_POOL]
    is_mixed = bool(kinds.any() and not kinds.all())
    if is_mixed:
        return bool(kinds[0]), True
    if settings.known:
        return settings.expandable_segments, False
    return bool(kinds.any()), False
