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
    by_home = np.argsort(home, kind="stable")
    cuts = np.searchsorted(home[by_home], np.arange(len(first) + 1))
    for segment in np.flatnonzero(is_expandable & ~is_private & (used > 0)).tolist():
        small = ranges.size_class[rows[first[segment]]] == SizeClass.SMALL
        granule = SMALL_SEGMENT_BYTES if small else history.snapshot.settings.large_segment_size_bytes
        blocks = active[by_home[cuts[segment] : cuts[segment + 1]]]
        returnable[segment] = _free_granules(
            int(start[first[segment]]), int(total[segment]), lifetimes.addr[blocks],
            history.blocks.block_bytes[blocks], granule,
        )  # fmt: skip
    return CachedBytes(
        free_segments_bytes=int(returnable[~is_private].sum()),
        holes_bytes=int((free - returnable)[~is_private].sum()),
        private_pool_bytes=int(free[is_private].sum()),
    )


def _free_granules(start: int, size: int, addr: AddressColumn, block: Int64Column, granule: int) -> int:
    """Return the bytes of whole granules without any block: those can be unmapped alone."""
    offset = (addr - np.uint64(start)).astype(np.int64)
    first = offset // granule
    last = (offset + np.maximum(block, 1) - 1) // granule
    order = np.argsort(first, kind="stable")
    first, last = first[order], last[order]
    # Per run of granules between blocks, not per granule: a file may claim any size.
    begin = np.concatenate(([0], np.maximum.accumulate(last) + 1)) * granule
    stop = np.concatenate((first * granule, [size]))
    # The last granule of a range may be cut short where the driver's sizes are odd.
    return int(np.maximum(np.minimum(stop, size) - begin, 0).sum())
