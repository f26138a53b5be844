"""The blocks of docs/how-to/ask-the-graph.md print what they say they do."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.graph import Graph, lifetime_graph, site_graph
from tests.conftest import ROOT
from tests.docs.pages import blocks_of
from tests.graph.histories import split_and_merge

PAGE: Final = ROOT / "docs/how-to/ask-the-graph.md"


def test_the_blocks_print_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    blocks = [block for block in blocks_of(PAGE) if block.language == "python"]
    assert len(blocks) == 4
    for block in blocks:
        shown = [line.removeprefix("#> ") for line in block.text.split("\n") if line.startswith("#> ")]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.name, "exec"), names)
        assert printed.getvalue().splitlines() == shown, block.name


def attributes_of(text: str, section: str) -> dict[str, set[str]]:
    """Return the attributes that the table of a page gives to each kind of thing."""
    found: dict[str, set[str]] = {}
    for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text.partition(f"## {section}")[2], re.MULTILINE):
        names = re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", row[1]))
        found.setdefault(row[0].split(",")[0], set()).update(names)
    return found


def test_the_attributes_are_all_there_and_all_written_down() -> None:
    written = attributes_of(Path(PAGE).read_text(encoding="utf-8"), "Attributes")
    history = split_and_merge()
    graphs: list[Graph] = [site_graph(history, at=11), lifetime_graph(history, range(5), at=11, hops=1)]
    real: dict[str, set[str]] = {}
    for graph in graphs:
        real.setdefault("graph", set()).update(graph.attributes)
        for node in graph.nodes.values():
            real.setdefault(str(node["kind"]), set()).update(node)
        for edge in graph.edges.values():
            real.setdefault(f"edge of {graph.level.value}s", set()).update(edge)
    written.pop("of")
    assert written == real
