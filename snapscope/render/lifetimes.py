"""Lifetimes to text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from snapscope.analyses.ledger import pool_name
from snapscope.classify.evidence import Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS, Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.model import UNKNOWN_POOL, Int64Column
from snapscope.render.jsonable import device_of, dump_csv, dump_rows, head_of, safe_text
from snapscope.render.ledger import letter_of
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.replay import BEFORE, NEVER, REQUESTED_BEFORE
from snapscope.units import format_address, format_bytes, format_count

COLUMNS: Final = tuple(
    (
        "device birth_event addr requested_bytes block_bytes block_exact category fine confidence evidence "
        "free_requested_event free_completed_event stream pool site"
    ).split()
)
_CHUNK: Final = 10_000


def lifetimes_json(history: DeviceHistory, rows: Int64Column) -> Iterator[bytes]:
    """Return all rows, by birth, as one JSON object written piece by piece."""
    return dump_rows(head_of(history), _documents(history, rows))


def lifetimes_csv(history: DeviceHistory, rows: Int64Column) -> Iterator[bytes]:
    """Return all rows as CSV."""
    return dump_csv(COLUMNS, _documents(history, rows))


def _documents(history: DeviceHistory, rows: Int64Column) -> Iterator[dict[str, Any]]:
    table, blocks, kinds = history.lifetimes, history.blocks, history.classification
    pools = [*map(list, history.snapshot.pools)]
    sites: dict[tuple[int, bool], str] = {}
    device = device_of(history.device)
    confidences = [level.label for level in Confidence]
    evidences = [evidence.name.lower() for evidence in Evidence]
    for low in range(0, len(rows), _CHUNK):
        part = rows[low : low + _CHUNK]
        columns = (
            table.birth_event, table.addr, table.requested_bytes, blocks.block_bytes, blocks.is_exact, kinds.category,
            kinds.fine, kinds.confidence, kinds.evidence, table.free_requested_event, table.free_completed_event,
            table.stream, table.pool, table.alloc_stack,
        )  # fmt: skip
        for values in zip(*(column[part].tolist() for column in columns), strict=True):
            birth, addr, requested, block, exact, category, fine, confidence, evidence, *life = values
            asked, done, stream, pool, stack = life
            key = (stack, birth == BEFORE)
            if key not in sites:
                sites[key] = safe_text(history.sites.of_stack(stack, is_before=key[1]).label)
            yield {
                "device": device,
                "birth_event": birth,
                "addr": addr,
                "requested_bytes": requested,
                "block_bytes": block,
                "block_exact": exact,
                "category": CATEGORY_LABELS[category],
                "fine": FINE_LABELS[fine],
                "confidence": confidences[confidence],
                "evidence": evidences[evidence],
                "free_requested_event": asked,
                "free_completed_event": done,
                "stream": stream,
                "pool": pools[pool] if pool != UNKNOWN_POOL else None,
                "site": sites[key],
            }


def lifetimes_text(history: DeviceHistory, rows: Int64Column, page: Page, *, top: int) -> Iterator[str]:
    """Return the largest allocations as a page, piece by piece."""
    table, blocks = history.lifetimes, history.blocks
    size = table.requested_bytes[rows]
    alive = int((table.free_requested_event[rows] == NEVER).sum())
    page.line(
        f"{format_count(len(rows))} allocations of {format_bytes(int(size.sum()))} in all, "
        f"{format_count(alive)} of them alive at the end",
        style="bold",
    )
    page.line(device_line(history))
    if not len(rows):
        page.notices(history.notices)
        return page.pieces()
    page.title("the largest")
    order = rows[np.argsort(-size, kind="stable")]
    shown, rest = cut_rows([(int(s), 1) for s in table.requested_bytes[order].tolist()], top)
    tail: list[tuple[str, ...]] = []
    if rest is not None:
        tail.append(
            (format_bytes(rest[0]), "", "", "", "", "", f"({format_count(rest[1])} more: --top 0, --json, --csv)")
        )
    page.table(
        _Rows(history, order[:shown], tail),
        align="rrrrllf",
        header=("requested", "block", "born", "died", "address", "", "site"),
    )
    others = sorted(set(table.pool[rows].tolist()) - {0})
    for pool in others[:5]:
        in_pool = table.pool[rows] == pool
        page.line(f"  {format_count(int(in_pool.sum()))} allocations, {format_bytes(int(size[in_pool].sum()))} in "
                  f"{pool_name(history, pool)}")  # fmt: skip
    estimated = int((~blocks.is_exact[rows]).sum())
    if estimated:
        page.line(
            f"  ~ marks block sizes that the file can't prove ({format_count(estimated)}): the request rounded up"
        )
    page.notices(history.notices)
    return page.pieces()


class _Rows:
    """The cells of lifetimes, made while somebody goes through them.

    Args:
        history: the device.
        rows: of the lifetime table, in the order shown.
        tail: rows after them.
    """

    def __init__(self, history: DeviceHistory, rows: Int64Column, tail: Sequence[tuple[str, ...]]) -> None:
        self._history = history
        self._rows = rows
        self._tail = tail

    def __len__(self) -> int:
        return len(self._rows) + len(self._tail)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        table, blocks, sites = self._history.lifetimes, self._history.blocks, self._history.sites
        kinds = self._history.classification
        columns = (
            table.birth_event, table.addr, table.requested_bytes, blocks.block_bytes, blocks.is_exact,
            table.free_requested_event, table.free_completed_event, table.alloc_stack, kinds.category, kinds.confidence,
        )  # fmt: skip
        letters = {(each, level): letter_of(each, level) for each in Category for level in Confidence}
        for low in range(0, len(self._rows), _CHUNK):
            part = self._rows[low : low + _CHUNK]
            for values in zip(*(column[part].tolist() for column in columns), strict=True):
                birth, addr, requested, block, exact, asked, done, stack, category, confidence = values
                yield (
                    format_bytes(requested),
                    format_bytes(block) if exact else f"~{format_bytes(block)}",
                    "before" if birth == BEFORE else format_count(birth),
                    death_text(asked, done),
                    format_address(addr),
                    letters[category, confidence],
                    sites.of_stack(stack, is_before=birth == BEFORE).label,
                )
        yield from self._tail


def death_text(requested: int, completed: int) -> str:
    """Return when an allocation died: an event, `alive`, or `pending`."""
    if requested == NEVER:
        return "alive"
    if completed == NEVER:
        return "pending" if requested == REQUESTED_BEFORE else f"{format_count(requested)} pending"
    return format_count(completed if requested == REQUESTED_BEFORE else requested)
