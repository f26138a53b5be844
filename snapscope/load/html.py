"""Find the snapshot inside a page of `torch.cuda._memory_viz` (trace_plot, segment_plot, profile_plot).

The page holds `[{"name": "snapshot.pickle", "base64": "..."}]`: the pickle, padded with one to three
NULs so that base64 needs no `=` (`_format_viz` in torch/cuda/_memory_viz.py, since PyTorch 2.1).
"""

from __future__ import annotations

import binascii
import io
import re
from typing import Final

from snapscope.errors import EmptyFileError, MalformedError, NotASnapshotError, TruncatedError
from snapscope.load.source import PeekReader, Readable, read_all

_FILE: Final = re.compile(rb'"base64"\s*:\s*"')


def read_page(stream: Readable) -> tuple[PeekReader, int]:
    """Return the first file that the page holds, as a stream, and the number of files in it.

    Raises:
        NotASnapshotError: the page holds no file.
        TruncatedError: the page ends within it.
        MalformedError: the file is no base64, or the page is too large.
        EmptyFileError: the file is empty.
    """
    page = read_all(stream, "HTML")
    files = _FILE.finditer(page)
    first = next(files, None)
    if first is None:
        raise NotASnapshotError(
            "is an HTML page without a snapshot in it: open a page that trace_plot of PyTorch 2.1 or later "
            "wrote, or the pickle itself"
        )
    end = page.find(b'"', first.end())
    if end < 0:
        raise TruncatedError(f"ends in the middle of the page's snapshot (at byte {len(page):,})")
    num_files = 1 + sum(1 for _ in files)
    try:
        content = binascii.a2b_base64(memoryview(page)[first.end() : end])
    except binascii.Error as error:
        raise MalformedError(f"is a page whose snapshot is no valid base64: {error}") from None
    if not content:
        raise EmptyFileError("is a page whose snapshot holds 0 bytes")
    return PeekReader(io.BytesIO(content)), num_files
