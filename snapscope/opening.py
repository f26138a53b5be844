"""From a path to a normalised snapshot: load and normalise in one call."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from snapscope.load import Progress, read_snapshot
from snapscope.model import Snapshot
from snapscope.normalise import normalise


def load(source: str | os.PathLike[str] | bytes | BinaryIO, *, progress: Progress | None = None) -> Snapshot:
    """Read and normalise a snapshot.

    Args:
        source: a path, `-` for stdin, the bytes of a file, or an open binary file.
        progress: called with (bytes read, bytes in all or None) while reading.

    Raises:
        InputError: the input can't be read, can't be trusted, or is no snapshot.
    """
    # Millions of small objects live until the columns are built; the collector would walk
    # them again and again to find no garbage.
    with _collector_paused():
        return normalise(read_snapshot(source, progress=progress))


@contextmanager
def _collector_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
