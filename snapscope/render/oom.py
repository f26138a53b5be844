"""The out-of-memory report to text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from snapscope.analyses.growth import Growth
from snapscope.analyses.ledger import Balance, stream_name
from snapscope.analyses.oom import Failure, OomReport
from snapscope.analyses.releases import Release
from snapscope.analyses.remedies import Remedy
from snapscope.analyses.verdict import Full
from snapscope.history import DeviceHistory
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
from snapscope.render.jsonable import balance_of, dump, head_of, moment_of, safe_text
from snapscope.render.ledger import (
    ledger_document,
    when,
    write_categories,
    write_contradiction,
    write_ladder,
    write_rows,
)
from snapscope.render.page import Page, device_line
from snapscope.render.verdict import also_line, answer_line, free_text, verdict_line
from snapscope.units import count_of, format_bytes, format_count, format_delta

_MAX_ROWS: Final = 5
_MAX_RETRIES: Final = 5


def oom_json(history: DeviceHistory, report: OomReport) -> bytes:
    """Return the report as one JSON object."""
    last = report.subject
    return dump(
        {
            **head_of(history),
            **(failure_of(history, last) if last is not None else _no_failure()),
            "num_ooms": report.num_ooms,
            "ooms": [failure_of(history, failure) for failure in report.failures],
            "ledger": ledger_document(report.ledger),
            "before_release": _before_release(report),
            "pinned_by": [pin_of(pin) for pin in report.pins],
            "largest_hole": largest_hole_of(history, report.largest_hole),
            "pools": [pool_of(history, row) for row in report.pools],
            "pending": [pending_of(row) for row in report.pending],
            "growth": _growth(report.growth),
            "remedies": [_remedy(history, remedy) for remedy in report.remedies],
            "retries": [_release(release) for release in report.retries],
            "unwound": None if report.unwinding is None else asdict(report.unwinding),
            "message": [] if last is None else [
                {"text": text, "bytes": size, "meaning": meaning} for text, size, meaning in message_parts(last)
            ],
        }
    )  # fmt: skip


def failure_of(history: DeviceHistory, failure: Failure) -> dict[str, Any]:
    """Return one failure as an object."""
    request, verdict = failure.request, failure.verdict
    projection = verdict.projection
    return {
        "verdict": verdict.cause.value,
        "also": [cause.value for cause in verdict.also],
        "answer": answer_line(failure),
        "at": moment_of(failure.at),
        "site": safe_text(failure.site),
        "step": None if failure.step is None else safe_text(failure.step),
        "phase": failure.phase,
        "requested_bytes": request.requested_bytes,
        "segment_bytes_asked": request.segment_bytes,
        "driver_bytes_asked": request.driver_bytes,
        "device_free_bytes": request.device_free_bytes,
        "request_pool": {
            "pool": request.pool_name,
            "pool_id": list(history.snapshot.pools[request.pool]),
            "stream": request.stream,
            "segment_type": request.size_class.name.lower(),
            "is_expandable": request.is_expandable,
        },
        "request_pool_holes_bytes": request.holes_bytes,
        "request_pool_num_holes": request.num_holes,
        "request_pool_largest_hole_bytes": request.largest_hole_bytes,
        "request_pool_usable_hole_bytes": request.usable_hole_bytes,
        "request_pool_pending_bytes": request.pending_bytes,
        "other_stream_holes_bytes": request.other_stream_holes_bytes,
        "other_size_class_bytes": request.other_class_bytes,
        "private_pool_bytes": failure.balance.cached_private_pool_bytes,
        "other_private_pool_bytes": request.private_pool_bytes,
        "short_by_bytes": verdict.room.short_by_bytes,
        "needed_bytes": None if projection is None else projection.needed_bytes,
        "needed_basis": None if projection is None else projection.basis,
        "full_because": None if verdict.full is None else verdict.full.value,
        "room_bytes": verdict.room.room_bytes,
        "left_bytes": verdict.room.left_bytes,
        "ladder": balance_of(failure.balance),
    }


def _no_failure() -> dict[str, Any]:
    """Return the keys of a failure for a history without one."""
    keys = (
        "at", "site", "step", "phase", "requested_bytes", "segment_bytes_asked", "driver_bytes_asked",
        "device_free_bytes", "request_pool", "request_pool_holes_bytes", "request_pool_num_holes",
        "request_pool_largest_hole_bytes", "request_pool_usable_hole_bytes", "request_pool_pending_bytes",
        "other_stream_holes_bytes", "other_size_class_bytes", "private_pool_bytes", "other_private_pool_bytes",
        "short_by_bytes", "needed_bytes",
        "needed_basis", "full_because", "room_bytes", "left_bytes", "ladder",
    )  # fmt: skip
    return {"verdict": "none", "also": [], "answer": NO_EVENT, **dict.fromkeys(keys)}


def _before_release(report: OomReport) -> dict[str, Any] | None:
    before = report.before_release
    if before is None:
        return None
    return {**_release(before.release), "at": moment_of(before.at), "ladder": balance_of(before.balance)}


def _release(release: Release) -> dict[str, Any]:
    return {
        "start_event": release.start_event,
        "end_event": release.end_event,
        "num_segments": release.num_segments,
        "released_bytes": release.released_bytes,
        "site": None if release.site is None else safe_text(release.site),
    }


def _growth(growth: Growth | None) -> dict[str, Any] | None:
    if growth is None:
        return None
    return {
        "step": safe_text(growth.step),
        "event": growth.event,
        "delta_bytes": growth.delta_bytes,
        "rows": [
            {
                "site": safe_text(row.site),
                "category": row.category.label if row.category is not None else None,
                "before_bytes": row.before_bytes,
                "after_bytes": row.after_bytes,
                "delta_bytes": row.delta_bytes,
                "before_count": row.before_count,
                "after_count": row.after_count,
            }
            for row in growth.rows
        ],
    }


def _remedy(history: DeviceHistory, remedy: Remedy) -> dict[str, Any]:
    return {
        "action": remedy.action,
        "frees_bytes": remedy.frees_bytes,
        "is_enough": remedy.is_enough,
        "why": remedy.why,
        "blocks": freeing_of(history, remedy.blocks),
    }


def message_parts(failure: Failure) -> list[tuple[str, int | None, str]]:
    """Return the numbers of PyTorch's own message, and what each meant.

    They follow from the allocator's state (CUDACachingAllocator.cpp, 2.1 to 2.14): the tensor
    asked for less than "tried to allocate", and what is "allocated in private pools" is free.
    """
    state, request = failure.balance, failure.request
    private = state.cached_private_pool_bytes
    parts: list[tuple[str, int | None, str]] = [
        ("tried to allocate", request.segment_bytes,
         f"the segment it wanted, for a request of {format_bytes(request.requested_bytes)}"),
        ("is free", request.device_free_bytes, "at the driver, after the cache was given back"),
        ("allocated by PyTorch", state.allocated_bytes + private,
         "live blocks" + (", and what is idle in private pools" if private else "")),
    ]  # fmt: skip
    if private:
        parts.append(("allocated in private pools", private, "idle there: despite its name, not allocated"))
    parts.append((
        "reserved by PyTorch but unallocated", state.reserved_bytes - state.allocated_bytes - private,
        "holes between live blocks" + (" and blocks that wait for a stream" if state.pending_bytes else "")
        + ": what it could not give back",
    ))  # fmt: skip
    return parts


NO_EVENT: Final = "no oom event in this history: it can't be told whether and why a request failed"


def oom_text(history: DeviceHistory, report: OomReport, page: Page, *, top: int) -> str:
    """Return the report as a page: the verdict first."""
    subject = report.subject
    if subject is None:
        _write_none(history, report, page, top=top)
        return page.text()
    page.line(verdict_line(subject), style="bold")
    page.line(answer_line(subject))
    page.line(device_line(history))
    if also := also_line(subject):
        page.line(also)
    if subject.request.other_class_bytes:
        size = "small" if subject.request.size_class.name == "LARGE" else "large"
        page.line(
            f"{format_bytes(subject.request.other_class_bytes)} more are free in the {size} pool, which no request of "
            f"this size can use"
        )
    write_contradiction(page, report.ledger.balance)
    write_failures(page, report.failures, report.num_ooms, subject)
    _write_remedies(report, subject, page)
    page.title(f"by category {when(subject.at)}")
    write_categories(page, report.ledger)
    page.title("who holds it")
    write_rows(page, report.ledger, top=min(top, 10) if top else 0)
    _write_growth(report.growth, page)
    if report.pins:
        page.title(f"who pins the holes of {subject.request.pool_name}, stream {stream_name(subject.request.stream)}")
        write_pins(page, report.pins, top=min(top, 8) if top else 0)
        write_largest_hole(page, history, report.largest_hole)
    page.title("the ladder")
    write_ladder(page, report.ledger.balance)
    _write_before(report, page)
    page.title("pools")
    write_pools(page, report.pools, top=top)
    if report.pending:
        page.title("freed, but waits for another stream")
        write_pending(page, report.pending, top=top)
    page.title("what PyTorch's message said")
    page.table(
        [(f"  {text}", "unknown" if size is None else format_bytes(size), meaning)
         for text, size, meaning in message_parts(subject)],
        align="lrf",
    )  # fmt: skip
    _write_retries(report, page)
    page.notices(history.notices)
    return page.text()


def _write_none(history: DeviceHistory, report: OomReport, page: Page, *, top: int) -> None:
    """Write what can still be said of a history without an `oom` event."""
    state = report.ledger.balance
    page.line(NO_EVENT, style="bold")
    page.line(device_line(history))
    peak = int(history.totals.reserved_bytes.max())
    page.line(
        f"at the end {format_bytes(state.requested_bytes)} are live and {format_bytes(state.reserved_bytes)} reserved; "
        f"at most {format_bytes(peak)} were"
    )
    if state.capacity_bytes is not None and state.capacity_bytes >= peak:
        page.line(
            f"of {format_bytes(state.capacity_bytes)} that left {format_bytes(state.capacity_bytes - peak)} for all "
            f"else: the CUDA context, NCCL, other processes, and the request that failed, if one did"
        )
    if report.unwinding is not None:
        unwound = report.unwinding
        page.line(
            f"the history ends by freeing {format_bytes(unwound.freed_bytes)} of activations and temporary results, of "
            f"{format_bytes(unwound.live_bytes)} live: an exception does so. Before it: --at event:{unwound.event}"
        )
    page.line("a dump made after the exception misses what unwinding freed; to dump when a request fails:")
    page.line("  torch._C._cuda_attach_out_of_memory_observer(")
    page.line("      lambda *_: torch.cuda.memory._dump_snapshot('oom.pickle'))")
    page.title(f"by category {when(report.ledger.at)}")
    write_categories(page, report.ledger)
    page.title("who holds it")
    write_rows(page, report.ledger, top=min(top, 10) if top else 0)
    if report.pins:
        page.title("who pins holes")
        write_pins(page, report.pins, top=min(top, 8) if top else 0)
    page.title("the ladder")
    write_ladder(page, state)
    page.title("pools")
    write_pools(page, report.pools, top=top)
    if report.pending:
        page.title("freed, but waits for another stream")
        write_pending(page, report.pending, top=top)
    _write_retries(report, page)
    page.notices(history.notices)


def write_failures(page: Page, failures: Sequence[Failure], num_ooms: int, subject: Failure | None) -> None:
    """Write one row per failure, where there are several."""
    if num_ooms < 2:
        return
    shown = f", the last {len(failures)} here" if num_ooms > len(failures) else ""
    about = f"; this page is about event {format_count(subject.at.event)}" if subject is not None else ""
    about += ", --at oom:N shows another"
    page.title(f"{count_of(num_ooms, 'oom event')}{shown}{about}")
    page.table(
        [
            (
                f"  event {format_count(failure.at.event)}",
                failure.verdict.cause.value,
                format_bytes(failure.request.requested_bytes),
                free_text(failure),
                format_bytes(failure.balance.reserved_bytes),
                format_bytes(failure.balance.requested_bytes),
                failure.site,
            )
            for failure in failures
        ],
        align="llrrrrf",
        header=("", "verdict", "asked for", "device free", "reserved", "live", "by"),
    )


def _write_growth(growth: Growth | None, page: Page) -> None:
    if growth is None:
        return
    page.title(f"what changed since the same place of {growth.step}: {format_delta(growth.delta_bytes)}")
    if not growth.rows:
        page.line("  nothing: the same sites hold the same bytes")
        return
    shown = growth.rows[:_MAX_ROWS]
    cells = [
        (format_delta(row.delta_bytes), f"{row.before_count} to {row.after_count}",
         row.category.label[0].upper() if row.category is not None else "", row.site)
        for row in shown
    ]  # fmt: skip
    rest = growth.rows[_MAX_ROWS:]
    if rest:
        left = sum(row.delta_bytes for row in rest)
        cells.append((format_delta(left), "", "", f"({count_of(len(rest), 'more site')}: all in --json)"))
    page.table(cells, align="rrlf", header=("bytes", "count", "", "site"))


def _write_remedies(report: OomReport, subject: Failure, page: Page) -> None:
    page.title("what would have helped, in the allocator's terms")
    if not report.remedies:
        page.line(f"  no setting of the allocator: {_less_live(subject)}")
        return
    for remedy in report.remedies:
        enough = ", enough for this request" if remedy.is_enough else ", not enough alone"
        page.line(f"  {remedy.action}: {format_bytes(remedy.frees_bytes)}{enough}; {remedy.why}")
        if remedy.blocks is not None:
            for row in remedy.blocks.rows[:_MAX_ROWS]:
                page.line(f"    {format_bytes(row.bytes)} in {count_of(row.num_allocations, 'block')}  {row.key}")
            if len(remedy.blocks.rows) > _MAX_ROWS:
                page.line(f"    and {count_of(len(remedy.blocks.rows) - _MAX_ROWS, 'more site')}")


def _less_live(subject: Failure) -> str:
    """Say by how much less must be live, as far as that is known."""
    verdict = subject.verdict
    short = verdict.room.short_by_bytes
    if verdict.full is Full.NEED and verdict.projection is not None:
        short = verdict.projection.needed_bytes - verdict.room.left_bytes
    if short <= 0:
        return "less must be live at once"
    return f"at least {format_bytes(short)} less must be live at once, or the card be larger by that"


def _write_before(report: OomReport, page: Page) -> None:
    before = report.before_release
    if before is None:
        return
    state: Balance = before.balance
    page.line(
        f"  just before, at event {format_count(before.at.event)}, {format_bytes(state.reserved_bytes)} were reserved: "
        f"the failing call first gave {format_bytes(before.release.released_bytes)} of free segments back "
        f"({count_of(before.release.num_segments, 'piece')})"
    )


def _write_retries(report: OomReport, page: Page) -> None:
    if not report.retries:
        return
    total = sum(release.released_bytes for release in report.retries)
    page.title("nearly out of memory")
    page.line(
        f"  {count_of(len(report.retries), 'request')} could be served only after {format_bytes(total)} of cache went "
        f"back to the driver (a retry, or garbage collection)"
    )
    for release in report.retries[-_MAX_RETRIES:]:
        where = f" for {release.site}" if release.site else ""
        page.line(
            f"    event {format_count(release.start_event)}: {format_bytes(release.released_bytes)} in "
            f"{count_of(release.num_segments, 'piece')}{where}"
        )
