"""`snapscope check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from snapscope.cli.options import (
    capacity_option,
    device_options,
    file_argument,
    make_output,
    make_page,
    output_options,
    rules_option,
    size_option,
    write,
)
from snapscope.cli.sides import open_side
from snapscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from snapscope.analyses.gates import Growth
    from snapscope.history import DeviceHistory


@click.command("check", epilog="Example: snapscope check snap.pickle --max-peak 40GiB --no-oom")
@file_argument
@size_option("--max-peak", "Most requested bytes that may be live at once.")
@size_option("--max-reserved", "Most bytes that may be reserved.")
@size_option("--max-growth", "Most bytes that live memory may grow by in a step, after warm-up.")
@click.option("--max-fragmentation", metavar="LIMIT", help="Most bytes in holes at the peak: 2GiB, or 10% of reserved.")
@click.option("--max", "max_categories", multiple=True, metavar="CATEGORY=LIMIT", help="Most bytes of a category.")
@click.option("--no-oom", is_flag=True, help="No request may have failed.")
@output_options(csv=False)
@rules_option
@capacity_option
@device_options
def command(
    file: str,
    max_peak: int | None,
    max_reserved: int | None,
    max_growth: int | None,
    max_fragmentation: str | None,
    max_categories: tuple[str, ...],
    device: int | None,
    capacity: int | None,
    rules: str | None,
    *,
    no_oom: bool,
    **options: Any,
) -> int:
    """Check one snapshot, or a baseline, against limits; exit with 1 if one is passed or can't be judged."""
    del capacity  # accepted by every verb; limits don't depend on it
    output = make_output(**options)
    from snapscope.analyses.gates import CheckLimits, failed_checks, parse_check_limit
    from snapscope.render.check import check_json, check_text

    limits = CheckLimits(
        max_peak_bytes=max_peak,
        max_reserved_bytes=max_reserved,
        max_growth_bytes=max_growth,
        max_fragmentation=None if max_fragmentation is None else parse_check_limit(max_fragmentation),
        max_categories=tuple(parse_check_limit(text, is_category=True) for text in max_categories),
        no_oom=no_oom,
    )
    if limits.is_empty:
        raise UsageError("nothing to check: give a limit, such as --max-peak 40GiB or --no-oom")
    taken, history = open_side(file, at=None, device=device, output=output, rules=rules)
    failed = failed_checks(taken, limits, growth=_growth(history) if max_growth is not None else None)
    if output.form == "json":
        write(output, check_json(taken, failed))
    else:
        write(output, check_text(taken, failed, make_page(output)))
    return ExitCode.CHECK_FAILED if failed else ExitCode.OK


def _growth(history: DeviceHistory | None) -> Growth:
    from snapscope.analyses.gates import Growth
    from snapscope.analyses.leaks import LeakVerdict, find_leaks

    if history is None:
        return Growth(per_step_bytes=None, reason="a baseline is of one moment: give the snapshot itself")
    leaks = find_leaks(history)
    if leaks.verdict is LeakVerdict.TOO_FEW_STEPS:
        return Growth(per_step_bytes=None, reason="the history holds too few complete steps")
    return Growth(per_step_bytes=leaks.growth_per_step_bytes, reason="")
