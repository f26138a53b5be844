"""`snapscope fragmentation`."""

from __future__ import annotations

from typing import Any

import click

from snapscope.cli.options import (
    at_option,
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


@click.command("fragmentation", epilog="Example: snapscope fragmentation snap.pickle --at peak-reserved --segments")
@file_argument
@at_option
@click.option("--segments", "shows_segments", is_flag=True, help="Draw every segment: who lies where.")
@frame_options
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    at: str,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    *,
    shows_segments: bool,
    **options: Any,
) -> None:
    """Split the free memory by why it isn't used, and say which blocks pin it.

    --json holds every block and hole in its place, segment by segment; --csv one line a segment.
    """
    output = make_output(**options)
    from snapscope.analyses.fragmentation import fragmentation
    from snapscope.analyses.moments import find_moment
    from snapscope.analyses.selection import select
    from snapscope.render.fragmentation import fragmentation_csv, fragmentation_json, fragmentation_text

    history = open_history(file, device, output, rules)
    selection = select(history, focus=focus, ignore=ignore)
    result = fragmentation(history, find_moment(history, at), capacity_bytes=capacity, selection=selection)
    if output.form == "json":
        write(output, fragmentation_json(history, result))
    elif output.form == "csv":
        write(output, fragmentation_csv(history, result))
    else:
        page = make_page(output)
        write(output, fragmentation_text(history, result, page, top=output.top, shows_segments=shows_segments))
