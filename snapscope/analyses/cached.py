"""Reserved but unused memory at one moment, split by why it is unused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.model import DEFAULT_POOL, AddressColumn, Int64Column, SizeClass
from snapscope.replay import JoinedRanges
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
    segments = ranges.joined_at(event)
    active = np.concatenate((lifetimes.live_at(event), lifetimes.pending_at(event)))
    home = segments.home_of(lifetimes.addr[active])
    active, home = active[home >= 0], home[home >= 0]
    used = np.zeros(len(segments), np.int64)
    np.add.at(used, home, history.blocks.block_bytes[active])
    free = np.maximum(segments.size_bytes - used, 0)

    is_private = ranges.pool[segments.row] > DEFAULT_POOL
    is_expandable = ranges.is_expandable[segments.row]
    returnable = np.where(used == 0, free, 0)
    is_in_granules = (is_expandable & ~is_private)[home]
    inside_of, blocks = home[is_in_granules], active[is_in_granules]
    granule = np.where(
        ranges.size_class[segments.row] == SizeClass.SMALL,
        SMALL_SEGMENT_BYTES,
        history.snapshot.settings.large_segment_size_bytes,
    )
    np.add.at(
        returnable,
        *_free_granules(segments, granule, inside_of, lifetimes.addr[blocks], history.blocks.block_bytes[blocks]),
    )
    return CachedBytes(
        free_segments_bytes=int(returnable[~is_private].sum()),
        holes_bytes=int((free - returnable)[~is_private].sum()),
        private_pool_bytes=int(free[is_private].sum()),
    )


def _free_granules(
    segments: JoinedRanges,
    granule: Int64Column,
    home: Int64Column,
    addr: AddressColumn,
    block: Int64Column,
) -> tuple[Int64Column, Int64Column]:
    """Return pieces of whole granules without any block: those can be unmapped alone.

    Args:
        segments: all of them.
        granule: of every segment.
        home: segment of every block.
        addr, block: address and size of every block.

    Returns:
        Segment and bytes of every piece; of segments that hold a block only.
    """
    if not len(home):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    start, size = segments.addr, segments.size_bytes
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
