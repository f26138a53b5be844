"""Memory by pool and stream at one moment, and what waits for another stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.analyses.ledger import LedgerRow, group_rows, pool_name
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.lifetimes import REQUESTED_BEFORE
from snapscope.model import NO_STACK, NO_TIME, AllocatorSettings, BoolColumn, Int64Column, SizeClass
from snapscope.replay.rounding import SMALL_REQUEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """The segments of one free list of the allocator: blocks never move from one to another.

    Attributes:
        pool: number in `Snapshot.pools`.
        name: `default pool` or `private pool (1, 0)`.
        stream: raw stream handle.
        size_class: small (requests up to 1 MiB) or large.
        is_expandable: whether any of its segments is.
        num_segments: how many segments.
        reserved_bytes: their sizes; the sum of the next three.
        allocated_bytes: in live blocks.
        pending_bytes: in blocks that wait for another stream.
        free_bytes: in no block.
        free_segments_bytes: of these, what could go back to the driver at once.
        num_holes: free pieces, wholly free segments included.
        largest_hole_bytes: the largest of them.
        largest_request_bytes: the largest request that this list would serve.
        segments: rows of the layout's segments.
    """

    pool: int
    name: str
    stream: int
    size_class: SizeClass
    is_expandable: bool
    num_segments: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    free_bytes: int
    free_segments_bytes: int
    num_holes: int
    largest_hole_bytes: int
    largest_request_bytes: int
    segments: Int64Column

    @property
    def is_private(self) -> bool:
        """Whether only a CUDA graph or a MemPool may use it."""
        return self.pool > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRow:
    """Blocks of one site whose free was asked for and that wait for another stream.

    Attributes:
        row: the site, its requested bytes and how many.
        block_bytes: the same in blocks.
        stream: raw handle of the stream that they belong to; None where several.
        pool: name of their pool, `several` where they differ.
        since_event: event of the first request to free; −2 = before the history.
        waited_us: from then to the moment; None where the file has no times.
        num_events: events since.
        freed_by: site of the stack that asked for most of the frees; None where unknown.
    """

    row: LedgerRow
    block_bytes: int
    stream: int | None
    pool: str
    since_event: int
    waited_us: int | None
    num_events: int
    freed_by: str | None


def pool_rows(history: DeviceHistory, layout: Layout) -> tuple[PoolRow, ...]:
    """Sum every free list of the allocator, most reserved bytes first."""
    segments, pieces = layout.segments, layout.pieces
    keys = np.stack((segments.pool.astype(np.int64), segments.stream, segments.size_class.astype(np.int64)))
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    number = distinct.shape[1]
    counts = np.bincount(which, minlength=number)
    sums = {
        name: sum_by(which, getattr(segments, name), number)
        for name in ("size_bytes", "allocated_bytes", "pending_bytes", "free_bytes", "returnable_bytes")
    }
    num_holes = np.bincount(which[pieces.segment], minlength=number)
    largest = np.zeros(number, np.int64)
    np.maximum.at(largest, which[pieces.segment], pieces.size_bytes)
    is_expandable = np.bincount(which[segments.is_expandable], minlength=number) > 0
    owned = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    rows = []
    for place, (pool, stream, size_class) in enumerate(distinct.T.tolist()):
        hole = int(largest[place])
        rows.append(
            PoolRow(
                pool=pool,
                name=pool_name(history, pool),
                stream=stream,
                size_class=SizeClass(size_class),
                is_expandable=bool(is_expandable[place]),
                num_segments=int(counts[place]),
                reserved_bytes=int(sums["size_bytes"][place]),
                allocated_bytes=int(sums["allocated_bytes"][place]),
                pending_bytes=int(sums["pending_bytes"][place]),
                free_bytes=int(sums["free_bytes"][place]),
                free_segments_bytes=int(sums["returnable_bytes"][place]),
                num_holes=int(num_holes[place]),
                largest_hole_bytes=hole,
                largest_request_bytes=_largest_request(hole, size_class),
                segments=owned[place],
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.reserved_bytes, row.pool, row.stream, row.size_class)))


def _largest_request(hole_bytes: int, size_class: int) -> int:
    """Return the largest request that a hole serves: up to 1 MiB of a small list, above it of a large one."""
    if size_class == SizeClass.SMALL:
        return min(hole_bytes, SMALL_REQUEST_BYTES)
    return hole_bytes if hole_bytes > SMALL_REQUEST_BYTES else 0


def sum_by(group: Int64Column, values: Int64Column, num_groups: int) -> Int64Column:
    """Sum integers by group, exactly (bincount would sum floats)."""
    out = np.zeros(num_groups, np.int64)
    np.add.at(out, group, values)
    return out


def may_take(piece_bytes: Int64Column, request_bytes: int, settings: AllocatorSettings) -> BoolColumn:
    """Tell which free pieces of a large pool may serve a rounded request (`get_free_block`).

    With `max_split_size` set, a request below it may not take a piece from it on, and a larger
    request only one that exceeds it by less than `max_non_split_rounding`.
    """
    fits = piece_bytes >= request_bytes
    limit = settings.max_split_size_bytes
    if limit is None:
        return fits
    if request_bytes < limit:
        return fits & (piece_bytes < limit)
    return fits & (piece_bytes < request_bytes + settings.max_non_split_rounding_bytes)


def pending_rows(history: DeviceHistory, event: int) -> tuple[PendingRow, ...]:
    """Group what waits after `event` by site, most bytes first."""
    lifetimes, events, sites = history.lifetimes, history.tables.events, history.sites
    rows = lifetimes.pending_at(event)
    out = []
    for group in group_rows(history, rows):
        own = group.lifetimes
        asked = int(lifetimes.free_requested_event[own].min())
        waited = None
        if asked >= 0 and event >= 0 and events.time_us[asked] != NO_TIME:
            # Times of other threads can be a little apart from the order of events.
            waited = max(int(events.time_us[event] - events.time_us[asked]), 0)
        stacks = lifetimes.free_stack[own]
        stacks = stacks[stacks != NO_STACK]
        freed_by = None
        if len(stacks):
            values, counts = np.unique(stacks, return_counts=True)
            freed_by = sites.of_stack(int(values[counts.argmax()])).label
        streams, pools = np.unique(lifetimes.stream[own]), np.unique(lifetimes.pool[own])
        out.append(
            PendingRow(
                row=group,
                block_bytes=int(history.blocks.block_bytes[own].sum()),
                stream=int(streams[0]) if len(streams) == 1 else None,
                pool=pool_name(history, int(pools[0])) if len(pools) == 1 else "several",
                since_event=asked,
                waited_us=waited,
                num_events=event - asked if asked != REQUESTED_BEFORE else event + 1,
                freed_by=freed_by,
            )
        )
    return tuple(out)
