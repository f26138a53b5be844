"""The compiled reader: from a pickle's opcodes straight to columns of events.

It reads what PyTorch writes, and abandons everything else; then the Python path reads the file from
its start, and says what there is to say. So a file costs twice at worst, and the answer is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from snapscope.load.pickle_reader import Unpickled
from snapscope.load.scanner import MAX_TRAILING_BYTES
from snapscope.load.source import PeekReader
from snapscope.native import core

_PIECE_BYTES: Final = 1 << 16  # small enough for memory that is used again
_NUM_NUMBERED: Final = -2

COMMON_KEYS: Final = (
    "action",
    "addr",
    "size",
    "stream",
    "frames",
    "time_us",
    "compile_context",
    "user_metadata",
    "pool_id",
    "category",
)
"""Keys of events that have a column; number i stands for bit i of `EventColumns.mask`."""


class Abandoned(Exception):
    """The file holds something that is left to the Python path."""


class CompiledReader(Protocol):
    """What `snapscope.native._core.Reader` offers."""

    strings: list[str]
    num_events: int
    num_stacks: int
    pools: list[tuple[int, int]]
    position: int
    protocol: int

    def feed(self, piece: bytes, /) -> tuple[int, int]:
        """Read on; return the status and how many bytes are done with."""

    def take_value(self) -> Any:
        """Return the value, with a run in place of each list of events."""

    def take_columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of all events."""

    def take_extras(self) -> npt.NDArray[np.int64]:
        """Return row, key and value of what has no column."""

    def stack(self, number: int, /) -> list[dict[str, Any]]:
        """Return a list of frames."""

    def list_at(self, index: int, /) -> list[Any]:
        """Return a list of `forward_frames`."""


class EventShare:
    """What all lists of events of a file have in common.

    Attributes:
        strings: strings by the file's own numbers.
        pools: pool ids likewise.
        string_numbers, stack_numbers, pool_numbers: the numbers that normalising gave them; −2 is none yet.
    """

    def __init__(self, reader: CompiledReader, forward_frames: dict[int, list[Any]]) -> None:
        self._reader = reader
        self._forward_frames = forward_frames
        self.strings = reader.strings
        self.pools = reader.pools
        self.string_numbers = np.full(len(self.strings), _NUM_NUMBERED, np.int32)
        self.stack_numbers = np.full(reader.num_stacks, _NUM_NUMBERED, np.int32)
        self.pool_numbers = np.full(len(self.pools), _NUM_NUMBERED, np.int32)

    def stack(self, number: int) -> list[dict[str, Any]]:
        """Return the list of frames with this number."""
        return self._reader.stack(number)

    def forward_frames(self, index: int) -> list[Any]:
        """Return the lines that a `forward_frames` refers to."""
        return self._forward_frames[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """A list of events as the compiled reader gives it; numbers are the file's own.

    All values have the types that PyTorch writes; nothing is checked beyond that.

    Attributes:
        columns: by key, as in `COMMON_KEYS`; what an event lacks is −1, or 0 for `addr` and `stream`. In
            `stack`, which stands for `frames`, −1 is none and 0 is `[]`.
        mask: which keys each event has.
        extra_rows, extra_keys, extra_values: keys beside those, in the file's order; of `device_free` the
            number, of `forward_frames` what `EventShare.forward_frames` takes.
        share: what the numbers mean.
    """

    columns: dict[str, npt.NDArray[Any]]
    mask: npt.NDArray[np.uint16]
    extra_rows: npt.NDArray[np.int64]
    extra_keys: npt.NDArray[np.int64]
    extra_values: npt.NDArray[np.int64]
    share: EventShare

    def __len__(self) -> int:
        return len(self.mask)

    def first_entry(self) -> dict[str, None]:
        """Return the common keys of the first event, as a dict without its values."""
        return dict.fromkeys(key for bit, key in enumerate(COMMON_KEYS) if int(self.mask[0]) >> bit & 1)


def read_columns(stream: PeekReader) -> Unpickled:
    """Read one pickle; lists of events in its value are `EventColumns`.

    Raises:
        Abandoned: something in it, or about it, is left to the Python path.
    """
    native = core()
    if native is None:
        _abandon()
    try:
        reader: CompiledReader = native.Reader()
        _feed(native, reader, stream)
        value = reader.take_value()
        return Unpickled(
            value=_with_columns(native.Run, reader, value),
            protocol=reader.protocol,
            stream_bytes=reader.position,
            trailing_bytes=0,
            trailing_head=b"",
        )
    except (native.Abandoned, MemoryError):
        _abandon()


def _abandon() -> NoReturn:
    raise Abandoned from None


def _feed(native: Any, reader: CompiledReader, stream: PeekReader) -> None:
    status: int = native.MORE
    rest = b""
    while status == native.MORE:
        chunk = stream.read(_PIECE_BYTES)
        if not chunk:
            _abandon()
        piece = rest + chunk if rest else chunk
        status, used = reader.feed(piece)
        rest = piece[used:]
    if status != native.DONE:
        _abandon()
    # To the end of the stream, where a compressed one has its checksum. NULs are padding.
    count = 0
    rest = rest or stream.read(_PIECE_BYTES)
    while rest:
        count += len(rest)
        if count > MAX_TRAILING_BYTES or rest.strip(b"\0"):
            _abandon()
        rest = stream.read(_PIECE_BYTES)


def _with_columns(run_type: type, reader: CompiledReader, value: Any) -> Any:
    """Put columns in place of runs, where PyTorch writes lists of events; runs elsewhere are odd."""
    num_events = reader.num_events
    if type(value) is not dict:
        if num_events:
            _abandon()
        return value
    columns = reader.take_columns()
    mask = columns.pop("mask")
    extras = reader.take_extras()
    share = EventShare(reader, _forward_frames(reader, extras))
    for holder, key in _places(value):
        run = holder[key]
        if type(run) is not run_type:
            continue
        first, length = run.first, run.length  # type: ignore[attr-defined]
        low, high = np.searchsorted(extras[0], (first, first + length))
        holder[key] = EventColumns(
            columns={name: column[first : first + length] for name, column in columns.items()},
            mask=mask[first : first + length],
            extra_rows=extras[0, low:high] - first,
            extra_keys=extras[1, low:high],
            extra_values=extras[2, low:high],
            share=share,
        )
        num_events -= length
    if num_events:
        _abandon()
    return value


def _forward_frames(reader: CompiledReader, extras: npt.NDArray[np.int64]) -> dict[int, list[Any]]:
    """Return what `forward_frames` refer to; a list that has become one of events is odd."""
    is_forward = extras[1] == reader.strings.index("forward_frames")
    found = {index: reader.list_at(index) for index in np.unique(extras[2][is_forward]).tolist()}
    if any(type(lines) is not list for lines in found.values()):
        _abandon()
    return found


def _places(value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    traces = value.get("device_traces")
    if type(traces) is list:
        yield from ((traces, ordinal) for ordinal in range(len(traces)))
    host = value.get("host_traces")
    if type(host) is list and len(host) == 1:
        yield host, 0
    elif "host_traces" in value:
        yield value, "host_traces"
