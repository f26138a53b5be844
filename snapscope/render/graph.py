"""The graph to text, and to the formats of other programs."""

from __future__ import annotations

from typing import Final

from snapscope.analyses.moments import Moment
from snapscope.graph import Attributes, Graph, Level, dot_of, graphml_of, node_link_of
from snapscope.history import DeviceHistory
from snapscope.render.jsonable import dump, head_of, moment_of
from snapscope.render.ledger import when
from snapscope.render.lifetimes import death_text
from snapscope.render.page import Page, cut_rows, device_line
from snapscope.replay import BEFORE
from snapscope.units import count_of, format_bytes, format_count

_BYTES: Final = {"reuses": "overlap_bytes", "pins": "hostage_bytes", "made_room": "freed_bytes"}
_VERBS: Final = {"reuses": "gave memory to", "made_room": "made room for", "pins": "pins"}


def graph_json(history: DeviceHistory, graph: Graph, at: Moment) -> bytes:
    """Return node-link JSON in one object with the keys that every document has."""
    return dump({**head_of(history), "at": moment_of(at), "level": graph.level.value, **node_link_of(graph)})


def graph_file(history: DeviceHistory, graph: Graph, at: Moment, form: str) -> bytes:
    """Return the graph as `graphml`, `json` or `dot`."""
    if form == "json":
        return graph_json(history, graph, at)
    return graphml_of(graph) if form == "graphml" else dot_of(graph)


def graph_text(history: DeviceHistory, graph: Graph, at: Moment, page: Page, *, top: int) -> str:
    """Return the heaviest nodes and edges as a page."""
    if graph.level is Level.SITE:
        _write_sites(history, graph, at, page, top)
    else:
        _write_lifetimes(history, graph, at, page, top)
    page.notices(history.notices)
    return page.text()


def _write_sites(history: DeviceHistory, graph: Graph, at: Moment, page: Page, top: int) -> None:
    nodes = graph.nodes
    count = sum(_int(node["count"]) for node in nodes.values())
    total = sum(_int(node["bytes"]) for node in nodes.values())
    live = sum(_int(node["live_bytes"]) for node in nodes.values())
    page.line(
        f"{count_of(len(nodes), 'site')} with {count_of(len(graph.edges), 'edge')}: {format_bytes(total)} in "
        f"{count_of(count, 'allocation')}, {format_bytes(live)} of them live {when(at)}",
        style="bold",
    )
    page.line(device_line(history))
    if not nodes:
        return
    page.title("sites, by the most that each had live at once")
    shown, rest = cut_rows([(_int(node["bytes"]), _int(node["count"])) for node in nodes.values()], top)
    cells = [
        (
            format_bytes(_int(node["peak_bytes"])),
            format_bytes(_int(node["live_bytes"])),
            format_bytes(_int(node["bytes"])),
            format_count(_int(node["count"])),
            name,
            str(node["category"] or ""),
            str(node["label"]),
        )
        for name, node in list(nodes.items())[:shown]
    ]
    if rest is not None:
        hidden = list(nodes.values())[shown:]
        rest_live = format_bytes(sum(_int(node["live_bytes"]) for node in hidden))
        more = f"({count_of(len(hidden), 'more site')}: --top 0 shows all)"
        cells.append(("", rest_live, format_bytes(rest[0]), format_count(rest[1]), "", "", more))
    cells.append(("", format_bytes(live), format_bytes(total), format_count(count), "", "", "= all"))
    page.table(cells, align="rrrrllf", header=("peak", "live", "in all", "count", "node", "category", "site"))
    _write_edges(page, graph, top)


def _write_lifetimes(history: DeviceHistory, graph: Graph, at: Moment, page: Page, top: int) -> None:
    lifetimes = {name: node for name, node in graph.nodes.items() if node["kind"] == "lifetime"}
    segments = {name: node for name, node in graph.nodes.items() if node["kind"] == "segment"}
    total = sum(_int(node["requested_bytes"]) for node in lifetimes.values())
    free = sum(_int(node["free_bytes"]) for node in segments.values())
    page.line(
        f"{count_of(len(lifetimes), 'allocation')} of {format_bytes(total)} with {count_of(len(graph.edges), 'edge')}, "
        f"pinning {count_of(len(segments), 'segment')} with {format_bytes(free)} free {when(at)}",
        style="bold",
    )
    page.line(device_line(history))
    if not lifetimes:
        return
    page.title("the largest allocations")
    order = sorted(lifetimes.items(), key=lambda item: -_int(item[1]["requested_bytes"]))
    shown, rest = cut_rows([(_int(node["requested_bytes"]), 1) for _, node in order], top)
    cells = []
    for name, node in order[:shown]:
        birth = _int(node["birth_event"])
        died = death_text(_int(node["free_requested_event"]), _int(node["free_completed_event"]))
        born = "before" if birth == BEFORE else format_count(birth)
        cells.append(
            (
                format_bytes(_int(node["requested_bytes"])),
                born,
                died,
                name,
                str(node["category"] or ""),
                str(node["site"]),
            )
        )
    if rest is not None:
        cells.append((format_bytes(rest[0]), "", "", "", "", f"({count_of(rest[1], 'more')[:-1]}: --top 0 shows all)"))
    cells.append((format_bytes(total), "", "", "", "", "= all"))
    page.table(cells, align="rrrllf", header=("requested", "born", "died", "node", "category", "site"))
    _write_edges(page, graph, top)


def _write_edges(page: Page, graph: Graph, top: int) -> None:
    """Write the edges of most bytes, one row for each relation that an edge stands for.

    `follows` is left to the other formats: of a site it only says how often it was met.
    """
    is_site = graph.level is Level.SITE
    found = [
        (num_bytes, number, source, name, target)
        for (source, target), edge in graph.edges.items()
        for name in _VERBS
        if edge.get(f"{name}_count" if is_site else name)
        for number, num_bytes in [_weight(edge, name, is_site=is_site)]
    ]
    if not found:
        return
    found.sort(key=lambda edge: -edge[0])
    page.title("edges, by bytes")
    shown, rest = cut_rows([(edge[0], edge[1]) for edge in found], top)
    cells = [
        (format_bytes(num_bytes), format_count(number), _named(graph, source), _VERBS[name], _named(graph, target))
        for num_bytes, number, source, name, target in found[:shown]
    ]
    if rest is not None:
        more = f"({count_of(len(found) - shown, 'more row')}: --top 0 shows all)"
        cells.append((format_bytes(rest[0]), format_count(rest[1]), more, "", ""))
    page.table(cells, align="rrflf", header=("bytes", "count", "from", "", "to"))


def _weight(edge: Attributes, name: str, *, is_site: bool) -> tuple[int, int]:
    """Return how often a relation holds between the ends of an edge, and its bytes."""
    if is_site:
        return _int(edge[f"{name}_count"]), _int(edge[f"{name}_bytes"])
    return 1, _int(edge[_BYTES[name]])


def _named(graph: Graph, node: str) -> str:
    return f"{node} {graph.nodes[node]['label']}" if graph.level is Level.SITE else node


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
