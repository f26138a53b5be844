"""`snapscope graph` and `snapscope explain` at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import networkx
import pytest

from tests.cli.running import fail, fixture, succeed
from tests.conftest import ROOT
from tests.graph.test_exports import read_dot

SMALL: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
OOM_FORWARD: Final = fixture("torch-2.14/oom_forward")
TWO_GPU: Final = fixture("torch-2.14/two_gpu")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")


def graph(*options: str) -> Any:
    return succeed("graph", OOM_FORWARD, "--json", *options).document()


@pytest.mark.parametrize("options", [[], ["--around", "event:151"], ["--level", "lifetime", "--hops", "0"]])
def test_every_format_holds_the_same_graph(options: list[str], tmp_path: Path) -> None:
    document = graph(*options)
    nodes = {node["id"]: node for node in document["nodes"]}
    edges = {(edge["source"], edge["target"]) for edge in document["edges"]}
    assert nodes
    for end in ("graphml", "json", "dot", "GraphML"):
        path = tmp_path / f"lifetimes.{end}"
        assert succeed("graph", OOM_FORWARD, *options, "-o", str(path)).stdout == b""
        if end == "json":
            assert json.loads(path.read_bytes()) == document
            read = networkx.node_link_graph(document, edges="edges")
        elif end == "dot":
            found, links = read_dot(path.read_bytes())
            assert (set(found), set(links)) == (set(nodes), edges)
            continue
        else:
            read = networkx.read_graphml(path)
        assert set(read.nodes) == set(nodes)
        assert set(read.edges) == edges
        assert networkx.is_directed_acyclic_graph(read) == (document["level"] == "lifetime")


def test_the_level_follows_from_what_is_asked() -> None:
    assert graph()["level"] == "site"
    assert graph("--around", "event:151")["level"] == "lifetime"
    assert graph("--level", "lifetime")["level"] == "lifetime"
    assert graph()["graph"] == {"level": "site", "at_event": 187}
    assert graph("--around", "event:151", "--hops", "0")["graph"] == {
        "level": "lifetime", "hops": 0, "at_event": 187
    }  # fmt: skip


def test_lifetimes_are_those_in_use_and_their_neighbours() -> None:
    alone = graph("--level", "lifetime", "--hops", "0")
    live = succeed("ledger", OOM_FORWARD, "--json").document()
    assert sum(node["requested_bytes"] for node in alone["nodes"]) == live["requested_bytes"]
    more = graph("--level", "lifetime")
    assert {node["id"] for node in more["nodes"]} > {node["id"] for node in alone["nodes"]}
    assert {node["kind"] for node in more["nodes"]} == {"lifetime", "segment"}


def test_sites_add_up() -> None:
    document = graph("--at", "end")
    lifetimes = succeed("lifetimes", OOM_FORWARD, "--json").document()["rows"]
    assert sum(node["count"] for node in document["nodes"]) == len(lifetimes)
    assert sum(node["bytes"] for node in document["nodes"]) == sum(row["requested_bytes"] for row in lifetimes)
    live = succeed("ledger", OOM_FORWARD, "--at", "end", "--json").document()["requested_bytes"]
    assert sum(node["live_bytes"] for node in document["nodes"]) == live


def test_focus_leaves_only_what_fits() -> None:
    whole, part = graph(), graph("--focus", "attention|gpt.py:3")
    assert 0 < len(part["nodes"]) < len(whole["nodes"])
    seeds = graph("--level", "lifetime", "--focus", "gpt.py:52", "--hops", "0")
    assert {node["site"] for node in seeds["nodes"]} == {"gpt.py:52 forward"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graph", SMALL, "--level", "block"], "'block' is not one of"),
        (["graph", SMALL, "--level", "site", "--around", "event:1"], "leave out --level site"),
        (["graph", SMALL, "--around", "x"], "'x' is no allocation: give an address (0x7f… or decimal) or event:N"),
        (["graph", SMALL, "--around", "0x1"], "nothing lives at 0x1 at the peak (event 1): no allocation ever did"),
        (["graph", SMALL, "--hops", "-1"], "Invalid value for '--hops'"),
        (["graph", SMALL, "--json", "-o", "x.dot"], "--json and a file that ends in .dot exclude each other"),
        (["graph", SMALL, "-o", "x.svg"], "x.svg: no format ends in .svg: use .graphml, .json or .dot, or .txt for"),
        (["graph", SMALL, "--csv"], "No such option '--csv'"),
        (["explain", SMALL, "--csv"], "No such option '--csv'"),
        (["explain", SMALL, "event:9"], "no event 9: device 0 has events 0 to 3"),
        (["explain", SMALL, "event:1", "--focus", "x"], "leave out event:1"),
        (["explain", SMALL, "event:1", "event:2"], "unexpected extra argument"),
        (["explain", SMALL, "\x1b[31m"], r"'\x1b[31m' is no allocation"),
    ],
)
def test_wrong_use_says_what(arguments: list[str], message: str) -> None:
    assert message.replace("\\x1b", "\\x1b") in fail(2, *arguments).replace("\\\\", "\\")
    assert not Path("x.dot").exists()


def test_text_names_who_was_there_instead() -> None:
    said = fail(2, "explain", OOM_FORWARD, "0x7e0023400000", "--at", "event:150")
    assert said == (
        "nothing lives at 0x7e0023400000 at event:150: event:151 (12.00 MiB, gpt.py:40 forward) is there from event "
        "151 on"
    )


@pytest.mark.parametrize("top", ["0", "1", "3"])
def test_top_cuts_text_and_says_so(top: str) -> None:
    shown = succeed("explain", TWO_GPU, "event:900", "--top", top)
    assert (b"more frame" in shown.stdout) == (top == "1")
    whole = succeed("graph", TWO_GPU, "--top", top).text
    assert ("more sites" in whole) == ("more rows" in whole) == (top != "0")
    assert succeed("graph", TWO_GPU, "--json", "--top", top).stdout == succeed("graph", TWO_GPU, "--json").stdout


def test_explain_tells_what_the_lifetimes_tell() -> None:
    rows = succeed("lifetimes", OOM_FORWARD, "--json").document()["rows"]
    for row in rows[::7]:
        document = succeed("explain", OOM_FORWARD, f"event:{row['birth_event']}", "--json").document()
        found = document["lifetime"]
        same = set(row) & set(found)
        assert len(same) > 12
        assert {key: found[key] for key in same} == {key: row[key] for key in same}
        (evidence,) = document["evidence"]
        assert (evidence["code"], evidence["confidence"]) == (row["evidence"], row["confidence"])
