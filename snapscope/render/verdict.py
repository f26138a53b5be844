"""The verdict on an out-of-memory error in words: one line that says it, one with the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from snapscope.analyses.ledger import stream_name
from snapscope.analyses.oom import Failure
from snapscope.analyses.verdict import Cause, Full
from snapscope.units import count_of, format_bytes, format_share


def verdict_line(failure: Failure) -> str:
    """Return `FRAGMENTATION: asked for 158.00 MiB at model.py:40 forward (step 2, forward)`."""
    step = "after the last step" if failure.step == "rest" else failure.step
    place = ", ".join(part for part in (step, failure.phase if failure.phase != "between" else None) if part)
    where = f" ({place})" if place else ""
    return f"{failure.verdict.cause.value.upper()}: asked for {asked(failure)} at {failure.site}{where}"


def asked(failure: Failure) -> str:
    """Return the request, and the segment that PyTorch's own message names in its place."""
    request, segment = (format_bytes(size) for size in (failure.request.requested_bytes, failure.request.segment_bytes))
    return request if request == segment else f"{request} (a segment of {segment})"


def answer_line(failure: Failure) -> str:
    """Return why, with the arithmetic: figures that a person can add up."""
    return _ANSWERS[failure.verdict.cause](failure)


def also_line(failure: Failure) -> str | None:
    """Return what else holds, or None."""
    also = failure.verdict.also
    if not also:
        return None
    return f"also: {'; '.join(f'{cause.value} ({_meaning(failure, cause)})' for cause in also)}"


def _meaning(failure: Failure, cause: Cause) -> str:
    if cause is Cause.CAPACITY and failure.verdict.room.short_by_bytes:
        return "it could not have fitted even as one piece"
    return _MEANINGS[cause]


def _limit(failure: Failure) -> str:
    request = failure.request
    return (
        f"The driver had {free_text(failure)} free and would have been asked for {format_bytes(request.driver_bytes)}: "
        f"not the card, but a limit stopped it, with {format_bytes(failure.balance.reserved_bytes)} reserved (see "
        f"per_process_memory_fraction and torch.cuda.set_per_process_memory_fraction)"
    )


def _pending_free(failure: Failure) -> str:
    request = failure.request
    return (
        f"{format_bytes(request.pending_bytes)} are freed but wait for another stream; with them a piece of "
        f"{format_bytes(request.largest_with_pending_bytes)} would have served {format_bytes(request.requested_bytes)}"
    )


def _capture(failure: Failure) -> str:
    request = failure.request
    return (
        f"A CUDA graph was being captured, so {format_bytes(request.returnable_bytes)} of free segments could not go "
        f"back: with the {free_text(failure)} the driver had they would have made the "
        f"{format_bytes(request.driver_bytes)} wanted"
    )


def _private_pool(failure: Failure) -> str:
    request = failure.request
    return (
        f"{format_bytes(request.private_pool_bytes)} are idle in private pools, where only their CUDA graph or MemPool "
        f"may use them; without these it is {format_bytes(failure.verdict.room.short_by_bytes)} short, with "
        f"{_best_case(failure)}"
    )


def _capacity(failure: Failure) -> str:
    request, room, projection = failure.request, failure.verdict.room, failure.verdict.projection
    if room.short_by_bytes and request.device_free_bytes is None:
        return (
            f"What the driver had free isn't in the file. All that PyTorch had is {_best_case(failure)}: without "
            f"{format_bytes(room.short_by_bytes)} from the driver it could not fit"
        )
    if room.short_by_bytes:
        return (
            f"Not fragmentation: even if every unallocated byte were one piece it would be {_best_case(failure)}, "
            f"{format_bytes(room.short_by_bytes)} short of the {format_bytes(request.requested_bytes)} asked for"
        )
    left = (
        f"{format_share(room.live_bytes, room.room_bytes)} of the {format_bytes(room.room_bytes)} that PyTorch could "
        f"have were in use, "
        f"{format_bytes(room.left_bytes)} were left"
    )
    holes = f"this request found {_holes(failure)}"
    if failure.verdict.full is Full.NEED and projection is not None:
        least = "at least " if projection.is_lower_bound else ""
        return (
            f"The card is full: {left}, and the step still needed {least}{format_bytes(projection.needed_bytes)} "
            f"({projection.explanation}): {format_bytes(projection.needed_bytes - room.left_bytes)} short; {holes}"
        )
    return f"{_FULL[failure.verdict.full]}: {left}; {holes}"


def _other_stream(failure: Failure) -> str:
    request = failure.request
    return (
        f"{format_bytes(request.other_stream_holes_bytes)} are free, but for other streams (the largest piece is "
        f"{format_bytes(request.largest_other_stream_hole_bytes)}); stream {stream_name(request.stream)} found "
        f"{_holes(failure)}"
    )


def _fragmentation(failure: Failure) -> str:
    request, projection = failure.request, failure.verdict.projection
    total = request.holes_bytes + (request.device_free_bytes or 0)
    fits = ""
    if projection is not None and not projection.is_lower_bound:
        fits = (
            f"; {format_bytes(failure.verdict.room.left_bytes)} were left in all, and the step still needed "
            f"{format_bytes(projection.needed_bytes)} ({projection.explanation})"
        )
    return (
        f"{format_bytes(total)} are free in total, the largest hole is {format_bytes(request.largest_hole_bytes)}: "
        f"{format_bytes(request.holes_bytes)} in {count_of(request.num_holes, 'hole')} between live blocks, "
        f"{free_text(failure)} at the driver, which would have been asked for "
        f"{format_bytes(request.driver_bytes)}{fits}"
    )


def _fitting_hole(failure: Failure) -> str:
    request = failure.request
    if request.usable_hole_bytes:
        why = "but the allocator did not take it (settings changed at run time, or a miss with expandable_segments)"
    else:
        why = "but under max_split_size_mb it may not serve this request"
    return (
        f"A hole of {format_bytes(request.largest_hole_bytes)} fits {format_bytes(request.requested_bytes)}, {why}; "
        f"the driver had {free_text(failure)}"
    )


def free_text(failure: Failure) -> str:
    """Return what the driver had free."""
    free = failure.request.device_free_bytes
    return "unknown" if free is None else format_bytes(free)


def _holes(failure: Failure) -> str:
    request = failure.request
    if not request.num_holes:
        return f"no hole at all, and {free_text(failure)} at the driver"
    return (
        f"{format_bytes(request.holes_bytes)} in {count_of(request.num_holes, 'hole')}, the largest "
        f"{format_bytes(request.largest_hole_bytes)}, and {free_text(failure)} at the driver"
    )


def _best_case(failure: Failure) -> str:
    """Return the sum of all that could be joined at best, term by term."""
    request = failure.request
    terms = [
        (request.device_free_bytes or 0, "device free"),
        (request.holes_bytes, "holes"),
        (request.other_stream_holes_bytes, "holes of other streams"),
    ]
    total = sum(size for size, _ in terms)
    return f"{format_bytes(total)} ({' + '.join(f'{format_bytes(size)} {name}' for size, name in terms if size)})"


_FULL: Final = {
    Full.SHARE: "The card is full",
    Full.FEW_HOLES: "The card is nearly full, and has few holes",
    Full.FIRST_STEP: "The card is nearly full in a first step, with gradients or optimizer states still to come",
    Full.ONLY_GROWN: "The program had only grown so far, and little is left for more of it",
    None: "No hole fits, and the driver has less than a segment",
}

_ANSWERS: Final[dict[Cause, Callable[[Failure], str]]] = {
    Cause.LIMIT: _limit,
    Cause.PENDING_FREE: _pending_free,
    Cause.CAPTURE: _capture,
    Cause.PRIVATE_POOL: _private_pool,
    Cause.CAPACITY: _capacity,
    Cause.OTHER_STREAM: _other_stream,
    Cause.FRAGMENTATION: _fragmentation,
    Cause.FITTING_HOLE: _fitting_hole,
    Cause.NONE: lambda _: "The oom event doesn't tell how much was asked for",
}

_MEANINGS: Final = {
    Cause.LIMIT: "the driver could have given it",
    Cause.PENDING_FREE: "freed memory that waits for another stream would have fitted",
    Cause.CAPTURE: "a capture kept cached segments from going back",
    Cause.PRIVATE_POOL: "idle memory of private pools would have fitted",
    Cause.CAPACITY: "the card was full",
    Cause.OTHER_STREAM: "enough is cached for other streams",
    Cause.FRAGMENTATION: "the bytes were there, but in pieces",
    Cause.FITTING_HOLE: "a hole that fits was not used",
}
