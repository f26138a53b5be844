"""How small reserved memory could have been: an offline packing of the recorded lifetimes.

Packing intervals of fixed length and size into the least height is *dynamic storage allocation*, which is NP-hard
(Garey & Johnson, SR2); a packing that was found is an upper bound, the load is a lower one, and on recordings of
training the two are mostly equal. The heuristics: first fit by decreasing size, as in compilers that plan memory ahead
(Pisarchyk & Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020), repaired where an item fails to
fit; and best fit in the order of events, forwards and backwards, which costs little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.packing.by_size import place_by_size
from snapscope.analyses.packing.in_time import sweep
from snapscope.analyses.packing.items import MAX_TOTAL_BYTES, Items, peak_load
from snapscope.history import DeviceHistory
from snapscope.lifetimes import NEVER
from snapscope.model import HOST_DEVICE, AllocatorSettings, Int64Column
from snapscope.replay.rounding import MIN_BLOCK_BYTES, round_request

__all__ = ["GRANULE_BYTES", "Packing", "pack_lifetimes", "peak_load", "place", "round_requests"]

GRANULE_BYTES: Final = 2 << 20
"""What the driver hands out at least, and the unit in which it maps memory (CUDA's allocation granularity)."""


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
    if float(size.sum(dtype=np.float64)) > MAX_TOTAL_BYTES:
        size = np.minimum(size, MAX_TOTAL_BYTES // len(size))
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
        items = Items(begin=begin, end=end, size=size).rows(rows)
        # Less than a granule saves nothing.
        goal = _up_to_granule(base + peak_load(items.begin, items.end, items.size)) - base
        offset[rows] = base + _place_temporary(items, goal)
    return offset


def _up_to_granule(num_bytes: int) -> int:
    return -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES


def _place_temporary(items: Items, goal: int) -> Int64Column:
    """Return the best of several packings; stop at the first that is no higher than `goal`."""
    nothing = np.zeros(0, np.int64)
    best = sweep(items, nothing, nothing)
    height = items.height(best)
    if height > goal:
        offset = sweep(items.reversed(), nothing, nothing)
        if items.height(offset) < height:
            best, height = offset, items.height(offset)
    if height > goal:
        offset = place_by_size(items, goal, height)
        if items.height(offset) < height:
            best = offset
    return best
