"""One small snapshot, and ways to write it down."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, Final

from snapscope.load import RawSnapshot, read_snapshot
from snapscope.load.pickle_reader import Unpickled, read_pickle
from snapscope.load.source import PeekReader
from tests import builders as b

FRAMES: Final = [b.frame("forward", "model.py", 12), b.frame("<module>", "/home/é/train.py", 70_000)]

SNAPSHOT: Final = b.snapshot(
    traces=[
        [
            b.segment_alloc(0x7F0000000000, 2 * b.MIB, frames=FRAMES, time_us=1_776_479_641_000_000),
            b.alloc(0x7F0000000000, 700, frames=FRAMES, pool=(0, 0), stream=-1, compile_context="N/A"),
            b.alloc(0x7F0000000400, 300, frames=[], pool=(1, 300), compile_context="x" * 200),
            b.free(0x7F0000000400, 300, frames=FRAMES[:1], pool=(1, 300)),
        ],
        [],
    ],
    segments=[
        b.segment(
            0x7F0000000000,
            [b.block(1024, requested=700, frames=FRAMES), b.block(2 * b.MIB - 1024, state=b.INACTIVE)],
        )
    ],
    allocator_settings=b.settings(max_round=2**64 - 1, missing=None),
)

END: Final = b"."


def load_bytes(content: bytes) -> RawSnapshot:
    return read_snapshot(content)


def load_pickle(content: bytes) -> Unpickled:
    return read_pickle(PeekReader(io.BytesIO(content)))


def header(protocol: int = 4) -> bytes:
    return bytes([0x80, protocol])


def text(value: str) -> bytes:
    """BINUNICODE."""
    content = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(content)) + content


def framed(content: bytes) -> bytes:
    """FRAME."""
    return b"\x95" + struct.pack("<Q", len(content)) + content


def long_put(index: int) -> bytes:
    """LONG_BINPUT."""
    return b"r" + struct.pack("<I", index)


def long_get(index: int) -> bytes:
    """LONG_BINGET."""
    return b"j" + struct.pack("<I", index)


def write_like_cpp(value: Any) -> bytes:
    """Pickle a value as PyTorch's C++ writer does (torch/csrc/jit/serialization/pickler.cpp).

    Protocol 2; strings, lists and dicts are put in the memo, tuples aren't; large integers take eight
    bytes.
    """
    out = bytearray(header(2))
    memo: dict[Any, int] = {}

    def put(key: Any) -> None:
        index = memo[key] = len(memo)
        out.extend(bytes([ord("q"), index]) if index < 256 else long_put(index))

    def get(key: Any) -> bool:
        index = memo.get(key)
        if index is not None:
            out.extend(bytes([ord("h"), index]) if index < 256 else long_get(index))
        return index is not None

    def write(item: Any) -> None:
        if item is None:
            out.extend(b"N")
        elif isinstance(item, bool):
            out.extend(b"\x88" if item else b"\x89")
        elif isinstance(item, int):
            if 0 <= item < 1 << 8:
                out.extend(struct.pack("<cB", b"K", item))
            elif 0 <= item < 1 << 16:
                out.extend(struct.pack("<cH", b"M", item))
            elif -(1 << 31) <= item < 1 << 31:
                out.extend(struct.pack("<ci", b"J", item))
            else:
                out.extend(b"\x8a\x08" + struct.pack("<q", item))
        elif isinstance(item, float):
            out.extend(struct.pack(">cd", b"G", item))
        elif isinstance(item, str):
            if not get(item):
                out.extend(text(item))
                put(item)
        elif isinstance(item, tuple):
            for part in item:
                write(part)
            out.extend((b")", b"\x85", b"\x86", b"\x87")[len(item)])
        elif not get(id(item)):
            out.extend(b"}" if isinstance(item, dict) else b"]")
            put(id(item))
            out.extend(b"(")
            parts = [part for pair in item.items() for part in pair] if isinstance(item, dict) else item
            for part in parts:
                write(part)
            out.extend(b"u" if isinstance(item, dict) else b"e")

    write(value)
    return bytes(out) + END


def dump(value: Any = SNAPSHOT, protocol: int = 4) -> bytes:
    return pickle.dumps(value, protocol)
