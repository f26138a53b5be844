"""Look through compression: gzip, zstd, bzip2 and xz, told by their first bytes, never by a suffix."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from snapscope.errors import EmptyFileError, HostileError, InputError, MalformedError, TruncatedError
from snapscope.load.source import CountedSource, PeekReader, Readable

MAX_LAYERS: Final = 3
"""Compression within compression, at most; nobody has met more than one on purpose."""

FREE_BYTES: Final = 64 << 20
"""What a stream may unpack to before its ratio is looked at."""

MAX_RATIO: Final = 2000
"""Bytes unpacked per byte stored, at most; beyond this the file is made to fill the memory.

JSON writes every stack out each time and packs up to 750:1 (zstd -19, C++ stacks).
"""

MAX_PICKLE_RATIO: Final = 500
"""The same for pickles, which share their stacks: recordings pack 12:1 to 51:1."""

_MEMORY_LIMIT: Final = 256 << 20
"""Window that a decompressor may ask for (`xz -9` takes 65 MiB, `zstd --long` 128 MiB)."""

_FEED: Final = 128 << 10


class _Decompressor(Protocol):
    """What bz2, lzma and Python 3.14's zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _MemberReader:
    """Decompress members one after another, never more at a time than asked for."""

    def __init__(self, stream: Readable, new_decompressor: Callable[[], _Decompressor]) -> None:
        self._stream = stream
        self._new_decompressor = new_decompressor
        self._decompressor = new_decompressor()

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._decompressor.eof:
                # xz pads with zeros between and after its members.
                packed = self._decompressor.unused_data.lstrip(b"\0")
                while not packed:
                    packed = self._stream.read(_FEED)
                    if not packed:
                        return b""
                    packed = packed.lstrip(b"\0")
                self._decompressor = self._new_decompressor()
            elif self._decompressor.needs_input:
                packed = self._stream.read(_FEED)
                if not packed:
                    raise EOFError
            chunk = self._decompressor.decompress(packed, size)
            if chunk:
                return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compression:
    """One kind of compression.

    Attributes:
        name: what reports call it.
        magics: what such a stream may begin with.
        open: makes a reader of the unpacked bytes.
    """

    name: str
    magics: tuple[bytes, ...]
    open: Callable[[Readable], Readable]


def _open_gzip(stream: Readable) -> Readable:
    return gzip.GzipFile(fileobj=_as_binary(stream), mode="rb")


def _open_bzip2(stream: Readable) -> Readable:
    return _MemberReader(stream, bz2.BZ2Decompressor)


def _open_xz(stream: Readable) -> Readable:
    return _MemberReader(stream, lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT))


if sys.version_info >= (3, 14):
    from compression import zstd

    _ZstdError: type[Exception] = zstd.ZstdError

    def _open_zstd(stream: Readable) -> Readable:
        return _MemberReader(stream, zstd.ZstdDecompressor)

else:
    import zstandard

    _ZstdError: type[Exception] = zstandard.ZstdError

    def _open_zstd(stream: Readable) -> Readable:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MEMORY_LIMIT)
        return decompressor.stream_reader(_as_binary(stream), read_across_frames=True)


def _as_binary(stream: Readable) -> Any:
    # Both libraries ask for a whole binary file and use nothing of it but `read`.
    return stream


_SKIPPABLE: Final = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))

_BZIP2_MARKS: Final = (b"1AY&SY", b"\x17rE8P\x90")

_COMPRESSIONS: Final = (
    _Compression(name="gzip", magics=(b"\x1f\x8b",), open=_open_gzip),
    # pzstd begins with a skippable frame.
    _Compression(name="zstd", magics=(b"\x28\xb5\x2f\xfd", *_SKIPPABLE), open=_open_zstd),
    # The digit is a level; what follows is π for a block, √π for the end of an empty file.
    _Compression(
        name="bzip2",
        magics=tuple(b"BZh%d" % level + mark for level in range(1, 10) for mark in _BZIP2_MARKS),
        open=_open_bzip2,
    ),
    _Compression(name="xz", magics=(b"\xfd7zXZ\0",), open=_open_xz),
)

# zlib.error and LZMAError are no OSError; BadGzipFile and what bz2 raises are.
_ERRORS: Final = (OSError, ValueError, zlib.error, lzma.LZMAError, _ZstdError)


class _UnpackedReader:
    """The bytes inside a compressed stream; its errors in our words, and its ratio bounded."""

    def __init__(self, stream: Readable, compression: _Compression, source: CountedSource) -> None:
        self._inner = compression.open(stream)
        self._name = compression.name
        self._source = source
        self._unpacked_bytes = 0

    def read(self, size: int, /) -> bytes:
        try:
            chunk = self._inner.read(size)
        except InputError:
            raise
        except EOFError:
            raise TruncatedError(
                f"ends in the middle of its {self._name} stream "
                f"(at byte {self._source.bytes_read:,}): copy it again, or dump it again"
            ) from None
        except _ERRORS as error:
            raise MalformedError(f"is no valid {self._name} stream: {error}") from None
        self._unpacked_bytes += len(chunk)
        stored_bytes, max_ratio = self._source.bytes_read, self._source.max_ratio
        if self._unpacked_bytes > FREE_BYTES and self._unpacked_bytes > max_ratio * stored_bytes:
            raise HostileError(
                f"refused: unpacks to more than {max_ratio:,} times its size, made to fill the memory "
                f"(after {stored_bytes:,} bytes)"
            )
        return chunk


def unpack(source: CountedSource) -> tuple[PeekReader, tuple[str, ...]]:
    """Return the stream inside all compression, and the names of what was looked through.

    Raises:
        EmptyFileError: there is nothing, or nothing inside.
        HostileError: more than `MAX_LAYERS` layers.
    """
    source.max_ratio = MAX_RATIO
    stream = PeekReader(source)
    names: list[str] = []
    while True:
        head = stream.peek(16)
        if not head:
            inside = f"holds 0 bytes inside its {names[-1]} stream" if names else "0 bytes"
            raise EmptyFileError(f"{inside}: the dump failed while being written")
        found = next((kind for kind in _COMPRESSIONS if head.startswith(kind.magics)), None)
        if found is None:
            return stream, tuple(names)
        if len(names) == MAX_LAYERS:
            raise HostileError(f"is compressed more than {MAX_LAYERS} times over")
        names.append(found.name)
        stream = PeekReader(_UnpackedReader(stream, found, source))
