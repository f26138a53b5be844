"""Free memory at one moment to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from snapscope.analyses.fragmentation import CurvePoint, Fragmentation
from snapscope.analyses.ledger import stream_name
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.history import DeviceHistory
from snapscope.lifetimes import BEFORE
from snapscope.model import Int64Column, SizeClass
from snapscope.render.free_memory import (
    freeing_of,
    largest_hole_of,
    pending_of,
    pin_of,
    pool_of,
    write_largest_hole,
    write_pending,
    write_pins,
    write_pools,
)
from snapscope.render.jsonable import balance_of, dump, dump_csv, head_of, moment_of, safe_text
from snapscope.render.ledger import when, write_contradiction
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.render.strip import segment_strip
from snapscope.units import count_of, format_address, format_bytes, format_count, format_share

COLUMNS: Final = (
    "addr", "size_bytes", "stream", "pool", "segment_type", "is_expandable", "num_blocks", "allocated_bytes",
    "pending_bytes", "free_bytes", "returnable_bytes", "num_holes", "largest_hole_bytes",
)  # fmt: skip
_STRIP: Final = 40
_MAX_CURVE: Final = 12
_MAX_SITES: Final = 3


def fragmentation_json(history: DeviceHistory, result: Fragmentation) -> bytes:
    """Return the free memory as one JSON object, with every block and hole in its place."""
    split = result.split
    return dump(
        {
            **head_of(history),
            "at": moment_of(result.at),
            "free_segments_bytes": split.free_segments_bytes,
            "holes_bytes": split.holes_bytes,
            "num_holes": split.num_holes,
            "rounding_bytes": split.rounding_bytes,
            "other_pool_bytes": split.other_pool_bytes,
            "other_stream_bytes": split.other_stream_bytes,
            "stream": split.stream,
            "largest_hole_bytes": split.largest_hole_bytes,
            "largest_cached_request_bytes": split.largest_cached_request_bytes,
            "largest_request_bytes": split.largest_request_bytes,
            "ladder": balance_of(result.balance),
            "pools": [pool_of(history, row) for row in result.pools],
            "segments": list(_segments(history, result, with_blocks=True)),
            "pinned_by": [pin_of(pin) for pin in result.pins],
            "largest_hole": largest_hole_of(history, result.largest_hole),
            "smallest_set": freeing_of(history, result.cheapest),
            "pending": [pending_of(row) for row in result.pending],
            "history": [_point(point) for point in result.curve],
            "packing": _packing(result),
        }
    )


def fragmentation_csv(history: DeviceHistory, result: Fragmentation) -> Iterator[bytes]:
    """Return one line a segment as CSV."""
    return dump_csv(COLUMNS, _segments(history, result, with_blocks=False))


def _segments(history: DeviceHistory, result: Fragmentation, *, with_blocks: bool) -> Iterator[dict[str, Any]]:
    layout, segments, pieces = result.layout, result.layout.segments, result.layout.pieces
    num_holes = np.bincount(pieces.segment, minlength=len(segments)).tolist()
    largest = _largest_holes(result).tolist()
    for number in range(len(segments)):
        pool = int(segments.pool[number])
        row: dict[str, Any] = {
            "addr": int(segments.addr[number]),
            "size_bytes": int(segments.size_bytes[number]),
            "stream": int(segments.stream[number]),
            "pool": None if pool < 0 else ",".join(map(str, history.snapshot.pools[pool])),
            "segment_type": SizeClass(int(segments.size_class[number])).name.lower(),
            "is_expandable": bool(segments.is_expandable[number]),
            "num_blocks": int(segments.num_blocks[number]),
            "allocated_bytes": int(segments.allocated_bytes[number]),
            "pending_bytes": int(segments.pending_bytes[number]),
            "free_bytes": int(segments.free_bytes[number]),
            "returnable_bytes": int(segments.returnable_bytes[number]),
            "num_holes": num_holes[number],
            "largest_hole_bytes": largest[number],
        }
        if with_blocks:
            row["blocks"] = sorted(
                [*_blocks(history, result, layout.blocks_of(number), row["addr"]),
                 *_holes(result, layout.pieces_of(number), row["addr"])],
                key=lambda block: block["addr"],
            )  # fmt: skip
        yield row


def _blocks(history: DeviceHistory, result: Fragmentation, own: slice, start: int) -> Iterator[dict[str, Any]]:
    blocks, lifetimes = result.layout.blocks, history.lifetimes
    rows = blocks.row[own]
    columns = (
        rows, blocks.offset_bytes[own], blocks.size_bytes[own], blocks.is_pending[own], lifetimes.birth_event[rows],
        lifetimes.requested_bytes[rows], lifetimes.alloc_stack[rows], history.classification.category[rows],
    )  # fmt: skip
    for _, offset, size, is_pending, birth, requested, stack, category in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield {
            "addr": start + offset,
            "size_bytes": size,
            "state": "active_pending_free" if is_pending else "active_allocated",
            "requested_bytes": requested,
            "birth_event": birth,
            "category": CATEGORY_LABELS[category],
            "site": safe_text(history.sites.of_stack(stack, is_before=birth == BEFORE).label),
        }


def _holes(result: Fragmentation, own: slice, start: int) -> Iterator[dict[str, Any]]:
    pieces = result.layout.pieces
    for offset, size in zip(pieces.offset_bytes[own].tolist(), pieces.size_bytes[own].tolist(), strict=True):
        yield {
            "addr": start + offset,
            "size_bytes": size,
            "state": "inactive",
            "requested_bytes": None,
            "birth_event": None,
            "category": None,
            "site": None,
        }


def _point(point: CurvePoint) -> dict[str, Any]:
    return {
        "event": point.event,
        "step": None if point.step is None else safe_text(point.step),
        "reserved_bytes": point.reserved_bytes,
        "allocated_bytes": point.allocated_bytes,
        "free_segments_bytes": point.free_segments_bytes,
        "holes_bytes": point.holes_bytes,
        "other_pool_bytes": point.other_pool_bytes,
        "largest_hole_bytes": point.largest_hole_bytes,
    }


def _packing(result: Fragmentation) -> dict[str, int | bool] | None:
    packing = result.packing
    if packing is None:
        return None
    return {
        "peak_reserved_bytes": packing.peak_reserved_bytes,
        "lower_bound_bytes": packing.lower_bound_bytes,
        "packed_bytes": packing.packed_bytes,
        "avoidable_bytes": packing.avoidable_bytes,
        "is_whole_history": result.is_whole,
    }


def fragmentation_text(
    history: DeviceHistory, result: Fragmentation, page: Page, *, top: int, shows_segments: bool = False
) -> str:
    """Return the free memory as a page: the answer first."""
    split, state = result.split, result.balance
    free = state.reserved_bytes - state.requested_bytes
    page.line(
        f"{format_bytes(free)} of {format_bytes(state.reserved_bytes)} reserved hold no requested byte "
        f"{when(result.at)}: {format_bytes(split.holes_bytes)} in {count_of(split.num_holes, 'hole')}, the largest "
        f"{format_bytes(split.largest_hole_bytes)}",
        style="bold",
    )
    page.line(_answer(result))
    page.line(device_line(history))
    write_contradiction(page, state)
    if len(history.tables.events.oom_events) and result.at.event not in history.tables.events.oom_events:
        page.line("this history holds an oom event: --at oom shows the free memory then")
    page.title("free memory, by why it isn't used")
    _write_split(page, result, free)
    page.title("pools")
    write_pools(page, result.pools, top=top)
    page.title("who pins the holes")
    if result.pins:
        write_pins(page, result.pins, top=top)
        page.line("  sites share what several of them hold; alone = no other site has a block there")
        write_largest_hole(page, history, result.largest_hole)
    else:
        page.line("  nobody: no ordinary segment is partly used")
    _write_cheapest(page, result)
    if result.pending:
        page.title("freed, but waits for another stream")
        write_pending(page, result.pending, top=top)
    if shows_segments:
        _write_segments(history, result, page, top=top)
    if len(result.curve) > 1:
        _write_curve(page, result)
    _write_packing(page, result)
    page.notices(history.notices)
    return page.text()


def _answer(result: Fragmentation) -> str:
    split, state = result.split, result.balance
    share = format_share(split.holes_bytes, state.reserved_bytes)
    if split.stream is None:
        return "nothing is reserved in ordinary pools"
    if not split.largest_request_bytes:
        return f"nothing is cached that stream {stream_name(split.stream)} could use"
    driver = (
        f", or with new memory from the driver {format_bytes(split.largest_request_bytes)}"
        if split.largest_request_bytes > split.largest_cached_request_bytes
        else ""
    )
    return (
        f"holes are {share} of what is reserved; the largest request that cached memory would serve on stream "
        f"{stream_name(split.stream)} is {format_bytes(split.largest_cached_request_bytes)}{driver}"
    )


def _write_split(page: Page, result: Fragmentation, free: int) -> None:
    split, state = result.split, result.balance
    rows = [
        (split.free_segments_bytes, "free segments", "no block in them: empty_cache() returns them"),
        (split.holes_bytes, "holes", "between live blocks, which pin the segment"),
        (split.rounding_bytes, "rounding", "within live blocks: sizes rounded up, remainders not split off"),
        (split.other_pool_bytes, "private pools", "free, but only for their CUDA graph or MemPool"),
        (state.pending_requested_bytes, "pending", "freed, waits for another stream"),
    ]
    rest = free - sum(size for size, _, _ in rows)
    if rest:
        rows.append((rest, "pending rounding", "within blocks that wait"))
    cells = [(format_bytes(size), format_share(size, free), name, why) for size, name, why in rows]
    cells.append((format_bytes(free), format_share(free, free), "= reserved and not requested", ""))
    page.table(cells, align="rrlf")
    if split.other_stream_bytes:
        page.line(
            f"  of the first two {format_bytes(split.other_stream_bytes)} belong to other streams than "
            f"{stream_name(split.stream or 0)}, which can't use them"
        )


def _write_cheapest(page: Page, result: Fragmentation) -> None:
    found = result.cheapest
    if found is None:
        return
    segments = count_of(found.num_segments, found.unit)
    page.line(
        f"  smallest set: ending {count_of(len(found.lifetimes), 'block')} of {format_bytes(found.block_bytes)} would "
        f"let {format_bytes(found.freed_bytes)} in {segments} go back to the driver"
    )
    for row in found.rows[:_MAX_SITES]:
        page.line(f"    {format_bytes(row.bytes)} in {count_of(row.num_allocations, 'block')}  {row.key}")
    if len(found.rows) > _MAX_SITES:
        page.line(f"    and {count_of(len(found.rows) - _MAX_SITES, 'more site')}")


def _write_segments(history: DeviceHistory, result: Fragmentation, page: Page, *, top: int) -> None:
    segments = result.layout.segments
    order = np.lexsort((segments.addr, -segments.size_bytes, -segments.free_bytes)).tolist()
    shown, rest = cut_rows([(int(segments.free_bytes[row]), 1) for row in order], top)
    largest = _largest_holes(result)
    page.title("segments, most free bytes first")
    cells = [
        (
            format_address(int(segments.addr[row])), format_bytes(int(segments.size_bytes[row])),
            format_bytes(int(segments.free_bytes[row])), format_bytes(int(largest[row])),
            format_count(int(segments.num_blocks[row])),
            segment_strip(result.layout, row, history.classification.category, _STRIP),
        )
        for row in order[:shown]
    ]  # fmt: skip
    if rest is not None:
        cells.append(("", "", format_bytes(rest[0]), "", "", f"({rest[1]} more: --top 0)"))
    page.table(cells, align="lrrrrl", header=("segment", "size", "free", "largest", "blocks", "layout"))
    page.line("  P G O A T categories, · free, = pending, x idle in a private pool")


def _largest_holes(result: Fragmentation) -> Int64Column:
    pieces = result.layout.pieces
    largest = np.zeros(len(result.layout.segments), np.int64)
    np.maximum.at(largest, pieces.segment, pieces.size_bytes)
    return largest


def _write_curve(page: Page, result: Fragmentation) -> None:
    points = result.curve
    places = np.unique(np.linspace(0, len(points) - 1, _MAX_CURVE).round().astype(int)).tolist()
    by_step = points[0].step is not None
    page.title("over the history, at the end of steps" if by_step else "over the history")
    cells = [
        (
            point.step or f"event {format_count(point.event)}", format_bytes(point.reserved_bytes),
            format_bytes(point.allocated_bytes), format_bytes(point.free_segments_bytes),
            format_bytes(point.holes_bytes), format_bytes(point.largest_hole_bytes),
        )
        for point in (points[place] for place in places)
    ]  # fmt: skip
    header = ("", "reserved", "allocated", "free segments", "holes", "largest hole")
    page.table(cells, align="lrrrrr", header=header)


def _write_packing(page: Page, result: Fragmentation) -> None:
    packing = result.packing
    if packing is None:
        return
    page.title("how small reserved could have been")
    packed = (
        f"the recorded lifetimes, packed with hindsight, fit into {format_bytes(packing.packed_bytes)} (no packing "
        f"needs less than {format_bytes(packing.lower_bound_bytes)})"
    )
    page.line(
        f"  over the whole history {format_bytes(packing.avoidable_bytes)} of reserved were avoidable: at most "
        f"{format_bytes(packing.peak_reserved_bytes)} were reserved, and {packed}"
    )
    if not result.is_whole:
        page.line("  less, if what was freed before the history began needed that much")
