"""Summary to text and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from snapscope.analyses.coverage import Coverage, Head, explained_share
from snapscope.analyses.moments import Peak, format_time
from snapscope.analyses.summary import Summary
from snapscope.history import DeviceHistory
from snapscope.lifetimes import Context
from snapscope.model import Source
from snapscope.render.free_memory import pool_of, write_pools
from snapscope.render.jsonable import balance_of, device_of, dump, head_of, safe_text
from snapscope.render.ledger import ledger_document, when, write_categories, write_ladder, write_rows
from snapscope.render.oom import failure_of, write_failures
from snapscope.render.page import Page, device_line
from snapscope.render.verdict import answer_line, verdict_line
from snapscope.units import count_of, format_bytes, format_count, format_share


def summary_json(history: DeviceHistory, result: Summary) -> bytes:
    """Return the summary as one JSON object."""
    snapshot = history.snapshot
    return dump(
        {
            **head_of(history),
            "format": {
                "size_bytes": snapshot.source.size_bytes,
                "containers": list(map(safe_text, snapshot.source.containers)),
                "encoding": snapshot.source.encoding,
                "protocol": snapshot.source.protocol,
                "form": snapshot.format.form,
                "torch_version": snapshot.format.torch_version,
                "backend": snapshot.format.backend,
                "keys": list(map(safe_text, snapshot.format.keys)),
                "settings": _safe(dict(snapshot.settings.raw)) if snapshot.settings.known else None,
            },
            "coverage": _coverage(result.coverage),
            "devices": [
                {
                    "device": device_of(tables.device),
                    "num_events": len(tables.events),
                    "num_segments": len(tables.segments),
                    "num_blocks": len(tables.blocks),
                    "reserved_bytes": tables.reserved_bytes,
                }
                for tables in snapshot.devices
            ],
            "ladder": balance_of(result.ladder),
            "ladder_at_end": balance_of(result.end),
            "ledger": ledger_document(result.ledger),
            "peaks": asdict(result.peaks),
            "ooms": [failure_of(history, failure) for failure in result.failures],
            "pools": [pool_of(history, row) for row in result.pools],
            "verdict": result.failures[-1].verdict.cause.value if result.failures else None,
        }
    )


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "head": coverage.head.value,
        "head_evidence": coverage.head_evidence,
        "num_events": coverage.num_events,
        "start_time_us": coverage.start_time_us,
        "end_time_us": coverage.end_time_us,
        "before_bytes": coverage.before_bytes,
        "num_before": coverage.num_before,
        "context": coverage.context.value,
        "has_python_stacks": coverage.has_python_stacks,
        "has_cpp_stacks": coverage.has_cpp_stacks,
        "missing_actions": list(coverage.missing_actions),
        "live_bytes": coverage.live_bytes,
        "explained_bytes": coverage.explained_bytes,
        "stack_bytes": coverage.stack_bytes,
        "before_stack_bytes": coverage.before_stack_bytes,
        "freed_before_bytes": coverage.freed_before_bytes,
        "other_devices": [
            {"device": device_of(device), "num_events": events, "reserved_bytes": reserved}
            for device, events, reserved in coverage.other_devices
        ],
        "advice": list(coverage.advice),
    }


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, dict):
        return {safe_text(key): _safe(item) for key, item in value.items()}
    return value


def summary_text(history: DeviceHistory, result: Summary, page: Page, *, top: int) -> str:
    """Return the summary as a page: the answer first."""
    page.line(headline(history, result), style="bold")
    if result.failures:
        page.line(answer_line(result.failures[-1]))
    page.line(device_line(history))
    page.line(coverage_line(result.coverage))
    subject = result.failures[-1] if result.failures else None
    write_failures(page, result.failures, len(history.tables.events.oom_events), subject)
    # Where the run died of it, the OOM is the moment that matters, and only there the file tells
    # what the driver had free.
    shown = result.oom_ledger or result.ledger
    moment = when(shown.at) if has_history(history) else "in the final state"
    page.title(f"by category {moment}")
    write_categories(page, shown)
    page.title("who holds it")
    write_rows(page, shown, top=top)
    page.title("the ladder")
    write_ladder(page, shown.balance)
    if len({(row.pool, row.stream) for row in result.pools}) > 1:
        page.title("pools and streams")
        write_pools(page, result.pools, top=top)
    if has_history(history):
        _write_peaks(page, result)
    page.title("what this file can tell")
    page.table(_coverage_rows(history, result.coverage), align="lf")
    for number, advice in enumerate(result.coverage.advice):
        page.line(f"  {' ' * 15 if number else 'to record more:'} {advice}")
    page.notices(history.notices)
    return page.text()


def _write_peaks(page: Page, result: Summary) -> None:
    page.title("peaks")
    peaks = result.peaks
    page.table(
        [
            _peak_row("requested", peaks.requested, "live bytes, as asked for"),
            _peak_row("allocated", peaks.allocated, "max_memory_allocated"),
            _peak_row("active", peaks.active, "with frees that wait for a stream"),
            _peak_row("reserved", peaks.reserved, "max_memory_reserved"),
        ],
        align="lrrf",
    )
    if peaks.reserved.bytes > result.ladder.reserved_bytes:
        page.line(
            f"  at the live peak {format_bytes(result.ladder.reserved_bytes)} were reserved, less than the highest"
        )


def has_history(history: DeviceHistory) -> bool:
    """Tell whether there is more than a final state (`enabled="state"` keeps the last event)."""
    return history.num_events > 1


def coverage_line(coverage: Coverage) -> str:
    """Return the coverage in one line: events, span, beginning, stacks."""
    if coverage.head is Head.NO_HISTORY:
        return f"no history in this file ({count_of(coverage.num_events, 'event')}), the final state only"
    span = ""
    if coverage.start_time_us is not None and coverage.end_time_us is not None:
        span = f" over {(coverage.end_time_us - coverage.start_time_us) / 1e6:,.3f} s"
    head = {
        Head.COMPLETE: "history complete",
        Head.STARTS_LATE: f"history starts late: {format_bytes(coverage.before_bytes)} are older",
        Head.LOST: f"head of the history lost: {format_bytes(coverage.before_bytes)} are older",
    }[coverage.head]
    share = format_share(coverage.stack_bytes, coverage.live_bytes)
    stacks = f"{share} of the live bytes have a stack" if coverage.live_bytes else "nothing is live"
    return f"{count_of(coverage.num_events, 'event')}{span}, {head}, {stacks}"


def headline(history: DeviceHistory, result: Summary) -> str:
    """Return the one sentence that answers first."""
    peak = result.peaks.requested
    if result.failures:
        last = result.failures[-1]
        total = f" ({format_count(last.number)} oom events, this is the last)" if last.number > 1 else ""
        return f"OUT OF MEMORY at event {format_count(last.at.event)}, {verdict_line(last)}{total}"
    if not has_history(history):
        return (
            f"{format_bytes(result.end.requested_bytes)} live, {format_bytes(result.end.reserved_bytes)} reserved: "
            f"the final state only, no history in this file"
        )
    place = "before the first kept event" if peak.event < 0 else f"at event {format_count(peak.event)}"
    return (
        f"peak {format_bytes(peak.bytes)} requested {place}, {format_bytes(result.ladder.allocated_bytes)} allocated, "
        f"{format_bytes(result.peaks.reserved.bytes)} reserved at most"
    )


def _peak_row(name: str, peak: Peak, meaning: str) -> tuple[str, str, str, str]:
    place = "before the first event" if peak.event < 0 else f"event {format_count(peak.event)}"
    return f"  {name}", format_bytes(peak.bytes), place, meaning


def _coverage_rows(history: DeviceHistory, coverage: Coverage) -> list[tuple[str, str]]:
    facts = history.snapshot.format
    rows = [("  file", f"{_container(history.snapshot.source)}, written by {_version(facts.torch_version)}")]
    if coverage.head is not Head.NO_HISTORY:
        span = ""
        if coverage.start_time_us is not None and coverage.end_time_us is not None:
            seconds = (coverage.end_time_us - coverage.start_time_us) / 1e6
            span = f" over {seconds:,.3f} s from {format_time(coverage.start_time_us)} UTC"
        rows.append(("  history", f"{count_of(coverage.num_events, 'event')}{span}"))
    else:
        rows.append(("  history", "no history in this file: the final state only"))
    if coverage.head is not Head.NO_HISTORY:
        rows.append(("  beginning", _head_text(coverage)))
    if coverage.head is not Head.NO_HISTORY:
        rows.append(("  explained", explained_share(coverage)))
    if coverage.missing_actions:
        rows.append(
            (
                "  missing",
                f"events of kind {', '.join(coverage.missing_actions)}: totals in between are uncertain",
            )
        )
    rows.append(("  stacks", _stacks_text(coverage)))
    settings = history.snapshot.settings
    conf = settings.conf or "defaults"
    known = f"{conf}{', expandable_segments on' if settings.expandable_segments and 'expandable' not in conf else ''}"
    rows.append(("  settings", known if settings.known else "not in this file"))
    return rows


def _version(version: str) -> str:
    return "an unknown release of PyTorch" if version == "unknown" else f"PyTorch {version}"


def _container(source: Source) -> str:
    kind = f"pickle protocol {source.protocol}" if source.encoding == "pickle" else source.encoding.upper()
    inside = f" in {' in '.join(reversed(source.containers))}" if source.containers else ""
    return f"{format_bytes(source.size_bytes)}, {kind}{inside}"


def _head_text(coverage: Coverage) -> str:
    words = {
        Head.COMPLETE: "complete",
        Head.STARTS_LATE: "starts late",
        Head.LOST: "lost",
        Head.NO_HISTORY: "none",
    }[coverage.head]
    older = (
        f"; {format_bytes(coverage.before_bytes)} in {count_of(coverage.num_before, 'older allocation')}"
        if coverage.num_before
        else ""
    )
    return f"{words}: {coverage.head_evidence}{older}"


def _stacks_text(coverage: Coverage) -> str:
    if not coverage.has_python_stacks and not coverage.has_cpp_stacks:
        return "none recorded"
    kinds = [name for name, has in (("Python", coverage.has_python_stacks), ("C++", coverage.has_cpp_stacks)) if has]
    context = {
        Context.ALL: "of allocs and frees",
        Context.ALLOC: "of allocs",
        Context.STATE: "on blocks only",
    }.get(coverage.context, "")
    share = format_share(coverage.stack_bytes, coverage.live_bytes)
    recorded = f"{' and '.join(kinds)} {context}".strip()
    return f"{recorded}; {share} of the bytes live at the end have one"
