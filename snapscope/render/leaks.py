"""Leaks to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from snapscope.analyses.leaks import MIN_STEPS, Leaks, LeakVerdict, OnceRow, Pattern, Survivor
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.render.jsonable import dump, dump_csv, head_of, safe_text
from snapscope.render.ledger import letter_of
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.units import count_of, format_bytes, format_count, format_delta

COLUMNS: Final = (
    "site", "count", "bytes", "growth_bytes", "growth_per_step_bytes", "births", "span_steps", "one_per_step",
    "since_step", "steps_grown", "pattern", "category", "fine", "confidence", "birth_event", "lines",
)  # fmt: skip
_MAX_ONCE: Final = 3
_NOTABLE_BYTES: Final = 1 << 20
_SOURCES: Final = {
    "annotated": "",
    "inferred": ", inferred from the stacks",
    "rounds": ", inferred: rounds of a loop whose lines take turns",
}
_WHY: Final = {
    Pattern.KEPT: "what these sites allocate stays: something still refers to it, step after step",
    Pattern.GRAPH_KEPT: "forward's saved tensors stay: something holds each step's graph, such as a loss in a list or "
    "a sum without .detach() or .item()",
    Pattern.REPLACED: "each step's block is larger than the one it replaces: a cache that grows by concatenation",
    Pattern.FLAT: "no site holds more after each step than after the one before",
    Pattern.SETTLED: "it grew in the first steps only, and then no more",
    Pattern.JUMP: "something appeared once, and stayed; no site grows step by step",
    Pattern.BURSTS: "something is kept for several steps and then freed together: reference cycles until the garbage "
    "collector runs, or a list that is cleared",
}


def leaks_json(history: DeviceHistory, result: Leaks) -> bytes:
    """Return the answer as one JSON object."""
    return dump(
        {
            **head_of(history),
            "verdict": result.verdict.value,
            "pattern": result.pattern.value,
            "growth_per_step_bytes": result.growth_per_step_bytes,
            "growth_bytes": result.growth_bytes,
            "since_step": safe_text(result.since_step) or None,
            "steps_counted": result.num_counted,
            "steps_grown": result.steps_grown,
            "warmup_steps": result.warmup_steps,
            "source": result.source,
            "inferred": result.source in ("inferred", "rounds"),
            "selected": result.is_selection,
            "start_bytes": result.start_bytes,
            "end_bytes": result.end_bytes,
            "after_each_step": [step.requested_bytes for step in result.steps],
            "reserved_grows": result.reserved_grows,
            "reserved_growth_per_step_bytes": result.reserved_growth_per_step_bytes,
            "reserved_after_each_step": [step.reserved_bytes for step in result.steps],
            "steps": [
                {
                    "name": safe_text(step.name),
                    "start_event": step.start_event,
                    "end_event": step.end_event,
                    "warmup": step.is_warmup,
                    "requested_bytes": step.requested_bytes,
                    "change_bytes": step.change_bytes,
                    "growth_bytes": step.growth_bytes,
                    "reserved_bytes": step.reserved_bytes,
                }
                for step in result.steps
            ],
            "survivors": [_survivor(row) for row in result.survivors],
            "appeared_once": [_once(row) for row in result.once],
            "freed_together": [_once(row) for row in result.bursts],
        }
    )


def leaks_csv(result: Leaks) -> Iterator[bytes]:
    """Return the survivors as CSV."""
    return dump_csv(COLUMNS, (_survivor(row) for row in result.survivors))


def _survivor(row: Survivor) -> dict[str, Any]:
    return {
        "site": safe_text(row.site),
        "count": row.count,
        "bytes": row.bytes,
        "growth_bytes": row.growth_bytes,
        "growth_per_step_bytes": row.growth_per_step_bytes,
        "births": row.births,
        "span_steps": row.span_steps,
        "one_per_step": row.one_per_step,
        "since_step": safe_text(row.since_step),
        "steps_grown": row.steps_grown,
        "pattern": row.pattern.value,
        "category": row.category.label,
        "fine": row.fine,
        "confidence": row.confidence.label,
        "birth_event": row.birth_event,
        "lines": list(row.lines),
    }


def _once(row: OnceRow) -> dict[str, Any]:
    return {
        "site": safe_text(row.site),
        "category": row.category.label,
        "fine": row.fine,
        "bytes": row.bytes,
        "count": row.count,
        "step": safe_text(row.step),
    }


def leaks_text(
    history: DeviceHistory, result: Leaks, page: Page, *, top: int, capacity_bytes: int | None = None
) -> str:
    """Return the answer as a page: the verdict, why, the steps, the survivors."""
    page.line(_head(result), style="bold")
    page.line(device_line(history))
    for line in _reasons(result, capacity_bytes):
        page.line(line)
    if result.steps:
        _write_steps(page, result, top)
    if result.survivors:
        _write_survivors(page, result, top)
    page.notices(history.notices)
    return page.text()


def _unit(result: Leaks) -> str:
    return "round" if result.source == "rounds" else "step"


def _head(result: Leaks) -> str:
    unit = _unit(result)
    if result.verdict is LeakVerdict.TOO_FEW_STEPS:
        there_are = count_of(len(result.steps), f"complete {unit}") if result.steps else f"no complete {unit}"
        return f"TOO FEW STEPS to say: {there_are}, {MIN_STEPS} are needed"
    if result.verdict is LeakVerdict.GROWS:
        return (
            f"GROWS {format_bytes(result.growth_per_step_bytes)} per {unit} "
            f"({result.steps_grown} of {count_of(result.num_counted, unit)})"
        )
    first, last = result.steps[-result.num_counted], result.steps[-1]
    return (
        f"FLAT over {count_of(result.num_counted, unit)}: "
        f"{format_bytes(first.requested_bytes)} live after {first.name}, "
        f"{format_bytes(last.requested_bytes)} after {last.name}"
    )


def _reasons(result: Leaks, capacity_bytes: int | None) -> Iterator[str]:
    unit = _unit(result)
    selected = ", of the selected allocations" if result.is_selection else ""
    if result.verdict is LeakVerdict.TOO_FEW_STEPS:
        yield (
            f"live{selected}: {format_bytes(result.start_bytes)} before the history, {format_bytes(result.end_bytes)} "
            f"at its end; that says nothing about a leak"
        )
        if result.source == "none":
            yield "to name steps: with torch.profiler.record_function(f'step {n}'): … around each step"
        return
    yield f"why: {_WHY[result.pattern]}{selected}"
    if result.verdict is LeakVerdict.GROWS and result.since_step != result.steps[result.warmup_steps].name:
        yield f"it grows since {result.since_step}"
    if result.survivors and _is_state(result.survivors[0]):
        yield "only what looks like optimizer state grows: copies of weights kept each step, or LBFGS's history"
    yield from _exclusions(result)
    if result.reserved_grows:
        rate = f"reserved grows {format_bytes(result.reserved_growth_per_step_bytes)} per {unit}"
        if result.verdict is LeakVerdict.FLAT:
            yield f"{rate}: cache or fragmentation, not a leak; `snapscope fragmentation FILE` says what pins it"
        else:
            yield f"{rate}, with the live bytes"
    if capacity_bytes is not None and result.growth_per_step_bytes > 0:
        left = capacity_bytes - result.steps[-1].requested_bytes
        if left > 0:
            yield f"at this rate --capacity is reached in {format_count(left // result.growth_per_step_bytes)} {unit}s"


def _exclusions(result: Leaks) -> Iterator[str]:
    unit = _unit(result)
    if result.warmup_steps:
        which = result.steps[: result.warmup_steps]
        names = which[0].name if len(which) == 1 else f"{which[0].name} to {which[-1].name}"
        yield f"not counted: {names}, the warm-up, in which things appear that are made once"
    if result.num_counted < MIN_STEPS:
        yield f"only {count_of(result.num_counted, unit)} after the warm-up: record more to be sure"
    for row in _notable(result.once):
        what = "a library's workspace" if row.fine == "workspace" else f"{row.category.label}/{row.fine}"
        last = "once, in" if row.count == 1 else "last in"
        yield (
            f"appeared, {last} {row.step}: {format_bytes(row.bytes)} in {count_of(row.count, 'block')} at {row.site} "
            f"({what})"
        )
    for row in _notable(result.bursts):
        yield (
            f"freed together, in {row.step}: {format_bytes(row.bytes)} in {count_of(row.count, 'block')} of several "
            f"{unit}s, from {row.site}"
        )


def _notable(rows: tuple[OnceRow, ...]) -> list[OnceRow]:
    return [row for row in rows[:_MAX_ONCE] if row.bytes >= _NOTABLE_BYTES]


def _is_state(row: Survivor) -> bool:
    return row.category is Category.OPTIMIZER_STATE and row.confidence > Confidence.LOW


def _write_steps(page: Page, result: Leaks, top: int) -> None:
    unit = _unit(result)
    page.title(f"after each {unit}, in requested bytes{_SOURCES.get(result.source, '')}")
    shown, _ = cut_rows([(step.requested_bytes, 1) for step in result.steps], top)
    # The last steps say more than those in the middle.
    left_out = len(result.steps) - shown
    head = (shown + 1) // 2 if left_out else shown
    cells = []
    for number, step in enumerate(result.steps):
        if left_out and head <= number < head + left_out:
            if number == head:
                cells.append(("  …", "", "", "", "", f"({count_of(left_out, f'more {unit}')}: --top 0 shows all)"))
            continue
        note = "warm-up" if step.is_warmup else ""
        cells.append(
            (
                f"  {step.name}",
                format_bytes(step.requested_bytes),
                format_delta(step.change_bytes),
                format_delta(step.growth_bytes) if not step.is_warmup and result.survivors else "",
                format_bytes(step.reserved_bytes),
                note,
            )
        )
    page.table(cells, align="lrrrrf", header=(unit, "live", "change", "of survivors", "reserved", ""))


def _write_survivors(page: Page, result: Leaks, top: int) -> None:
    unit = _unit(result)
    page.title(f"who grows: allocations of these {unit}s that are live after the last")
    rows = result.survivors
    shown, rest = cut_rows([(row.growth_bytes, row.count) for row in rows], top)
    cells = [
        (
            format_delta(row.growth_bytes),
            format_bytes(row.bytes),
            format_count(row.count),
            _rhythm(row, unit),
            letter_of(row.category, row.confidence),
            _label(row),
        )
        for row in rows[:shown]
    ]
    if rest is not None:
        left = f"({count_of(len(rows) - shown, 'more row')}: --top 0 shows all)"
        held = format_bytes(sum(row.bytes for row in rows[shown:]))
        cells.append((format_delta(rest[0]), held, format_count(rest[1]), "", "", left))
    whole = sum(row.bytes for row in rows)
    count = sum(row.count for row in rows)
    cells.append((format_delta(result.growth_bytes), format_bytes(whole), format_count(count), "", "", "= growth"))
    page.table(cells, align="rrrlrf", header=("growth", "live", "count", "pattern", "", "site"))
    page.line(f"  the youngest of the first row: snapscope explain FILE event:{rows[0].birth_event}")


def _rhythm(row: Survivor, unit: str) -> str:
    if row.pattern is Pattern.REPLACED:
        return "replaced by larger"
    if row.one_per_step:
        return f"one per {unit}"
    each, odd = divmod(row.births, row.span_steps)
    return f"{format_count(each)} per {unit}" if not odd else f"{row.births} in {count_of(row.span_steps, unit)}"


def _label(row: Survivor) -> str:
    others = [str(line) for line in row.lines[1:]]
    return f"{row.site}  (also line {', '.join(others)})" if others else row.site
