"""One allocation: its life, its stack, and what it is related to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.moments import Moment, find_moment, moment_at
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.errors import UsageError
from snapscope.escaping import escape
from snapscope.graph import find_relations, lifetime_ids, segment_id
from snapscope.history import DeviceHistory
from snapscope.lifetimes import BEFORE, NEVER
from snapscope.model import Action, BoolColumn, Int64Column
from snapscope.units import format_address, format_bytes

FORMS: Final = "an address (0x7f… or decimal) or event:N"
_EVENT: Final = re.compile(r"event:(\d{1,15})\Z", re.ASCII)
_ADDRESS: Final = re.compile(r"(block:)?(?:0x([0-9a-f]{1,16})|(\d{1,20}))\Z", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One edge between the allocation and a neighbour.

    Attributes:
        kind: `reuses`, `made_room`, `follows` or `pins`.
        source, target: node ids as in the graph; one of them is the allocation's own.
        bytes: of the overlap, of the block that came back, of the request that follows, or
            the free bytes held hostage.
        row: the neighbour's row in the lifetime table; None for a segment.
        segment_bytes: size of the segment; None for a lifetime.
    """

    kind: str
    source: str
    target: str
    bytes: int
    row: int | None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of one allocation.

    Attributes:
        row: its row in the lifetime table.
        node: its id in the graph.
        at: the moment at which `pins` holds.
        is_live, is_pending: its state at that moment.
        relations: edges to its neighbours: by kind, most bytes first.
    """

    row: int
    node: str
    at: Moment
    is_live: bool
    is_pending: bool
    relations: tuple[Relation, ...]


def explain(
    history: DeviceHistory,
    target: str | None = None,
    at: str | None = None,
    *,
    selection: BoolColumn | None = None,
) -> Explanation:
    """Explain one allocation.

    Args:
        history: the device.
        target: one of `FORMS`; None = the largest that is live at `at`.
        at: a moment; None = the peak, or the birth of `event:N` if it isn't in use there.
        selection: rows among which to look for the largest; None = all.

    Raises:
        UsageError: there is no such allocation; says who was there instead.
    """
    moment = find_moment(history, at or "peak")
    row = _largest(history, moment, selection) if target is None else find_lifetime(history, target, moment)
    if at is None and not _is_in_use(history, row, moment.event):
        moment = moment_at(history, int(history.lifetimes.birth_event[row]))
    node = lifetime_ids(history, np.array([row]))[0]
    return Explanation(
        row=row,
        node=node,
        at=moment,
        is_live=bool((history.lifetimes.live_at(moment.event) == row).any()),
        is_pending=bool((history.lifetimes.pending_at(moment.event) == row).any()),
        relations=(*_relations(history, row, node), *_pinned(history, row, node, moment)),
    )


def find_lifetime(history: DeviceHistory, text: str, at: Moment) -> int:
    """Find the lifetime that a person means.

    An address may lie anywhere in the block.

    Args:
        history: the device.
        text: one of `FORMS`.
        at: when to look for an address.

    Raises:
        UsageError: the text means nothing, or nothing was there.
    """
    if match := _EVENT.match(text.strip()):
        return _at_event(history, int(match[1]))
    if match := _ADDRESS.match(text.strip()):
        addr = int(match[2], 16) if match[2] else int(match[3])
        if addr < 1 << 64:
            return _at_address(history, addr, moment_at(history, history.num_events - 1, "end") if match[1] else at)
    raise UsageError(f"{text!r} is no allocation: give {FORMS}")


def _largest(history: DeviceHistory, at: Moment, selection: BoolColumn | None) -> int:
    rows = history.lifetimes.live_at(at.event)
    if selection is not None:
        rows = rows[selection[rows]]
    if not len(rows):
        what = "nothing" if selection is None else "nothing that --focus/--ignore select"
        raise UsageError(f"{what} is live {_at_words(at)}: give {FORMS}, or another --at")
    return int(rows[np.argmax(history.lifetimes.requested_bytes[rows])])


def _at_event(history: DeviceHistory, event: int) -> int:
    events, table = history.tables.events, history.lifetimes
    if not len(events):
        raise UsageError(f"no event {event}: {history.tables.label} has no history: give an address")
    if event >= len(events):
        raise UsageError(f"no event {event}: {history.tables.label} has events 0 to {len(events) - 1}")
    if events.action[event] > Action.FREE_COMPLETED:
        name = Action(int(events.action[event])).name.lower()
        raise UsageError(f"event {event} is no alloc or free but {name}: it belongs to no allocation")
    own = table.addr == events.addr[event]
    for column in (table.birth_event, table.free_requested_event, table.free_completed_event):
        found = np.flatnonzero(own & (column == event))
        if len(found):
            return int(found[0])
    raise UsageError(f"event {event} contradicts the rest of the history: no allocation was made of it")


def _at_address(history: DeviceHistory, addr: int, at: Moment) -> int:
    table = history.lifetimes
    start = table.addr
    size = np.maximum(history.blocks.block_bytes, 1).astype(np.uint64)
    there = np.flatnonzero((start <= np.uint64(addr)) & (np.uint64(addr) - start < size))
    now = [row for row in there.tolist() if _is_in_use(history, row, at.event)]
    if now:
        return int(now[0])
    raise UsageError(f"nothing lives at {format_address(addr)} {_at_words(at)}{_who_else(history, there, at)}")


def _who_else(history: DeviceHistory, rows: Int64Column, at: Moment) -> str:
    """Name who was at an address before and after a moment."""
    table = history.lifetimes
    done = table.free_completed_event[rows]
    before = rows[(done != NEVER) & (done <= at.event)]
    after = rows[table.birth_event[rows] > at.event]
    said = []
    if len(before):
        last = before[np.argmax(table.free_completed_event[before])]
        said.append(f"{_brief(history, int(last))} was there until event {table.free_completed_event[last]}")
    if len(after):
        said.append(f"{_brief(history, int(after[0]))} is there from event {table.birth_event[after[0]]} on")
    if not said:
        return ": no allocation ever did in this file (snapscope lifetimes lists them)"
    return f": {', '.join(said)}"


def _brief(history: DeviceHistory, row: int) -> str:
    name = lifetime_ids(history, np.array([row]))[0]
    site = escape(site_label(history, row), limit=80)
    return f"{name} ({format_bytes(int(history.lifetimes.requested_bytes[row]))}, {site})"


def site_label(history: DeviceHistory, row: int) -> str:
    """Return the site of a lifetime as shown (untrusted text)."""
    table = history.lifetimes
    stack, is_before = int(table.alloc_stack[row]), bool(table.birth_event[row] == BEFORE)
    return history.sites.of_stack(stack, is_before=is_before).label


def categories_of(history: DeviceHistory) -> Sequence[str]:
    """Return the category of every row of the lifetime table, as the graph wants it."""
    return [CATEGORY_LABELS[category] for category in history.classification.category.tolist()]


def phases_of(history: DeviceHistory) -> Sequence[str | None]:
    """Return the phase of birth of every row of the lifetime table; None of what is older than the history."""
    return history.steps.phases_at(history.lifetimes.birth_event)


def _at_words(at: Moment) -> str:
    names = {"start": "before the first event", "end": "at the end", "peak": "at the peak"}
    where = f" (event {at.event})" if at.event >= 0 and at.label in names else ""
    return names.get(at.label, f"at {at.label}") + where


def _is_in_use(history: DeviceHistory, row: int, event: int) -> bool:
    """Tell whether a lifetime is live or pending after an event."""
    done = int(history.lifetimes.free_completed_event[row])
    return int(history.lifetimes.birth_event[row]) <= event and (done == NEVER or done > event)


def _relations(history: DeviceHistory, row: int, node: str) -> list[Relation]:
    out: list[Relation] = []
    for kind, pairs in find_relations(history).items():
        for own, other, is_source in ((pairs.source, pairs.target, True), (pairs.target, pairs.source, False)):
            places = np.flatnonzero(own == row)
            places = places[np.argsort(-pairs.num_bytes[places], kind="stable")]
            names = lifetime_ids(history, other[places])
            for place, name in zip(places.tolist(), names, strict=True):
                out.append(
                    Relation(
                        kind=kind,
                        source=node if is_source else name,
                        target=name if is_source else node,
                        bytes=int(pairs.num_bytes[place]),
                        row=int(other[place]),
                    )
                )
    return out


def _pinned(history: DeviceHistory, row: int, node: str, at: Moment) -> list[Relation]:
    layout = history.layout_at(at.event)
    blocks, segments = layout.blocks, layout.segments
    hostages = layout.hostages()
    return [
        Relation(
            kind="pins",
            source=node,
            target=segment_id(int(segments.addr[segment])),
            bytes=int(hostages[place]),
            row=None,
            segment_bytes=int(segments.size_bytes[segment]),
        )
        for place in np.flatnonzero(blocks.row == row).tolist()
        for segment in [int(blocks.segment[place])]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFrame:
    """One frame of a stack (untrusted text)."""

    function: str
    file: str
    line: int
    kind: str
    label: str


def frames_of(history: DeviceHistory, stack: int) -> Sequence[ShownFrame]:
    """Return the frames of a stack, innermost first, without interpreter and unwinder frames."""
    sites, stacks = history.sites, history.snapshot.stacks
    return [
        ShownFrame(
            function=stacks.function_of(frame),
            file=sites.file_of(frame),
            line=stacks.line_of(frame),
            kind=sites.kind_of(frame).name.lower(),
            label=sites.frame_label(frame),
        )
        for frame in sites.visible_frames(stack).tolist()
    ]
