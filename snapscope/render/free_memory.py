"""Rows about free memory that several verbs show: pools, pins, what waits for a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from snapscope.analyses.ledger import stream_name
from snapscope.analyses.pinning import FreeingSet, LargestHole, PinRow
from snapscope.analyses.pools import PendingRow, PoolRow
from snapscope.history import DeviceHistory
from snapscope.render.jsonable import safe_text
from snapscope.render.ledger import letter_of, row_label
from snapscope.render.page import Page, cut_rows
from snapscope.units import count_of, format_address, format_bytes, format_count

_MAX_OWNERS: Final = 3


def pin_of(pin: PinRow) -> dict[str, Any]:
    """Return a pinning site as an object."""
    return {
        "site": safe_text(pin.row.key),
        "category": pin.row.category.label if pin.row.category is not None else None,
        "confidence": pin.row.confidence.label if pin.row.confidence is not None else None,
        "blocks": pin.row.num_allocations,
        "bytes": pin.block_bytes,
        "requested_bytes": pin.row.bytes,
        "lines": list(pin.row.lines),
        "segments": pin.num_segments,
        "holes_held_alone_bytes": pin.held_alone_bytes,
        "holes_held_any_bytes": pin.held_any_bytes,
    }


def pool_of(history: DeviceHistory, row: PoolRow) -> dict[str, Any]:
    """Return a free list of the allocator as an object."""
    return {
        "pool": row.name,
        "pool_id": list(history.snapshot.pools[row.pool]) if row.pool >= 0 else None,
        "stream": row.stream,
        "segment_type": row.size_class.name.lower(),
        "is_expandable": row.is_expandable,
        "num_segments": row.num_segments,
        "reserved_bytes": row.reserved_bytes,
        "allocated_bytes": row.allocated_bytes,
        "pending_bytes": row.pending_bytes,
        "free_bytes": row.free_bytes,
        "free_segments_bytes": row.free_segments_bytes,
        "num_holes": row.num_holes,
        "largest_hole_bytes": row.largest_hole_bytes,
        "largest_request_bytes": row.largest_request_bytes,
    }


def pending_of(row: PendingRow) -> dict[str, Any]:
    """Return blocks that wait for a stream as an object."""
    return {
        "site": safe_text(row.row.key),
        "category": row.row.category.label if row.row.category is not None else None,
        "blocks": row.row.num_allocations,
        "bytes": row.row.bytes,
        "block_bytes": row.block_bytes,
        "stream": row.stream,
        "pool": row.pool,
        "freed_by": None if row.freed_by is None else safe_text(row.freed_by),
        "since_event": row.since_event,
        "num_events": row.num_events,
        "waited_us": row.waited_us,
    }


def freeing_of(history: DeviceHistory, found: FreeingSet | None) -> dict[str, Any] | None:
    """Return a set of blocks to end as an object."""
    if found is None:
        return None
    return {
        "blocks": len(found.lifetimes),
        "block_bytes": found.block_bytes,
        "freed_bytes": found.freed_bytes,
        "num_segments": found.num_segments,
        "sites": [
            {
                "site": safe_text(row.key),
                "category": row.category.label if row.category is not None else None,
                "blocks": row.num_allocations,
                "bytes": row.bytes,
            }
            for row in found.rows
        ],
        "addresses": history.lifetimes.addr[found.lifetimes].tolist(),
    }


def largest_hole_of(history: DeviceHistory, hole: LargestHole | None) -> dict[str, Any] | None:
    """Return the largest hole with the blocks around it as an object."""
    if hole is None:
        return None
    addr = history.lifetimes.addr
    return {
        "addr": hole.addr,
        "size_bytes": hole.size_bytes,
        "segment_addr": hole.segment_addr,
        "segment_bytes": hole.segment_bytes,
        "block_below": None if hole.below is None else int(addr[hole.below]),
        "block_above": None if hole.above is None else int(addr[hole.above]),
        "pinned_by": [
            {
                "site": safe_text(row.key),
                "category": row.category.label if row.category is not None else None,
                "blocks": row.num_allocations,
                "bytes": row.bytes,
            }
            for row in hole.rows
        ],
    }


def write_largest_hole(page: Page, history: DeviceHistory, hole: LargestHole | None) -> None:
    """Say where the largest hole lies and whose blocks keep its segment."""
    if hole is None:
        return
    page.line(
        f"  the largest, {format_bytes(hole.size_bytes)} at {format_address(hole.addr)}, lies in a segment of "
        f"{format_bytes(hole.segment_bytes)} with:"
    )
    for row in hole.rows[:_MAX_OWNERS]:
        at = f", at {format_address(int(history.lifetimes.addr[row.lifetimes[0]]))}" if row.num_allocations == 1 else ""
        page.line(f"    {format_bytes(row.bytes)} in {count_of(row.num_allocations, 'block')}{at}  {row.key}")
    if len(hole.rows) > _MAX_OWNERS:
        page.line(f"    and {count_of(len(hole.rows) - _MAX_OWNERS, 'more site')}")


def write_pins(page: Page, pins: Sequence[PinRow], *, top: int) -> None:
    """Write which sites pin free memory; sites share what several of them hold."""
    shown, rest = cut_rows([(pin.block_bytes, pin.row.num_allocations) for pin in pins], top)
    cells = [
        (
            format_bytes(pin.held_any_bytes), format_bytes(pin.held_alone_bytes), format_bytes(pin.block_bytes),
            format_count(pin.row.num_allocations), _letter(pin), row_label(pin.row),
        )
        for pin in pins[:shown]
    ]  # fmt: skip
    if rest is not None:
        more = f"({count_of(len(pins) - shown, 'more site')}: --top 0 shows all)"
        cells.append(("", "", format_bytes(rest[0]), format_count(rest[1]), "", more))
    page.table(cells, align="rrrrlf", header=("holds", "alone", "in blocks of", "count", "", "site"))


def write_pools(page: Page, pools: Sequence[PoolRow], *, top: int) -> None:
    """Write the free lists of the allocator; their rows sum to what is reserved."""
    shown, rest = cut_rows([(row.reserved_bytes, row.num_segments) for row in pools], top)
    cells = [
        (
            format_bytes(row.reserved_bytes), format_bytes(row.allocated_bytes), format_bytes(row.pending_bytes),
            format_bytes(row.free_bytes), format_count(row.num_holes), format_bytes(row.largest_hole_bytes), _name(row),
        )
        for row in pools[:shown]
    ]  # fmt: skip
    if rest is not None:
        more = f"({format_count(len(pools) - shown)} more: --top 0 shows all)"
        left = pools[shown:]
        cells.append((
            format_bytes(rest[0]), format_bytes(sum(row.allocated_bytes for row in left)),
            format_bytes(sum(row.pending_bytes for row in left)), format_bytes(sum(row.free_bytes for row in left)),
            format_count(sum(row.num_holes for row in left)), "", more,
        ))  # fmt: skip
    page.table(
        cells,
        align="rrrrrrf",
        header=("reserved", "allocated", "pending", "free", "pieces", "largest", "pool, stream, requests"),
    )


def write_pending(page: Page, pending: Sequence[PendingRow], *, top: int) -> None:
    """Write what waits for another stream, for how long, and who freed it."""
    shown, rest = cut_rows([(row.row.bytes, row.row.num_allocations) for row in pending], top)
    cells = [
        (
            format_bytes(row.block_bytes), format_count(row.row.num_allocations), _waited(row),
            f"{row.row.key}{f', freed at {row.freed_by}' if row.freed_by else ''}, {row.pool}"
            + ("" if row.stream is None else f", stream {stream_name(row.stream)}"),
        )
        for row in pending[:shown]
    ]  # fmt: skip
    if rest is not None:
        cells.append((format_bytes(rest[0]), format_count(rest[1]), "", f"({len(pending) - shown} more: --top 0)"))
    page.table(cells, align="rrrf", header=("bytes", "count", "waits for", "allocated at"))


def _waited(row: PendingRow) -> str:
    events = f"{count_of(row.num_events, 'event')}"
    return events if row.waited_us is None else f"{events}, {row.waited_us / 1e3:,.1f} ms"


def _letter(pin: PinRow) -> str:
    row = pin.row
    return "" if row.category is None or row.confidence is None else letter_of(row.category, row.confidence)


def _name(row: PoolRow) -> str:
    kind = "expandable, " if row.is_expandable else ""
    requests = {"SMALL": "up to 1 MiB", "LARGE": "above 1 MiB"}.get(row.size_class.name, "any size")
    return f"{row.name}, stream {stream_name(row.stream)}, {kind}{requests}"
