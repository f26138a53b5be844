"""From a path to a normalised snapshot: load and normalise in one call."""

from __future__ import annotations

import os
from typing import BinaryIO

from snapscope.load import Progress, paused_gc, read_snapshot
from snapscope.model import Snapshot
from snapscope.normalise import normalise


def load_snapshot(source: str | os.PathLike[str] | bytes | BinaryIO, *, progress: Progress | None = None) -> Snapshot:
    """Read and normalise a snapshot.

    Args:
        source: a path, `-` for stdin, the bytes of a file, or an open binary file.
        progress: called with (bytes read, bytes in all or None) while reading.

    Raises:
        InputError: the input can't be read, can't be trusted, or is no snapshot.
    """
    # The collector stays off until the columns are built: its first turn over the new dicts
    # would cost as much as building them.
    with paused_gc():
        return normalise(read_snapshot(source, progress=progress, as_columns=True))
