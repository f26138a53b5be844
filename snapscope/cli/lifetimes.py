"""`snapscope lifetimes`."""

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


@click.command("lifetimes", epilog="Example: snapscope lifetimes snap.pickle --focus attention --csv -o rows.csv")
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
    """Give one row per allocation: size, birth, death, stream, pool and site.

    Text shows the largest; --json and --csv give all, by birth.
    """
    del capacity  # accepted by every verb; rows of allocations don't depend on it
    output = make_output(**options)
    import numpy as np

    from snapscope.analyses.selection import select
    from snapscope.render.lifetimes import lifetimes_csv, lifetimes_json, lifetimes_text

    history = open_history(file, device, output, rules)
    selection = select(history, focus=focus, ignore=ignore)
    rows = np.arange(len(history.lifetimes)) if selection is None else np.flatnonzero(selection)
    if output.form == "json":
        write(output, lifetimes_json(history, rows))
    elif output.form == "csv":
        write(output, lifetimes_csv(history, rows))
    else:
        write(output, lifetimes_text(history, rows, make_page(output), top=output.top))
