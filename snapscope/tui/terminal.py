"""Keys from the terminal while the snapshot comes through standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

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
