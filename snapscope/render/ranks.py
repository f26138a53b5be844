"""Ranks side by side to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from snapscope.analyses.diff import Change, DiffRow
from snapscope.analyses.moments import format_time
from snapscope.analyses.rank_names import RankId
from snapscope.analyses.ranks import Rank, RankReport, Shortage
from snapscope.analyses.verdict import Cause
from snapscope.classify.material import Category
from snapscope.model import Notice
from snapscope.render.diff import row_of, sizes_text
from snapscope.render.jsonable import SCHEMA, device_of, dump, dump_csv, notice_of, safe_text
from snapscope.render.page import Page, cut_rows
from snapscope.render.verdict import answer_line, verdict_line
from snapscope.units import GIB, KIB, MIB, TIB, count_of, format_bytes, format_count, format_delta

COLUMNS: Final = (
    "rank", "file", "device", "group", "peak_bytes", "requested_bytes", "allocated_bytes", "reserved_bytes",
    "peak_allocated_bytes", "peak_reserved_bytes", "over_median", "is_outlier", "num_steps",
    *(category.label for category in Category),
    "num_ooms", "oom_time_us", "oom_verdict", "oom_requested_bytes", "oom_site",
)  # fmt: skip
_SHORT: Final = dict(zip(Category, ("param", "grad", "optim", "activ", "temp"), strict=True))
_MAX_CAUSES: Final = 2
_MAX_RANKS: Final = 8
_MAX_LINES: Final = 6
_MAX_SIZES: Final = 2
_CHANGES: Final = {Change.GROWN: "more", Change.SHRUNK: "less"}


def notices_of(report: RankReport) -> list[Notice]:
    """Return the oddities of all files, each once with the ranks that have it; then those between ranks."""
    if len(report.ranks) == 1:
        return list(report.ranks[0].source.profile.notices)
    found: dict[str, list[tuple[Rank, Notice]]] = {}
    for rank in report.ranks:
        for notice in rank.source.profile.notices:
            found.setdefault(notice.code, []).append((rank, notice))
    merged = []
    for code, having in found.items():
        ranks = list(dict.fromkeys(rank for rank, _ in having))
        where = "" if len(ranks) == len(report.ranks) else f"{_ranks_word(ranks)}: "
        merged.append(
            Notice(
                code=code,
                message=f"{where}{having[0][1].message}",
                count=sum(notice.count for _, notice in having),
                bytes=sum(notice.bytes for _, notice in having),
            )
        )
    return [*merged, *_between(report)]


def _between(report: RankReport) -> list[Notice]:
    """Return what only shows between ranks: memory on another one's device, unlike numbers of steps."""
    notices = []
    strays = [rank for rank in report.ranks if rank.source.other_devices]
    if strays:
        size = sum(num_bytes for rank in strays for _, num_bytes in rank.source.other_devices)
        devices = sorted({device for rank in strays for device, _ in rank.source.other_devices})
        on = f"device{'s' if len(devices) > 1 else ''} {_span(devices)}"
        message = f"{_ranks_word(strays)} also reserved memory on {on}, which isn't counted here (--device N)"
        notices.append(Notice(code="memory_on_other_devices", message=message, count=len(strays), bytes=size))
    final = [rank for rank in report.ranks if not rank.source.profile.has_history]
    if final:
        message = f"{_ranks_word(final)} have no history: their final state is compared, a peak isn't known"
        notices.append(Notice(code="no_history", message=message, count=1))
    steps: dict[int, list[Rank]] = {}
    for rank in report.ranks:
        if rank.source.profile.num_steps is not None and not rank.source.profile.num_ooms:
            steps.setdefault(rank.source.profile.num_steps, []).append(rank)
    if len(steps) > 1:
        parts = [f"{count_of(number, 'step')} on {_ranks_word(ranks)}" for number, ranks in sorted(steps.items())]
        message = f"ranks recorded unlike numbers of complete steps: {'; '.join(parts[:_MAX_LINES])}"
        notices.append(Notice(code="unlike_steps", message=message, count=1))
    return notices


# ----------------------------------------------------------------------------------------- JSON


def ranks_json(report: RankReport, name: str, notices: Sequence[Notice]) -> bytes:
    """Return the ranks as one JSON object."""
    first = report.first_oom
    return dump(
        {
            "schema": SCHEMA,
            "file": safe_text(name),
            "device": device_of(report.compared.source.profile.device),
            "notices": [notice_of(notice) for notice in notices],
            "num_ranks": len(report.ranks),
            "unbalanced": report.is_unbalanced,
            "max_over_median": _ratio(report.max_over_median),
            "median_peak_bytes": report.median_bytes,
            "median_rank": _id(report.median_rank.rank),
            "outliers": [_id(rank.rank) for rank in report.outliers],
            "first_oom": None if first is None else {
                "rank": _id(first.rank), "time_us": first.source.first_oom_us, "verdict": _verdict(first),
            },
            "ranks": [_rank(report, rank) for rank in report.ranks],
            "groups": [
                {
                    "ranks": [_id(rank.rank) for rank in group],
                    "requested_bytes": max(rank.requested_bytes for rank in group),
                }
                for group in report.groups
            ],
            "compared": None if report.diff is None else {
                "rank": _id(report.compared.rank),
                "with": _id(report.median_rank.rank),
                "delta_bytes": report.diff.delta_bytes,
                "categories": {
                    category.label: report.diff.delta_of(category) for category in Category
                },
            },
            "why": [] if report.diff is None else [row_of(row) for row in report.diff.rows],
            "settings": [] if report.diff is None else [
                {"name": safe_text(change.name), "before": _safe(change.before), "after": _safe(change.after)}
                for change in report.diff.settings
            ],
            "less_room": [
                {
                    "rank": _id(shortage.rank.rank),
                    "room_bytes": shortage.room_bytes,
                    "other_rank": _id(shortage.other.rank),
                    "other_bytes": shortage.other_bytes,
                }
                for shortage in report.shortages
            ],
        }
    )  # fmt: skip


def _rank(report: RankReport, rank: Rank) -> dict[str, Any]:
    source, side = rank.source, rank.source.profile
    return {
        "rank": _id(rank.rank),
        "file": safe_text(source.file),
        "device": device_of(side.device),
        "group": rank.group,
        "at": {"event": side.event, "label": safe_text(side.label)},
        "phase": _safe(side.phase),
        "peak_bytes": side.peak_bytes["requested"],
        "requested_bytes": side.requested_bytes,
        "allocated_bytes": side.allocated_bytes,
        "reserved_bytes": side.reserved_bytes,
        "peak_allocated_bytes": side.peak_bytes["allocated"],
        "peak_reserved_bytes": side.peak_bytes["reserved"],
        "over_median": _ratio(rank.over_median),
        "is_outlier": rank in report.outliers,
        "num_steps": side.num_steps,
        "categories": {category.label: side.categories[category] for category in Category},
        "oom": _oom(rank),
    }


def _oom(rank: Rank) -> dict[str, Any] | None:
    side, failure = rank.source.profile, rank.source.failure
    if not side.num_ooms:
        return None
    return {
        "num_ooms": side.num_ooms,
        "time_us": rank.source.first_oom_us,
        "verdict": _verdict(rank),
        "requested_bytes": None if failure is None else failure.request.requested_bytes,
        "site": None if failure is None else safe_text(failure.site),
        "device_free_bytes": None if failure is None else failure.request.device_free_bytes,
        "reserved_bytes": None if failure is None else failure.balance.reserved_bytes,
        "room_bytes": rank.room_bytes,
        "outside_bytes": None if failure is None else failure.balance.outside_bytes,
    }


def _verdict(rank: Rank) -> str | None:
    return None if rank.source.failure is None else rank.source.failure.verdict.cause.value


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _id(rank: RankId) -> RankId:
    return safe_text(rank) if isinstance(rank, str) else rank


def _safe(text: str | None) -> str | None:
    return None if text is None else safe_text(text)


def ranks_csv(report: RankReport) -> Iterator[bytes]:
    """Return one row a rank as CSV."""
    return dump_csv(COLUMNS, (_flat(_rank(report, rank)) for rank in report.ranks))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    oom = row["oom"] or {"num_ooms": 0}
    known = {f"oom_{key}": oom.get(key) for key in ("time_us", "verdict", "requested_bytes", "site")}
    return {**row, **row["categories"], "num_ooms": oom["num_ooms"], **known}


# ----------------------------------------------------------------------------------------- text


def ranks_text(report: RankReport, name: str, notices: Sequence[Notice], page: Page, *, top: int) -> str:
    """Return the ranks as a page: which is out of line, the table, and why."""
    page.line(headline(report), style="bold")
    page.line(_below(report, name))
    unit, factor = _unit(max(rank.source.profile.peak_bytes["reserved"] for rank in report.ranks))
    _write_ranks(page, report, unit, factor, top=top)
    if report.diff is not None:
        _write_why(page, report, top=top)
    _write_ooms(page, report, top=top)
    if report.diff is not None and report.diff.settings:
        page.title(f"settings of rank {report.median_rank.rank} and rank {report.compared.rank} that differ")
        for change in report.diff.settings[:_MAX_LINES]:
            page.line(f"  {change.name}: {change.before or 'not known'} and {change.after or 'not known'}")
    page.notices(notices)
    return page.text()


def headline(report: RankReport) -> str:
    """Return the one sentence that answers first."""
    failed = _failed_text(report)
    if len(report.ranks) == 1:
        (only,) = report.ranks
        return f"one rank only, {only.rank}: {_holds(only, has=True)}, and nothing to compare it with{failed}"
    if not report.is_unbalanced:
        sizes = [rank.requested_bytes for rank in report.ranks]
        span = format_bytes(max(sizes))
        if format_bytes(min(sizes)) != span:
            span = f"{format_bytes(min(sizes))} to {span}, at most {_times(report.max_over_median)} the median"
        verb = "peak at" if _is_peak(report) else "hold"
        return f"balanced: {len(report.ranks)} ranks {verb} {span}{failed}"
    first = report.outliers[0]
    like = [rank for rank in report.groups[first.group] if rank in report.outliers]
    names = f"{_ranks_word(like)} {_verb(like)} {_holds(first, has=False)}"
    # A rank that failed below the others holds less because it stopped there.
    stopped = bool(first.source.profile.num_ooms) and first.requested_bytes < report.median_bytes
    if stopped:
        names = f"{_ranks_word(like)} {'stop' if len(like) > 1 else 'stops'} {_holds(first, has=False)}"
    causes = "" if stopped else _causes(report, first)
    others = len(report.outliers) - len(like)
    more = (
        f"; {count_of(others, 'more rank')} {'differs' if others == 1 else 'differ'} by more than 5%" if others else ""
    )
    return (
        f"UNBALANCED: {names}, {_times(first.over_median)} the median of {format_bytes(report.median_bytes)}"
        f"{f': {causes}' if causes else ''}{more}{failed}"
    )


def _is_peak(report: RankReport) -> bool:
    return all(rank.source.profile.label == "peak" for rank in report.ranks)


def _verb(ranks: Sequence[Rank]) -> str:
    is_peak = all(rank.source.profile.label == "peak" for rank in ranks)
    return ("peaks" if is_peak else "holds") if len(ranks) == 1 else ("peak" if is_peak else "hold")


def _holds(rank: Rank, *, has: bool) -> str:
    side = rank.source.profile
    if side.label == "peak":
        return f"{'a peak of' if has else 'at'} {format_bytes(side.requested_bytes)}"
    return f"{format_bytes(side.requested_bytes)} at {side.label}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} ×"


def _causes(report: RankReport, rank: Rank) -> str:
    """Return the categories that make most of the difference: `activation +81.21 MiB, temporary +49.00 MiB`."""
    delta = rank.requested_bytes - report.median_rank.requested_bytes
    parts = [(report.delta_of(rank, category), category.label) for category in Category]
    telling = sorted((part for part in parts if part[0] * delta > 0 and 10 * abs(part[0]) >= abs(delta)),
                     key=lambda part: -abs(part[0]))  # fmt: skip
    return ", ".join(f"{label} {format_delta(size)}" for size, label in telling[:_MAX_CAUSES])


def _failed_text(report: RankReport) -> str:
    if not report.ooms:
        return ""
    if len(report.ranks) == 1:
        return "; it ran out of memory"
    first = report.first_oom
    if first is None:
        return f"; {_ranks_word(report.ooms)} ran out of memory"
    also = len(report.ooms) - 1
    order = f" first, {count_of(also, 'other')} later" if also else ""
    shortage = next((shortage for shortage in report.shortages if shortage.rank is first), None)
    room = "" if shortage is None else (
        f", with room for {format_bytes(shortage.room_bytes)} where rank {shortage.other.rank} had "
        f"{format_bytes(shortage.other_bytes)}"
    )  # fmt: skip
    return f"; rank {first.rank} ran out of memory{order}{room}"


def _below(report: RankReport, name: str) -> str:
    devices = {rank.source.profile.device for rank in report.ranks}
    shown = [rank for rank in report.ranks if rank.source.profile.device != rank.rank]
    where = (
        "each on the device of its number" if len(devices) > 1 and not shown
        else _device(devices.pop()) if len(devices) == 1
        else "devices: see the table"
    )  # fmt: skip
    return f"{name}  {count_of(len(report.ranks), 'rank')}, {where}"


def _device(device: int) -> str:
    return "host (pinned)" if device < 0 else f"device {device}"


def _ranks_word(ranks: Sequence[Rank]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_span([rank.rank for rank in ranks])}"


def _span(ranks: Sequence[RankId]) -> str:
    """Return `0-2, 5` for the ranks 0, 1, 2 and 5."""
    parts: list[str] = []
    start: int | None = None
    for place, rank in enumerate(ranks):
        if not isinstance(rank, int):
            parts.append(rank)
            continue
        start = rank if start is None else start
        after = ranks[place + 1] if place + 1 < len(ranks) else None
        if after != rank + 1:
            parts.append(str(rank) if start == rank else f"{start}-{rank}")
            start = None
    if len(parts) > _MAX_RANKS:
        return f"{', '.join(parts[:_MAX_RANKS])}, … ({len(ranks)} in all)"
    return ", ".join(parts)


def _unit(most: int) -> tuple[str, int]:
    return next(
        ((name, size) for name, size in (("TiB", 4 * TIB), ("GiB", GIB), ("MiB", MIB)) if most >= size), ("KiB", KIB)
    )


def _number(num_bytes: int, factor: int) -> str:
    return f"{num_bytes / factor:.2f}"


def _write_ranks(page: Page, report: RankReport, unit: str, factor: int, *, top: int) -> None:
    groups = list(report.groups)
    shown, rest = cut_rows([(0, 1)] * len(groups), top)
    order = ""
    if rest is not None:
        groups.sort(key=lambda group: -group[0].requested_bytes)
        order = ", the highest first"
    used = [c for c in Category if any(rank.source.profile.categories[c] for rank in report.ranks)]
    has_devices = any(rank.source.profile.device != rank.rank for rank in report.ranks)
    has_devices = has_devices and len({rank.source.profile.device for rank in report.ranks}) > 1
    fails = bool(report.ooms)
    what = "at the peak of each" if _is_peak(report) else "at the moment asked for"
    page.title(f"by rank, requested {unit} {what}{order}")
    page.table(
        [_group_cells(group, used, factor, has_devices=has_devices, fails=fails) for group in groups[:shown]],
        align="l" + "l" * has_devices + "rr" + "r" * len(used) + "r" + "l" * fails,
        header=("rank", *(("device",) if has_devices else ()), "total", "×median", *(_SHORT[c] for c in used),
                "reserved", *(("",) if fails else ())),
    )  # fmt: skip
    if rest is not None:
        page.line(f"({count_of(len(groups) - shown, 'more row')}: --top 0 shows all)")
    unused = [c.label for c in Category if c not in used]
    if unused and used:
        page.line(f"no rank holds {', '.join(unused[:-1])}{' or ' if len(unused) > 1 else ''}{unused[-1]} then; "
                  "reserved is the most at any time")  # fmt: skip
    else:
        page.line("reserved is the most at any time")


def _group_cells(
    group: Sequence[Rank], used: Sequence[Category], factor: int, *, has_devices: bool, fails: bool
) -> tuple[str, ...]:
    first = group[0].source.profile
    reserved = sorted(rank.source.profile.peak_bytes["reserved"] for rank in group)
    low, high = _number(reserved[0], factor), _number(reserved[-1], factor)
    devices = sorted({rank.source.profile.device for rank in group})
    return (
        _span([rank.rank for rank in group]),
        *((_span(["host" if device < 0 else device for device in devices]),) if has_devices else ()),
        _number(first.requested_bytes, factor),
        "-" if group[0].over_median is None else f"{group[0].over_median:.2f}",
        *(_number(first.categories[category], factor) for category in used),
        low if low == high else f"{low}-{high}",
        *(("OOM" if first.num_ooms else "",) if fails else ()),
    )


def _write_why(page: Page, report: RankReport, *, top: int) -> None:
    assert report.diff is not None
    rank, other = report.compared.rank, report.median_rank.rank
    delta = report.diff.delta_bytes
    page.title(
        f"why rank {rank} holds {format_bytes(abs(delta))} {'more' if delta >= 0 else 'less'} than rank {other}, "
        "by site"
    )
    changed = [row for row in report.diff.rows if row.change is not Change.SAME]
    same = [row for row in report.diff.rows if row.change is Change.SAME]
    shown, rest = cut_rows([(row.delta_bytes, 1) for row in changed], top)
    cells = [_row_cells(row, rank) for row in changed[:shown]]
    if rest is not None:
        cells.append(_sum_cells(changed[shown:], f"({count_of(len(changed) - shown, 'more site')}: --top 0 shows all)"))
    if same:
        cells.append(_sum_cells(same, f"({count_of(len(same), 'site')} the same)"))
    before, after = report.diff.before.requested_bytes, report.diff.after.requested_bytes
    cells.append((format_delta(delta), format_bytes(before), format_bytes(after), "", "", "= requested"))
    page.table(cells, align="rrrllf", header=("delta", f"rank {other}", f"rank {rank}", "", "", "site"))
    phases = [side.phase for side in (report.diff.before, report.diff.after)]
    if all(phases) and phases[0] != phases[1] and _is_peak(report):
        page.line(f"rank {other} peaks in {phases[0]}, rank {rank} in {phases[1]}")
    others = [group for group in report.groups if group[0] in report.outliers and report.compared not in group]
    for group in others[:_MAX_LINES]:
        difference = group[0].requested_bytes - report.median_rank.requested_bytes
        causes = _causes(report, group[0])
        page.line(
            f"{_ranks_word(group)} against rank {other}: {format_delta(difference)}{f', {causes}' if causes else ''}"
        )
    if len(others) > _MAX_LINES:
        page.line(f"and {len(others) - _MAX_LINES} more that differ by more than 5%: see the table")


def _row_cells(row: DiffRow, rank: RankId) -> tuple[str, ...]:
    word = _CHANGES.get(row.change) or (f"only on rank {rank}" if row.change is Change.NEW else f"not on rank {rank}")
    sizes = sizes_text(row, now=" against ") if row.change in _CHANGES else _blocks(row)
    return (
        format_delta(row.delta_bytes), format_bytes(row.before_bytes), format_bytes(row.after_bytes), word,
        row.shown.category.label[0].upper(), ", ".join(part for part in (row.shown.label, sizes) if part),
    )  # fmt: skip


def _blocks(row: DiffRow) -> str:
    """Return the blocks of a site that one of the two ranks has only."""
    return "; ".join(
        f"{count_of(count, 'block')} of {format_bytes(size)}" for size, count in row.shown.sizes[:_MAX_SIZES]
    )


def _sum_cells(rows: Sequence[DiffRow], text: str) -> tuple[str, ...]:
    return (
        format_delta(sum(row.delta_bytes for row in rows)),
        format_bytes(sum(row.before_bytes for row in rows)),
        format_bytes(sum(row.after_bytes for row in rows)),
        "", "", text,
    )  # fmt: skip


def _write_ooms(page: Page, report: RankReport, *, top: int) -> None:
    if not report.ooms:
        return
    page.title("out of memory" if len(report.ooms) == 1 else "out of memory, in the order of time")
    start = report.ooms[0].source.first_oom_us
    shown, rest = cut_rows([(0, 1)] * len(report.ooms), top)
    for rank in report.ooms[:shown]:
        page.line(f"  rank {rank.rank}{_time_text(rank, start)}{_oom_text(rank)}")
    if rest is not None:
        page.line(f"  ({count_of(len(report.ooms) - shown, 'more rank')}: --top 0 shows all)")
    told = report.first_oom or report.ooms[0]
    if told.source.failure is not None:
        page.line(f"  {answer_line(told.source.failure)}")
    for shortage in report.shortages[:_MAX_LINES]:
        page.line(f"  {_shortage_text(shortage)}")


def _time_text(rank: Rank, start: int | None) -> str:
    time_us = rank.source.first_oom_us
    if time_us is None or start is None:
        return " (time unknown)"
    return f" at {format_time(time_us)}" if time_us == start else f" {(time_us - start) / 1e6:.3f} s later"


def _oom_text(rank: Rank) -> str:
    side, failure = rank.source.profile, rank.source.failure
    if failure is None:
        return ""
    count = f" (the last of {format_count(side.num_ooms)})" if side.num_ooms > 1 else ""
    return f": {verdict_line(failure)}{count}"


def _shortage_text(shortage: Shortage) -> str:
    rank, other = shortage.rank, shortage.other
    missing = format_bytes(shortage.other_bytes - shortage.room_bytes)
    failure = rank.source.failure
    had = f"rank {other.rank} had {format_bytes(shortage.other_bytes)}"
    if failure is not None and failure.verdict.cause is Cause.LIMIT:
        return (
            f"A limit stopped rank {rank.rank} at {format_bytes(failure.balance.reserved_bytes)} reserved; {had}: "
            "limits differ between ranks"
        )
    return (
        f"Rank {rank.rank} had room for {format_bytes(shortage.room_bytes)} only (reserved and device free), {had}: "
        f"something outside PyTorch holds {missing} or more of its card, or the card is smaller"
    )
