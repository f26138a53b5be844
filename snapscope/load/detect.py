"""Tell by its first bytes how a file is written; a suffix says nothing."""

from __future__ import annotations

import codecs
import re
from enum import Enum
from typing import Final

from snapscope.errors import NotASnapshotError
from snapscope.load.quoting import quote_bytes

HEAD_BYTES: Final = 4096
"""How much of a file is looked at."""

_LEGACY_TORCH_SAVE: Final = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
# Protocols 0 and 1 have no header: a container, or a tuple of whatever, or at once a global.
_OLD_PICKLE: Final = re.compile(rb"\(*[}\])]|\(+[dltILVSFUXKJMN]|\(*[ci][\w.]+\n[\w.]+\n")
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_LFS: Final = (b"version https://git-lfs", b"version https://hawser")
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DUMP_INSTEAD: Final = "dump with torch.cuda.memory._dump_snapshot(path), or pickle.dump(snapshot, file)"


class Encoding(str, Enum):
    """How a snapshot is written."""

    PICKLE = "pickle"
    JSON = "json"
    HTML = "html"


def detect_encoding(head: bytes) -> Encoding:
    """Return how the file is written that begins with `head`.

    Raises:
        NotASnapshotError: in no way that a snapshot is; where it is known, the message says what it is.
    """
    if _LEGACY_TORCH_SAVE.match(head):
        raise NotASnapshotError(f"a torch.save file of the old format: {_DUMP_INSTEAD}")
    if head.startswith(_ZIP):
        what = "a torch.save archive" if b"data.pkl" in head or b".data/" in head else "a zip archive"
        raise NotASnapshotError(f"{what}: {_DUMP_INSTEAD}")
    if head.startswith(_LFS):
        raise NotASnapshotError("a Git LFS pointer, not the file itself: run git lfs pull")
    if head[0] == 0x80:
        return Encoding.PICKLE
    if head.startswith(_UTF16):
        return Encoding.JSON
    text = head.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")
    if text.startswith((b"{", b"[")):
        return Encoding.JSON
    if text.startswith(b"<"):
        return Encoding.HTML
    if _OLD_PICKLE.match(head):
        return Encoding.PICKLE
    raise NotASnapshotError(f"neither a pickle nor JSON nor a page of trace_plot: it starts with {quote_bytes(head)}")
