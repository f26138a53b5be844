"""Free but unused memory at one moment: how much, why it can't be used, and who is in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.cached import CachedBytes, split_cached
from snapscope.analyses.coverage import Head, find_head
from snapscope.analyses.ledger import Balance, balance
from snapscope.analyses.moments import Moment
from snapscope.analyses.packing import Packing, pack_lifetimes
from snapscope.analyses.pinning import (
    FreeingSet,
    LargestHole,
    PinRow,
    find_cells,
    largest_hole,
    pin_rows,
    smallest_for_return,
)
from snapscope.analyses.pools import PendingRow, PoolRow, pending_rows, pool_rows
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.model import BoolColumn, Int64Column, SizeClass
from snapscope.replay.rounding import (
    MIN_LARGE_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes_for,
)

_CURVE_POINTS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSplit:
    """Reserved memory that holds no requested byte, in four disjoint parts.

    Attributes:
        free_segments_bytes: wholly free segments and granules of ordinary pools.
        holes_bytes: free pieces of ordinary pools that blocks keep from going back.
        rounding_bytes: what live blocks have more than was asked for: rounding, and remainders
            that weren't split off.
        other_pool_bytes: free, but only for the CUDA graph or MemPool it belongs to.
        other_stream_bytes: of the first two, what belongs to another stream than `stream`.
        stream: the stream of most reserved bytes in ordinary pools; None without any.
        num_holes: pieces that make up `holes_bytes`.
        largest_hole_bytes: the largest of them.
        largest_cached_request_bytes: the largest request that cached memory would serve on
            `stream`, by the allocator's rules (best fit within one pool, stream and size class).
        largest_request_bytes: the largest that would succeed: that one, or what a new segment
            could hold where an `oom` event tells what the driver has free.
    """

    free_segments_bytes: int
    holes_bytes: int
    rounding_bytes: int
    other_pool_bytes: int
    other_stream_bytes: int
    stream: int | None
    num_holes: int
    largest_hole_bytes: int
    largest_cached_request_bytes: int
    largest_request_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The free memory after one event.

    Attributes:
        event: index; −1 = before the first.
        step: name of the step that ends there; None where the points are evenly spaced.
        reserved_bytes, allocated_bytes, free_segments_bytes, holes_bytes, other_pool_bytes,
            largest_hole_bytes: as everywhere.
    """

    event: int
    step: str | None
    reserved_bytes: int
    allocated_bytes: int
    free_segments_bytes: int
    holes_bytes: int
    other_pool_bytes: int
    largest_hole_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """All about free memory at one moment.

    Attributes:
        at: the moment.
        balance: the ladder.
        split: the free memory in four.
        pools: free lists of the allocator.
        layout: where every block and hole lies.
        pins: sites whose blocks hold free memory.
        largest_hole: the largest free piece that blocks pin, and which; None if none.
        cheapest: the blocks whose end would let most go back for what they are; None if none.
        pending: what waits for another stream.
        curve: the free memory over the history: at the end of every step where there are some.
        packing: how small `reserved` could have been; None without a history.
        is_whole: whether the history begins with the program: else what was freed before it may
            have needed memory that looks avoidable.
    """

    at: Moment
    balance: Balance
    split: FreeSplit
    pools: tuple[PoolRow, ...]
    layout: Layout
    pins: tuple[PinRow, ...]
    largest_hole: LargestHole | None
    cheapest: FreeingSet | None
    pending: tuple[PendingRow, ...]
    curve: tuple[CurvePoint, ...]
    packing: Packing | None
    is_whole: bool


def fragmentation(
    history: DeviceHistory, at: Moment, *, capacity_bytes: int | None = None, selection: BoolColumn | None = None
) -> Fragmentation:
    """Analyse the free memory after `at`; needs the exact block replay.

    Args:
        history: the device.
        at: when.
        capacity_bytes: the card's size, which no snapshot holds.
        selection: rows of the lifetime table whose sites are told apart in `pins`.
    """
    curve = free_curve(history)
    layout = history.layout_at(at.event)
    ladder = balance(history, at, capacity_bytes=capacity_bytes)
    pools = pool_rows(history, layout)
    cells = find_cells(layout)
    head, _ = find_head(history)
    return Fragmentation(
        at=at,
        balance=ladder,
        split=split_free(history, layout, ladder, pools),
        pools=pools,
        layout=layout,
        pins=pin_rows(history, layout, cells=cells, selection=selection),
        largest_hole=largest_hole(history, layout),
        cheapest=smallest_for_return(history, layout, cells=cells),
        pending=pending_rows(history, at.event),
        curve=curve,
        packing=None if head is Head.NO_HISTORY else pack_lifetimes(history),
        is_whole=head is Head.COMPLETE,
    )


def split_free(history: DeviceHistory, layout: Layout, ladder: Balance, pools: tuple[PoolRow, ...]) -> FreeSplit:
    """Split the memory that is reserved and not asked for."""
    ordinary = [row for row in pools if not row.is_private]
    reserved: dict[int, int] = {}
    for row in ordinary:
        reserved[row.stream] = reserved.get(row.stream, 0) + row.reserved_bytes
    stream = max(reserved, key=lambda key: (reserved[key], -key)) if reserved else None
    own = [row for row in ordinary if row.stream == stream]
    cached = max((row.largest_request_bytes for row in own), default=0)
    holes = hole_sizes(layout)
    return FreeSplit(
        free_segments_bytes=ladder.cached_free_segments_bytes,
        holes_bytes=ladder.cached_holes_bytes,
        rounding_bytes=ladder.rounding_bytes,
        other_pool_bytes=ladder.cached_private_pool_bytes,
        other_stream_bytes=sum(row.free_bytes for row in ordinary if row.stream != stream),
        stream=stream,
        num_holes=len(holes),
        largest_hole_bytes=int(holes.max(initial=0)),
        largest_cached_request_bytes=cached,
        largest_request_bytes=max(cached, _largest_new(history, layout, ladder.device_free_bytes, stream)),
    )


def _largest_new(history: DeviceHistory, layout: Layout, device_free: int | None, stream: int | None) -> int:
    """Return the largest request that new memory from the driver would serve; 0 where nothing tells.

    A large segment is a multiple of 2 MiB from 10 MiB on (`get_allocation_size`); an expandable
    one grows by granules behind its free end.
    """
    if device_free is None:
        return 0
    settings = history.snapshot.settings
    failed = int(history.tables.events.size_bytes[layout.event])
    if device_free >= segment_bytes_for(failed, settings):
        # What the driver has isn't to be had: a limit holds it back.
        return 0
    if not settings.expandable_segments:
        whole = device_free // ROUND_LARGE_BYTES * ROUND_LARGE_BYTES
        return whole if whole >= MIN_LARGE_BYTES else min(whole, SMALL_REQUEST_BYTES)
    granule = settings.large_segment_size_bytes
    segments, pieces = layout.segments, layout.pieces
    own = segments.is_expandable & ~segments.is_private & (segments.stream == (stream or 0))
    own &= segments.size_class == SizeClass.LARGE
    at_end = own[pieces.segment] & (pieces.offset_bytes + pieces.size_bytes == segments.size_bytes[pieces.segment])
    new = device_free // granule * granule
    if new:
        return new + int(pieces.size_bytes[at_end].max(initial=0))
    return SMALL_REQUEST_BYTES if device_free >= SMALL_SEGMENT_BYTES else 0


def hole_sizes(layout: Layout) -> Int64Column:
    """Return the sizes of the free pieces of ordinary pools that can't all go back to the driver.

    A piece of an expandable segment counts whole, though granules within it could go back: a
    request may take it as it is.
    """
    pieces, segments = layout.pieces, layout.segments
    is_hole = (pieces.size_bytes > pieces.returnable_bytes) & ~segments.is_private[pieces.segment]
    return pieces.size_bytes[is_hole]


def free_curve(history: DeviceHistory) -> tuple[CurvePoint, ...]:
    """Return the free memory at the ends of steps, or else at even distances, at most 48 points."""
    points = _points(history)
    out = []
    for event, step in points:
        layout = history.layout_at(event)
        cached: CachedBytes = split_cached(layout)
        out.append(
            CurvePoint(
                event=event,
                step=step,
                reserved_bytes=int(history.totals.reserved_bytes[event + 1]),
                allocated_bytes=int(history.block_totals.allocated_bytes[event + 1]),
                free_segments_bytes=cached.free_segments_bytes,
                holes_bytes=cached.holes_bytes,
                other_pool_bytes=cached.private_pool_bytes,
                largest_hole_bytes=int(hole_sizes(layout).max(initial=0)),
            )
        )
    return tuple(out)


def _points(history: DeviceHistory) -> list[tuple[int, str | None]]:
    if not history.num_events:
        return []
    steps = [step for step in history.steps.steps if step.name.startswith("step ")]
    if len(steps) > 1:
        kept = np.unique(np.linspace(0, len(steps) - 1, _CURVE_POINTS).round().astype(np.int64)).tolist()
        return [(steps[place].end_event, steps[place].name) for place in kept]
    last = history.num_events - 1
    return [(event, None) for event in np.unique(np.linspace(-1, last, _CURVE_POINTS).round().astype(int)).tolist()]
