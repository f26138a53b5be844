"""A difference to text, Markdown, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from snapscope.analyses.diff import Change, Diff, DiffRow
from snapscope.analyses.gates import FailedGate
from snapscope.analyses.profile import MemoryProfile
from snapscope.classify.material import Category
from snapscope.escaping import escape
from snapscope.model import Notice
from snapscope.render.jsonable import SCHEMA, device_of, dump, dump_csv, notice_of, safe_text
from snapscope.render.page import Page, cut_rows
from snapscope.units import count_of, format_bytes, format_count, format_delta

COLUMNS: Final = (
    "site", "category", "fine", "change", "moved_from", "moved_to", "before_bytes", "after_bytes", "delta_bytes",
    "before_count", "after_count",
)  # fmt: skip
_MAX_SIZES: Final = 2
_MAX_FAILED_ROWS: Final = 5
_MAX_SETTINGS: Final = 8
_BALANCE: Final = (
    ("reserved", "reserved_bytes"),
    ("allocated", "allocated_bytes"),
    ("holes", "holes_bytes"),
    ("free segments", "free_segments_bytes"),
    ("private pools", "private_pool_bytes"),
    ("largest hole", "largest_hole_bytes"),
)


def diff_json(result: Diff, failed: Sequence[FailedGate]) -> bytes:
    """Return the difference as one JSON object."""
    return dump(
        {
            "schema": SCHEMA,
            "file": safe_text(result.after.name),
            "device": device_of(result.after.device),
            "notices": [notice_of(notice) for notice in notices_of(result)],
            "before": side_of(result.before),
            "after": side_of(result.after),
            "delta_bytes": result.delta_bytes,
            "is_empty": result.is_empty,
            "noise_bytes": result.noise_bytes,
            "categories": {
                category.label: {
                    "before_bytes": result.before.categories[category],
                    "after_bytes": result.after.categories[category],
                    "delta_bytes": result.delta_of(category),
                }
                for category in Category
            },
            "rows": [_row(row) for row in result.rows],
            "reserved": {
                name: {
                    "before": getattr(result.before, name),
                    "after": getattr(result.after, name),
                    "delta": getattr(result.after, name) - getattr(result.before, name),
                }
                for _, name in _BALANCE
            },
            "settings": [
                {"name": safe_text(change.name), "before": _safe(change.before), "after": _safe(change.after)}
                for change in result.settings
            ],
            "failed": [failed_of(gate) for gate in failed],
        }
    )


def side_of(side: MemoryProfile) -> dict[str, Any]:
    """Return one side of a comparison as an object."""
    return {
        "file": safe_text(side.name),
        "device": device_of(side.device),
        "at": {"event": side.event, "label": safe_text(side.label)},
        "phase": _safe(side.phase),
        "requested_bytes": side.requested_bytes,
        "allocated_bytes": side.allocated_bytes,
        "reserved_bytes": side.reserved_bytes,
        "peaks": side.peak_bytes,
        "num_steps": side.num_steps,
        "num_ooms": side.num_ooms,
    }


def failed_of(gate: FailedGate) -> dict[str, Any]:
    """Return a failed gate as an object."""
    return {
        "gate": safe_text(gate.gate),
        "what": safe_text(gate.what),
        "limit_bytes": gate.limit_bytes,
        "value_bytes": gate.value_bytes,
        "reason": safe_text(gate.reason),
    }


def _row(row: DiffRow) -> dict[str, Any]:
    moved = row.moved
    return {
        "site": safe_text(row.shown.label),
        "category": row.shown.category.label,
        "fine": row.shown.fine,
        "change": row.change.value,
        "moved": None if moved is None else {"from": safe_text(moved[0]), "to": safe_text(moved[1])},
        "before_bytes": row.before_bytes,
        "after_bytes": row.after_bytes,
        "delta_bytes": row.delta_bytes,
        "before_count": row.before.count if row.before is not None else 0,
        "after_count": row.after.count if row.after is not None else 0,
        "sizes": [
            {"requested_bytes": size, "before_count": before, "after_count": after}
            for size, before, after in row.size_changes
        ],
    }


def _safe(text: str | None) -> str | None:
    return None if text is None else safe_text(text)


def diff_csv(result: Diff) -> Iterator[bytes]:
    """Return the rows as CSV."""
    return dump_csv(COLUMNS, (_flat(row) for row in result.rows))


def _flat(row: DiffRow) -> dict[str, Any]:
    flat = _row(row)
    moved = flat.pop("moved")
    return {**flat, "moved_from": moved["from"] if moved else None, "moved_to": moved["to"] if moved else None}


def diff_text(result: Diff, failed: Sequence[FailedGate], page: Page, *, top: int) -> str:
    """Return the difference as a page: the answer first, failed gates next."""
    page.line(headline(result), style="bold")
    page.line(f"before  {_side(result.before)}")
    page.line(f"after   {_side(result.after)}")
    write_failed(page, result, failed)
    if result.delta_bytes or not result.is_empty:
        page.title("by category")
        _write_categories(page, result)
    page.title("by site")
    _write_rows(page, result, top=top)
    page.title("what is reserved, and why it isn't used")
    _write_balance(page, result)
    if result.settings:
        page.title("settings that differ")
        for change in result.settings[:_MAX_SETTINGS]:
            page.line(f"  {change.name}: {change.before or 'not known'} to {change.after or 'not known'}")
    page.notices(notices_of(result))
    return page.text()


def notices_of(result: Diff) -> list[Notice]:
    """Return the oddities of both files; what both have stands once, as the later file has it."""
    found = {notice.code: notice for notice in (*result.before.notices, *result.after.notices)}
    return list(found.values())


def headline(result: Diff) -> str:
    """Return the one sentence that answers first."""
    before, after = result.before.requested_bytes, result.after.requested_bytes
    if result.is_empty:
        exact = "" if not result.delta_bytes else f" ({format_delta(result.delta_bytes)} in all)"
        return (
            f"no difference above {format_bytes(result.noise_bytes)} a site{exact}: {format_bytes(after)} on both sides"
        )
    share = f", {100 * result.delta_bytes / before:+.1f}%" if before else ""
    return (
        f"{format_delta(result.delta_bytes)} live at the peak ({format_bytes(before)} to {format_bytes(after)}{share})"
        if result.before.label == result.after.label == "peak"
        else f"{format_delta(result.delta_bytes)} live ({format_bytes(before)} to {format_bytes(after)}{share})"
    )


def _side(side: MemoryProfile) -> str:
    where = f" in {side.phase}" if side.phase else ""
    return f"{side.name}  {device_name(side)}, {side.label} at event {format_count(side.event)}{where}"


def device_name(side: MemoryProfile) -> str:
    """Name the device of a side."""
    return "host (pinned)" if side.device < 0 else f"device {side.device}"


def write_failed(page: Page, result: Diff | None, failed: Sequence[FailedGate]) -> None:
    """Write one reason a failed gate, and the rows that explain it."""
    for gate in failed:
        page.line(f"FAILED {gate.gate}: {gate.reason}", style="bold red")
        if result is None:
            continue
        rows = [row for row in result.rows if _concerns(row, gate)][:_MAX_FAILED_ROWS]
        for row in rows:
            page.line(f"    {format_delta(row.delta_bytes)}  {row.shown.category.label}  {row.shown.label}")


def _concerns(row: DiffRow, gate: FailedGate) -> bool:
    if row.change is Change.SAME or (row.delta_bytes > 0) != ((gate.value_bytes or 0) > 0):
        return False
    names = {category.label for category in Category}
    return row.shown.category.label == gate.what if gate.what in names else True


def _write_categories(page: Page, result: Diff) -> None:
    cells = [
        (
            format_delta(result.delta_of(category)), format_bytes(result.before.categories[category]),
            format_bytes(result.after.categories[category]), f"{category.label[0].upper()} {category.label}",
        )
        for category in Category
    ]  # fmt: skip
    before, after = result.before.requested_bytes, result.after.requested_bytes
    cells.append((format_delta(result.delta_bytes), format_bytes(before), format_bytes(after), "= requested"))
    page.table(cells, align="rrrl", header=("delta", "before", "after", "category"))


def _write_rows(page: Page, result: Diff, *, top: int) -> None:
    changed = [row for row in result.rows if row.change is not Change.SAME]
    same = [row for row in result.rows if row.change is Change.SAME]
    shown, rest = cut_rows([(row.delta_bytes, 1) for row in changed], top)
    cells: list[tuple[str, ...]] = [
        (
            format_delta(row.delta_bytes), format_bytes(row.before_bytes), format_bytes(row.after_bytes),
            row.change.value, row.shown.category.label[0].upper(), _label(row),
        )
        for row in changed[:shown]
    ]  # fmt: skip
    if rest is not None:
        more = f"({count_of(len(changed) - shown, 'more site')}: --top 0 shows all)"
        cells.append(_sum_cells(changed[shown:], more))
    if same:
        moved = sum(row.moved is not None for row in same)
        note = f", {format_count(moved)} of them on moved lines" if moved else ""
        cells.append(_sum_cells(same, f"({count_of(len(same), 'site')} the same{note})"))
    before, after = result.before.requested_bytes, result.after.requested_bytes
    cells.append((format_delta(result.delta_bytes), format_bytes(before), format_bytes(after), "", "", "= requested"))
    page.table(cells, align="rrrllf", header=("delta", "before", "after", "", "", "site"))


def _sum_cells(rows: Sequence[DiffRow], text: str) -> tuple[str, ...]:
    sums = (
        sum(row.delta_bytes for row in rows),
        sum(row.before_bytes for row in rows),
        sum(row.after_bytes for row in rows),
    )
    return format_delta(sums[0]), format_bytes(sums[1]), format_bytes(sums[2]), "", "", text


def _label(row: DiffRow) -> str:
    parts = [row.shown.label]
    if row.moved is not None:
        parts.append(f"moved from {row.moved[0]}")
    sizes = sizes_text(row)
    if sizes:
        parts.append(sizes)
    return ", ".join(parts)


def sizes_text(row: DiffRow) -> str:
    """Say how counts and sizes changed: `8 to 16 blocks of 32.00 MiB`, `21 blocks of 1.00 MiB, now 2.00 MiB`."""
    changes = row.size_changes
    gone = [(size, before) for size, before, after in changes if not after]
    come = [(size, after) for size, before, after in changes if not before]
    texts = [f"{before} to {count_of(after, 'block')} of {format_bytes(size)}"
             for size, before, after in changes if before and after]  # fmt: skip
    for size, count in gone:
        # As many blocks of another size: a batch, a sequence, another precision.
        partner = next((other for other in come if other[1] == count), None)
        if partner is None:
            texts.append(f"{count} to 0 blocks of {format_bytes(size)}")
        else:
            come.remove(partner)
            texts.append(f"{count_of(count, 'block')} of {format_bytes(size)}, now {format_bytes(partner[0])}")
    texts += [f"0 to {count_of(count, 'block')} of {format_bytes(size)}" for size, count in come]
    return "; ".join(texts[:_MAX_SIZES])


def _write_balance(page: Page, result: Diff) -> None:
    cells = []
    for name, key in _BALANCE:
        before, after = getattr(result.before, key), getattr(result.after, key)
        cells.append((format_delta(after - before), format_bytes(before), format_bytes(after), name))
    old, new = result.before.peak_bytes["reserved"], result.after.peak_bytes["reserved"]
    cells.append((format_delta(new - old), format_bytes(old), format_bytes(new), "reserved at most"))
    page.table(cells, align="rrrl", header=("delta", "before", "after", ""))


def diff_markdown(result: Diff, failed: Sequence[FailedGate], *, top: int) -> str:
    """Return the difference as Markdown, fit for a comment on a pull request."""
    lines = [f"**Memory: {_code(headline(result))}**", ""]
    lines += [f"- ❌ `{_code(gate.gate)}`: {_code(gate.reason)}" for gate in failed]
    if failed:
        lines.append("")
    lines += ["| category | before | after | delta |", "|---|---:|---:|---:|"]
    lines += [
        f"| {category.label} | {format_bytes(result.before.categories[category])} | "
        f"{format_bytes(result.after.categories[category])} | {format_delta(result.delta_of(category))} |"
        for category in Category
    ]
    before, after = result.before.requested_bytes, result.after.requested_bytes
    lines.append(
        f"| **requested** | {format_bytes(before)} | {format_bytes(after)} | {format_delta(result.delta_bytes)} |"
    )
    changed = [row for row in result.rows if row.change is not Change.SAME]
    if changed:
        lines += ["", "| delta | | site | |", "|---:|---|---|---|"]
        shown, rest = cut_rows([(row.delta_bytes, 1) for row in changed], top)
        lines += [
            f"| {format_delta(row.delta_bytes)} | {row.change.value} {row.shown.category.label} | "
            f"`{_code(row.shown.label)}` | {_code(_note(row))} |"
            for row in changed[:shown]
        ]
        if rest is not None:
            lines.append(f"| {format_delta(rest[0])} | | {count_of(len(changed) - shown, 'more site')} | |")
    same = sum(row.delta_bytes for row in result.rows if row.change is Change.SAME)
    if same:
        lines += ["", f"Sites below the noise floor of {format_bytes(result.noise_bytes)}: {format_delta(same)}."]
    lines += [
        "",
        f"Reserved at most: {format_bytes(result.before.peak_bytes['reserved'])} before, "
        f"{format_bytes(result.after.peak_bytes['reserved'])} after.",
    ]
    return "\n".join(lines) + "\n"


def _note(row: DiffRow) -> str:
    moved = f"moved from {row.moved[0]}" if row.moved is not None else ""
    return ", ".join(part for part in (moved, sizes_text(row)) if part)


def _code(text: str) -> str:
    """Make text of the file harmless in Markdown: no code fences, table borders, tags or mentions."""
    safe = escape(text, limit=500)
    for sign, instead in (
        ("`", "'"),
        ("|", "¦"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("@", "@\u200b"),
        ("[", "("),
        ("]", ")"),
    ):
        safe = safe.replace(sign, instead)
    return safe
