"""`snapscope graph`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from snapscope.cli.options import (
    capacity_option,
    device_options,
    file_argument,
    frame_options,
    make_output,
    make_page,
    open_history,
    output_options,
    rules_option,
    write,
)
from snapscope.errors import UsageError

if TYPE_CHECKING:
    from snapscope.analyses.moments import Moment
    from snapscope.graph import Graph
    from snapscope.history import DeviceHistory
    from snapscope.model import BoolColumn


_MAX_HOPS = 100
_MAX_NODES = 100_000


@click.command("graph", epilog="Example: snapscope graph snap.pickle --around event:961 --hops 2 -o lifetimes.graphml")
@file_argument
@click.option("--level", type=click.Choice(["site", "lifetime"]),
              help="What a node is. [default: site; lifetime with --around]")  # fmt: skip
@click.option("--at", default="peak", metavar="MOMENT",
              help="Where to start, and when to tell what pins: see ledger --help. [default: peak]")  # fmt: skip
@click.option("--around", metavar="ADDR|event:N", help="Start from one allocation: see explain --help.")
@click.option("--hops", type=click.IntRange(0, _MAX_HOPS), default=1, metavar="N",
              help="How many edges to go from the start, of lifetimes. [default: 1]")  # fmt: skip
@frame_options
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    level: str | None,
    at: str,
    around: str | None,
    hops: int,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Give the graph of what reuses whose memory, and what keeps what alive.

    The end of the name given to -o chooses the format: .graphml, .json (node-link, as --json) or .dot.
    """
    del capacity  # accepted by every verb; the graph doesn't depend on it
    output = make_output(**options)
    if level == "site" and around is not None:
        raise UsageError("--around starts from one allocation: leave out --level site")
    from snapscope.analyses.moments import find_moment
    from snapscope.analyses.selection import select
    from snapscope.render.graph import graph_file, graph_json, graph_text

    # Reading comes first: it knows whether -o names the snapshot itself.
    history = open_history(file, device, output, rules)
    form = None if output.path is None else _format_of(output.path, is_json=output.form == "json")
    moment = find_moment(history, at)
    selection = select(history, focus=focus, ignore=ignore)
    is_site = level == "site" or (level is None and around is None)
    graph = _make(history, moment, is_site=is_site, around=around, hops=hops, selection=selection)
    if form is not None:
        write(output, graph_file(history, graph, moment, form))
    elif output.form == "json":
        write(output, graph_json(history, graph, moment))
    else:
        write(output, graph_text(history, graph, moment, make_page(output), top=output.top))


def _format_of(path: str, *, is_json: bool) -> str | None:
    """Return which format a file's name asks for; None = what stdout would get.

    Raises:
        UsageError: it asks for one that isn't there, or for another than --json.
    """
    end = os.path.splitext(path)[1].lower().removeprefix(".")
    if end in ("graphml", "dot") and is_json:
        raise UsageError(f"--json and a file that ends in .{end} exclude each other")
    if end in ("graphml", "json", "dot"):
        return end
    if is_json or end in ("", "txt"):
        return None
    raise UsageError(f"{path}: no format ends in .{end}: use .graphml, .json or .dot, or .txt for text")


def _make(
    history: DeviceHistory, at: Moment, *, is_site: bool, around: str | None, hops: int, selection: BoolColumn | None
) -> Graph:
    import numpy as np

    from snapscope.analyses.explain import categories_of, find_lifetime, phases_of
    from snapscope.graph import lifetime_graph, site_graph

    labels: dict[str, Any] = {"categories": categories_of(history), "phases": phases_of(history)}
    if is_site:
        return site_graph(history, at=at.event, selection=selection, **labels)
    if around is not None:
        rows = np.array([find_lifetime(history, around, at)])
    else:
        rows = np.concatenate((history.lifetimes.live_at(at.event), history.lifetimes.pending_at(at.event)))
        rows = rows if selection is None else rows[selection[rows]]
    graph = lifetime_graph(history, rows, at=at.event, hops=hops, **labels)
    if len(graph.nodes) > _MAX_NODES:
        raise UsageError(
            f"{len(graph.nodes)} nodes are more than any program draws (at most {_MAX_NODES}): start from one "
            "allocation with --around, take fewer --hops, or --level site"
        )
    return graph
