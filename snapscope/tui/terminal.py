"""The terminal: keys while the snapshot comes through a pipe, keys that are no text, and signals to leave."""

from __future__ import annotations

import codecs
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, BinaryIO

from snapscope.errors import UsageError


@contextmanager
def piped_input(source: str) -> Iterator[str | BinaryIO]:
    """Give what to read a source from, and keep standard input free for keys.

    Where the source is a pipe (`-`), standard input is the terminal within the context: Textual
    reads keys from there.

    Raises:
        UsageError: there is no terminal to take keys from.
    """
    if source != "-" or os.isatty(0):
        yield source
        return
    try:
        terminal = os.open(os.ctermid(), os.O_RDWR)
    except (OSError, AttributeError):
        raise UsageError(
            "the snapshot comes through a pipe, and there is no terminal to take keys from: save it to a file first"
        ) from None
    sys.stdin.flush()
    with os.fdopen(os.dup(0), "rb", buffering=0) as stream:
        # What reports call it, instead of a number.
        stream.name = "stdin"
        os.dup2(terminal, 0)
        os.close(terminal)
        try:
            yield stream
        finally:
            os.dup2(stream.fileno(), 0)


@contextmanager
def leaving_on_signals(leave: Callable[[int], None]) -> Iterator[None]:
    """Call `leave` with the number of a signal that asks to end, from before the screen is taken.

    Once one came, more of them are ignored to the end of the process: they would kill it while it
    lets go of a big snapshot, and its exit code would be another one.
    """
    is_leaving = False

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal is_leaving
        if number == getattr(signal, "SIGHUP", None) and not os.isatty(2):
            # The terminal is gone: nothing is to be restored, and Textual would wait for its writes.
            os._exit(128 + number)
        is_leaving = True
        leave(number)

    usual: dict[int, Any] = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Windows lacks some, nohup ignores one, and only the main thread may take them.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            with suppress(ValueError):
                usual[number] = signal.signal(number, take)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, signal.SIG_IGN if is_leaving else handler or signal.SIG_DFL)


def forgive_bad_bytes() -> None:
    """Show keys that are no UTF-8 as U+FFFD: Textual's driver ends the app on them, and takes no other decoder."""
    from textual.drivers import linux_driver

    def decoder(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
        return partial(codecs.getincrementaldecoder(encoding), "replace")

    linux_driver.getincrementaldecoder = decoder  # type: ignore[assignment, attr-defined]
