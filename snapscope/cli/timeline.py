"""`snapscope timeline`."""

from __future__ import annotations

from typing import Any

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
    terminal_width,
    write,
)


@click.command("timeline", epilog="Example: snapscope timeline snap.pickle --exact --csv -o curve.csv")
@file_argument
@click.option("--points", type=click.IntRange(min=4), default=400, metavar="N",
              help="About how many points; peaks are never lost. [default: 400]")  # fmt: skip
@click.option("--exact", is_flag=True, help="Every event.")
@frame_options
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    points: int,
    exact: bool,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Give requested, allocated and reserved bytes over the events of the history.

    With --focus or --ignore, reserved bytes are still those of the whole device.
    """
    output = make_output(**options)
    from snapscope.analyses.selection import select
    from snapscope.analyses.timeline import timeline
    from snapscope.render.timeline import timeline_csv, timeline_json, timeline_text

    history = open_history(file, device, output, rules)
    is_text = output.form == "text"
    width = terminal_width() if is_text else 0
    result = timeline(
        history,
        num_points=None if exact else max(points, 4 * width),
        selection=select(history, focus=focus, ignore=ignore),
        capacity_bytes=capacity,
    )
    if output.form == "json":
        write(output, timeline_json(history, result))
    elif output.form == "csv":
        write(output, timeline_csv(result))
    else:
        write(output, timeline_text(history, result, make_page(output), width=width))
