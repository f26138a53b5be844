"""The failing request in allocator terms: whose free list it was for, and what that list had."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.analyses.ledger import device_free_at, pool_name
from snapscope.analyses.pools import may_take
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.lifetimes import BEFORE, NEVER
from snapscope.model import DEFAULT_POOL, UNKNOWN_POOL, AllocatorSettings, BoolColumn, SizeClass
from snapscope.replay.rounding import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES, segment_bytes_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that failed, and the free memory that it could and couldn't use.

    Attributes:
        event: the `oom` event.
        requested_bytes: rounded to a block size.
        segment_bytes: what PyTorch's message names: the segment that it would have made.
        driver_bytes: what the driver would have had to give: that segment, or the granules that
            an expandable one would have grown by.
        device_free_bytes: what the driver had; None where the file doesn't tell.
        pool, pool_name: the pool that it was for.
        stream: raw handle.
        size_class: small up to 1 MiB, else large.
        is_expandable: whether it would have grown an expandable segment.
        own_segments: rows of the layout's segments that may serve it.
        holes_bytes, num_holes, largest_hole_bytes: the free pieces of these.
        usable_hole_bytes: the largest that it may take by the allocator's rules.
        other_stream_holes_bytes, largest_other_stream_hole_bytes: of the same pool and size class,
            but for other streams.
        other_class_bytes: free in the other size class of the same pool.
        private_pool_bytes: free in private pools that it wasn't for.
        private_segments_bytes: of these, in segments without any block.
        pending_bytes: blocks of its own segments that wait for another stream.
        largest_with_pending_bytes: the largest piece if these were free.
        returnable_bytes: what ordinary pools still could have given back to the driver, had they
            been let: free segments, and those in which nothing is live but blocks wait for a stream.
        is_capture: whether a CUDA graph was being captured.
        has_only_grown: whether less was ever freed than is free now: then the holes are what
            segments had left over from the start, not what others left behind.
    """

    event: int
    requested_bytes: int
    segment_bytes: int
    driver_bytes: int
    device_free_bytes: int | None
    pool: int
    pool_name: str
    stream: int
    size_class: SizeClass
    is_expandable: bool
    own_segments: BoolColumn
    holes_bytes: int
    num_holes: int
    largest_hole_bytes: int
    usable_hole_bytes: int
    other_stream_holes_bytes: int
    largest_other_stream_hole_bytes: int
    other_class_bytes: int
    private_pool_bytes: int
    private_segments_bytes: int
    pending_bytes: int
    largest_with_pending_bytes: int
    returnable_bytes: int
    is_capture: bool
    has_only_grown: bool


def read_request(history: DeviceHistory, layout: Layout, event: int) -> Request:
    """Read the failing request of an `oom` event; the layout is that after the event."""
    events, settings = history.tables.events, history.snapshot.settings
    segments, pieces = layout.segments, layout.pieces
    requested = int(events.size_bytes[event])
    stream = int(events.stream[event])
    pool = _pool_of(history, event)
    size_class = SizeClass.SMALL if requested <= SMALL_REQUEST_BYTES else SizeClass.LARGE

    # Final segments of old files don't tell their pool: those are ordinary ones.
    in_pool = np.maximum(segments.pool, DEFAULT_POOL) == pool
    in_class = segments.size_class == size_class
    own = in_pool & in_class & (segments.stream == stream)
    of_other_streams = in_pool & in_class & (segments.stream != stream)
    foreign = segments.is_private & ~in_pool
    is_expandable = _grows(history, event, layout, own)

    # Outside of a capture the allocator gives every wholly free segment of ordinary pools back
    # before it gives up (`release_cached_blocks`): what is still there shows that it couldn't.
    ordinary = ~segments.is_private
    returnable = int(segments.returnable_bytes[ordinary].sum())
    is_waiting = ordinary & (segments.allocated_bytes == 0) & (segments.pending_bytes > 0)
    waiting = int((segments.size_bytes - segments.returnable_bytes)[is_waiting].sum())

    own_pieces = pieces.size_bytes[own[pieces.segment]]
    other_pieces = pieces.size_bytes[of_other_streams[pieces.segment]]
    is_usable = may_take(own_pieces, requested, settings) if size_class == SizeClass.LARGE else own_pieces >= requested
    return Request(
        event=event,
        requested_bytes=requested,
        segment_bytes=segment_bytes_for(requested, settings),
        driver_bytes=_driver_bytes(layout, own, requested, settings, is_expandable=is_expandable),
        device_free_bytes=device_free_at(history, event),
        pool=pool,
        pool_name=pool_name(history, pool),
        stream=stream,
        size_class=size_class,
        is_expandable=is_expandable,
        own_segments=own,
        holes_bytes=int(own_pieces.sum()),
        num_holes=len(own_pieces),
        largest_hole_bytes=int(own_pieces.max(initial=0)),
        usable_hole_bytes=int(own_pieces[is_usable].max(initial=0)),
        other_stream_holes_bytes=int(other_pieces.sum()),
        largest_other_stream_hole_bytes=int(other_pieces.max(initial=0)),
        other_class_bytes=int(segments.free_bytes[in_pool & ~in_class].sum()),
        private_pool_bytes=int(segments.free_bytes[foreign].sum()),
        private_segments_bytes=int(segments.returnable_bytes[foreign].sum()),
        pending_bytes=int(segments.pending_bytes[own].sum()),
        largest_with_pending_bytes=_largest_with_pending(layout, own),
        returnable_bytes=returnable + waiting,
        is_capture=(returnable > 0 and not history.has_segment_conflicts) or history.snapshot.pools[pool][0] > 0,
        has_only_grown=_has_only_grown(history, event, int(own_pieces.sum())),
    )


def _has_only_grown(history: DeviceHistory, event: int, holes_bytes: int) -> bool:
    lifetimes = history.lifetimes
    done = lifetimes.free_completed_event
    freed = (done != NEVER) & (done <= event)
    is_whole = not (lifetimes.birth_event == BEFORE).any()
    return is_whole and int(history.blocks.block_bytes[freed].sum()) < holes_bytes


def _pool_of(history: DeviceHistory, event: int) -> int:
    """Return the pool that a request was for.

    Traces before PyTorch 2.12 don't say. Then it is the one of the latest allocation of that
    stream: a capture has a stream of its own.
    """
    pool = int(history.tables.events.pool[event])
    if pool != UNKNOWN_POOL:
        return pool
    lifetimes = history.lifetimes
    same = np.flatnonzero((lifetimes.birth_event < event) & (lifetimes.stream == history.tables.events.stream[event]))
    latest = int(lifetimes.pool[same[-1]]) if len(same) else UNKNOWN_POOL
    return latest if latest > DEFAULT_POOL and int(history.tables.events.stream[event]) else DEFAULT_POOL


def _grows(history: DeviceHistory, event: int, layout: Layout, own: BoolColumn) -> bool:
    """Tell whether the request would have grown an expandable segment.

    The setting in the file is that of the snapshot's moment: where both kinds occur, the latest
    one reserved tells.
    """
    ranges = history.ranges
    until = np.flatnonzero(ranges.birth_event <= event)
    kinds = ranges.is_expandable[until]
    if len(until) and kinds.any() and not kinds.all():
        return bool(kinds[np.argmax(ranges.birth_event[until])])
    if history.snapshot.settings.known:
        return history.snapshot.settings.expandable_segments
    return bool(layout.segments.is_expandable[own].any())


def _driver_bytes(
    layout: Layout, own: BoolColumn, requested: int, settings: AllocatorSettings, *, is_expandable: bool
) -> int:
    """Return what the driver would have been asked for: a segment, or the granules to grow by."""
    if not is_expandable:
        return segment_bytes_for(requested, settings)
    is_small = requested <= SMALL_REQUEST_BYTES
    granule = SMALL_SEGMENT_BYTES if is_small else max(settings.large_segment_size_bytes, 1)
    segments, pieces = layout.segments, layout.pieces
    ends = pieces.offset_bytes + pieces.size_bytes == segments.size_bytes[pieces.segment]
    tails = pieces.size_bytes[ends & (own & segments.is_expandable)[pieces.segment]]
    # The allocator extends the free end of what is mapped; the best end saves most.
    missing = requested - min(int(tails.max(initial=0)), requested - 1)
    return -(-missing // granule) * granule


def _largest_with_pending(layout: Layout, own: BoolColumn) -> int:
    """Return the largest piece of some segments if pending blocks were free."""
    blocks, segments = layout.blocks, layout.segments
    if not segments.pending_bytes[own].any():
        return 0
    live = np.flatnonzero(own[blocks.segment] & ~blocks.is_pending)
    chosen = np.flatnonzero(own)
    segment = np.concatenate((chosen, blocks.segment[live], chosen))
    low = np.concatenate((np.zeros(len(chosen), np.int64), blocks.offset_bytes[live], segments.size_bytes[chosen]))
    high = np.concatenate((np.zeros(len(chosen), np.int64), (blocks.offset_bytes + blocks.size_bytes)[live],
                           segments.size_bytes[chosen]))  # fmt: skip
    order = np.lexsort((high, low, segment))
    gaps = low[order][1:] - high[order][:-1]
    return int(gaps[np.diff(segment[order]) == 0].max(initial=0))
