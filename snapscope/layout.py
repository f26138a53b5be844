"""Where everything lies at one moment: segments, the blocks in them, the free pieces between.

Positions follow from columns alone (birth, death and size of every block and reserved
range), so that any event can be looked at without replaying up to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.lifetimes import LifetimeTable
from snapscope.model import (
    DEFAULT_POOL,
    AddressColumn,
    AllocatorSettings,
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    SizeClass,
    Table,
)
from snapscope.replay import JoinedRanges, RangeTable
from snapscope.replay.rounding import SMALL_SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments(Table):
    """The segments at one moment, by address; touching pieces of an expandable one are joined.

    Attributes:
        addr, size_bytes: the range.
        allocated_bytes, pending_bytes: blocks that are live, and that wait for a stream.
        free_bytes: bytes in no block.
        returnable_bytes: the part of them that `empty_cache()` would give back if the pool
            allows it: all of a segment without blocks; in an expandable one its free granules.
        num_blocks: blocks that are live or pending.
        granule_bytes: what the driver takes back at once; the segment's size unless it is
            expandable.
        stream, pool, size_class, is_expandable: as in the segment table.
    """

    addr: AddressColumn
    size_bytes: Int64Column
    allocated_bytes: Int64Column
    pending_bytes: Int64Column
    free_bytes: Int64Column
    returnable_bytes: Int64Column
    num_blocks: Int64Column
    granule_bytes: Int64Column
    stream: Int64Column
    pool: Int32Column
    size_class: Int8Column
    is_expandable: BoolColumn

    def __len__(self) -> int:
        return len(self.addr)

    @property
    def is_private(self) -> BoolColumn:
        """Whether each belongs to a private pool (a CUDA graph's, a MemPool)."""
        return self.pool > DEFAULT_POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks(Table):
    """The blocks in use at one moment, by address.

    Attributes:
        row: row of the lifetime table.
        segment: row of the segments.
        offset_bytes: distance from the segment's start.
        size_bytes: the block, at most what is left of the segment.
        is_pending: its free was asked for, but it waits for another stream.
    """

    row: Int64Column
    segment: Int64Column
    offset_bytes: Int64Column
    size_bytes: Int64Column
    is_pending: BoolColumn

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces(Table):
    """The free pieces at one moment, by address: what lies between blocks, or a whole segment.

    Attributes:
        segment: row of the segments.
        offset_bytes: distance from the segment's start.
        size_bytes: bytes up to the next block or the segment's end.
        returnable_bytes: those in granules without any block.
    """

    segment: Int64Column
    offset_bytes: Int64Column
    size_bytes: Int64Column
    returnable_bytes: Int64Column

    def __len__(self) -> int:
        return len(self.segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Segments, blocks and free pieces after one event.

    Blocks and pieces of a segment sum to its size, unless the file contradicts itself (the
    notices say so).
    """

    event: int
    segments: Segments
    blocks: Blocks
    pieces: Pieces

    def blocks_of(self, segment: int) -> slice:
        """Return which rows of `blocks` lie in a segment."""
        low, high = np.searchsorted(self.blocks.segment, [segment, segment + 1]).tolist()
        return slice(low, high)

    def pieces_of(self, segment: int) -> slice:
        """Return which rows of `pieces` lie in a segment."""
        low, high = np.searchsorted(self.pieces.segment, [segment, segment + 1]).tolist()
        return slice(low, high)

    def hostages(self) -> Int64Column:
        """Return, per block, the free bytes that can't go back to the driver while it is there.

        Those of its segment; in an expandable one those of the granules that it touches.
        """
        segments, blocks = self.segments, self.blocks
        hostage = segments.free_bytes[blocks.segment]
        for segment in np.flatnonzero(segments.is_expandable & (segments.num_blocks > 0)).tolist():
            own = self.blocks_of(segment)
            hostage[own] = _free_around(
                blocks.offset_bytes[own],
                blocks.size_bytes[own],
                int(segments.size_bytes[segment]),
                int(segments.granule_bytes[segment]),
            )
        return hostage


def lay_out(
    lifetimes: LifetimeTable, ranges: RangeTable, block_bytes: Int64Column, settings: AllocatorSettings, event: int
) -> Layout:
    """Lay out one device's memory after `event`.

    Args:
        lifetimes: all allocations.
        ranges: reserved ranges over time.
        block_bytes: exact block size of every row of `lifetimes`.
        settings: give the granule of large expandable segments.
        event: −1 = before the first.
    """
    joined = ranges.joined_at(event)
    live, pending = lifetimes.live_at(event), lifetimes.pending_at(event)
    row = np.concatenate((live, pending))
    is_pending = np.repeat([False, True], [len(live), len(pending)])
    order = np.argsort(lifetimes.addr[row], kind="stable")
    row, is_pending = row[order], is_pending[order]
    home = joined.home_of(lifetimes.addr[row])
    # Blocks outside every segment contradict the file; they are counted by the replay.
    row, is_pending, home = row[home >= 0], is_pending[home >= 0], home[home >= 0]
    offset = (lifetimes.addr[row] - joined.addr[home]).astype(np.int64)
    size = np.minimum(block_bytes[row], joined.size_bytes[home] - offset)
    blocks = Blocks(row=row, segment=home, offset_bytes=offset, size_bytes=size, is_pending=is_pending)

    is_expandable = ranges.is_expandable[joined.row]
    size_class = ranges.size_class[joined.row]
    granule = np.where(
        is_expandable,
        np.where(size_class == SizeClass.SMALL, SMALL_SEGMENT_BYTES, max(settings.large_segment_size_bytes, 1)),
        joined.size_bytes,
    )
    pieces = _pieces(joined, blocks, granule)
    used = np.zeros((2, len(joined)), np.int64)
    np.add.at(used, (is_pending.astype(np.int64), home), size)
    returnable = np.zeros(len(joined), np.int64)
    np.add.at(returnable, pieces.segment, pieces.returnable_bytes)
    segments = Segments(
        addr=joined.addr,
        size_bytes=joined.size_bytes,
        allocated_bytes=used[0],
        pending_bytes=used[1],
        free_bytes=np.maximum(joined.size_bytes - used.sum(axis=0), 0),
        returnable_bytes=returnable,
        num_blocks=np.bincount(home, minlength=len(joined)).astype(np.int64),
        granule_bytes=granule,
        stream=ranges.stream[joined.row],
        pool=joined.pool,
        size_class=size_class,
        is_expandable=is_expandable,
    )
    return Layout(event=event, segments=segments, blocks=blocks, pieces=pieces)


def _pieces(joined: JoinedRanges, blocks: Blocks, granule: Int64Column) -> Pieces:
    """Find the gaps in front of every block, and behind the last one of every segment."""
    home, offset = blocks.segment, blocks.offset_bytes
    start = joined.addr[home]
    # Running maximum over addresses, which grow from segment to segment: blocks that overlap
    # (a contradictory file) must not make a gap twice.
    reach = np.maximum.accumulate(start + (offset + blocks.size_bytes).astype(np.uint64))
    before = (np.maximum(np.append(start[:1], reach[:-1]), start) - start).astype(np.int64)
    is_last = np.append(home[1:] != home[:-1], True)[: len(home)]
    end = np.zeros(len(joined), np.int64)
    end[home[is_last]] = (reach - start).astype(np.int64)[is_last]
    segment = np.concatenate((home, np.arange(len(joined))))
    low = np.concatenate((before, end))
    high = np.concatenate((offset, joined.size_bytes))
    is_free = high > low
    segment, low, high = segment[is_free], low[is_free], high[is_free]
    order = np.lexsort((low, segment))
    segment, low, high = segment[order], low[order], high[order]
    unit = granule[segment]
    # The last granule of a range may be cut short where the driver's sizes are odd.
    first, last = -(-low // unit) * unit, np.where(high == joined.size_bytes[segment], high, high // unit * unit)
    return Pieces(
        segment=segment,
        offset_bytes=low,
        size_bytes=high - low,
        returnable_bytes=np.maximum(last - first, 0),
    )


def _free_around(offset: Int64Column, block: Int64Column, total: int, granule: int) -> Int64Column:
    """Return, per block, the free bytes of the granules that it touches; blocks are by address."""
    low = offset // granule * granule
    high = np.minimum((offset + np.maximum(block, 1) - 1) // granule * granule + granule, total)
    free = high - low - (used_below(high, offset, block) - used_below(low, offset, block))
    return np.maximum(free, 0)


def used_below(places: Int64Column, offset: Int64Column, block: Int64Column) -> Int64Column:
    """Return how many bytes below each place are in a block."""
    sums = np.concatenate(([0], np.cumsum(block)))
    before = np.searchsorted(offset, places, side="left")
    ends = np.concatenate(([0], offset + block))
    over: Int64Column = np.maximum(ends[before] - places, 0)
    used: Int64Column = sums[before] - over
    return used
