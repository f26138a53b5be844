"""What other programs read is what the graph holds, whatever text the file has."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final
from xml.etree import ElementTree

import networkx
import orjson
import pytest

from snapscope.escaping import escape
from snapscope.graph import (
    Attributes,
    Graph,
    dot_of,
    graphml_of,
    lifetime_graph,
    node_link_of,
    site_graph,
    to_networkx,
)
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.cli.test_hostile import NASTY, assert_printable
from tests.conftest import ROOT, fixture_path
from tests.graph.histories import A, split_and_merge
from tests.replay.test_properties import history_of


def both_levels(history: DeviceHistory, categories: list[str] | None = None) -> list[Graph]:
    at = history.num_events - 1
    rows = history.lifetimes.live_at(at)
    return [
        site_graph(history, at=at, categories=categories),
        lifetime_graph(history, rows, at=at, hops=2, categories=categories),
    ]


def recorded() -> list[Graph]:
    return both_levels(DeviceHistory(load_snapshot(fixture_path("torch-2.14/oom_forward"))))


def hostile(text: str) -> list[Graph]:
    """Return graphs in which a text stands wherever one of the file can."""
    frames = [b.frame(text, f"/p/{text}", 3), b.frame(text, text, 0)]
    events: list[b.Events] = [
        b.alloc(A, 4 * MIB, frames=frames),
        b.free(A, 4 * MIB),
        b.alloc(A, 4 * MIB, frames=frames),
        b.alloc(A + 4 * MIB, 4 * MIB, frames=frames),
    ]
    blocks = [b.block(4 * MIB), b.block(4 * MIB), b.block(12 * MIB, state=INACTIVE)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)]))
    return both_levels(history, [text] * len(history.lifetimes))


def known(attributes: Attributes) -> dict[str, Any]:
    return {
        key: escape(value, limit=10_000) if isinstance(value, str) else value
        for key, value in attributes.items()
        if value is not None
    }


def check_networkx(graph: Graph) -> None:
    made = to_networkx(graph)
    assert isinstance(made, networkx.DiGraph)
    assert made.graph == graph.attributes
    assert dict(made.nodes(data=True)) == dict(graph.nodes)
    assert {(source, target): found for source, target, found in made.edges(data=True)} == dict(graph.edges)


def check_graphml(graph: Graph) -> None:
    content = graphml_of(graph)
    ElementTree.fromstring(content)
    read = networkx.read_graphml(io.BytesIO(content))
    assert read.is_directed()
    assert not read.is_multigraph()
    assert read.graph.items() >= known(graph.attributes).items()
    assert dict(read.nodes(data=True)) == {name: known(found) for name, found in graph.nodes.items()}
    edges = {(source, target): found for source, target, found in read.edges(data=True)}
    assert edges == {ends: known(found) for ends, found in graph.edges.items()}
    for found in (*dict(read.nodes(data=True)).values(), *edges.values()):
        assert all(type(value) in (int, bool, str) for value in found.values())


def check_json(graph: Graph) -> None:
    document = json.loads(orjson.dumps(node_link_of(graph)))
    read = networkx.node_link_graph(document, edges="edges")
    assert networkx.utils.graphs_equal(read, _without_surrogates(to_networkx(graph)))


def _without_surrogates(graph: networkx.DiGraph) -> networkx.DiGraph:
    for found in (*(found for _, found in graph.nodes(data=True)), *(found for *_, found in graph.edges(data=True))):
        for key, value in found.items():
            if isinstance(value, str):
                found[key] = value.encode("utf-8", "backslashreplace").decode()
    return graph


TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(->|[\[\]{};,=])|([A-Za-z_]\w*))', re.DOTALL)


def tokens_of(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match, text[at : at + 60]
        at = match.end()
        if match[1] is not None:
            yield "text", re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)
        else:
            yield "mark", match[2] or match[3]


def read_dot(content: bytes) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], dict[str, str]]]:
    """Read the part of DOT that we write: quoted names, lists of quoted values."""
    tokens = list(tokens_of(content.decode("utf-8")))
    assert tokens[:3] == [("mark", "digraph"), ("mark", "snapscope"), ("mark", "{")]
    assert tokens[-1] == ("mark", "}")
    nodes: dict[str, dict[str, str]] = {}
    edges: dict[tuple[str, str], dict[str, str]] = {}
    statement: list[tuple[str, str]] = []
    for token in tokens[3:-1]:
        if token != ("mark", ";"):
            statement.append(token)
            continue
        cut = statement.index(("mark", "["))
        names = [text for kind, text in statement[:cut] if kind == "text"]
        inside = statement[cut + 1 : -1]
        found = {inside[place][1]: inside[place + 2][1] for place in range(0, len(inside), 4)}
        if len(names) == 2:
            assert statement[1] == ("mark", "->")
            edges[names[0], names[1]] = found
        elif names:
            nodes[names[0]] = found
        statement = []
    assert not statement
    return nodes, edges


def check_dot(graph: Graph) -> None:
    content = dot_of(graph)
    assert_printable(content.decode("utf-8"))
    nodes, edges = read_dot(content)
    assert list(nodes) == list(graph.nodes)
    assert list(edges) == list(graph.edges)
    for written, given in ((nodes, graph.nodes), (edges, graph.edges)):
        for key, found in written.items():
            for name, value in known(given[key]).items():  # type: ignore[index]
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                assert found["site" if name == "label" else name] == shown
            assert found["label"] or key in graph.edges


CHECKS: Final = {"networkx": check_networkx, "graphml": check_graphml, "json": check_json, "dot": check_dot}


@pytest.mark.parametrize("form", CHECKS)
def test_a_recording_comes_back_whole(form: str) -> None:
    for graph in (*recorded(), *both_levels(split_and_merge(), ["activation"] * 5)):
        assert graph.nodes
        CHECKS[form](graph)


@pytest.mark.parametrize("form", CHECKS)
@pytest.mark.parametrize("kind", [*NASTY, "xml", "dot", "ends", "noncharacter"])
def test_no_text_breaks_a_format(kind: str, form: str) -> None:
    more = {
        "xml": "]]></data><!-- &amp; & <b a='\"'>",
        "dot": '"]; evil -> node [label=<<b>x</b>>]; \\N \\',
        "ends": "ends in \\",
        "noncharacter": "\ufffe\uffff\ufdd0",
    }
    for graph in hostile({**NASTY, **more}[kind]):
        assert len(graph.edges) > 0
        CHECKS[form](graph)


def test_nothing_is_a_graph_too() -> None:
    for graph in both_levels(history_of(b.snapshot())):
        for check in CHECKS.values():
            check(graph)


def test_labels_of_dot_have_lines_and_no_entities() -> None:
    site, lifetimes = hostile("a&lt;b")
    shown = dot_of(site).decode()
    assert r'label="a&amp;lt;b:3 a&amp;lt;b\n8.00 MiB at most, 3 ×"' in shown
    assert 'site="a&lt;b:3 a&lt;b"' in shown
    assert f'"segment:{A:#x}" [label="segment:{A:#x}\\n20.00 MiB, 12.00 MiB free", ' in dot_of(lifetimes).decode()


def test_addresses_beyond_63_bits_stay_integers() -> None:
    high = 0xFFFF_8000_0000_0000
    history = history_of(b.snapshot(segments=[b.segment(high, [b.block(2 * MIB)])]))
    graph = lifetime_graph(history, [0], at=-1, hops=1)
    assert list(graph.nodes) == [f"block:{high:#x}", f"segment:{high:#x}"]
    for check in CHECKS.values():
        check(graph)


def test_networkx_is_loaded_only_where_it_is_needed() -> None:
    script = (
        "import sys\n"
        "from snapscope.graph import dot_of, graphml_of, node_link_of, site_graph\n"
        "import snapscope\n"
        f"history = snapscope.DeviceHistory(snapscope.load_snapshot({str(fixture_path('torch-2.14/oom_forward'))!r}))\n"
        "graph = site_graph(history)\n"
        "dot_of(graph), node_link_of(graph)\n"
        "print('networkx' in sys.modules)\n"
        "graphml_of(graph)\n"
        "print('networkx' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("False\nTrue\n", "")
