"""The two levels of the graph: lifetimes on demand, sites for the whole file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from snapscope.graph.relations import (
    History,
    Pairs,
    SiteRows,
    find_follows,
    find_made_room,
    find_reuses,
    find_sites,
    neighbours,
)
from snapscope.layout import Layout
from snapscope.lifetimes import BEFORE, NEVER, REQUESTED_BEFORE
from snapscope.model import UNKNOWN_POOL, Action, BoolColumn, Int64Column

Value: TypeAlias = "int | bool | str | None"
Attributes: TypeAlias = Mapping[str, Value]

RELATIONS: Final = ("reuses", "follows", "made_room")
"""Relations between lifetimes; `pins` leads from a lifetime to a segment."""


class Level(str, Enum):
    """What a node is."""

    SITE = "site"
    LIFETIME = "lifetime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A directed graph with attributes, in a fixed order; at most one edge leads from one node to another.

    Attributes:
        level: what the nodes are.
        attributes: of the graph itself: `level`, and the moment `at_event` where one was given.
        nodes: attributes by node id. Strings are untrusted text, as the file has them.
        edges: attributes by (source, target).
    """

    level: Level
    attributes: Attributes
    nodes: Mapping[str, Attributes]
    edges: Mapping[tuple[str, str], Attributes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relations:
    """All pairs of a history, and the sites."""

    rows: SiteRows
    reuses: Pairs
    follows: Pairs
    made_room: Pairs

    def items(self) -> Iterator[tuple[str, Pairs]]:
        """Yield each relation with its name, in the order of `RELATIONS`."""
        yield from zip(RELATIONS, (self.reuses, self.follows, self.made_room), strict=True)


def find_relations(history: History) -> Relations:
    """Find all relations between the lifetimes of a history: less than a second per million events."""
    rows = find_sites(history)
    return Relations(
        rows=rows,
        reuses=find_reuses(history),
        follows=find_follows(history, rows),
        made_room=find_made_room(history),
    )


# -------------------------------------------------------------------------------------- lifetimes


def lifetime_ids(history: History, rows: Int64Column) -> list[str]:
    """Name lifetimes: `event:12` by the birth, or by the free of one older than the history.

    `block:0x7f…` names those that no event of their own names: older than the history and
    never freed, or a final block whose alloc was lost.
    """
    table, events = history.lifetimes, history.tables.events
    birth, asked, done = table.birth_event, table.free_requested_event, table.free_completed_event
    event = np.where(birth != BEFORE, birth, np.where(asked >= 0, asked, done))
    has_final = table.final_block >= 0
    is_named = event != NEVER
    if len(events):
        own = events.action[np.maximum(event, 0)] <= Action.FREE_COMPLETED
        own &= events.addr[np.maximum(event, 0)] == table.addr
        own &= events.size_bytes[np.maximum(event, 0)] == table.requested_bytes
        is_named &= own | ~has_final
    # In files that contradict themselves several may claim one address or event: count them.
    place = np.where(is_named, event.astype(np.uint64), table.addr)
    order = np.lexsort((place, is_named))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (place[order][1:] != place[order][:-1]) | (is_named[order][1:] != is_named[order][:-1])
    start = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - start
    columns = (column[rows].tolist() for column in (event, is_named, table.addr, ordinal))
    return [
        (f"event:{number}" if named else f"block:{addr:#x}") + (f"#{again + 1}" if again else "")
        for number, named, addr, again in zip(*columns, strict=True)
    ]


def lifetimes_within(history: History, first: int, last: int) -> Int64Column:
    """Return the rows that held memory at some time between two events, both included."""
    table = history.lifetimes
    done = table.free_completed_event
    return np.flatnonzero((table.birth_event <= last) & ((done == NEVER) | (done >= first)))


def lifetime_graph(
    history: History,
    rows: Sequence[int] | Int64Column,
    *,
    at: int | None = None,
    hops: int = 0,
    categories: Sequence[str] | None = None,
    phases: Sequence[str | None] | None = None,
    relations: Relations | None = None,
) -> Graph:
    """Make the graph of some lifetimes and what they are related to.

    Args:
        history: the device.
        rows: rows of the lifetime table to start from.
        at: event after which `pins` holds; None = no segments and no such edges.
        hops: how many edges to go from the start, against their direction too.
        categories: category of every row of the lifetime table, where they are known.
        phases: phase of birth of every row, where they are known.
        relations: those of `history`, if they have been found before.
    """
    found = relations or find_relations(history)
    layout = None if at is None else history.layout_at(at)
    chosen = np.zeros(len(history.lifetimes), bool)
    chosen[np.asarray(rows, np.int64)] = True
    segments = np.zeros(0 if layout is None else len(layout.segments), bool)
    for _ in range(hops):
        before = (chosen, segments)
        chosen = neighbours([pairs for _, pairs in found.items()], chosen)
        if layout is not None:
            blocks = layout.blocks
            chosen[blocks.row[before[1][blocks.segment]]] = True
            segments = before[1].copy()
            segments[blocks.segment[before[0][blocks.row]]] = True
        if (chosen == before[0]).all() and (segments == before[1]).all():
            break
    kept = np.flatnonzero(chosen)
    ids = dict(zip(kept.tolist(), lifetime_ids(history, kept), strict=True))
    nodes = dict(zip(ids.values(), _lifetime_nodes(history, kept, categories, phases), strict=True))
    edges = {(ids[a], ids[b]): attributes for (a, b), attributes in _lifetime_edges(found, chosen).items()}
    if layout is not None:
        _add_segments(history, layout, chosen, segments, ids, nodes, edges)
    attributes: dict[str, Value] = {"level": Level.LIFETIME.value, "hops": hops}
    if at is not None:
        attributes["at_event"] = at
    return Graph(level=Level.LIFETIME, attributes=attributes, nodes=nodes, edges=edges)


def pool_text(history: History, pool: int) -> str | None:
    """Return a pool as `0,0`; None where the file doesn't tell it."""
    return None if pool == UNKNOWN_POOL else ",".join(map(str, history.snapshot.pools[pool]))


def segment_id(addr: int) -> str:
    """Name a segment."""
    return f"segment:{addr:#x}"


def _lifetime_nodes(
    history: History, rows: Int64Column, categories: Sequence[str] | None, phases: Sequence[str | None] | None
) -> Iterator[Attributes]:
    table = history.lifetimes
    columns = (
        rows, table.addr[rows], table.requested_bytes[rows], history.blocks.block_bytes[rows], table.birth_event[rows],
        table.free_requested_event[rows], table.free_completed_event[rows], table.stream[rows], table.pool[rows],
        table.alloc_stack[rows],
    )  # fmt: skip
    for row, addr, requested, block, birth, asked, done, stream, pool, stack in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield {
            "kind": "lifetime",
            "addr": addr,
            "requested_bytes": requested,
            "block_bytes": block,
            "birth_event": birth,
            "free_requested_event": asked,
            "free_completed_event": done,
            "stream": stream,
            "pool": pool_text(history, pool),
            "site": history.sites.of_stack(stack, is_before=birth == BEFORE).label,
            "category": None if categories is None else categories[row],
            "phase": None if phases is None else phases[row],
        }


def _lifetime_edges(found: Relations, chosen: BoolColumn) -> dict[tuple[int, int], dict[str, Value]]:
    """Return one edge for each pair of chosen lifetimes, with all relations that hold."""
    edges: dict[tuple[int, int], dict[str, Value]] = {}
    for name, pairs in found.items():
        kept = np.flatnonzero(chosen[pairs.source] & chosen[pairs.target])
        columns = (pairs.source[kept], pairs.target[kept], pairs.num_bytes[kept])
        for source, target, num_bytes in zip(*(column.tolist() for column in columns), strict=True):
            edge = edges.setdefault((source, target), _no_relation())
            edge[name] = True
            if name == "reuses":
                edge["overlap_bytes"] = num_bytes
            elif name == "made_room":
                edge["freed_bytes"] = num_bytes
    return edges


def _no_relation() -> dict[str, Value]:
    return {
        "reuses": False,
        "pins": False,
        "follows": False,
        "made_room": False,
        "overlap_bytes": 0,
        "hostage_bytes": 0,
        "freed_bytes": 0,
    }


def _add_segments(
    history: History,
    layout: Layout,
    chosen: BoolColumn,
    segments: BoolColumn,
    ids: Mapping[int, str],
    nodes: dict[str, Attributes],
    edges: dict[tuple[str, str], dict[str, Value]],
) -> None:
    table, blocks = layout.segments, layout.blocks
    for segment in np.flatnonzero(segments).tolist():
        nodes[segment_id(int(table.addr[segment]))] = {
            "kind": "segment",
            "addr": int(table.addr[segment]),
            "size_bytes": int(table.size_bytes[segment]),
            "free_bytes": int(table.free_bytes[segment]),
            "num_blocks": int(table.num_blocks[segment]),
            "stream": int(table.stream[segment]),
            "pool": pool_text(history, int(table.pool[segment])),
            "is_expandable": bool(table.is_expandable[segment]),
        }
    kept = np.flatnonzero(chosen[blocks.row] & segments[blocks.segment])
    for row, segment, hostage in zip(
        blocks.row[kept].tolist(), blocks.segment[kept].tolist(), layout.hostages()[kept].tolist(), strict=True
    ):
        edge = {**_no_relation(), "pins": True, "hostage_bytes": hostage}
        edges[ids[row], segment_id(int(table.addr[segment]))] = edge


# ------------------------------------------------------------------------------------------ sites


def site_graph(
    history: History,
    *,
    at: int | None = None,
    selection: BoolColumn | None = None,
    categories: Sequence[str] | None = None,
    phases: Sequence[str | None] | None = None,
    relations: Relations | None = None,
) -> Graph:
    """Make the graph of all allocation sites of a history, heaviest first.

    Args:
        history: the device.
        at: event after which `live_bytes` and `num_live` hold; None = neither is given.
        selection: rows of the lifetime table that count; None = all.
        categories: category of every row of the lifetime table, where they are known; a
            site gets the one of its most bytes.
        phases: phase of birth of every row, likewise.
        relations: those of `history`, if they have been found before.
    """
    found = relations or find_relations(history)
    table = history.lifetimes
    kept = np.arange(len(table)) if selection is None else np.flatnonzero(selection)
    site_of_row, sites = found.rows.site_of_row, found.rows.sites
    group = site_of_row[kept]
    count = np.bincount(group, minlength=len(sites))
    columns: dict[str, Int64Column] = {
        "count": count.astype(np.int64),
        "bytes": _sums(group, table.requested_bytes[kept], len(sites)),
        "peak_bytes": _peaks(history, kept, group, len(sites)),
    }
    if at is not None:
        live = np.zeros(len(table), bool)
        live[table.live_at(at)] = True
        is_live = live[kept]
        columns["num_live"] = np.bincount(group[is_live], minlength=len(sites)).astype(np.int64)
        columns["live_bytes"] = _sums(group[is_live], table.requested_bytes[kept[is_live]], len(sites))
    category = _heaviest(group, kept, table.requested_bytes[kept], categories)
    phase = _heaviest(group, kept, table.requested_bytes[kept], phases)
    by_weight = np.lexsort((-columns["count"], -columns["bytes"], -columns["peak_bytes"]))
    order = [index for index in by_weight.tolist() if count[index]]
    ids = {index: f"site:{number}" for number, index in enumerate(order)}
    nodes: dict[str, Attributes] = {}
    for index, name in ids.items():
        site = sites[index]
        nodes[name] = {
            "kind": "site",
            "label": site.label,
            "file": site.file,
            "function": site.function,
            "line": site.line,
            **{key: int(column[index]) for key, column in columns.items()},
            "category": category.get(index),
            "phase": phase.get(index),
        }
    attributes: dict[str, Value] = {"level": Level.SITE.value}
    if at is not None:
        attributes["at_event"] = at
    edges = _site_edges(found, ids, selection)
    return Graph(level=Level.SITE, attributes=attributes, nodes=nodes, edges=edges)


def _site_edges(
    found: Relations, ids: Mapping[int, str], selection: BoolColumn | None
) -> dict[tuple[str, str], Attributes]:
    num_sites = max(len(found.rows.sites), 1)
    edges: dict[tuple[str, str], dict[str, Value]] = {}
    for name, pairs in found.items():
        source, target, num_bytes = pairs.source, pairs.target, pairs.num_bytes
        if selection is not None:
            both = selection[source] & selection[target]
            source, target, num_bytes = source[both], target[both], num_bytes[both]
        keys = found.rows.site_of_row[source] * num_sites + found.rows.site_of_row[target]
        distinct, which = np.unique(keys, return_inverse=True)
        counts = np.bincount(which, minlength=len(distinct)).tolist()
        sums = _sums(which, num_bytes, len(distinct)).tolist()
        for key, count, total in zip(distinct.tolist(), counts, sums, strict=True):
            ends = ids[key // num_sites], ids[key % num_sites]
            edge = edges.setdefault(ends, {f"{some}_{what}": 0 for some in RELATIONS for what in ("count", "bytes")})
            edge[f"{name}_count"], edge[f"{name}_bytes"] = count, total
    return dict(edges)


def _peaks(history: History, rows: Int64Column, group: Int64Column, num_groups: int) -> Int64Column:
    """Return, by site, the most requested bytes that were live at once."""
    table = history.lifetimes
    was_live = table.free_requested_event[rows] != REQUESTED_BEFORE
    rows, group = rows[was_live], group[was_live]
    freed = table.free_requested_event[rows] != NEVER
    size = table.requested_bytes[rows]
    event = np.concatenate((table.birth_event[rows], table.free_requested_event[rows[freed]])) + 1
    owner = np.concatenate((group, group[freed]))
    change = np.concatenate((size, -size[freed]))
    # What is freed and born by one event was never live together: frees come first.
    is_birth = np.concatenate((np.ones(len(rows), np.int64), np.zeros(int(freed.sum()), np.int64)))
    span = np.int64(2 * (len(history.tables.events) + 2))
    order = np.argsort(owner * span + event * 2 + is_birth, kind="stable")
    owner, curve = owner[order], np.cumsum(change[order])
    out = np.zeros(num_groups, np.int64)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    if len(first):
        # The curve of a site starts where that of the one before it ended.
        base = np.concatenate(([0], curve[first[1:] - 1]))
        out[owner[first]] = np.maximum.reduceat(curve, first) - base
    return np.maximum(out, 0)


def _heaviest(
    group: Int64Column, rows: Int64Column, size: Int64Column, labels: Sequence[str | None] | None
) -> dict[int, str | None]:
    """Return the label of each site's most bytes."""
    if labels is None or not len(rows):
        return {}
    index: dict[str | None, int] = {}
    which = np.array([index.setdefault(labels[row], len(index)) for row in rows.tolist()], np.int64)
    names = list(index)
    weight = _sums(group * len(names) + which, size, (int(group.max()) + 1) * len(names)).reshape(-1, len(names))
    return {place: names[best] for place, best in enumerate(weight.argmax(axis=1).tolist())}


def _sums(group: Int64Column, values: Int64Column, num_groups: int) -> Int64Column:
    out: Any = np.zeros(num_groups, np.int64)
    np.add.at(out, group, values)
    return np.asarray(out, np.int64)
