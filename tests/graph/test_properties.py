"""Properties of the relations, and a slow way to find each that must agree with the fast one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.graph import Pairs, find_made_room, find_relations, find_reuses, lifetime_graph, lifetime_ids, site_graph
from snapscope.history import DeviceHistory
from snapscope.lifetimes import NEVER
from tests.bench.make_snapshot import build
from tests.replay.test_properties import history_of


@st.composite
def histories(draw: st.DrawFn, *, max_events: int = 400) -> DeviceHistory:
    """A simulated history, some of whose events are lost."""
    value: Any = build(draw(st.integers(20, max_events)), seed=draw(st.integers(0, 999)), layers=1)
    trace = value["device_traces"][0]
    doomed = draw(st.sets(st.integers(0, len(trace) - 1), max_size=draw(st.sampled_from((0, len(trace) // 5)))))
    return history_of({**value, "device_traces": [[event for i, event in enumerate(trace) if i not in doomed]]})


def as_dict(pairs: Pairs) -> dict[tuple[int, int], int]:
    found = zip(pairs.source.tolist(), pairs.target.tolist(), pairs.num_bytes.tolist(), strict=True)
    return {(source, target): num_bytes for source, target, num_bytes in found}


def slow_reuses(history: DeviceHistory) -> dict[tuple[int, int], int]:
    """Walk back from every birth, over all that held or released each of its bytes."""
    table, ranges = history.lifetimes, history.ranges
    acts = [
        (int(death), 0, _bounds(ranges.addr[row], ranges.size_bytes[row]), -1)
        for row, death in enumerate(ranges.death_event.tolist())
        if death != NEVER
    ]
    acts += [
        (int(birth), 1, _bounds(table.addr[row], history.blocks.block_bytes[row]), row)
        for row, birth in enumerate(table.birth_event.tolist())
    ]
    acts.sort(key=lambda act: act[:2])
    found: dict[tuple[int, int], int] = {}
    for place, (event, _, bounds, target) in enumerate(acts):
        if target < 0:
            continue
        open_parts = [bounds]
        for _, _, (low, high), source in reversed(acts[:place]):
            rest = []
            for start, end in open_parts:
                overlap = min(end, high) - max(start, low)
                if overlap <= 0:
                    rest.append((start, end))
                    continue
                done = int(table.free_completed_event[source]) if source >= 0 else NEVER
                if done != NEVER and done <= event:
                    found[source, target] = found.get((source, target), 0) + overlap
                rest += [part for part in ((start, max(start, low)), (min(end, high), end)) if part[0] < part[1]]
            open_parts = rest
    return found


def _bounds(addr: Any, size: Any) -> tuple[int, int]:
    return int(addr), int(addr) + int(size)


@settings(max_examples=25)
@given(history=histories())
def test_reuses_is_what_a_walk_back_finds(history: DeviceHistory) -> None:
    assert as_dict(find_reuses(history)) == slow_reuses(history)


@settings(max_examples=25)
@given(history=histories())
def test_made_room_is_what_a_walk_forward_finds(history: DeviceHistory) -> None:
    table = history.lifetimes
    found: dict[tuple[int, int], int] = {}
    for source in range(len(table)):
        done = int(table.free_completed_event[source])
        for target in range(source + 1, len(table)):
            pools = {max(int(table.pool[row]), 0) for row in (source, target)}
            same = table.stream[source] == table.stream[target] and len(pools) == 1
            if same and done != NEVER and int(table.birth_event[target]) >= max(done, 0):
                found[source, target] = int(history.blocks.block_bytes[source])
                break
    assert as_dict(find_made_room(history)) == found


@settings(max_examples=25)
@given(history=histories(max_events=1500))
def test_relations_go_from_dead_to_born(history: DeviceHistory) -> None:
    table, found = history.lifetimes, find_relations(history)
    for kind, pairs in found.items():
        # No loops, and no cycles: rows are in order of birth.
        assert (pairs.source < pairs.target).all(), kind
        keys = pairs.source * len(table) + pairs.target
        assert len(np.unique(keys)) == len(keys), kind
        assert (pairs.num_bytes >= 0).all(), kind
    for pairs in (found.reuses, found.made_room):
        done = table.free_completed_event[pairs.source]
        assert (done != NEVER).all()
        assert (done <= table.birth_event[pairs.target]).all()
    inflow = np.zeros(len(table), np.int64)
    np.add.at(inflow, found.reuses.target, found.reuses.num_bytes)
    assert (inflow <= history.blocks.block_bytes).all()
    assert (found.reuses.num_bytes > 0).all()
    assert (found.reuses.num_bytes <= history.blocks.block_bytes[found.reuses.source]).all()
    for pairs in (found.made_room, found.follows):
        # Every free makes room for one request, every allocation is followed by one.
        assert len(np.unique(pairs.source)) == len(pairs.source)
    assert len(np.unique(found.follows.target)) == len(found.follows.target)
    sites = found.rows.site_of_row
    assert (sites[found.follows.source] == sites[found.follows.target]).all()


@settings(max_examples=25)
@given(history=histories(max_events=800))
def test_peaks_of_sites_are_what_a_walk_over_events_finds(history: DeviceHistory) -> None:
    table, found = history.lifetimes, find_relations(history)
    graph = site_graph(history, relations=found)
    peaks: dict[int, int] = {}
    for event in range(-1, history.num_events):
        rows = table.live_at(event)
        for site in set(found.rows.site_of_row[rows].tolist()):
            num_bytes = int(table.requested_bytes[rows[found.rows.site_of_row[rows] == site]].sum())
            peaks[site] = max(peaks.get(site, 0), num_bytes)
    shown = sorted(int(node["peak_bytes"] or 0) for node in graph.nodes.values())
    sites = set(found.rows.site_of_row.tolist())
    assert shown == sorted(peaks.get(site, 0) for site in sites)


@settings(max_examples=25)
@given(history=histories(max_events=1500), data=st.data())
def test_a_neighbourhood_is_a_part_of_the_whole(history: DeviceHistory, data: st.DataObject) -> None:
    table, found = history.lifetimes, find_relations(history)
    names = lifetime_ids(history, np.arange(len(table)))
    assert len(set(names)) == len(names)
    at = data.draw(st.integers(-1, history.num_events - 1))
    whole = lifetime_graph(history, range(len(table)), at=at, hops=1, relations=found)
    rows = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=3)) if len(table) else []
    smaller = None
    for hops in range(4):
        part = lifetime_graph(history, rows, at=at, hops=hops, relations=found)
        assert all(part.nodes[name] == whole.nodes[name] for name in part.nodes)
        # All edges between its nodes are there, and no others.
        inside = {ends: edge for ends, edge in whole.edges.items() if part.nodes.keys() >= set(ends)}
        assert part.edges == inside
        if smaller is not None:
            reached = {name for ends in whole.edges if set(ends) & smaller for name in ends}
            assert set(part.nodes) == smaller | reached
        smaller = set(part.nodes)
