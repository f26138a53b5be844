"""`snapscope diff`."""

from __future__ import annotations

from typing import Any

import click

from snapscope.cli.options import (
    capacity_option,
    device_options,
    make_output,
    make_page,
    output_options,
    rules_option,
    write,
)
from snapscope.cli.sides import open_side, split_side
from snapscope.errors import ExitCode, UsageError


@click.command("diff", epilog="Example: snapscope diff before.pickle after.pickle --fail-above 5%")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--at", metavar="MOMENT", help="Compare another moment of both: see ledger --help. [default: peak]")
@click.option(
    "--fail-above", multiple=True, metavar="LIMIT", help="Exit 1 if it grew by more: 5%, 200MiB, gradient=1MiB."
)
@click.option("--fail-below", multiple=True, metavar="LIMIT", help="Exit 1 if it shrank by more.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown for a pull request.")
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(
    before: str,
    after: str,
    at: str | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    device: int | None,
    capacity: int | None,
    rules: str | None,
    *,
    as_markdown: bool,
    **options: Any,
) -> int:
    """Say why the peak moved: rows by site and category that sum to the difference.

    BEFORE and AFTER are snapshots, or baselines; FILE@step:3, FILE@event:N or FILE@device:1 choose a
    moment or device of one. Exits with 1 if a limit of --fail-above or --fail-below is passed.
    """
    del capacity  # accepted by every verb; a difference doesn't depend on it
    output = make_output(**options)
    if as_markdown and output.form != "text":
        raise UsageError(f"--markdown and --{output.form} exclude each other")
    from snapscope.analyses.diff import compare
    from snapscope.analyses.gates import failed_limits, parse_limit
    from snapscope.render.diff import diff_csv, diff_json, diff_markdown, diff_text

    if split_side(before)[0] == split_side(after)[0] == "-":
        raise UsageError("only one of BEFORE and AFTER can be -: stdin holds one snapshot")
    above, below = [parse_limit(text) for text in fail_above], [parse_limit(text) for text in fail_below]
    old, _ = open_side(before, at=at, device=device, output=output, rules=rules)
    new, _ = open_side(after, at=at, device=device, output=output, rules=rules)
    result = compare(old, new)
    failed = failed_limits(result, above=above, below=below)
    if output.form == "json":
        write(output, diff_json(result, failed))
    elif output.form == "csv":
        write(output, diff_csv(result))
    elif as_markdown:
        write(output, diff_markdown(result, failed, top=output.top))
    else:
        write(output, diff_text(result, failed, make_page(output), top=output.top))
    return ExitCode.CHECK_FAILED if failed else ExitCode.OK
