"""A difference to text, Markdown, JSON and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from snapscope.analyses.diff import Change, Diff, DiffRow
from snapscope.analyses.gates import FailedGate, rows_of
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
# `.` and `:` make links of bare addresses, but are in every number and reason: `//` and `www` suffice.
_SIGNS: Final = re.compile(r"[\\`*_~|<>&@#!\[\]$]|/(?=/)|(?<=www)\.")
_MAX_FAILED_ROWS: Final = 5
_MAX_SETTINGS: Final = 8
_MAX_STEPS: Final = 4
_MAX_RATIO: Final = 64
_BALANCE: Final = {
    "reserved": "reserved",
    "allocated": "allocated",
    "holes": "holes",
    "free_segments": "free segments",
    "private_pool": "private pools",
    "largest_hole": "largest hole",
    "reserved_peak": "reserved at most",
}


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
            "fine": [
                {
                    "category": change.category.label,
                    "fine": change.label,
                    "before_bytes": change.before_bytes,
                    "after_bytes": change.after_bytes,
                    "delta_bytes": change.after_bytes - change.before_bytes,
                }
                for change in result.fine
            ],
            "rows": [row_of(row) for row in result.rows],
            "reserved": {
                name: {"before_bytes": before, "after_bytes": after, "delta_bytes": after - before}
                for name, before, after in _balance_of(result)
            },
            "steps": [
                {
                    "name": safe_text(step.name),
                    "before_peak_bytes": step.before_bytes,
                    "after_peak_bytes": step.after_bytes,
                }
                for step in result.steps
            ],
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
        "peaks": {f"{name}_bytes": size for name, size in side.peak_bytes.items()},
        "has_history": side.has_history,
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


def row_of(row: DiffRow) -> dict[str, Any]:
    """Return one row of a difference as an object."""
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
    flat = row_of(row)
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
    _write_steps(page, result)
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
    if not result.delta_bytes:
        return f"the same {format_bytes(after)} live on both sides, but not at the same sites"
    share = f", {100 * result.delta_bytes / before:+.1f}%" if before else ""
    return (
        f"{format_delta(result.delta_bytes)} live at the peak ({format_bytes(before)} to {format_bytes(after)}{share})"
        if result.before.label == result.after.label == "peak"
        else f"{format_delta(result.delta_bytes)} live ({format_bytes(before)} to {format_bytes(after)}{share})"
    )


def _side(side: MemoryProfile) -> str:
    return f"{side.name}  {device_name(side)}, {_moment(side)}"


def _moment(side: MemoryProfile) -> str:
    if not side.has_history:
        return "the final state only, no history in this file"
    if side.event < 0:
        return f"{side.label} before the first event"
    return f"{side.label} at event {format_count(side.event)}{f' in {side.phase}' if side.phase else ''}"


def device_name(side: MemoryProfile) -> str:
    """Name the device of a side."""
    return "host (pinned)" if side.device < 0 else f"device {side.device}"


def write_failed(page: Page, result: Diff | None, failed: Sequence[FailedGate]) -> None:
    """Write one reason a failed gate, and the rows that explain it."""
    for gate in failed:
        page.line(f"FAILED {gate.gate}: {gate.reason}", style="bold red")
        if result is None or gate.value_bytes is None:
            continue
        grew = gate.value_bytes > 0
        rows = [
            row for row in rows_of(result, gate.what) if row.change is not Change.SAME and (row.delta_bytes > 0) == grew
        ]
        for row in rows[:_MAX_FAILED_ROWS]:
            page.line(f"    {format_delta(row.delta_bytes)}  {row.shown.category.label}  {row.shown.label}")


def _write_categories(page: Page, result: Diff) -> None:
    cells: list[tuple[str, ...]] = []
    for category in Category:
        before, after = result.before.categories[category], result.after.categories[category]
        cells.append(_changed_cells(before, after, f"{category.label[0].upper()} {category.label}"))
        fine = [change for change in result.fine if change.category is category]
        # One label that says it all would repeat the line above.
        if len(fine) > 1:
            cells += [
                _changed_cells(change.before_bytes, change.after_bytes, f"    {change.label}")
                for change in sorted(fine, key=lambda change: -abs(change.after_bytes - change.before_bytes))
                if abs(change.after_bytes - change.before_bytes) > result.noise_bytes
            ]
    before, after = result.before.requested_bytes, result.after.requested_bytes
    cells.append(_changed_cells(before, after, "= requested"))
    page.table(cells, align="rrrl", header=("delta", "before", "after", "category"))


def _changed_cells(before: int, after: int, text: str) -> tuple[str, ...]:
    return format_delta(after - before), format_bytes(before), format_bytes(after), text


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


def sizes_text(row: DiffRow, *, now: str = ", now ") -> str:
    """Say how counts and sizes changed: `8 to 16 blocks of 32.00 MiB`, `21 blocks of 1.00 MiB, now 2.00 MiB`."""
    changes = row.size_changes
    come = [(size, after) for size, before, after in changes if not before]
    # What weighs, and its text; most bytes first.
    texts: list[tuple[int, str]] = []
    for size, before, after in changes:
        # As many blocks of another size: a batch, a sequence, another precision.
        partner = None if after else _partner(size, before, come)
        if partner is not None:
            come.remove(partner)
            text = f"{count_of(before, 'block')} of {format_bytes(size)}{now}{format_bytes(partner[0])}"
            texts.append((before * abs(partner[0] - size), text))
        elif before:
            text = f"{format_count(before)} to {count_of(after, 'block')} of {format_bytes(size)}"
            texts.append((abs(after - before) * size, text))
    texts += [(size * count, f"0 to {count_of(count, 'block')} of {format_bytes(size)}") for size, count in come]
    texts.sort(key=lambda item: -item[0])
    return "; ".join(text for _, text in texts[:_MAX_SIZES])


def _partner(size: int, count: int, come: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the size that as many blocks have now, if a change of shape or type may have made it."""
    return next(
        (other for other in come if other[1] == count and max(size, other[0]) <= _MAX_RATIO * min(size, other[0])), None
    )


def _balance_of(result: Diff) -> Iterator[tuple[str, int, int]]:
    """Yield what is compared beside live bytes: its name, before, after."""
    for name in list(_BALANCE)[:-1]:
        yield name, getattr(result.before, f"{name}_bytes"), getattr(result.after, f"{name}_bytes")
    yield "reserved_peak", result.before.peak_bytes["reserved"], result.after.peak_bytes["reserved"]


def _write_balance(page: Page, result: Diff) -> None:
    cells = [_changed_cells(before, after, _BALANCE[name]) for name, before, after in _balance_of(result)]
    page.table(cells, align="rrrl", header=("delta", "before", "after", ""))


def _write_steps(page: Page, result: Diff) -> None:
    """Write the peaks of steps that differ, and that one side has more steps."""
    changed = [
        (step.before_bytes, step.after_bytes, step.name)
        for step in result.steps
        if step.before_bytes is not None
        and step.after_bytes is not None
        and abs(step.after_bytes - step.before_bytes) > result.noise_bytes
    ]
    numbers = result.before.num_steps, result.after.num_steps
    if not changed and numbers[0] == numbers[1]:
        return
    page.title("steps")
    shown, rest = cut_rows([(0, 1)] * len(changed), _MAX_STEPS)
    if changed:
        cells = [_changed_cells(*step) for step in changed[:shown]]
        page.table(cells, align="rrrl", header=("delta", "before", "after", "the peak within it"))
    if rest is not None:
        page.line(f"  and of {count_of(rest[1], 'more step')}")
    if numbers[0] != numbers[1]:
        texts = ["not known" if number is None else format_count(number) for number in numbers]
        page.line(f"  complete steps: {texts[0]} before, {texts[1]} after")


def diff_markdown(result: Diff, failed: Sequence[FailedGate], *, top: int) -> str:
    """Return the difference as Markdown, fit for a comment on a pull request."""
    lines = [f"**Memory: {_plain(headline(result))}**", ""]
    lines += [f"- ❌ {_code(gate.gate)}: {_plain(gate.reason)}" for gate in failed]
    if failed:
        lines.append("")
    lines += ["| category | before | after | delta |", "|---|---:|---:|---:|"]
    for category in Category:
        before, after = result.before.categories[category], result.after.categories[category]
        lines.append(_markdown_row(category.label, before, after))
    lines.append(_markdown_row("**requested**", result.before.requested_bytes, result.after.requested_bytes))
    changed = [row for row in result.rows if row.change is not Change.SAME]
    if changed:
        lines += ["", "| delta | | site | |", "|---:|---|---|---|"]
        shown, rest = cut_rows([(row.delta_bytes, 1) for row in changed], top)
        lines += [
            f"| {format_delta(row.delta_bytes)} | {row.change.value} {row.shown.category.label} | "
            f"{_code(row.shown.label)} | {_note(row)} |"
            for row in changed[:shown]
        ]
        if rest is not None:
            lines.append(f"| {format_delta(rest[0])} | | {count_of(len(changed) - shown, 'more site')} | |")
    same = sum(row.delta_bytes for row in result.rows if row.change is Change.SAME)
    if same:
        lines += ["", f"Sites below the noise floor of {format_bytes(result.noise_bytes)}: {format_delta(same)}."]
    old, new = result.before, result.after
    lines += [
        "",
        f"Reserved at most: {format_bytes(old.peak_bytes['reserved'])} before, "
        f"{format_bytes(new.peak_bytes['reserved'])} after.",
    ]
    if old.phase != new.phase:
        lines += ["", f"In {_plain(old.phase or 'an unknown phase')} before, {_plain(new.phase or 'unknown')} after."]
    if result.settings:
        settings = [
            f"{_code(change.name)} {_plain(change.before or 'not known')} to {_plain(change.after or 'not known')}"
            for change in result.settings[:_MAX_SETTINGS]
        ]
        lines += ["", f"Settings that differ: {'; '.join(settings)}."]
    return "\n".join(lines) + "\n"


def _markdown_row(name: str, before: int, after: int) -> str:
    return f"| {name} | {format_bytes(before)} | {format_bytes(after)} | {format_delta(after - before)} |"


def _note(row: DiffRow) -> str:
    moved = f"moved from {_code(row.moved[0])}" if row.moved is not None else ""
    return ", ".join(part for part in (moved, sizes_text(row)) if part)


def _code(text: str) -> str:
    """Quote text of the file as code, in which Markdown knows no other sign; the table knows `|`."""
    safe = escape(text, limit=500).replace("`", "'").replace("|", "¦").strip()
    return f"`{safe or ' '}`"


def _plain(text: str) -> str:
    """Make text harmless outside of code: no emphasis, links, tags, entities or mentions."""
    return _SIGNS.sub(lambda match: f"&#{ord(match[0])};", escape(text, limit=500))
