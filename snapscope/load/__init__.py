"""Path, stdin, bytes or stream → `RawSnapshot`: the only code that opens input.

    source ─► containers ─► detect ─► html | json_reader | pickle_reader (scanner) ─► unwrap
                                                         | native_reader

A file is told by its content, never by its name. Nothing in it is trusted: no code runs, and memory and
time stay in proportion to its size (see `scanner`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snapscope.errors import InputError, NotASnapshotError
from snapscope.load.containers import MAX_PICKLE_RATIO, unpack
from snapscope.load.detect import HEAD_BYTES, Encoding, detect_encoding
from snapscope.load.html import read_page
from snapscope.load.json_reader import read_json
from snapscope.load.native_reader import Abandoned, EventColumns, read_columns
from snapscope.load.pickle_reader import Unpickled, paused_gc, read_pickle
from snapscope.load.quoting import quote_bytes, quote_text
from snapscope.load.scanner import MAX_TRAILING_BYTES
from snapscope.load.source import (
    CountedSource,
    Input,
    PeekReader,
    Progress,
    can_read_again,
    input_name,
    open_source,
    opened_again,
)
from snapscope.load.unwrap import Found, RawValue, find_snapshot
from snapscope.model import Notice, Source
from snapscope.native import core

__all__ = [
    "Encoding",
    "EventColumns",
    "Input",
    "Progress",
    "RawSnapshot",
    "detect_file",
    "paused_gc",
    "read_marked_json",
    "read_snapshot",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSnapshot:
    """A snapshot as PyTorch made it, unchecked.

    Attributes:
        value: a dict with `segments` or `device_traces`, or the bare list of segments; a trace may be
            `EventColumns`.
        source: where it came from and how it was wrapped.
        notices: what was odd about the file.
        stream_bytes: bytes of the pickle or JSON, unpacked: no count in the snapshot can honestly be
            larger.
    """

    value: RawValue
    source: Source
    notices: tuple[Notice, ...]
    stream_bytes: int


def read_snapshot(source: Input, *, progress: Progress | None = None, as_columns: bool = False) -> RawSnapshot:
    """Read a snapshot from a path, from stdin (`-`), from bytes, or from a binary stream.

    The garbage collector is off meanwhile. When it comes back on, its first turn walks through the
    whole value (0.4 s for a million events): `paused_gc` around reading and normalising avoids that.

    Args:
        source: what to read; a stream is read to its end and stays open.
        progress: called about every MiB with the bytes read, as stored, and their total if known. It may
            raise an exception of its own to stop the reading.
        as_columns: let the compiled reader make `EventColumns` of traces, where it is there and can.

    Raises:
        InputError: it can't be read, can't be trusted, or is no snapshot; the subclass tells which,
            the message begins with the input's name.
    """
    name = input_name(source)
    try:
        with paused_gc():
            if as_columns and core() is not None and can_read_again(source):
                try:
                    with opened_again(source, progress=progress) as counted:
                        return _read(counted, name, read_columns)
                except Abandoned:
                    pass  # the Python path sees more
            with open_source(source, progress=progress) as counted:
                return _read(counted, name, read_pickle)
    except InputError as error:
        raise type(error)(f"{quote_text(name, limit=300)}: {error}") from None


def detect_file(path: str) -> tuple[Encoding, bool]:
    """Tell by its first bytes how a file is written, and whether it is compressed.

    Raises:
        InputError: it can't be read, or is in no way that a snapshot is; the message doesn't name it.
    """
    with open_source(path) as counted:
        stream, containers = unpack(counted)
        return detect_encoding(stream.peek(HEAD_BYTES)), bool(containers)


def read_marked_json(source: Input, mark: str) -> Any:
    """Read a JSON object of our own, if the input is one; None if it is something else.

    Args:
        source: what to read; a pipe is left alone, for it can't be read twice.
        mark: a key that its first bytes must name.

    Raises:
        InputError: it can't be read, or is no valid JSON.
    """
    name = input_name(source)
    if not isinstance(source, (str, os.PathLike)) or source == "-":
        return None
    try:
        with open_source(source) as counted:
            stream, _ = unpack(counted)
            if f'"{mark}"'.encode() not in stream.peek(HEAD_BYTES):
                return None
            return read_json(stream).value
    except InputError as error:
        raise type(error)(f"{quote_text(name, limit=300)}: {error}") from None


def _read(source: CountedSource, name: str, read: Callable[[PeekReader], Unpickled]) -> RawSnapshot:
    stream, containers = unpack(source)
    encoding = detect_encoding(stream.peek(HEAD_BYTES))
    notices: list[Notice] = []
    if encoding is Encoding.HTML:
        stream, num_files = read_page(stream)
        containers += ("html",)
        if num_files > 1:
            notices.append(
                Notice(
                    code="unwrapped",
                    message=f"the page holds {num_files:,} files: only the first was read",
                    count=num_files,
                )
            )
        encoding = detect_encoding(stream.peek(HEAD_BYTES))
    protocol: int | None = None
    if encoding is Encoding.PICKLE:
        source.max_ratio = MAX_PICKLE_RATIO
        unpickled = _checked(stream, read)
        value, stream_bytes, protocol = unpickled.value, unpickled.stream_bytes, unpickled.protocol
        if unpickled.trailing_bytes:
            notices.append(
                Notice(
                    code="trailing_bytes",
                    message=_describe_rest(unpickled),
                    bytes=unpickled.trailing_bytes,
                )
            )
    elif encoding is Encoding.JSON:
        parsed = read_json(stream)
        value, stream_bytes = parsed.value, parsed.stream_bytes
    else:
        raise NotASnapshotError("an HTML page inside an HTML page")
    source.finish()
    found = _found(value, is_native=encoding is Encoding.PICKLE and read is read_columns)
    if found.path:
        where = ", ".join(found.path)
        containers += (f"wrapper {where}",)
        message = f"unwrapped {where}"
        if found.num_snapshots > 1:
            message += f": the first of {found.num_snapshots:,} snapshots in the file, the others weren't read"
        notices.append(Notice(code="unwrapped", message=message, count=found.num_snapshots))
    return RawSnapshot(
        value=found.value,
        source=Source(
            name=name,
            # A long rest isn't read to its end.
            size_bytes=max(source.bytes_read, source.total_bytes or 0),
            containers=containers,
            encoding=encoding.value,
            protocol=protocol,
        ),
        notices=tuple(notices),
        stream_bytes=stream_bytes,
    )


def _checked(stream: PeekReader, read: Callable[[PeekReader], Unpickled]) -> Unpickled:
    """Read a pickle; what the compiled reader stumbles over, the Python path meets again and reports."""
    try:
        return read(stream)
    except InputError:
        if read is read_columns:
            raise Abandoned from None
        raise


def _found(value: Any, *, is_native: bool) -> Found:
    try:
        found = find_snapshot(value)
    except InputError:
        if is_native:
            raise Abandoned from None
        raise
    if is_native and found.value is not value and not isinstance(value, list):
        raise Abandoned
    return found


def _describe_rest(unpickled: Unpickled) -> str:
    count = unpickled.trailing_bytes
    number = f"{count:,}" if count <= MAX_TRAILING_BYTES else f"more than {MAX_TRAILING_BYTES:,}"
    return (
        f"{number} bytes after the end of the pickle were left alone: "
        f"they begin with {quote_bytes(unpickled.trailing_head)}"
    )
