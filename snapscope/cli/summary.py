"""`snapscope summary`."""

from __future__ import annotations

from typing import Any

import click

from snapscope.cli.options import (
    device_options,
    file_argument,
    make_output,
    make_page,
    open_history,
    output_options,
    write,
)


@click.command("summary", epilog="Example: snapscope summary snap.pickle --capacity 80GiB")
@file_argument
@output_options(csv=False)
@device_options
def command(file: str, device: int | None, capacity: int | None, **options: Any) -> None:
    """Say what FILE is, what it covers, where its memory went, and what fills it at the peak."""
    output = make_output(**options)
    from snapscope.analyses.summary import summarise
    from snapscope.render.summary import summary_json, summary_text

    history = open_history(file, device)
    result = summarise(history, capacity_bytes=capacity)
    if output.form == "json":
        write(output, summary_json(history, result))
    else:
        write(output, summary_text(history, result, make_page(output), top=output.top))
