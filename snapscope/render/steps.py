"""Steps to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from snapscope.analyses.step_table import StepRow, StepTable
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.history import DeviceHistory
from snapscope.render.jsonable import dump, dump_csv, head_of
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.units import count_of, format_bytes, format_count, format_delta

COLUMNS: Final = (
    "name", "start_event", "end_event", "complete", "start_bytes", "peak_bytes", "peak_event", "end_bytes",
    "reserved_bytes", *CATEGORY_LABELS,
)  # fmt: skip


def steps_json(history: DeviceHistory, result: StepTable) -> bytes:
    """Return the steps as one JSON object."""
    return dump(
        {
            **head_of(history),
            "inferred": result.source == "inferred",
            "source": result.source,
            "steps": [
                {
                    "name": row.name,
                    "start_event": row.start_event,
                    "end_event": row.end_event,
                    "complete": row.is_complete,
                    "start_bytes": row.start_bytes,
                    "peak_bytes": row.peak_bytes,
                    "peak_event": row.peak_event,
                    "end_bytes": row.end_bytes,
                    "reserved_bytes": row.reserved_bytes,
                    "categories": dict(zip(CATEGORY_LABELS, row.end_categories, strict=True)),
                    "phases": [
                        {
                            "name": phase.name,
                            "start_event": phase.start_event,
                            "end_event": phase.end_event,
                            "start_bytes": phase.start_bytes,
                            "peak_bytes": phase.peak_bytes,
                            "end_bytes": phase.end_bytes,
                        }
                        for phase in row.phases
                    ],
                }
                for row in result.rows
            ],
        }
    )


def steps_csv(result: StepTable) -> Iterator[bytes]:
    """Return one line a step as CSV; categories are those at its end."""
    return dump_csv(COLUMNS, (_flat(row) for row in result.rows))


def _flat(row: StepRow) -> dict[str, Any]:
    named = {"complete": row.is_complete}
    flat = {name: named.get(name, getattr(row, name, None)) for name in COLUMNS if name not in CATEGORY_LABELS}
    return {**flat, **dict(zip(CATEGORY_LABELS, row.end_categories, strict=True))}


def steps_text(history: DeviceHistory, result: StepTable, page: Page, *, top: int) -> str:
    """Return the steps as a page: one row a step, then the phases of the step with the highest peak."""
    named = [row for row in result.rows if row.name.startswith("step ")]
    if not named:
        page.line("no steps can be told: nothing in this history repeats, and nothing names steps", style="bold")
        page.line(device_line(history))
        page.line("to name them: with torch.profiler.record_function(f'step {n}'): … around each step")
        page.notices(history.notices)
        return page.text()
    heaviest = max(result.rows, key=lambda row: row.peak_bytes)
    cut = "" if named[-1].is_complete else ", the last unfinished"
    page.line(
        f"{count_of(len(named), 'step')}, {result.source}{cut}; the highest peak is "
        f"{format_bytes(heaviest.peak_bytes)} in {heaviest.name}, at event {format_count(heaviest.peak_event)}",
        style="bold",
    )
    page.line(device_line(history))
    page.title("steps, in requested bytes")
    shown, rest = cut_rows([(row.peak_bytes, 1) for row in result.rows], top)
    cells = [_cells(row) for row in result.rows[:shown]]
    if rest is not None:
        cells.append(("", "", "", "", "", f"({count_of(len(result.rows) - shown, 'more step')}: --top 0 shows all)"))
    page.table(cells, align="lrrrrf", header=("step", "begins with", "peak", "ends with", "grows", "events"))
    page.title(f"phases of {heaviest.name}")
    page.table(
        [
            (
                f"  {phase.name}", format_bytes(phase.start_bytes), format_bytes(phase.peak_bytes),
                format_bytes(phase.end_bytes), format_delta(phase.end_bytes - phase.start_bytes),
                f"{format_count(phase.start_event)} to {format_count(phase.end_event)}",
            )
            for phase in heaviest.phases[:_MAX_PHASES]
        ],
        align="lrrrrf",
    )  # fmt: skip
    if len(heaviest.phases) > _MAX_PHASES:
        page.line(f"  ({count_of(len(heaviest.phases) - _MAX_PHASES, 'more phase')}: --json has all)")
    page.notices(history.notices)
    return page.text()


_MAX_PHASES: Final = 20


def _cells(row: StepRow) -> tuple[str, ...]:
    return (
        f"  {row.name}",
        format_bytes(row.start_bytes),
        format_bytes(row.peak_bytes),
        format_bytes(row.end_bytes),
        format_delta(row.end_bytes - row.start_bytes),
        f"{format_count(row.start_event)} to {format_count(row.end_event)}{'' if row.is_complete else ', unfinished'}",
    )
