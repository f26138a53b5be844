"""`snapscope baseline`."""

from __future__ import annotations

from typing import Any

import click

from snapscope.cli.options import (
    at_option,
    capacity_option,
    device_options,
    file_argument,
    make_output,
    output_options,
    rules_option,
    write,
)
from snapscope.cli.sides import open_side
from snapscope.errors import UsageError


@click.command("baseline", epilog="Example: snapscope baseline snap.pickle -o memory-baseline.json")
@file_argument
@at_option
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(file: str, at: str, device: int | None, capacity: int | None, rules: str | None, **options: Any) -> None:
    """Write a small file to commit, which `diff` and `check` take in place of the snapshot.

    It is JSON with one line a site, sorted, so that a review shows which site changed.
    """
    del capacity  # accepted by every verb; a baseline doesn't depend on it
    output = make_output(**options)
    from snapscope.analyses.baseline import write_baseline

    taken, history = open_side(file, at=at, device=device, output=output, rules=rules)
    if history is None:
        raise UsageError(f"{file} is a baseline already")
    write(output, write_baseline(taken))
