"""Ledger to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from snapscope.analyses.ledger import Balance, By, CategoryRow, Ledger, LedgerRow
from snapscope.analyses.moments import Moment, format_time
from snapscope.analyses.selection import LEFT_OUT_KEY
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.render.jsonable import balance_of, dump, dump_csv, head_of, moment_of, safe_text
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.units import count_of, format_bytes, format_count, format_share

_MOMENTS: Final = {
    "peak": "at the peak",
    "peak-allocated": "at the allocated peak",
    "peak-active": "at the active peak",
    "peak-reserved": "at the reserved peak",
    "start": "before the first event",
    "end": "at the end",
    "oom": "at the last OOM",
}

COLUMNS: Final = ("key", "bytes", "num_allocations", "share", "category", "confidence", "lines")


def ledger_json(history: DeviceHistory, result: Ledger) -> bytes:
    """Return the ledger as one JSON object."""
    return dump({**head_of(history), **ledger_document(result)})


def ledger_document(result: Ledger) -> dict[str, Any]:
    """Return the ledger's own keys."""
    return {
        "at": moment_of(result.at),
        "by": result.by.value,
        **balance_of(result.balance),
        "categories": {row.category.label: row.bytes for row in result.categories},
        "category_rows": [
            {
                "category": row.category.label,
                "bytes": row.bytes,
                "num_allocations": row.num_allocations,
                "confidence": row.confidence.label,
                "high_bytes": row.confidence_bytes[Confidence.HIGH],
                "medium_bytes": row.confidence_bytes[Confidence.MEDIUM],
                "low_bytes": row.confidence_bytes[Confidence.LOW],
                "none_bytes": row.confidence_bytes[Confidence.NONE],
            }
            for row in result.categories
        ],
        "rows": list(_rows(result)),
    }


def ledger_csv(result: Ledger) -> Iterator[bytes]:
    """Return the rows as CSV."""
    return dump_csv(COLUMNS, _rows(result))


def _rows(result: Ledger) -> Iterator[dict[str, Any]]:
    whole = result.balance.requested_bytes
    for row in result.rows:
        yield {
            "key": safe_text(row.key),
            "bytes": row.bytes,
            "num_allocations": row.num_allocations,
            "share": round(row.bytes / whole, 6) if whole else 0.0,
            "category": row.category.label if row.category is not None else None,
            "confidence": row.confidence.label if row.confidence is not None else None,
            "lines": list(row.lines),
        }


def ledger_text(history: DeviceHistory, result: Ledger, page: Page, *, top: int) -> str:
    """Return the ledger as a page."""
    balance = result.balance
    page.line(
        f"{format_bytes(balance.requested_bytes)} requested in "
        f"{count_of(sum(row.num_allocations for row in result.rows), 'live allocation')} {when(result.at)}",
        style="bold",
    )
    page.line(device_line(history))
    if result.by is not By.CATEGORY:
        page.title("by category")
        write_categories(page, result)
    page.title(f"who holds it, by {result.by.value}")
    write_rows(page, result, top=top)
    page.title("and the rest of what is reserved")
    write_ladder(page, balance)
    page.notices(history.notices)
    return page.text()


def when(at: Moment) -> str:
    """Return `at the peak (event 41,207, 2026-…)`."""
    name = _MOMENTS.get(at.label, f"at {at.label}")
    detail = [] if at.label.startswith("event:") else [f"event {format_count(at.event)}"]
    if at.event < 0:
        detail = [] if at.label == "start" else ["before the first event"]
    elif at.time_us is not None:
        detail.append(f"{format_time(at.time_us)} UTC")
    return f"{name} ({', '.join(detail)})" if detail else name


def write_categories(page: Page, result: Ledger) -> None:
    """Write the five categories with how sure they are; they sum to the requested bytes."""
    whole = result.balance.requested_bytes
    cells = [
        (
            format_bytes(row.bytes),
            format_share(row.bytes, whole),
            format_count(row.num_allocations),
            f"{row.category.label[0].upper()} {row.category.label}",
            _sureness(row),
        )
        for row in result.categories
    ]
    count = sum(row.num_allocations for row in result.categories)
    cells.append((format_bytes(whole), format_share(whole, whole), format_count(count), "= requested", ""))
    page.table(cells, align="rrrlf", header=("bytes", "share", "count", "category", "how sure"))


def _sureness(row: CategoryRow) -> str:
    """Return `high`, or `medium, 1.20 GiB low`: what most bytes are, then the others."""
    if not row.bytes:
        return ""
    parts = [(level, row.confidence_bytes[level]) for level in reversed(Confidence) if row.confidence_bytes[level]]
    most, *rest = sorted(parts, key=lambda part: -part[1])
    return ", ".join([most[0].label, *(f"{format_bytes(size)} {level.label}" for level, size in rest)])


def write_rows(page: Page, result: Ledger, *, top: int) -> None:
    """Write the rows and what was left out; they sum to the requested bytes."""
    whole = result.balance.requested_bytes
    if not result.rows:
        page.line("  nothing is live")
        return
    # What --focus left out is always said, whatever --top is.
    last = [row for row in result.rows if row.key == LEFT_OUT_KEY]
    rows = result.rows[: len(result.rows) - len(last)]
    shown, rest = cut_rows([(row.bytes, row.num_allocations) for row in rows], top)
    cells = [_cells(row.bytes, row.num_allocations, whole, row_label(row), _row_letter(row)) for row in rows[:shown]]
    if rest is not None:
        cells.append(_cells(*rest, whole, f"({count_of(len(rows) - shown, 'more row')}: --top 0 shows all)"))
    cells += [_cells(row.bytes, row.num_allocations, whole, row.key) for row in last]
    cells.append(_cells(whole, sum(row.num_allocations for row in result.rows), whole, "= requested"))
    page.table(cells, align="rrrlf", header=("bytes", "share", "count", "", result.by.value))


def _cells(num_bytes: int, number: int, whole: int, key: str, letter: str = "") -> tuple[str, ...]:
    return format_bytes(num_bytes), format_share(num_bytes, whole), format_count(number), letter, key


def _row_letter(row: LedgerRow) -> str:
    return "" if row.category is None or row.confidence is None else letter_of(row.category, row.confidence)


def letter_of(category: Category, confidence: Confidence) -> str:
    """Return a category's letter, with a question mark where it is a guess."""
    return category.label[0].upper() + ("?" if confidence <= Confidence.LOW else "")


def row_label(row: LedgerRow) -> str:
    """Return a row's key, with the other lines that it stands for."""
    others = [str(line) for line in row.lines[1:]]
    return f"{row.key}  (also line {', '.join(others)})" if others else row.key


def write_contradiction(page: Page, balance: Balance) -> None:
    """Say at the head where blocks and segments contradict each other; the notices say how."""
    if balance.cached_bytes < 0 or balance.cached_holes_bytes < 0:
        page.line(
            "the file contradicts itself: its blocks exceed its segments, so figures of free memory mean little "
            "(see the notices)",
            style="yellow",
        )


def write_ladder(page: Page, balance: Balance) -> None:
    """Write the rungs from requested to reserved, each with what it means."""
    rungs = [
        ("  requested by tensors", balance.requested_bytes, "what the code asked for"),
        (
            "+ rounding",
            balance.rounding_bytes,
            "blocks are multiples of 512 B, large ones may keep up to 1 MiB",
        ),
        ("= allocated", balance.allocated_bytes, "torch.cuda.memory_allocated()"),
        ("+ pending free", balance.pending_bytes, "freed, waits for another stream"),
        ("+ cached", balance.cached_bytes, "reserved but unallocated, of which:"),
        ("    free segments", balance.cached_free_segments_bytes, "empty_cache() returns them"),
        ("    holes", balance.cached_holes_bytes, "between live blocks, which pin them"),
        ("    private pools", balance.cached_private_pool_bytes, "idle, but only for their graph or pool"),
        ("= reserved", balance.reserved_bytes, "torch.cuda.memory_reserved()"),
    ]
    cells = [(name, format_bytes(size), meaning) for name, size, meaning in rungs]
    cells += [_outside_rung(balance), *_device_free_rung(balance)]
    if balance.capacity_bytes is not None:
        cells.append(("= capacity", format_bytes(balance.capacity_bytes), "as given"))
    page.table(cells, align="lrf")


def _outside_rung(balance: Balance) -> tuple[str, str, str]:
    name = "+ outside PyTorch"
    if balance.outside_bytes is not None:
        meaning = "CUDA context, NCCL, other processes"
        if balance.capacity_bytes is not None and balance.outside_bytes * 2 > balance.capacity_bytes:
            meaning += " (more than half of the card: is --capacity right?)"
        if balance.device_free_bytes is None:
            meaning += f", as at the oom event {format_count(balance.outside_event or 0)}"
        return name, format_bytes(balance.outside_bytes), meaning
    if balance.capacity_bytes is None:
        return name, "unknown", "needs --capacity: the card's size isn't in the file"
    if balance.capacity_bytes < balance.reserved_bytes + (balance.device_free_bytes or 0):
        return name, "unknown", "--capacity is smaller than what was seen on the card"
    return name, "unknown", "only an oom event tells what the driver had free"


def _device_free_rung(balance: Balance) -> Iterator[tuple[str, str, str]]:
    name = "+ device free"
    if balance.device_free_bytes is not None:
        yield name, format_bytes(balance.device_free_bytes), "what the driver still had"
    elif balance.capacity_bytes is not None and balance.capacity_bytes >= balance.reserved_bytes:
        rest = balance.capacity_bytes - balance.reserved_bytes
        if balance.outside_bytes is not None and rest >= balance.outside_bytes:
            yield name, format_bytes(rest - balance.outside_bytes), "if outside stayed the same"
        else:
            yield name, "unknown", f"with what is outside: {format_bytes(rest)}"
