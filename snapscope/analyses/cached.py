"""Reserved but unused memory at one moment, split by why it is unused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.model import DEFAULT_POOL, AddressColumn, Int64Column, SizeClass
from snapscope.replay.rounding import SMALL_SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBytes:
    """The three disjoint parts of cached memory.

    Attributes:
        free_segments_bytes: what `empty_cache()` would return: segments without a block in
            use, and wholly free granules of expandable ones.
        holes_bytes: free ranges that live or pending blocks keep from being returned.
        private_pool_bytes: all inactive bytes of private pools, whatever their shape.
    """

    free_segments_bytes: int
    holes_bytes: int
    private_pool_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of the three."""
        return self.free_segments_bytes + self.holes_bytes + self.private_pool_bytes


def split_cached(history: DeviceHistory, event: int) -> CachedBytes:
    """Split what is reserved and not active after `event`; needs the exact block replay."""
    ranges, lifetimes = history.ranges, history.lifetimes
    rows = ranges.at(event)
    if not len(rows):
        return CachedBytes(free_segments_bytes=0, holes_bytes=0, private_pool_bytes=0)
    start = ranges.addr[rows]
    size = ranges.size_bytes[rows]
    end = start + size.astype(np.uint64)
    # Blocks may straddle the pieces of an expandable segment: join what touches.
    joins = np.zeros(len(rows), bool)
    same = [column[rows][1:] == column[rows][:-1] for column in (ranges.stream, ranges.pool, ranges.size_class)]
    expandable = ranges.is_expandable[rows]
    joins[1:] = (start[1:] == end[:-1]) & expandable[1:] & expandable[:-1] & same[0] & same[1] & same[2]
    first = np.flatnonzero(~joins)
    total = np.add.reduceat(size, first)

    active = np.concatenate((lifetimes.live_at(event), lifetimes.pending_at(event)))
    home = np.searchsorted(start[first], lifetimes.addr[active], side="right") - 1
    inside = home >= 0
    inside[inside] = lifetimes.addr[active[inside]] < (start[first] + total.astype(np.uint64))[home[inside]]
    active, home = active[inside], home[inside]
    used = np.zeros(len(first), np.int64)
    np.add.at(used, home, history.blocks.block_bytes[active])
    free = np.maximum(total - used, 0)

    is_private = ranges.pool[rows][first] > DEFAULT_POOL
    is_expandable = expandable[first]
    returnable = np.where(used == 0, free, 0)
    is_in_granules = (is_expandable & ~is_private)[home]
    inside_of, blocks = home[is_in_granules], active[is_in_granules]
    granule = np.where(
        ranges.size_class[rows[first]] == SizeClass.SMALL,
        SMALL_SEGMENT_BYTES,
        history.snapshot.settings.large_segment_size_bytes,
    )
    np.add.at(
        returnable,
        *_free_granules(
            start[first], total, granule, inside_of, lifetimes.addr[blocks], history.blocks.block_bytes[blocks]
        ),
    )
    return CachedBytes(
        free_segments_bytes=int(returnable[~is_private].sum()),
        holes_bytes=int((free - returnable)[~is_private].sum()),
        private_pool_bytes=int(free[is_private].sum()),
    )


def _free_granules(
    start: AddressColumn,
    size: Int64Column,
    granule: Int64Column,
    home: Int64Column,
    addr: AddressColumn,
    block: Int64Column,
) -> tuple[Int64Column, Int64Column]:
    """Return pieces of whole granules without any block: those can be unmapped alone.

    Args:
        start, size, granule: of every segment, in order of address.
        home: segment of every block.
        addr, block: address and size of every block.

    Returns:
        Segment and bytes of every piece; of segments that hold a block only.
    """
    if not len(home):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    offset = (addr - start[home]).astype(np.int64)
    unit = granule[home]
    low = offset // unit * unit
    # The last granule of a range may be cut short where the driver's sizes are odd.
    high = np.minimum(((offset + np.maximum(block, 1) - 1) // unit + 1) * unit, size[home])
    order = np.lexsort((low, home))
    home = home[order]
    begin = start[home] + low[order].astype(np.uint64)
    reach = np.maximum.accumulate(start[home] + high[order].astype(np.uint64))
    before = np.maximum(np.append(np.uint64(0), reach[:-1]), start[home])
    is_last = np.append(home[1:] != home[:-1], True)
    last = home[is_last]
    end = start[last] + size[last].astype(np.uint64)
    pieces = (np.where(begin > before, begin - before, 0), np.where(end > reach[is_last], end - reach[is_last], 0))
    return np.concatenate((home, last)), np.concatenate(pieces).astype(np.int64)
