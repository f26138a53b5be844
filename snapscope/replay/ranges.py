"""Which address ranges were reserved from the driver, and when.

Ordinary segments come and go whole (`segment_alloc`, `segment_free`). Expandable ones
grow and shrink by pieces (`segment_map`, `segment_unmap`); the picture at the end merges
neighbouring pieces, so they are kept apart here and merged only where a person looks.

The state before the first event is found backwards from the final picture (undo every
event), then one forward pass gives each piece its birth and death.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from snapscope.model import (
    UNKNOWN_POOL,
    Action,
    AddressColumn,
    AllocatorSettings,
    BoolColumn,
    DeviceTables,
    Int8Column,
    Int32Column,
    Int64Column,
    Notice,
    SizeClass,
    Table,
)
from snapscope.replay.pairing import BEFORE, NEVER
from snapscope.replay.rounding import SMALL_SEGMENT_BYTES

_MAX_MAP_EVENTS: Final = 500_000
_NEAR: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTable(Table):
    """Reserved ranges over time, by birth; one row a segment, or a mapped piece of one.

    Attributes:
        addr, size_bytes: the range.
        birth_event: index of the event that reserved it, or `BEFORE`.
        death_event: index of the event that gave it back, or `NEVER`.
        stream, pool, size_class, is_expandable: as in the segment table.
    """

    addr: AddressColumn
    size_bytes: Int64Column
    birth_event: Int64Column
    death_event: Int64Column
    stream: Int64Column
    pool: Int32Column
    size_class: Int8Column
    is_expandable: BoolColumn

    def __len__(self) -> int:
        return len(self.addr)

    def at(self, event: int) -> Int64Column:
        """Return the rows that are reserved after `event`, by address."""
        alive = np.flatnonzero((self.birth_event <= event) & ((self.death_event == NEVER) | (self.death_event > event)))
        return alive[np.argsort(self.addr[alive], kind="stable")]

    def joined_at(self, event: int) -> JoinedRanges:
        """Return the segments that are reserved after `event`, by address.

        Touching pieces of an expandable segment are one, since blocks may straddle them.
        """
        rows = self.at(event)
        start, size, expandable = self.addr[rows], self.size_bytes[rows], self.is_expandable[rows]
        end = start + size.astype(np.uint64)
        joins = np.zeros(len(rows), bool)
        joins[1:] = (start[1:] == end[:-1]) & expandable[1:] & expandable[:-1]
        for column in (self.stream, self.size_class):
            joins[1:] &= column[rows][1:] == column[rows][:-1]
        # Of pieces that went back before the end older traces don't tell the pool.
        pool = self.pool[rows]
        joins[1:] &= (pool[1:] == pool[:-1]) | (pool[1:] == UNKNOWN_POOL) | (pool[:-1] == UNKNOWN_POOL)
        first = np.flatnonzero(~joins)
        if len(first):
            size, pool = np.add.reduceat(size, first), np.maximum.reduceat(pool, first)
        return JoinedRanges(row=rows[first], addr=start[first], size_bytes=size, pool=pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRanges(Table):
    """Segments at one moment, by address.

    Attributes:
        row: row in the range table of the segment's first piece.
        addr, size_bytes: the range.
        pool: of the pieces that tell it.
    """

    row: Int64Column
    addr: AddressColumn
    size_bytes: Int64Column
    pool: Int32Column

    def __len__(self) -> int:
        return len(self.row)

    def home_of(self, addr: AddressColumn) -> Int64Column:
        """Return the row of the segment around each address; −1 outside of all."""
        home = np.searchsorted(self.addr, addr, side="right") - 1
        inside = home >= 0
        ends = self.addr + self.size_bytes.astype(np.uint64)
        inside[inside] = addr[inside] < ends[home[inside]]
        return np.where(inside, home, -1)


@dataclass(slots=True, kw_only=True)
class _Piece:
    start: int
    end: int
    birth: int
    stream: int
    pool: int
    size_class: int
    is_expandable: bool
    death: int = NEVER


class _Pieces:
    """Reserved pieces now, by start address; they never overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, _Piece] = {}
        self.conflict_bytes = 0
        self.num_conflicts = 0

    def __iter__(self) -> Iterator[_Piece]:
        return iter(self._by_start.values())

    def add(self, piece: _Piece) -> None:
        if piece.end <= piece.start:
            return
        for _ in self.cut(piece.start, piece.end):
            self.num_conflicts += 1
            self.conflict_bytes += piece.end - piece.start
        self._by_start[piece.start] = piece
        if not self._starts or piece.start > self._starts[-1]:
            self._starts.append(piece.start)
        else:
            insort(self._starts, piece.start)

    def take(self, start: int, end: int) -> list[_Piece]:
        """Remove [start, end) and return what was there, counting what was not."""
        taken = self.cut(start, end)
        missing = (end - start) - sum(piece.end - piece.start for piece in taken)
        if missing:
            self.num_conflicts += 1
            self.conflict_bytes += missing
        return taken

    def cut(self, start: int, end: int) -> list[_Piece]:
        """Remove [start, end) from whatever pieces it touches; return the parts removed."""
        low = max(bisect_right(self._starts, start) - 1, 0)
        high = bisect_left(self._starts, end)
        touched = [self._by_start[key] for key in self._starts[low:high]]
        removed: list[_Piece] = []
        for piece in touched:
            if piece.end <= start or piece.start >= end:
                continue
            del self._by_start[piece.start]
            del self._starts[bisect_left(self._starts, piece.start)]
            inside = replace(piece, start=max(piece.start, start), end=min(piece.end, end))
            removed.append(inside)
            for rest_start, rest_end in ((piece.start, inside.start), (inside.end, piece.end)):
                if rest_end > rest_start:
                    rest = replace(piece, start=rest_start, end=rest_end)
                    self._by_start[rest_start] = rest
                    insort(self._starts, rest_start)
        return removed


def trace_ranges(tables: DeviceTables, settings: AllocatorSettings) -> tuple[RangeTable, tuple[Notice, ...]]:
    """Rebuild the reserved ranges of one device over its whole history.

    Args:
        tables: the device.
        settings: tell small mapped pieces from large ones by their granule.
    """
    events, segments = tables.events, tables.segments
    is_segment_event = (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    index = np.flatnonzero(is_segment_event)
    notices: list[Notice] = []
    if len(index) > _MAX_MAP_EVENTS:
        notices.append(Notice(code="too_many_segment_events", message="more segment events than can be replayed: "
                              "reserved ranges before the end are unknown", count=len(index)))  # fmt: skip
        index = index[:0]
    script = list(
        zip(
            index.tolist(),
            events.action[index].tolist(),
            events.addr[index].tolist(),
            events.size_bytes[index].tolist(),
            events.stream[index].tolist(),
            events.pool[index].tolist(),
            strict=True,
        )
    )
    granule = max(settings.large_segment_size_bytes, 1)
    pieces = _Pieces()
    columns = (
        segments.addr, segments.size_bytes, segments.stream, segments.pool, segments.size_class, segments.is_expandable
    )  # fmt: skip
    for addr, size, stream, pool, size_class, is_expandable in zip(*(c.tolist() for c in columns), strict=True):
        pieces.add(_Piece(start=addr, end=addr + size, birth=BEFORE, stream=stream, pool=pool, size_class=size_class,
                          is_expandable=is_expandable))  # fmt: skip
    for _, action, addr, size, stream, pool in reversed(script):
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            pieces.take(addr, addr + size)
        else:
            pieces.add(_new_piece(BEFORE, action, addr, size, stream, pool, granule))
    if pieces.num_conflicts:
        notices.append(Notice(code="segment_conflict", message="segment events that contradict each other or the final "
                              "segments", count=pieces.num_conflicts, bytes=pieces.conflict_bytes))  # fmt: skip
    dead: list[_Piece] = []
    for event, action, addr, size, stream, pool in script:
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            dead.extend(_ended(pieces.cut(addr, addr + size), event))
            pieces.add(_new_piece(event, action, addr, size, stream, pool, granule))
        else:
            dead.extend(_ended(pieces.cut(addr, addr + size), event))
    alive = sorted(pieces, key=lambda piece: piece.start)
    if pieces.num_conflicts:
        alive, gone = _agree_with_the_end(alive, dead, tables)
        dead += gone
    return _table([*dead, *_with_final_facts(alive, tables)]), tuple(notices)


def _new_piece(birth: int, action: int, addr: int, size: int, stream: int, pool: int, granule: int) -> _Piece:
    is_expandable = action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    # get_allocation_size: small requests get 2 MiB, nothing else does (AllocatorConfig.h). Several small
    # granules can go back at once, large ones are multiples of theirs.
    is_small = size == SMALL_SEGMENT_BYTES or (is_expandable and size % granule != 0)
    return _Piece(
        start=addr,
        end=addr + size,
        birth=birth,
        stream=stream,
        pool=pool,
        size_class=SizeClass.SMALL if is_small else SizeClass.LARGE,
        is_expandable=is_expandable,
    )


def _ended(pieces: list[_Piece], event: int) -> list[_Piece]:
    return [replace(piece, death=event) for piece in pieces]


def _agree_with_the_end(
    alive: list[_Piece], dead: list[_Piece], tables: DeviceTables
) -> tuple[list[_Piece], list[_Piece]]:
    """Make the end what the final segments say, where segment events are missing (`skip_actions`).

    What should be there but isn't in the picture went back unseen, after the last event of a block
    in it; what is in the picture unannounced came with the first event of a block in it.

    Returns:
        What is alive at the end, and what went back unseen.
    """
    segments, events = tables.segments, tables.events
    starts = segments.addr.tolist()
    final = [(start, start + size) for start, size in zip(starts, segments.size_bytes.tolist(), strict=True)]
    of_blocks = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
    of_blocks = of_blocks[np.argsort(events.addr[of_blocks], kind="stable")]
    addr = events.addr[of_blocks]

    def events_within(start: int, end: int, after: int) -> Int64Column:
        low, high = np.searchsorted(addr, np.array([start, end], np.uint64)).tolist()
        found = of_blocks[low:high]
        return found[found > after]

    kept, gone = [], []
    for piece in alive:
        for start, end in _apart(piece.start, piece.end, final, starts):
            within = events_within(start, end, piece.birth)
            death = int(within.max()) if len(within) else max(piece.birth, 0)
            gone.append(replace(piece, start=start, end=end, death=death))
        kept += [replace(piece, start=start, end=end) for start, end in _common(piece.start, piece.end, final, starts)]
    held = [(piece.start, piece.end) for piece in sorted(kept, key=lambda piece: piece.start)]
    held_starts = [start for start, _ in held]
    deaths = sorted((piece.start, piece.end, piece.death) for piece in dead)
    death_starts = [start for start, _, _ in deaths]
    for start, end in final:
        for low, high in _apart(start, end, held, held_starts):
            # Pieces that went back before lie in the same place, or reach into it from just below.
            place = bisect_right(death_starts, low)
            before = [death for _, top, death in deaths[max(place - _NEAR, 0) : place] if top > low]
            birth = max(before, default=BEFORE)
            within = events_within(low, high, birth)
            if birth != BEFORE and len(within):
                birth = int(within.min())
            kept.append(
                _Piece(
                    start=low, end=high, birth=birth, stream=0, pool=UNKNOWN_POOL, size_class=SizeClass.LARGE,
                    is_expandable=False,
                )
            )  # fmt: skip
    return sorted(kept, key=lambda piece: piece.start), gone


def _common(start: int, end: int, ranges: list[tuple[int, int]], starts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that disjoint ranges, by address, cover."""
    for low, high in ranges[max(bisect_right(starts, start) - 1, 0) : bisect_left(starts, end)]:
        if low < end and high > start:
            yield max(low, start), min(high, end)


def _apart(start: int, end: int, ranges: list[tuple[int, int]], starts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that disjoint ranges, by address, don't cover."""
    cursor = start
    for low, high in _common(start, end, ranges, starts):
        if low > cursor:
            yield cursor, low
        cursor = high
    if cursor < end:
        yield cursor, end


def _with_final_facts(alive: list[_Piece], tables: DeviceTables) -> list[_Piece]:
    """Give surviving pieces the pool and size class that the final segments state."""
    segments = tables.segments
    starts = np.array([piece.start for piece in alive], np.uint64)
    rows = np.searchsorted(segments.addr, starts, side="right") - 1
    out = []
    for piece, row in zip(alive, rows.tolist(), strict=True):
        if row >= 0 and piece.start < int(segments.addr[row]) + int(segments.size_bytes[row]):
            piece = replace(
                piece,
                pool=int(segments.pool[row]),
                stream=int(segments.stream[row]),
                size_class=int(segments.size_class[row]) or piece.size_class,
                is_expandable=bool(segments.is_expandable[row]),
            )
        out.append(piece)
    return out


def _table(pieces: list[_Piece]) -> RangeTable:
    pieces.sort(key=lambda piece: (piece.birth, piece.start))
    return RangeTable(
        addr=np.array([piece.start for piece in pieces], np.uint64),
        size_bytes=np.array([piece.end - piece.start for piece in pieces], np.int64),
        birth_event=np.array([piece.birth for piece in pieces], np.int64),
        death_event=np.array([piece.death for piece in pieces], np.int64),
        stream=np.array([piece.stream for piece in pieces], np.int64),
        pool=np.array([piece.pool for piece in pieces], np.int32),
        size_class=np.array([piece.size_class for piece in pieces], np.int8),
        is_expandable=np.array([piece.is_expandable for piece in pieces], np.bool_),
    )
