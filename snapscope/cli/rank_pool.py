"""Read many files in processes of their own, few at a time, so that memory stays that of two.

What comes back from a file is small. A process that dies takes one file with it and says which.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final, TypeAlias

from snapscope.analyses.ranks import RankFile, read_rank
from snapscope.cli.options import Output
from snapscope.cli.rank_files import RankInput
from snapscope.errors import InputError, UsageError
from snapscope.load.quoting import quote_text

_MEMORY_RATIO: Final = 6
"""Bytes of memory that reading and replaying takes for each byte of an unpacked snapshot."""

_SMALL_BYTES: Final = 24 << 20
"""Unpacked files of less than this in all are read faster than a process starts."""

_BUDGET_BYTES: Final = 1 << 30
_MAX_WORKERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How every file is read: the options of the command line."""

    at: str
    device: int | None
    rules: str | None
    capacity: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that can't be read.

    Attributes:
        path: its name.
        error: why; the message begins with its name.
    """

    path: str
    error: InputError | MemoryError

    @property
    def reason(self) -> str:
        """Why, without the name."""
        if isinstance(self.error, MemoryError):
            return "not enough memory to read it"
        return str(self.error).removeprefix(f"{quote_text(self.path, limit=300)}: ")


Read: TypeAlias = RankFile | Unread


def read_files(
    files: Sequence[RankInput], reading: Reading, output: Output, *, progress: Callable[[int], None] | None = None
) -> list[Read]:
    """Read all files, in the order given.

    Args:
        files: what to read.
        reading: how.
        output: where the report goes: no file may be overwritten.
        progress: called with the number of files that are done.

    Raises:
        UsageError: a file has no such moment or device; the message names the file.
    """
    is_little = len(files) == 1 or sum(file.size_bytes for file in files) < _SMALL_BYTES
    # Another process hasn't the pipes of this one.
    if is_little or not all(os.path.isfile(file.path) or _names_part(file.path) for file in files):
        return [_read(file.path, reading, output, names=len(files) > 1) for file in files]
    found: list[Read | None] = [None] * len(files)
    # The largest first: the end isn't spent waiting for one of them.
    waiting = sorted(range(len(files)), key=lambda place: files[place].size_bytes)
    with _workers(num_workers(files)) as workers:
        start = workers.start
        busy: dict[Connection, tuple[SpawnProcess, int]] = {}

        def give(process: SpawnProcess, pipe: Connection) -> None:
            if waiting:
                place = waiting.pop()
                busy[pipe] = (process, place)
                with suppress(BrokenPipeError):
                    pipe.send((files[place].path, reading))

        for _ in range(workers.number):
            give(*start())
        done = 0
        while busy:
            for ready in connection.wait(list(busy)):
                assert isinstance(ready, Connection)
                process, place = busy.pop(ready)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    process.join()
                    answer = Unread(path=files[place].path, error=_death(files[place].path, process.exitcode))
                    process, ready = start()
                if isinstance(answer, _Failed):
                    answer.raise_here()
                found[place] = answer
                done += 1
                if progress is not None:
                    progress(done)
                give(process, ready)
    return [read for read in found if read is not None]


def num_workers(files: Sequence[RankInput]) -> int:
    """Return how many files may be read at a time: as many as fit where two of the largest do."""
    largest = max(file.size_bytes for file in files) * _MEMORY_RATIO
    fitting = max(2, _BUDGET_BYTES // max(largest, 1))
    if 2 * largest > _free_memory():
        fitting = 1
    return min(fitting, os.cpu_count() or 1, len(files), _MAX_WORKERS)


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _death(path: str, code: int | None) -> InputError:
    killed = " by the system, which had no memory left for it" if code == -getattr(signal, "SIGKILL", 9) else ""
    return InputError(f"{path}: the process that read it was ended{killed or f' (code {code})'}")


def _read(path: str, reading: Reading, output: Output | None, *, names: bool) -> Read:
    """Read one file; where there are several, a wrong use names the file."""
    from snapscope.analyses.moments import find_moment
    from snapscope.cli.options import open_history
    from snapscope.cli.sides import open_side, split_side

    try:
        file, own_at, own_device = split_side(path)
        if own_at is None and own_device is None and _is_baseline(path):
            side, _ = open_side(path, at=reading.at, device=None, output=output, rules=reading.rules)
            return RankFile(file=path, profile=side)
        history = open_history(file, reading.device if own_device is None else own_device, output, reading.rules)
        found = read_rank(history, find_moment(history, own_at or reading.at), capacity_bytes=reading.capacity)
        return replace(found, file=path) if path != "-" else found
    except UsageError as error:
        raise UsageError(f"{path}: {error}" if names else str(error)) from None
    except (InputError, MemoryError) as error:
        return Unread(path=path, error=error)


def _names_part(path: str) -> bool:
    from snapscope.cli.sides import split_side

    return os.path.isfile(split_side(path)[0])


def _is_baseline(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    from snapscope.analyses.baseline import MARK
    from snapscope.load import read_marked_json

    return read_marked_json(path, MARK) is not None


# ------------------------------------------------------------------------------------ processes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """What a worker couldn't do: wrong use, or a bug."""

    usage: str | None
    bug: str
    trace: str

    def raise_here(self) -> None:
        """Raise it in the process that asked."""
        if self.usage is not None:
            raise UsageError(self.usage)
        raise RuntimeError(self.bug) from RuntimeError(self.trace)


class _Workers:
    """Processes that read files, each with a pipe."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._context = get_context("spawn")
        self._all: list[tuple[SpawnProcess, Connection]] = []

    def start(self) -> tuple[SpawnProcess, Connection]:
        """Start one more process."""
        near, far = self._context.Pipe()
        process = self._context.Process(target=serve, args=(far,), daemon=True)
        # ^C of a terminal reaches all processes: only this one answers it.
        with _blocked_interrupts():
            process.start()
        far.close()
        self._all.append((process, near))
        return process, near

    def stop(self) -> None:
        """End them all; what they were doing is lost."""
        for process, pipe in self._all:
            process.terminate()
            pipe.close()
        for process, _ in self._all:
            process.join()


@contextmanager
def _workers(number: int) -> Iterator[_Workers]:
    workers = _Workers(number)
    try:
        yield workers
    finally:
        workers.stop()


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Keep SIGINT back, also from a process that is started meanwhile; it is delivered here afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # It unblocks the signal once it has started its own process.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Connection) -> None:
    """Read the files that come through a pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing but the parent speaks to the user.
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere
        with suppress(EOFError, OSError):
            while True:
                path, reading = pipe.recv()
                pipe.send(_answer(path, reading))


def _answer(path: str, reading: Reading) -> Read | _Failed:
    try:
        return _read(path, reading, None, names=True)
    except UsageError as error:
        return _Failed(usage=str(error), bug="", trace="")
    except Exception as error:  # a bug is reported where there is somebody to tell
        return _Failed(usage=None, bug=f"{path}: {type(error).__name__}: {error}", trace=traceback.format_exc())
