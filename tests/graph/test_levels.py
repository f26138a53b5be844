"""Both levels: which nodes and edges there are, and what stands at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from snapscope.graph import (
    Graph,
    Level,
    find_relations,
    lifetime_graph,
    lifetimes_within,
    site_graph,
)
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import MIB
from tests.conftest import fixture_path, recordings
from tests.graph.histories import A, late_start, split_and_merge
from tests.replay.test_properties import history_of

NOTHING: dict[str, Any] = {
    "reuses": False, "pins": False, "follows": False, "made_room": False,
    "overlap_bytes": 0, "hostage_bytes": 0, "freed_bytes": 0,
}  # fmt: skip


def row_of(history: DeviceHistory, birth: int) -> int:
    (row,) = np.flatnonzero(history.lifetimes.birth_event == birth).tolist()
    return int(row)


def test_a_pair_has_one_edge_with_all_that_holds() -> None:
    history = split_and_merge()
    graph = lifetime_graph(history, range(5))
    assert list(graph.nodes) == ["event:1", "event:4", "event:5", "event:10", "event:11"]
    assert graph.edges == {
        ("event:1", "event:4"): {
            **NOTHING, "reuses": True, "overlap_bytes": 2 * MIB, "made_room": True, "freed_bytes": 8 * MIB
        },
        ("event:1", "event:5"): {**NOTHING, "reuses": True, "overlap_bytes": 4 * MIB},
        ("event:1", "event:11"): {**NOTHING, "reuses": True, "overlap_bytes": 2 * MIB},
        ("event:4", "event:5"): {**NOTHING, "follows": True},
        ("event:4", "event:10"): {
            **NOTHING, "reuses": True, "overlap_bytes": 2 * MIB, "made_room": True, "freed_bytes": 2 * MIB
        },
        ("event:5", "event:10"): {
            **NOTHING, "reuses": True, "overlap_bytes": 4 * MIB, "made_room": True, "freed_bytes": 4 * MIB
        },
        ("event:5", "event:11"): {**NOTHING, "follows": True},
    }  # fmt: skip


def test_attributes_of_a_lifetime() -> None:
    history = split_and_merge()
    categories = ["parameter", "activation", "activation", "temporary", "activation"]
    phases = [None, "forward", "forward", "between", "forward"]
    graph = lifetime_graph(history, [row_of(history, 4)], categories=categories, phases=phases)
    assert graph.attributes == {"level": "lifetime", "hops": 0}
    assert graph.nodes == {
        "event:4": {
            "kind": "lifetime",
            "addr": A,
            "requested_bytes": 2 * MIB,
            "block_bytes": 2 * MIB,
            "birth_event": 4,
            "free_requested_event": 6,
            "free_completed_event": 7,
            "stream": 0,
            "pool": "0,0",
            "site": "model.py:9 forward",
            "category": "activation",
            "phase": "forward",
        }
    }
    bare = lifetime_graph(history, [1]).nodes["event:4"]
    assert bare["category"] is None
    assert bare["phase"] is None


def test_hops_go_over_edges_of_either_direction_and_over_segments() -> None:
    history = split_and_merge()
    ten = [row_of(history, 10)]

    def nodes(hops: int, at: int | None = None) -> set[str]:
        return set(lifetime_graph(history, ten, hops=hops, at=at).nodes)

    assert nodes(0) == nodes(0, at=11) == {"event:10"}
    assert nodes(1) == {"event:4", "event:5", "event:10"}
    assert nodes(1, at=11) == {"event:4", "event:5", "event:10", f"segment:{A:#x}"}
    assert nodes(2) == {"event:1", "event:4", "event:5", "event:10", "event:11"}
    assert nodes(2, at=11) == nodes(3, at=11) == nodes(2) | {f"segment:{A:#x}"}


def test_attributes_of_a_segment_and_what_pins_it() -> None:
    history = split_and_merge()
    graph = lifetime_graph(history, [row_of(history, 10)], hops=2, at=11)
    segment = f"segment:{A:#x}"
    assert graph.attributes == {"level": "lifetime", "hops": 2, "at_event": 11}
    assert graph.nodes[segment] == {
        "kind": "segment",
        "addr": A,
        "size_bytes": 20 * MIB,
        "free_bytes": 10 * MIB,
        "num_blocks": 2,
        "stream": 0,
        "pool": "0,0",
        "is_expandable": False,
    }
    pins = {ends[0]: edge for ends, edge in graph.edges.items() if edge["pins"]}
    assert pins == {name: {**NOTHING, "pins": True, "hostage_bytes": 10 * MIB} for name in ("event:10", "event:11")}


def test_lifetimes_of_a_window() -> None:
    history = split_and_merge()
    births = history.lifetimes.birth_event
    assert births[lifetimes_within(history, 3, 4)].tolist() == [1, 4]
    assert births[lifetimes_within(history, 4, 6)].tolist() == [4, 5]
    assert births[lifetimes_within(history, 0, 0)].tolist() == []
    assert len(lifetimes_within(late_start(), -1, -1)) == 3


def test_sites_and_their_sums() -> None:
    history = split_and_merge()
    categories = ["parameter", "activation", "temporary", "temporary", "activation"]
    # By bytes: 4 MiB of the forward's site are born in the backward, 6 in the forward.
    phases = [None, "forward", "forward", "between", "backward"]
    graph = site_graph(history, at=5, categories=categories, phases=phases)
    assert graph.level is Level.SITE
    assert graph.attributes == {"level": "site", "at_event": 5}
    labels = {node["label"]: name for name, node in graph.nodes.items()}
    assert labels == {"init.py:5 load": "site:0", "train.py:3 loss": "site:2", "model.py:9 forward": "site:1"}
    # 2 and 4 MiB together, 4 MiB later: 6 at most, 10 in all.
    assert graph.nodes["site:1"] == {
        "kind": "site",
        "label": "model.py:9 forward",
        "file": "model.py",
        "function": "forward",
        "line": 9,
        "count": 3,
        "bytes": 10 * MIB,
        "peak_bytes": 6 * MIB,
        "num_live": 2,
        "live_bytes": 6 * MIB,
        "category": "activation",
        "phase": "forward",
    }
    assert [node["peak_bytes"] for node in graph.nodes.values()] == [8 * MIB, 6 * MIB, 6 * MIB]
    load, forward, loss = "site:0", "site:1", "site:2"
    assert {ends: tuple(edge.values()) for ends, edge in graph.edges.items()} == {
        # reuses: number and bytes; follows: number and bytes; made_room: number and bytes
        (load, forward): (3, 8 * MIB, 0, 0, 1, 8 * MIB),
        (forward, forward): (0, 0, 2, 8 * MIB, 0, 0),
        (forward, loss): (2, 6 * MIB, 0, 0, 2, 6 * MIB),
    }
    assert list(graph.edges[load, forward]) == [
        "reuses_count", "reuses_bytes", "follows_count", "follows_bytes", "made_room_count", "made_room_bytes"
    ]  # fmt: skip


def test_a_selection_leaves_only_its_own_sites_and_edges() -> None:
    history = split_and_merge()
    selection = np.array([False, True, True, False, True])
    graph = site_graph(history, selection=selection)
    assert [(node["label"], node["count"]) for node in graph.nodes.values()] == [("model.py:9 forward", 3)]
    assert list(graph.edges) == [("site:0", "site:0")]
    assert "live_bytes" not in graph.nodes["site:0"]


def test_what_waited_before_the_history_was_never_live_in_it() -> None:
    graph = site_graph(late_start())
    before = next(node for node in graph.nodes.values() if node["label"] == "(before the history)")
    assert (before["count"], before["bytes"], before["peak_bytes"]) == (3, 10 * MIB, 6 * MIB)


def test_nothing_makes_an_empty_graph() -> None:
    history = history_of(b.snapshot())
    for graph in (site_graph(history, at=-1), lifetime_graph(history, [], at=-1, hops=3)):
        assert not graph.nodes
        assert not graph.edges


def check(graph: Graph) -> None:
    for source, target in graph.edges:
        assert source in graph.nodes
        assert target in graph.nodes


@pytest.mark.parametrize("name", [*recordings(), *recordings("runs")])
def test_sums_on_recordings(name: str) -> None:
    snapshot = load_snapshot(fixture_path(name))
    for tables in snapshot.devices:
        history = DeviceHistory(snapshot, tables.device)
        lifetimes, found = history.lifetimes, find_relations(history)
        peak = int(history.totals.requested_bytes.argmax()) - 1
        sites = site_graph(history, at=peak, relations=found)
        check(sites)
        total = {key: sum(int(node[key] or 0) for node in sites.nodes.values()) for key in ("count", "live_bytes")}
        assert total == {"count": len(lifetimes), "live_bytes": int(history.totals.requested_bytes[peak + 1])}
        for kind, pairs in found.items():
            assert (pairs.source < pairs.target).all()
            edges = sites.edges.values()
            assert sum(int(edge[f"{kind}_count"] or 0) for edge in edges) == len(pairs)
            assert sum(int(edge[f"{kind}_bytes"] or 0) for edge in edges) == int(pairs.num_bytes.sum())
        graph = lifetime_graph(history, np.arange(len(lifetimes)), at=peak, hops=1, relations=found)
        check(graph)
        nodes = [node for node in graph.nodes.values() if node["kind"] == "lifetime"]
        assert len(nodes) == len(lifetimes)
