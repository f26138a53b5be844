"""Open a path, stdin, bytes or a stream, and count what is read from it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol, TypeAlias

from snapscope.errors import InputError, MalformedError
from snapscope.units import format_bytes

Progress = Callable[[int, int | None], None]
"""Called with the bytes read so far, as stored, and their total if it is known."""

_PROGRESS_STEP: Final = 1 << 20

MAX_TEXT_BYTES: Final = 4 << 30
"""Bytes of JSON or HTML, unpacked, at most: unlike a pickle it has to be in memory as a whole."""


class Readable(Protocol):
    """Anything that gives its next bytes; `b""` is the end, fewer than asked is not."""

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes, or `b""` at the end."""


class CountedSource:
    """The input as stored: counts its bytes and reports progress.

    Attributes:
        bytes_read: bytes taken so far.
        total_bytes: bytes there are; None for a pipe.
        max_ratio: how many bytes each of them may unpack to, for who unpacks them.
    """

    def __init__(self, stream: BinaryIO, *, progress: Progress | None = None) -> None:
        self.bytes_read = 0
        self.max_ratio = 1
        self.total_bytes = _remaining_bytes(stream)
        self._stream = stream
        self._progress = progress
        self._reported = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes of the input."""
        try:
            chunk = self._stream.read(size)
        except OSError as error:
            raise InputError(f"can't be read: {_reason(error)}") from None
        self.bytes_read += len(chunk)
        if self.bytes_read - self._reported >= _PROGRESS_STEP:
            self._report()
        return chunk

    def finish(self) -> None:
        """Report the last bytes, so that a progress bar ends where the file does."""
        if self.bytes_read != self._reported:
            self._report()

    def _report(self) -> None:
        self._reported = self.bytes_read
        if self._progress is not None:
            self._progress(self.bytes_read, self.total_bytes)


class PeekReader:
    """A stream whose first bytes can be looked at before they are read (pipes can't seek)."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end, and leave them in the stream."""
        while len(self._head) < size:
            chunk = self._stream.read(size - len(self._head))
            if not chunk:
                break
            self._head += chunk
        return self._head[:size]

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""
        if self._head:
            chunk, self._head = self._head[:size], self._head[size:]
            return chunk
        return self._stream.read(size)


def read_all(stream: Readable, kind: str) -> bytearray:
    """Return everything up to the end of the stream.

    Args:
        stream: what to read.
        kind: what an error calls it.

    Raises:
        MalformedError: there are more than `MAX_TEXT_BYTES`.
    """
    content = bytearray()
    while chunk := stream.read(1 << 20):
        content += chunk
        if len(content) > MAX_TEXT_BYTES:
            raise MalformedError(
                f"holds more than {format_bytes(MAX_TEXT_BYTES)} of {kind}, the most that is read: use the pickle "
                "that _dump_snapshot wrote"
            )
    return content


Input: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO


def input_name(source: Input) -> str:
    """Return what messages and reports call this input (untrusted text)."""
    if isinstance(source, bytes):
        return "<bytes>"
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return "stdin" if path == "-" else path
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


@contextmanager
def open_source(source: Input, *, progress: Progress | None = None) -> Iterator[CountedSource]:
    """Open the input; close it afterwards if it was opened here.

    Raises:
        InputError: there is no such file, it is a directory, or it may not be read.
    """
    if isinstance(source, bytes):
        yield CountedSource(io.BytesIO(source), progress=progress)
    elif isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if path == "-":
            if sys.stdin is None or sys.stdin.closed:
                raise InputError("is closed: pipe a snapshot into it")
            yield CountedSource(sys.stdin.buffer, progress=progress)
            return
        with _open_path(path) as stream:
            yield CountedSource(stream, progress=progress)
    else:
        yield CountedSource(source, progress=progress)


def can_read_again(source: Input) -> bool:
    """Tell whether the input can be read twice: a file or bytes can, a pipe can't."""
    if isinstance(source, bytes):
        return True
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return path != "-" and os.path.isfile(path)
    return _remaining_bytes(source) is not None


@contextmanager
def opened_again(source: Input, *, progress: Progress | None = None) -> Iterator[CountedSource]:
    """Open the input as `open_source` does; a stream is set back if the reading fails."""
    if isinstance(source, (bytes, str, os.PathLike)):
        with open_source(source, progress=progress) as counted:
            yield counted
        return
    start = source.tell()
    try:
        yield CountedSource(source, progress=progress)
    except BaseException:
        source.seek(start)
        raise


def _open_path(path: str) -> BinaryIO:
    if os.path.isdir(path):  # said first: Windows calls opening a directory "permission denied"
        raise InputError("is a directory: name the snapshot files inside it")
    try:
        # Unbuffered: every reader above asks for large chunks.
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise InputError("no such file") from None
    except OSError as error:
        raise InputError(f"can't be opened: {_reason(error)}") from None
    except ValueError:  # a NUL within the path
        raise InputError("can't be opened: not a path") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _remaining_bytes(stream: BinaryIO) -> int | None:
    try:
        if not stream.seekable():
            return None
        position = stream.tell()
        end = stream.seek(0, os.SEEK_END)
        stream.seek(position)
    except (OSError, ValueError, AttributeError):
        return None
    # Character devices seek to 0: that is no size.
    return end - position if end > position else None
