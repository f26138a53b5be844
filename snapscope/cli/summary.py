"""`snapscope summary`."""

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
    write,
)


@click.command("summary", epilog="Example: snapscope summary snap.pickle --capacity 80GiB")
@file_argument
@frame_options
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Say what FILE is, what it covers, where its memory went, and what fills it at the peak."""
    output = make_output(**options)
    from snapscope.analyses.selection import select
    from snapscope.analyses.summary import summarise
    from snapscope.render.summary import summary_json, summary_text

    history = open_history(file, device, output, rules)
    selection = select(history, focus=focus, ignore=ignore)
    result = summarise(history, capacity_bytes=capacity, selection=selection)
    if output.form == "json":
        write(output, summary_json(history, result))
    else:
        write(output, summary_text(history, result, make_page(output), top=output.top))
