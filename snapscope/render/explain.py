"""One allocation explained, to text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from snapscope.analyses.explain import Explanation, Relation, ShownFrame, frames_of, site_label
from snapscope.analyses.ledger import pool_name
from snapscope.analyses.moments import format_time
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS, Confidence
from snapscope.history import DeviceHistory
from snapscope.lifetimes import BEFORE, NEVER, REQUESTED_BEFORE
from snapscope.model import NO_STACK, NO_TIME, UNKNOWN_POOL
from snapscope.render.jsonable import device_of, dump, head_of, moment_of, safe_text
from snapscope.render.ledger import when
from snapscope.render.lifetimes import death_text
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.units import count_of, format_address, format_bytes, format_count

# Relation and whether the allocation is its source, with what it then does.
_PHRASES: Final = {
    ("reuses", False): "reuses memory of",
    ("reuses", True): "was reused by",
    ("made_room", False): "got room from",
    ("made_room", True): "made room for",
    ("follows", False): "follows",
    ("follows", True): "is followed by",
    ("pins", True): "pins",
}
_LIBRARY_NAMES: Final = {
    "library": "installed packages",
    "torch": "torch",
    "stdlib": "the standard library",
    "generated": "generated code",
    "cpp": "C++",
}


def explain_json(history: DeviceHistory, result: Explanation) -> bytes:
    """Return the explanation as one JSON object."""
    table = history.lifetimes
    return dump(
        {
            **head_of(history),
            "at": moment_of(result.at),
            "lifetime": _lifetime(history, result),
            "evidence": _evidence(history, result.row),
            "edges": [_edge(history, edge) for edge in result.relations],
            "stack": _stack(history, int(table.alloc_stack[result.row])),
            "free_stack": _stack(history, int(table.free_stack[result.row])),
        }
    )


def _lifetime(history: DeviceHistory, result: Explanation) -> dict[str, Any]:
    table, kinds, row = history.lifetimes, history.classification, result.row
    pool = int(table.pool[row])
    return {
        "id": result.node,
        "state": "live" if result.is_live else "pending" if result.is_pending else "gone",
        "device": device_of(history.device),
        "birth_event": int(table.birth_event[row]),
        "birth_time_us": _time(history, int(table.birth_event[row])),
        "addr": int(table.addr[row]),
        "requested_bytes": int(table.requested_bytes[row]),
        "block_bytes": int(history.blocks.block_bytes[row]),
        "block_exact": bool(history.blocks.is_exact[row]),
        "category": CATEGORY_LABELS[int(kinds.category[row])],
        "fine": FINE_LABELS[int(kinds.fine[row])],
        "confidence": Confidence(int(kinds.confidence[row])).label,
        "free_requested_event": int(table.free_requested_event[row]),
        "free_requested_time_us": _time(history, int(table.free_requested_event[row])),
        "free_completed_event": int(table.free_completed_event[row]),
        "free_completed_time_us": _time(history, int(table.free_completed_event[row])),
        "stream": int(table.stream[row]),
        "pool": list(history.snapshot.pools[pool]) if pool != UNKNOWN_POOL else None,
        "site": safe_text(site_label(history, row)),
    }


def _evidence(history: DeviceHistory, row: int) -> list[dict[str, str]]:
    """Return what decided the category: one rule, the last that knew better."""
    code = Evidence(int(history.classification.evidence[row]))
    confidence = Confidence(int(history.classification.confidence[row]))
    return [{"code": code.name.lower(), "message": WORDS[code].text, "confidence": confidence.label}]


def _time(history: DeviceHistory, event: int) -> int | None:
    time_us = int(history.tables.events.time_us[event]) if event >= 0 else NO_TIME
    return None if time_us == NO_TIME else time_us


def _edge(history: DeviceHistory, edge: Relation) -> dict[str, Any]:
    table, row = history.lifetimes, edge.row
    return {
        "kind": edge.kind,
        "source": edge.source,
        "target": edge.target,
        "bytes": edge.bytes,
        "birth_event": None if row is None else int(table.birth_event[row]),
        "requested_bytes": None if row is None else int(table.requested_bytes[row]),
        "segment_bytes": edge.segment_bytes,
        "site": None if row is None else safe_text(site_label(history, row)),
    }


def _stack(history: DeviceHistory, stack: int) -> list[dict[str, Any]]:
    return [
        {
            "function": safe_text(frame.function),
            "file": safe_text(frame.file),
            "line": frame.line,
            "kind": frame.kind,
        }
        for frame in frames_of(history, stack)
    ]


def explain_text(history: DeviceHistory, result: Explanation, page: Page, *, top: int) -> str:
    """Return the explanation as a page."""
    table, row = history.lifetimes, result.row
    page.line(_sentence(history, result), style="bold")
    page.line(device_line(history))
    page.title("its life")
    page.table(_life(history, result), align="lf")
    page.title("where it was allocated")
    _write_stack(page, frames_of(history, int(table.alloc_stack[row])), site_label(history, row), top)
    if int(table.free_stack[row]) != NO_STACK:
        page.title("where it was freed")
        _write_stack(page, frames_of(history, int(table.free_stack[row])), "(no stack)", top)
    _write_relations(page, history, result, top)
    page.notices(history.notices)
    return page.text()


def _sentence(history: DeviceHistory, result: Explanation) -> str:
    table, row = history.lifetimes, result.row
    birth, asked = int(table.birth_event[row]), int(table.free_requested_event[row])
    size = format_bytes(int(table.requested_bytes[row]))
    born = "older than the history" if birth == BEFORE else f"born at event {format_count(birth)}"
    if asked == NEVER:
        died = "alive at the end"
    elif asked == REQUESTED_BEFORE:
        died = "given up before the history"
    else:
        died = f"given up at event {format_count(asked)}"
    return f"{size} at {format_address(int(table.addr[row]))} by {site_label(history, row)}: {born}, {died}"


def _life(history: DeviceHistory, result: Explanation) -> list[tuple[str, str]]:
    table, row = history.lifetimes, result.row
    birth, asked, done = (
        int(column[row]) for column in (table.birth_event, table.free_requested_event, table.free_completed_event)
    )
    requested, block = int(table.requested_bytes[row]), int(history.blocks.block_bytes[row])
    sure = "" if history.blocks.is_exact[row] else ", an estimate: the file can't prove it"
    state = "live" if result.is_live else "pending free" if result.is_pending else "not in use"
    kind, (evidence,) = _lifetime(history, result), _evidence(history, row)
    cells = [
        ("  category", f"{kind['category']}/{kind['fine']}, confidence {kind['confidence']}: {evidence['message']}"),
        ("  requested", f"{format_bytes(requested)} ({format_count(requested)} B)"),
        ("  block", f"{format_bytes(block)}, of which {format_bytes(block - requested)} rounding{sure}"),
        ("  born", "before the history" if birth == BEFORE else _event(history, birth)),
        ("  given up", _event(history, asked) if asked >= 0 else death_text(asked, done)),
    ]
    if asked != NEVER:
        back = _event(history, done) if done >= 0 else "not by the end: a stream still waits"
        cells.append(("  memory back", back))
    stream = int(table.stream[row])
    cells += [
        ("  stream", f"{stream:#x}" if stream > 9 else str(stream)),
        ("  pool", pool_name(history, int(table.pool[row]))),
        ("  state", f"{state} {when(result.at)}"),
        ("  in the graph", result.node),
    ]
    return cells


def _event(history: DeviceHistory, event: int) -> str:
    time_us = _time(history, event)
    return f"event {format_count(event)}" + (f", {format_time(time_us)} UTC" if time_us is not None else "")


def _write_stack(page: Page, frames: Sequence[ShownFrame], label: str, top: int) -> None:
    """Write the user's frames, innermost first, and what was folded; all frames where none is the user's."""
    if not frames:
        page.line(f"  {label}")
        return
    own = [frame for frame in frames if frame.kind == "user"]
    shown = own or list(frames)
    last = len(shown) if top <= 0 else top
    for frame in shown[:last]:
        page.line(f"  {frame.label}")
    if len(shown) > last:
        page.line(f"  ({count_of(len(shown) - last, 'more frame')}: --top 0 shows all)")
    folded = [frame for frame in frames if frame.kind != "user"] if own else []
    if folded:
        kinds = Counter(_LIBRARY_NAMES.get(frame.kind, frame.kind) for frame in folded)
        parts = ", ".join(f"{name} {number}" for name, number in kinds.items())
        page.line(f"  and {count_of(len(folded), 'frame')} of libraries ({parts}), innermost {folded[0].label}")


def _write_relations(page: Page, history: DeviceHistory, result: Explanation, top: int) -> None:
    page.title("its neighbours in the graph")
    if not result.relations:
        page.line("  it has none")
        return
    cells: list[tuple[str, ...]] = []
    for (kind, is_source), phrase in _PHRASES.items():
        edges = [edge for edge in result.relations if (edge.kind, edge.source == result.node) == (kind, is_source)]
        shown, rest = cut_rows([(edge.bytes, 1) for edge in edges], top)
        cells += [_cells(history, result, phrase, edge) for edge in edges[:shown]]
        if rest is not None:
            more = f"({count_of(rest[1], 'more edge')}: --top 0 shows all)"
            cells.append((f"  {phrase}", format_bytes(rest[0]), "", more))
    page.table(cells, align="lrlf", header=("  it", "bytes", "which", "site"))


def _cells(history: DeviceHistory, result: Explanation, phrase: str, edge: Relation) -> tuple[str, ...]:
    other = edge.target if edge.source == result.node else edge.source
    if edge.row is None:
        whole = format_bytes(edge.segment_bytes or 0)
        return f"  {phrase}", format_bytes(edge.bytes), other, f"free bytes held of its {whole}"
    return f"  {phrase}", format_bytes(edge.bytes), other, site_label(history, edge.row)
