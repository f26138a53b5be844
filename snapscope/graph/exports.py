"""The graph for other programs: networkx, GraphML, node-link JSON and DOT.

Only this module knows networkx, and loads it only where it is asked for. Text of the file
is escaped so that no format breaks: XML 1.0 has no control characters, UTF-8 no lone
surrogates.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from snapscope.escaping import escape
from snapscope.graph.levels import Attributes, Graph, Level, Value
from snapscope.units import format_bytes

if TYPE_CHECKING:
    import networkx

_LIMIT: Final = 10_000
_LABEL_LIMIT: Final = 120
_COLORS: Final = {"reuses": "#1f77b4", "pins": "#d62728", "made_room": "#2ca02c", "follows": "#7f7f7f"}


def to_networkx(graph: Graph) -> networkx.DiGraph:
    """Return a `networkx.DiGraph` with the same nodes, edges and attributes.

    What isn't known is None there.
    """
    import networkx

    made = networkx.DiGraph(**graph.attributes)
    made.add_nodes_from((name, dict(attributes)) for name, attributes in graph.nodes.items())
    made.add_edges_from((source, target, dict(found)) for (source, target), found in graph.edges.items())
    return made


def graphml_of(graph: Graph) -> bytes:
    """Return GraphML with typed attributes; one that isn't known is left out, since GraphML has no null."""
    import networkx

    made = networkx.DiGraph(**_known(graph.attributes))
    made.add_nodes_from((name, _known(attributes)) for name, attributes in graph.nodes.items())
    made.add_edges_from((source, target, _known(found)) for (source, target), found in graph.edges.items())
    buffer = io.BytesIO()
    # The writer of the standard library: what lxml writes differs, and it may be absent.
    networkx.write_graphml_xml(made, buffer)
    return buffer.getvalue() + b"\n"


def _known(attributes: Attributes) -> dict[str, int | bool | str]:
    known = {key: value for key, value in attributes.items() if value is not None}
    return {key: escape(value, limit=_LIMIT) if isinstance(value, str) else value for key, value in known.items()}


def node_link_of(graph: Graph) -> dict[str, Any]:
    """Return the keys of node-link JSON, as `networkx.node_link_graph(…, edges="edges")` reads them."""
    return {
        "directed": True,
        "multigraph": False,
        "graph": _plain(graph.attributes),
        "nodes": [{"id": name, **_plain(attributes)} for name, attributes in graph.nodes.items()],
        "edges": [
            {"source": source, "target": target, **_plain(attributes)}
            for (source, target), attributes in graph.edges.items()
        ],
    }


def _plain(attributes: Attributes) -> dict[str, Value]:
    """Return attributes that JSON can hold: of all text only lone surrogates can't be."""
    return {
        key: value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for key, value in attributes.items()
    }


def dot_of(graph: Graph) -> bytes:
    """Return DOT for Graphviz, with every attribute, and a label, shape and colour to look at."""
    return "\n".join(_dot_lines(graph)).encode() + b"\n"


def _dot_lines(graph: Graph) -> Iterator[str]:
    yield "digraph snapscope {"
    yield f"  graph [{_dot_list({**_known(graph.attributes), 'charset': 'UTF-8', 'rankdir': 'LR'})}];"
    yield '  node [shape="box", fontsize="10"];'
    for name, attributes in graph.nodes.items():
        known = _known(attributes)
        # A site's own label stays an attribute under another name: `label` is what Graphviz draws.
        drawn = {("site" if key == "label" else key): value for key, value in known.items()}
        shape = {"shape": "box3d"} if known["kind"] == "segment" else {}
        label = _dot_label(_node_label(graph, name, known))
        yield f"  {_dot_quote(name)} [label={label}, {_dot_list({**drawn, **shape})}];"
    for (source, target), attributes in graph.edges.items():
        names = _relations_of(graph, attributes)
        look = {"color": _COLORS[names[0]]} if names else {}
        label = _dot_label("\n".join(_edge_labels(graph, names, attributes)))
        yield (
            f"  {_dot_quote(source)} -> {_dot_quote(target)} [label={label}, "
            f"{_dot_list({**_known(attributes), **look})}];"
        )
    yield "}"


def _node_label(graph: Graph, name: str, known: dict[str, int | bool | str]) -> str:
    if graph.level is Level.SITE:
        return f"{_cut(known['label'])}\n{format_bytes(int(known['peak_bytes']))} at most, {known['count']} ×"
    if known["kind"] == "segment":
        return f"{name}\n{format_bytes(int(known['size_bytes']))}, {format_bytes(int(known['free_bytes']))} free"
    return f"{name}\n{format_bytes(int(known['requested_bytes']))}\n{_cut(known['site'])}"


def _cut(text: object) -> str:
    return escape(str(text), limit=_LABEL_LIMIT)


def _relations_of(graph: Graph, attributes: Attributes) -> list[str]:
    tail = "_count" if graph.level is Level.SITE else ""
    return [name for name in _COLORS if attributes.get(f"{name}{tail}")]


def _edge_labels(graph: Graph, names: list[str], attributes: Attributes) -> Iterator[str]:
    own = {"reuses": "overlap_bytes", "pins": "hostage_bytes", "made_room": "freed_bytes"}
    for name in names:
        key = f"{name}_bytes" if graph.level is Level.SITE else own.get(name, "")
        yield f"{name} {format_bytes(int(attributes.get(key) or 0))}" if key else name


def _dot_list(attributes: Attributes) -> str:
    return ", ".join(f"{key}={_dot_quote(_dot_text(value))}" for key, value in attributes.items())


def _dot_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dot_quote(text: str) -> str:
    r"""Quote a string: `"` ends one, and a `\` before it would not let it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _dot_label(text: str) -> str:
    r"""Quote a label: lines are set apart by `\n`, and entities such as `&lt;` would be drawn as what they mean."""
    return _dot_quote(text.replace("&", "&amp;")).replace("\n", "\\n")
