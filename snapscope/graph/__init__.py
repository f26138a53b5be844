"""The tensor-lifetime graph: what took whose memory, and what keeps what alive.

    >>> from snapscope.graph import site_graph, to_networkx
    >>> graph = to_networkx(site_graph(history))

Nodes and edges are plain columns and values; networkx is loaded only by `to_networkx` and
`graphml_of`. Attributes are documented in docs/how-to/ask-the-graph.md.
"""

from snapscope.graph.exports import dot_of, graphml_of, node_link_of, to_networkx
from snapscope.graph.levels import (
    RELATIONS,
    Attributes,
    Graph,
    Level,
    Relations,
    find_relations,
    lifetime_graph,
    lifetime_ids,
    lifetimes_within,
    pool_text,
    segment_id,
    site_graph,
)
from snapscope.graph.relations import (
    History,
    Pairs,
    SiteRows,
    find_follows,
    find_made_room,
    find_reuses,
    find_sites,
)

__all__ = [
    "RELATIONS",
    "Attributes",
    "Graph",
    "History",
    "Level",
    "Pairs",
    "Relations",
    "SiteRows",
    "dot_of",
    "find_follows",
    "find_made_room",
    "find_relations",
    "find_reuses",
    "find_sites",
    "graphml_of",
    "lifetime_graph",
    "lifetime_ids",
    "lifetimes_within",
    "node_link_of",
    "pool_text",
    "segment_id",
    "site_graph",
    "to_networkx",
]
