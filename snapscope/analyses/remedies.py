"""What would have helped a failed request, in terms of the allocator; the rest is for `advise`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapscope.analyses.pinning import Cells, FreeingSet, smallest_for_hole, smallest_for_return
from snapscope.analyses.request import Request
from snapscope.analyses.verdict import Cause, Verdict
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.model import SizeClass
from snapscope.replay.rounding import MIN_LARGE_BYTES, SMALL_SEGMENT_BYTES
from snapscope.units import count_of, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One thing that would have helped.

    Attributes:
        action: what to do; a setting is spelled as PyTorch spells it.
        frees_bytes: what it would have made usable for the request.
        is_enough: whether that alone would have served the request.
        why: how it works here.
        blocks: the blocks to end, where that is the action.
    """

    action: str
    frees_bytes: int
    is_enough: bool
    why: str
    blocks: FreeingSet | None = None


def find_remedies(
    history: DeviceHistory, layout: Layout, request: Request, verdict: Verdict, cells: Cells
) -> tuple[Remedy, ...]:
    """List what would have helped, what suffices first, then most bytes."""
    found = [*_settings(history, layout, request, verdict), *_blocks(history, layout, request, verdict, cells)]
    return tuple(sorted(found, key=lambda remedy: (not remedy.is_enough, -remedy.frees_bytes)))


def _settings(history: DeviceHistory, layout: Layout, request: Request, verdict: Verdict) -> Iterator[Remedy]:
    causes = (verdict.cause, *verdict.also)
    free = request.device_free_bytes or 0
    wanted = request.requested_bytes
    settings = history.snapshot.settings
    if Cause.LIMIT in causes:
        yield Remedy(
            action="raise per_process_memory_fraction",
            frees_bytes=free,
            is_enough=True,
            why=f"the driver had {format_bytes(free)} free, and was not asked for {format_bytes(request.driver_bytes)}",
        )
    if Cause.PENDING_FREE in causes:
        yield Remedy(
            action="free without record_stream, or wait for the other stream before the capture",
            frees_bytes=request.pending_bytes,
            is_enough=True,
            why="blocks that wait for another stream come back only when the allocator may look for its events",
        )
    if Cause.CAPTURE in causes:
        yield Remedy(
            action="torch.cuda.empty_cache() before the capture",
            frees_bytes=request.returnable_bytes,
            is_enough=True,
            why="while a CUDA graph is captured no cached segment goes back to the driver",
        )
    if request.private_pool_bytes:
        yield Remedy(
            action="let go of private pools (CUDA graphs, MemPool) that are idle",
            frees_bytes=request.private_pool_bytes,
            is_enough=free + request.private_segments_bytes >= request.driver_bytes,
            why=f"{format_bytes(request.private_segments_bytes)} of it in segments without a block; nobody else may "
            f"use it while the pool lives, and a graph's replay may still write to it",
        )
    if Cause.OTHER_STREAM in causes:
        yield Remedy(
            action="allocate on the stream that caches it, or end what pins its segments",
            frees_bytes=request.other_stream_holes_bytes,
            is_enough=request.largest_other_stream_hole_bytes >= wanted,
            why="blocks never move from one stream to another",
        )
    if Cause.FITTING_HOLE in causes and settings.max_split_size_bytes is not None:
        yield Remedy(
            action="leave max_split_size_mb out",
            frees_bytes=request.largest_hole_bytes,
            is_enough=True,
            why=f"under max_split_size_mb a hole of {format_bytes(request.largest_hole_bytes)} may not serve "
            f"{format_bytes(wanted)}",
        )
    if verdict.cause is Cause.FRAGMENTATION and not request.is_expandable:
        granules = _free_granules(layout, request, settings.large_segment_size_bytes)
        is_enough = free + granules >= request.driver_bytes
        where = f"where the blocks lie now, {format_bytes(granules)} of granules would be free"
        yield Remedy(
            action="expandable_segments:True",
            frees_bytes=request.holes_bytes,
            is_enough=is_enough,
            why=f"off here; {'likely to help' if is_enough else 'may help, only a run tells'}: segments would grow "
            f"where they are, and free granules go back one by one ({where})",
        )
    is_rounded = (
        verdict.cause is not Cause.LIMIT and wanted < MIN_LARGE_BYTES and wanted <= free < request.segment_bytes
    )
    if is_rounded and not request.is_expandable:
        yield Remedy(
            action="free a little, or make the request part of a larger one",
            frees_bytes=free,
            is_enough=False,
            why=f"the driver had {format_bytes(free)}, but requests below 10 MiB take a segment of "
            f"{format_bytes(request.segment_bytes)}",
        )


def _free_granules(layout: Layout, request: Request, large_segment_size: int) -> int:
    """Return the bytes of the granules that would be free if the request's segments were expandable.

    An estimate: with expandable segments the blocks would lie otherwise.
    """
    granule = SMALL_SEGMENT_BYTES if request.size_class is SizeClass.SMALL else max(large_segment_size, 1)
    pieces = layout.pieces
    own = request.own_segments[pieces.segment]
    low, high = pieces.offset_bytes[own], (pieces.offset_bytes + pieces.size_bytes)[own]
    return int(np.maximum(high // granule * granule - -(-low // granule) * granule, 0).sum())


def _blocks(
    history: DeviceHistory, layout: Layout, request: Request, verdict: Verdict, cells: Cells
) -> Iterator[Remedy]:
    """Look for the fewest bytes of live blocks whose end would have let the request through."""
    if verdict.cause not in (Cause.FRAGMENTATION, Cause.OTHER_STREAM):
        return
    hole = smallest_for_hole(history, layout, request.own_segments, request.requested_bytes)
    missing = request.driver_bytes - (request.device_free_bytes or 0)
    back = smallest_for_return(history, layout, wanted_bytes=max(missing, 1), cells=cells)
    candidates = [(found, is_hole) for found, is_hole in ((hole, True), (back, False)) if found is not None]
    if not candidates:
        return
    found, is_hole = min(candidates, key=lambda pair: pair[0].block_bytes)
    taken, freed = format_bytes(found.block_bytes), format_bytes(found.freed_bytes)
    outcome = (
        f"the holes around become one of {freed}"
        if is_hole
        else f"{freed} in {count_of(found.num_segments, found.unit)} could go back to the driver"
    )
    yield Remedy(
        action=f"end {count_of(len(found.lifetimes), 'block')} ({taken} in all)",
        frees_bytes=found.freed_bytes,
        is_enough=True,
        why=f"the cheapest that pin: without them {outcome}",
        blocks=found,
    )
