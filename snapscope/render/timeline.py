"""Timeline to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from snapscope.analyses.moments import format_time
from snapscope.analyses.timeline import Timeline
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.history import DeviceHistory
from snapscope.model import NO_TIME, Int64Column
from snapscope.render.jsonable import dump, dump_csv, head_of
from snapscope.render.page import Page, device_line
from snapscope.units import format_bytes, format_count

COLUMNS: Final = (
    "event", "time_us", "requested_bytes", "allocated_bytes", "pending_bytes", "reserved_bytes", *CATEGORY_LABELS
)  # fmt: skip
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_HEIGHT: Final = 12
_LABEL_WIDTH: Final = 11


def timeline_json(history: DeviceHistory, result: Timeline) -> bytes:
    """Return the curve as one JSON object of columns."""
    return dump(
        {
            **head_of(history),
            "num_events": result.num_events,
            "sampled": result.is_sampled,
            "selection": result.is_selection,
            "capacity_bytes": result.capacity_bytes,
            "events": np.ascontiguousarray(result.events),
            "time_us": [None if time == NO_TIME else time for time in result.time_us.tolist()],
            "requested_bytes": np.ascontiguousarray(result.requested_bytes),
            "allocated_bytes": np.ascontiguousarray(result.allocated_bytes),
            "pending_bytes": np.ascontiguousarray(result.pending_bytes),
            "reserved_bytes": np.ascontiguousarray(result.reserved_bytes),
            "categories": {
                label: np.ascontiguousarray(values)
                for label, values in zip(CATEGORY_LABELS, result.category_bytes, strict=True)
            },
        }
    )


def timeline_csv(result: Timeline) -> Iterator[bytes]:
    """Return the curve as CSV, one row a point."""
    columns = (
        result.events, result.time_us, result.requested_bytes, result.allocated_bytes, result.pending_bytes,
        result.reserved_bytes,
        *result.category_bytes,
    )  # fmt: skip
    rows: Iterator[dict[str, Any]] = (
        dict(zip(COLUMNS, (values[0], None if values[1] == NO_TIME else values[1], *values[2:]), strict=True))
        for values in zip(*(column.tolist() for column in columns), strict=True)
    )
    return dump_csv(COLUMNS, rows)


def timeline_text(history: DeviceHistory, result: Timeline, page: Page, *, width: int) -> str:
    """Return the curve of requested bytes as block characters, with reserved above it."""
    if result.num_events < 2:
        page.line("no history in this file: there is no timeline, only the final state", style="bold")
        page.line(device_line(history))
        page.line(
            "to record one: torch.cuda.memory._record_memory_history(max_entries=1_000_000), and dump while it is on"
        )
        page.notices(history.notices)
        return page.text()
    top = int(np.argmax(result.requested_bytes))
    event = int(result.events[top])
    place = "before the first event" if event < 0 else f"at event {format_count(event)}"
    what = "requested by the selection" if result.is_selection else "requested"
    page.line(f"peak {format_bytes(int(result.requested_bytes[top]))} {what} {place}", style="bold")
    page.line(device_line(history))
    page.line()
    for line in draw(result, width=max(width, 40)):
        page.line(line)
    page.notices(history.notices)
    return page.text()


def draw(result: Timeline, *, width: int) -> list[str]:
    """Draw requested bytes as an area and reserved bytes as dots, over the event axis."""
    columns = width - _LABEL_WIDTH - 2
    top = int(max(result.reserved_bytes.max(), result.requested_bytes.max(), result.capacity_bytes or 1))
    cell = np.minimum((result.events + 1) * columns // (result.num_events + 1), columns - 1)
    live = _per_column(cell, result.requested_bytes, columns)
    reserved = _per_column(cell, result.reserved_bytes, columns)
    peak_column = int(cell[int(np.argmax(result.requested_bytes))])
    lines = []
    for row in reversed(range(_HEIGHT)):
        low, high = row * top / _HEIGHT, (row + 1) * top / _HEIGHT
        text = []
        for column in range(columns):
            eighths = round(8 * (live[column] - low) / (high - low))
            glyph = _EIGHTHS[min(max(eighths, 0), 8)]
            if glyph == " " and low < reserved[column] <= high:
                glyph = "·"
            text.append(glyph)
        labelled = row == _HEIGHT - 1 or row == _HEIGHT // 2
        label = format_bytes(round(high if row else 0)) if labelled else ""
        lines.append(f"{label:>{_LABEL_WIDTH}} ┤{''.join(text)}")
    lines.append(f"{'0 B':>{_LABEL_WIDTH}} ┼{'─' * peak_column}▲{'─' * (columns - peak_column - 1)}")
    first, last = "event 0", f"event {format_count(result.num_events - 1)}"
    lines.append(" " * (_LABEL_WIDTH + 2) + first + last.rjust(columns - len(first)))
    lines.append(" " * (_LABEL_WIDTH + 2) + "█ requested  · reserved  ▲ peak" + _span(result))
    return lines


def _per_column(cell: Int64Column, values: Int64Column, columns: int) -> Int64Column:
    """Return the highest value of each column; columns between two points keep the last one."""
    out = np.full(columns, -1, np.int64)
    np.maximum.at(out, cell, values)
    last = 0
    for column, value in enumerate(out.tolist()):
        if value < 0:
            out[column] = last
        else:
            # The state after this column is that of its last point, not of its highest.
            last = int(values[np.flatnonzero(cell == column)[-1]])
    return out


def _span(result: Timeline) -> str:
    if result.time_us[0] == NO_TIME:
        return ""
    seconds = (int(result.time_us[-1]) - int(result.time_us[0])) / 1e6
    return f"   {seconds:,.3f} s from {format_time(int(result.time_us[0]))} UTC"
