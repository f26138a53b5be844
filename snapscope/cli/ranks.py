"""`snapscope ranks`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from snapscope.cli.options import (
    at_option,
    capacity_option,
    check_not_input,
    device_options,
    is_terminal,
    make_output,
    make_page,
    output_options,
    rules_option,
    write,
)


@click.command("ranks", epilog="Example: snapscope ranks snapshots/iteration_10")
@click.argument("files", metavar="DIR|FILE...", nargs=-1, required=True)
@at_option
@output_options(csv=True)
@rules_option
@capacity_option
@device_options
def command(
    files: tuple[str, ...], at: str, device: int | None, capacity: int | None, rules: str | None, **options: Any
) -> None:
    """Say which rank of a job holds more than the others, at which sites, and which failed first.

    Give the folder that holds one snapshot a rank, or the files. The rank is told by the name: rank0_…,
    …_rank3.pickle, global_rank=12; else by the device. Of several sets in a folder, such as iteration_10 and
    iteration_20, the last is read.
    """
    output = make_output(**options)
    from snapscope.analyses.rank_names import name_ranks
    from snapscope.analyses.ranks import compare_ranks
    from snapscope.cli.rank_files import find_inputs, unread_notices
    from snapscope.cli.rank_pool import Reading, Unread, read_files
    from snapscope.render.ranks import notices_of, ranks_csv, ranks_json, ranks_text

    inputs = find_inputs(files)
    for file in inputs.files:
        check_not_input(file.path, output)
    reading = Reading(at=at, device=device, rules=rules, capacity=capacity)
    with _progress(len(inputs.files)) as progress:
        answers = read_files(inputs.files, reading, output, progress=progress)
    found = [answer for answer in answers if not isinstance(answer, Unread)]
    unread = [answer for answer in answers if isinstance(answer, Unread)]
    if not found:
        raise unread[0].error
    names = name_ranks([source.file for source in found], [source.profile.device for source in found])
    report = compare_ranks(list(zip(names, found, strict=True)))
    reasons = [*inputs.unread, *((os.path.basename(one.path), one.reason) for one in unread)]
    notices = [*inputs.notices, *unread_notices(reasons), *notices_of(report)]
    name = found[0].file if len(files) == 1 and files[0] == "-" else inputs.name
    if output.form == "json":
        write(output, ranks_json(report, name, notices))
    elif output.form == "csv":
        write(output, ranks_csv(report))
    else:
        write(output, ranks_text(report, name, notices, make_page(output), top=output.top))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """Show how many files are done, if stderr is a terminal."""
    if total == 1 or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading files"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda done: bar.update(task, completed=done)
