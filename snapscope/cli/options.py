"""Options that all verbs share, and what they need to open a file and to write a result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from snapscope.errors import UsageError
from snapscope.units import parse_size

if TYPE_CHECKING:
    from snapscope.classify.user_rules import UserRule
    from snapscope.history import DeviceHistory
    from snapscope.load import Progress
    from snapscope.model import Snapshot
    from snapscope.render.page import Page

    _IntParamType = click.ParamType[int]
else:
    # Generic only since click 8.4.
    _IntParamType = click.ParamType

_Function = TypeVar("_Function", bound=Callable[..., Any])

_HOST = -1

STDOUT_CLOSED: Final = "stdout is closed: there is nowhere to write to"


class _Size(_IntParamType):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _Device(_IntParamType):
    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "host":
            return _HOST
        number = value.removeprefix("cuda:")
        if not (number.isascii() and number.isdigit() and len(number) < 7):
            self.fail(f"{value!r} is no device: write a number, or host for pinned memory", param, ctx)
        return int(number)


class ReaderGoneError(Exception):
    """The reader of stdout (`head`) has seen enough and is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how a result is written."""

    form: str
    path: str | None
    force: bool
    top: int
    color: str


def file_argument(function: _Function) -> _Function:
    """Add the FILE argument."""
    return click.argument("file", metavar="FILE")(function)


def device_options(function: _Function) -> _Function:
    """Add the options that choose a device and say how to read."""
    function = click.option(
        "--device",
        type=_Device(),
        metavar="N",
        help="Device number, or host. [default: the one out of memory, else with most events]",
    )(function)
    function = click.option("--no-cache", is_flag=True, expose_value=False, help="Don't use cached columns.")(function)
    return click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")(function)


def rules_option(function: _Function) -> _Function:
    """Add --rules."""
    return click.option(
        "--rules", metavar="FILE", help="Your own category rules (TOML): regular expressions on file and function."
    )(function)


def at_option(function: _Function) -> _Function:
    """Add --at with its default, the peak."""
    return click.option(
        "--at",
        default="peak",
        metavar="MOMENT",
        help="peak, peak-allocated, peak-active, peak-reserved, oom, oom:N, start, end, event:N, step:N (its peak) "
        "or time:T (µs or ISO). [default: peak]",
    )(function)


def capacity_option(function: _Function) -> _Function:
    """Add --capacity."""
    return click.option("--capacity", type=_Size(), metavar="SIZE", help="The card's size, e.g. 80GiB.")(function)


def size_option(name: str, text: str) -> Callable[[_Function], _Function]:
    """Make a decorator that adds an option of a size in bytes."""
    return click.option(name, type=_Size(), metavar="SIZE", help=text)


def frame_options(function: _Function) -> _Function:
    """Add --focus and --ignore."""
    function = click.option(
        "--focus", metavar="REGEX", help="Only allocations with a frame (file:line function) that matches."
    )(function)
    return click.option("--ignore", metavar="REGEX", help="Without allocations with a frame that matches.")(function)


def output_options(*, csv: bool) -> Callable[[_Function], _Function]:
    """Add --json, --csv where there is a table, -o, --force, --top and --color."""

    def decorate(function: _Function) -> _Function:
        function = click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            help="Colours. [default: auto]",
        )(function)
        function = click.option("--top", type=click.IntRange(min=0), default=20, metavar="N",
                                help="Rows of text; 0 = all. [default: 20]")(function)  # fmt: skip
        function = click.option("--force", is_flag=True, help="Let -o overwrite.")(function)
        function = click.option("-o", "output_path", metavar="PATH", help="Write to a file.")(function)
        if csv:
            function = click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV.")(function)
        return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(function)

    return decorate


def make_output(
    *, as_json: bool, output_path: str | None, force: bool, top: int, color: str, as_csv: bool = False
) -> Output:
    """Collect the output options of a verb.

    Raises:
        UsageError: they contradict each other.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")
    if output_path == "":
        raise UsageError("-o '' names no file: leave it out, or write - for stdout")
    if output_path == "-":
        output_path = None
    if output_path is not None and os.path.isdir(output_path):
        raise UsageError(f"-o {output_path} is a folder: name a file in it")
    if output_path is not None and not force and os.path.lexists(output_path):
        raise UsageError(f"{output_path} exists: --force overwrites it")
    form = "json" if as_json else "csv" if as_csv else "text"
    return Output(form=form, path=output_path, force=force, top=top, color=color)


def open_history(
    file: str, device: int | None, output: Output | None = None, rules: str | None = None
) -> DeviceHistory:
    """Read a file and choose a device, with progress on stderr if that is a terminal."""
    from snapscope.history import DeviceHistory

    own: tuple[UserRule, ...] = ()
    if rules is not None:
        from snapscope.classify.user_rules import read_rules

        own = read_rules(rules)
    return DeviceHistory(read(file, output), device, rules=own)


def is_same_file(file: str, other: str) -> bool:
    """Tell whether two names are of one file that is there."""
    return file != "-" and os.path.exists(file) and os.path.exists(other) and os.path.samefile(file, other)


def check_not_input(file: str, output: Output | None) -> None:
    """Refuse to write over a file that is to be read.

    Raises:
        UsageError: -o names it.
    """
    if output is not None and output.path is not None and is_same_file(file, output.path):
        raise UsageError(f"-o {output.path} is the snapshot itself: it would be lost")


def read(file: str, output: Output | None = None) -> Snapshot:
    """Read and normalise a file, with progress on stderr if that is a terminal.

    Raises:
        UsageError: FILE is `-` but stdin is a terminal.
    """
    from snapscope.opening import load_snapshot

    check_not_input(file, output)
    if file == "-" and is_terminal(sys.stdin):
        raise UsageError("FILE is - but stdin is a terminal: pipe a snapshot into it")
    with _progress(file) as progress:
        return load_snapshot(file, progress=progress)


@contextmanager
def _progress(file: str) -> Iterator[Progress | None]:
    # Small files are done before a bar could be read.
    is_small = file != "-" and os.path.isfile(file) and os.path.getsize(file) < 16 << 20
    if is_small or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def make_page(output: Output) -> Page:
    """Return a page that suits where the text goes."""
    from snapscope.render.page import Page

    is_shown = output.path is None and is_terminal(sys.stdout)
    wants_color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    color = output.color == "always" or (output.color == "auto" and is_shown and wants_color)
    return Page(width=terminal_width() if is_shown else None, color=color)


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal; one that is closed is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def terminal_width() -> int:
    """Return the width of the terminal, or 80."""
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def write(output: Output, pieces: str | bytes | Iterable[str | bytes]) -> None:
    """Write a result to stdout or to the file of -o.

    Raises:
        UsageError: the file can't be written.
    """
    chunks = map(_as_bytes, [pieces] if isinstance(pieces, (str, bytes)) else pieces)
    try:
        if output.path is None:
            if sys.stdout is None:
                raise UsageError(STDOUT_CLOSED)
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        with Path(output.path).open("wb" if output.force else "xb") as file:
            for chunk in chunks:
                file.write(chunk)
    except BrokenPipeError:
        # click would turn it into exit code 1, which means that a check failed.
        raise ReaderGoneError from None
    except OSError as error:
        if output.path is None:
            discard_stdout()
        raise UsageError(f"can't write {output.path or 'to stdout'}: {error.strerror}") from None


def _as_bytes(piece: str | bytes) -> bytes:
    # Text may hold lone surrogates, of a file's name: never fail on that.
    return piece.encode("utf-8", "backslashreplace") if isinstance(piece, str) else piece


def discard_stdout() -> None:
    """Send what is left in stdout's buffer nowhere: flushing it at exit would fail once more."""
    discard(sys.stdout)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and all that comes, nowhere."""
    # A stream that is closed, or none of the system's, has no buffer to fail at exit.
    with suppress(OSError, ValueError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        if nowhere != number:
            os.close(nowhere)
