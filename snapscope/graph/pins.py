"""Which blocks keep which segment from going back to the driver at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.graph.relations import History
from snapscope.model import AddressColumn, BoolColumn, Int32Column, Int64Column, SizeClass, Table
from snapscope.replay.rounding import SMALL_SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments(Table):
    """The segments at one moment, by address; touching pieces of an expandable one are joined.

    Attributes:
        addr, size_bytes: the range.
        free_bytes: bytes in no block.
        num_blocks: blocks that are live or pending.
        granule_bytes: what the driver takes back at once; the segment's size unless it is
            expandable.
        stream, pool, is_expandable: as in the segment table.
    """

    addr: AddressColumn
    size_bytes: Int64Column
    free_bytes: Int64Column
    num_blocks: Int64Column
    granule_bytes: Int64Column
    stream: Int64Column
    pool: Int32Column
    is_expandable: BoolColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins(Table):
    """Each block in use at one moment with the segment that it pins.

    Attributes:
        row: row of the lifetime table.
        segment: row of `segments`.
        hostage_bytes: free bytes that can't go back to the driver while the block is there:
            those of its segment; in an expandable one those of the granules it touches.
        segments: the segments.
    """

    row: Int64Column
    segment: Int64Column
    hostage_bytes: Int64Column
    segments: Segments


def find_pins(history: History, event: int) -> Pins:
    """Find what pins what after `event`. Every block that is live or pending pins its segment."""
    ranges, lifetimes = history.ranges, history.lifetimes
    joined = ranges.joined_at(event)
    addr, piece, total = joined.addr, joined.row, joined.size_bytes

    active = np.concatenate((lifetimes.live_at(event), lifetimes.pending_at(event)))
    active = active[np.argsort(lifetimes.addr[active], kind="stable")]
    home = joined.home_of(lifetimes.addr[active])
    active, home = active[home >= 0], home[home >= 0]
    offset = (lifetimes.addr[active] - addr[home]).astype(np.int64)
    block = np.minimum(history.blocks.block_bytes[active], total[home] - offset)
    used = np.zeros(len(joined), np.int64)
    np.add.at(used, home, block)

    is_expandable = ranges.is_expandable[piece]
    is_small = ranges.size_class[piece] == SizeClass.SMALL
    large = history.snapshot.settings.large_segment_size_bytes
    granule = np.where(is_expandable, np.where(is_small, SMALL_SEGMENT_BYTES, max(large, 1)), total)
    hostage = np.maximum(total - used, 0)[home]
    # Blocks are in order of address, so those of one segment are neighbours.
    cuts = np.searchsorted(home, np.arange(len(joined) + 1)).tolist()
    for segment in np.flatnonzero(is_expandable & (used > 0)).tolist():
        own = slice(cuts[segment], cuts[segment + 1])
        hostage[own] = _free_around(offset[own], block[own], int(total[segment]), int(granule[segment]))
    return Pins(
        row=active,
        segment=home,
        hostage_bytes=hostage,
        segments=Segments(
            addr=addr,
            size_bytes=total,
            free_bytes=np.maximum(total - used, 0),
            num_blocks=np.bincount(home, minlength=len(joined)).astype(np.int64),
            granule_bytes=granule,
            stream=ranges.stream[piece],
            pool=ranges.pool[piece],
            is_expandable=is_expandable,
        ),
    )


def _free_around(offset: Int64Column, block: Int64Column, total: int, granule: int) -> Int64Column:
    """Return, per block, the free bytes of the granules that it touches; blocks are by address."""
    low = offset // granule * granule
    high = np.minimum((offset + np.maximum(block, 1) - 1) // granule * granule + granule, total)
    free = high - low - (_used_below(high, offset, block) - _used_below(low, offset, block))
    return np.maximum(free, 0)


def _used_below(places: Int64Column, offset: Int64Column, block: Int64Column) -> Int64Column:
    """Return how many bytes below each place are in a block."""
    sums = np.concatenate(([0], np.cumsum(block)))
    before = np.searchsorted(offset, places, side="left")
    ends = np.concatenate(([0], offset + block))
    over: Int64Column = np.maximum(ends[before] - places, 0)
    used: Int64Column = sums[before] - over
    return used
