"""`snapscope oom`."""

from __future__ import annotations

import re
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


@click.command("oom", epilog="Example: snapscope oom snap.pickle --capacity 80GiB")
@file_argument
@click.option("--at", metavar="oom:N", help="Which OOM, counted from 1. [default: the last]")
@frame_options
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    at: str | None,
    focus: str | None,
    ignore: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
    **options: Any,
) -> None:
    """Say why an allocation failed: one verdict with its arithmetic, who held the memory, what would have helped.

    Verdicts: limit, pending_free, capture, private_pool, capacity, other_stream, fragmentation,
    fitting_hole; none where the history holds no oom event.
    """
    output = make_output(**options)
    number = None if at is None else _number_of(at)
    from snapscope.analyses.oom import find_oom
    from snapscope.analyses.selection import select
    from snapscope.render.oom import oom_json, oom_text

    history = open_history(file, device, output, rules)
    selection = select(history, focus=focus, ignore=ignore)
    report = find_oom(history, number=number, capacity_bytes=capacity, selection=selection)
    if output.form == "json":
        write(output, oom_json(history, report))
    else:
        write(output, oom_text(history, report, make_page(output), top=output.top))


def _number_of(at: str) -> int | None:
    if at == "oom":
        return None
    match = re.fullmatch(r"oom:([0-9]{1,9})", at)
    if match is None:
        raise UsageError(f"--at {at!r} is no OOM: write oom:N, counted from 1")
    return int(match[1])
