"""`snapscope steps`."""

from __future__ import annotations

from typing import Any

import click

from snapscope.cli.options import (
    capacity_option,
    device_options,
    file_argument,
    make_output,
    make_page,
    open_history,
    output_options,
    rules_option,
    write,
)


@click.command("steps", epilog="Example: snapscope steps snap.pickle --json")
@file_argument
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(file: str, device: int | None, capacity: int | None, rules: str | None, **options: Any) -> None:
    """Give one row per step of the run: what it began with, its peak, what it left, and its phases.

    Steps come from annotations where there are any, else they are inferred from the stacks, and
    marked so.
    """
    del capacity  # accepted by every verb; steps don't depend on it
    output = make_output(**options)
    from snapscope.analyses.step_table import tabulate_steps
    from snapscope.render.steps import steps_csv, steps_json, steps_text

    history = open_history(file, device, output, rules)
    result = tabulate_steps(history)
    if output.form == "json":
        write(output, steps_json(history, result))
    elif output.form == "csv":
        write(output, steps_csv(result))
    else:
        write(output, steps_text(history, result, make_page(output), top=output.top))
