"""`snapscope ledger`."""

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


@click.command("ledger", epilog="Example: snapscope ledger snap.pickle --at oom --by file")
@file_argument
@at_option
@click.option(
    "--by",
    type=click.Choice(["category", "fine", "site", "file", "module", "stream", "pool", "step"]),
    default="site",
    help="What to group by. [default: site]",
)
@frame_options
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    at: str,
    by: str,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Say who holds the bytes at one moment, and where the rest of the reserved memory is.

    The rows count requested bytes of live allocations and sum to the first line.
    """
    output = make_output(**options)
    from snapscope.analyses.ledger import By, ledger
    from snapscope.analyses.moments import find_moment
    from snapscope.analyses.selection import select
    from snapscope.render.ledger import ledger_csv, ledger_json, ledger_text

    history = open_history(file, device, output, rules)
    selection = select(history, focus=focus, ignore=ignore)
    result = ledger(history, find_moment(history, at), by=By(by), capacity_bytes=capacity, selection=selection)
    if output.form == "json":
        write(output, ledger_json(history, result))
    elif output.form == "csv":
        write(output, ledger_csv(result))
    else:
        write(output, ledger_text(history, result, make_page(output), top=output.top))
