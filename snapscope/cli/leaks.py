"""`snapscope leaks`."""

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


@click.command("leaks", epilog="Example: snapscope leaks snap.pickle --json")
@file_argument
@frame_options
@output_options(csv=True)
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
    """Tell whether live bytes grow with the steps of the run, and whose allocations stay.

    The rows are the sites that grow; what they grow by sums to the first line. --csv gives them too.
    """
    output = make_output(**options)
    from snapscope.analyses.leaks import find_leaks
    from snapscope.analyses.selection import select
    from snapscope.render.leaks import leaks_csv, leaks_json, leaks_text

    history = open_history(file, device, output, rules)
    result = find_leaks(history, selection=select(history, focus=focus, ignore=ignore))
    if output.form == "json":
        write(output, leaks_json(history, result))
    elif output.form == "csv":
        write(output, leaks_csv(result))
    else:
        page = make_page(output)
        write(output, leaks_text(history, result, page, top=output.top, capacity_bytes=capacity))
