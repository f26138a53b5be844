"""`snapscope explain`."""

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
from snapscope.errors import UsageError


@click.command("explain", epilog="Example: snapscope explain snap.pickle event:961 --top 5")
@file_argument
@click.argument("allocation", metavar="[ADDR|event:N]", required=False)
@click.option("--at", metavar="MOMENT",
              help="When to look for ADDR, and at what it pins: see ledger --help. [default: peak, or the birth of "
              "event:N if it isn't in use there]")  # fmt: skip
@frame_options
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    allocation: str | None,
    at: str | None,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Explain one allocation: its life, category and why, whose code it is, what it reuses and pins.

    ADDR (0x7f… or decimal) is the allocation that is there at --at, event:N the one born or freed by event N; without
    either, the largest that is live at --at, of those that --focus and --ignore select.
    """
    del capacity  # accepted by every verb; one allocation doesn't depend on it
    output = make_output(**options)
    if allocation is not None and (focus, ignore) != (None, None):
        raise UsageError(f"--focus and --ignore choose an allocation where none is given: leave out {allocation}")
    from snapscope.analyses.explain import explain
    from snapscope.analyses.selection import select
    from snapscope.render.explain import explain_json, explain_text

    history = open_history(file, device, output, rules)
    result = explain(history, allocation, at, selection=select(history, focus=focus, ignore=ignore))
    if output.form == "json":
        write(output, explain_json(history, result))
    else:
        write(output, explain_text(history, result, make_page(output), top=output.top))
