"""The normalised snapshot: frozen tables of equal-length, read-only NumPy columns.

After `normalise` nobody sees a dict of PyTorch's again. Strings and stacks are interned
once for the whole snapshot; every other table refers to them by number.

The time axis of the whole program is the **event index**: the position of an event in
the stored trace of its device. `time_us` is only a column (ties are normal, traces by
PyTorch before 2.2 have none).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int8Column = npt.NDArray[np.int8]
Int32Column = npt.NDArray[np.int32]
Int64Column = npt.NDArray[np.int64]
AddressColumn = npt.NDArray[np.uint64]
BoolColumn = npt.NDArray[np.bool_]

HOST_DEVICE: Final = -1
"""Device number of pinned host memory (`host_segments`, `host_traces`; PyTorch 2.14)."""

NO_STACK: Final = -1
"""`stack` of an entry without the key `frames`: recorded without a context."""

EMPTY_STACK: Final = 0
"""`stack` of an entry whose `frames` is `[]`: a context was taken, but it had no frames."""

NO_TIME: Final = -1
"""`time_us` of an event that has no time."""

UNKNOWN_POOL: Final = -1
"""`pool` of an entry for which the file doesn't say it."""

DEFAULT_POOL: Final = 0
"""Number of the pool `(0, 0)`, the one that ordinary allocations come from."""

UNKNOWN_BYTES: Final = -1
"""A size that the file doesn't hold."""


class Action(IntEnum):
    """What an event did, in PyTorch's spelling (`TraceEntry::Action`)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    ANNOTATE = 9
    USER_DEFINED = 10
    OTHER = 11


class BlockState(IntEnum):
    """State of a block in the final picture."""

    INACTIVE = 0
    ALLOCATED = 1
    PENDING_FREE = 2


class SizeClass(IntEnum):
    """PyTorch's `segment_type`: which free list serves the block, not a pool id."""

    UNKNOWN = 0
    SMALL = 1
    LARGE = 2


class Stage(IntEnum):
    """Whether an annotation opens or closes its range."""

    START = 0
    END = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An oddity of the data itself, which travels into every report.

    Attributes:
        code: stable identifier, such as `head_lost`.
        message: one sentence for people; holds no text from the file unescaped.
        count: how often it was met.
        bytes: how many bytes it touches, 0 where that has no meaning.
    """

    code: str
    message: str
    count: int = 1
    bytes: int = 0


class Table:
    """Base of all tables: checks equal length and makes every column read-only."""

    __slots__ = ()

    def __post_init__(self) -> None:
        length: int | None = None
        for column in fields(self):  # type: ignore[arg-type]
            values = getattr(self, column.name)
            if not isinstance(values, np.ndarray):
                continue
            if column.metadata.get("own_length"):
                pass
            elif length is None:
                length = len(values)
            elif len(values) != length:
                raise ValueError(f"{type(self).__name__}.{column.name}: {len(values)} rows, not {length}")
            values.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTable(Table):
    """Interned strings, frames and stacks of the whole snapshot.

    Stack `s` is `stack_frames[stack_offsets[s]:stack_offsets[s + 1]]`, innermost frame
    first as PyTorch writes it. Stack 0 is the empty one.

    Attributes:
        strings: every string of the snapshot's frames, contexts and metadata.
        frame_function: string number of the frame's `name` (`co_name`, demangled C++).
        frame_file: string number of the frame's `filename`.
        frame_line: line, or an offset within a library for C++ frames; 0 if unknown.
        stack_offsets: one more than there are stacks.
        stack_frames: frame numbers of all stacks, one after another.
        frame_extras: `fx_*` fields of the frames that have them, by frame number.
    """

    strings: tuple[str, ...]
    frame_function: Int32Column
    frame_file: Int32Column
    frame_line: Int64Column
    stack_offsets: Int64Column = field(metadata={"own_length": True})
    stack_frames: Int32Column = field(metadata={"own_length": True})
    frame_extras: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def num_stacks(self) -> int:
        """Number of distinct stacks, the empty one included."""
        return len(self.stack_offsets) - 1

    @property
    def num_frames(self) -> int:
        """Number of distinct frames."""
        return len(self.frame_function)

    def frames_of(self, stack: int) -> Int32Column:
        """Return the frame numbers of a stack, innermost first; empty for `NO_STACK`."""
        if stack < 0:
            return self.stack_frames[:0]
        return self.stack_frames[self.stack_offsets[stack] : self.stack_offsets[stack + 1]]

    def function_of(self, frame: int) -> str:
        """Return the function name of a frame, as recorded (untrusted text)."""
        return self.strings[int(self.frame_function[frame])]

    def file_of(self, frame: int) -> str:
        """Return the file name of a frame, as recorded (untrusted text)."""
        return self.strings[int(self.frame_file[frame])]

    def line_of(self, frame: int) -> int:
        """Return the line of a frame."""
        return int(self.frame_line[frame])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTable(Table):
    """The trace of one device, oldest event first.

    Attributes:
        action: `Action`.
        addr: start address; 0 for events that have none (`oom`, `snapshot`).
        size_bytes: *requested* bytes for alloc and frees, segment bytes for segment
            events, the rounded request for `oom`.
        stream: raw stream handle of the block.
        pool: number in `Snapshot.pools`, or `UNKNOWN_POOL` (traces before PyTorch 2.12).
        time_us: Unix epoch microseconds, or `NO_TIME`.
        stack: number in the stack table, `NO_STACK` or `EMPTY_STACK`.
        compile_context: string number of `compile_context`; -1 if absent.
        user_metadata: string number of `user_metadata`; -1 if absent.
        category: string number of `category`, which only `torch.profiler` writes; -1 if absent.
        oom_events: indices of the `oom` events.
        oom_device_free_bytes: what the driver called free at each of them; -1 unknown.
        forward_events: indices of the events that carry `forward_frames`.
        forward_text: string number of those frames' text.
    """

    action: Int8Column
    addr: AddressColumn
    size_bytes: Int64Column
    stream: Int64Column
    pool: Int32Column
    time_us: Int64Column
    stack: Int32Column
    compile_context: Int32Column
    user_metadata: Int32Column
    category: Int32Column
    oom_events: Int64Column = field(metadata={"own_length": True})
    oom_device_free_bytes: Int64Column = field(metadata={"own_length": True})
    forward_events: Int64Column = field(metadata={"own_length": True})
    forward_text: Int32Column = field(metadata={"own_length": True})

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTable(Table):
    """The final driver reservations of one device, by address.

    For expandable segments one row is one contiguous mapped range.

    Attributes:
        addr, size_bytes: the range.
        stream: raw stream handle the segment belongs to.
        size_class: `SizeClass`.
        pool: number in `Snapshot.pools`.
        is_expandable: part of an expandable segment.
        stack: stack of the allocation that made the segment.
        allocated_bytes, active_bytes: PyTorch's own counters; `UNKNOWN_BYTES` if absent.
        first_block, num_blocks: the segment's rows in the block table.
    """

    addr: AddressColumn
    size_bytes: Int64Column
    stream: Int64Column
    size_class: Int8Column
    pool: Int32Column
    is_expandable: BoolColumn
    stack: Int32Column
    allocated_bytes: Int64Column
    active_bytes: Int64Column
    first_block: Int64Column
    num_blocks: Int64Column

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable(Table):
    """The final blocks of one device, in address order.

    Attributes:
        addr, size_bytes: the block, rounded size.
        requested_bytes: what the caller asked for; `UNKNOWN_BYTES` for inactive blocks
            (PyTorch never resets the field there) and where the file has none.
        state: `BlockState`.
        stack: stack of the block's current allocation.
        segment: row in the segment table.
    """

    addr: AddressColumn
    size_bytes: Int64Column
    requested_bytes: Int64Column
    state: Int8Column
    stack: Int32Column
    segment: Int32Column

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationTable(Table):
    """`external_annotations`: user-scope `record_function` ranges, oldest first.

    Attributes:
        name: string number.
        stage: `Stage`.
        device: current device of the thread that wrote it (often 0 on helper threads).
        time_us: Unix epoch microseconds.
    """

    name: Int32Column
    stage: Int8Column
    device: Int32Column
    time_us: Int64Column

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTables:
    """All that the snapshot holds about one device.

    Attributes:
        device: ordinal in the recording process, or `HOST_DEVICE`.
        events, segments, blocks: the tables.
    """

    device: int
    events: EventTable
    segments: SegmentTable
    blocks: BlockTable

    @property
    def label(self) -> str:
        """Name for people: `device 0`, `host (pinned)`."""
        return "host (pinned)" if self.device == HOST_DEVICE else f"device {self.device}"

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved from the driver at the end."""
        return int(self.segments.size_bytes.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the snapshot came from and how it was wrapped.

    Attributes:
        name: file name for people (`stdin` for `-`); untrusted text.
        size_bytes: bytes of the file as stored.
        containers: what was unwrapped, outermost first, e.g. `("gzip",)`, `("html",)`,
            `("wrapper key 'snapshot'",)`.
        encoding: `pickle` or `json`.
        protocol: pickle protocol; None for JSON.
    """

    name: str
    size_bytes: int
    containers: tuple[str, ...]
    encoding: str
    protocol: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """`allocator_settings` at the moment of the snapshot, with PyTorch's defaults.

    Attributes:
        known: whether the file held settings at all (PyTorch >= 2.3).
        conf: the settings string, as given.
        max_split_size_bytes: None = unlimited.
        max_non_split_rounding_bytes: how much larger an oversize block may be.
        large_segment_size_bytes: segment size for requests of 1 to 10 MiB.
        roundup_power2_divisions: 16 numbers for 1 MiB … 32 GiB; 0 or 1 = off.
        expandable_segments: whether new segments are expandable.
        garbage_collection_threshold: 0.0 = off.
        per_process_memory_fraction: 1.0 = no limit.
        request_padding_bytes: added to every request before rounding (32 on Ascend NPUs).
        large_alignment_bytes: alignment of large blocks in expandable segments (16 KiB on
            Ascend NPUs, where the piece skipped stays free).
        raw: everything as recorded (untrusted text).
    """

    known: bool = False
    conf: str = ""
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 << 20
    large_segment_size_bytes: int = 20 << 20
    roundup_power2_divisions: tuple[int, ...] = (0,) * 16
    expandable_segments: bool = False
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0
    request_padding_bytes: int = 0
    large_alignment_bytes: int = 512
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """What kind of snapshot this is.

    Attributes:
        form: `dict`, `list` (bare `memory_snapshot()`), `history` (the PyTorch 2.0 form)
            or `profiler` (made by `_profile_to_snapshot`).
        torch_version: the range of PyTorch releases that write these keys, e.g.
            `2.8 to 2.9`; for people.
        backend: `cuda`, `xpu`, `npu` or `unknown`, as far as the file proves it.
        keys: top-level keys found.
    """

    form: str
    torch_version: str
    backend: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A whole snapshot, normalised.

    Attributes:
        pools: pool ids by number; number 0 is always the default pool `(0, 0)`.
        devices: one entry per device that has a trace, segments or an empty place in
            `device_traces`, by ordinal; pinned host memory last.
        notices: oddities found while loading and normalising.
    """

    source: Source
    format: FormatFacts
    settings: AllocatorSettings
    stacks: StackTable
    pools: tuple[tuple[int, int], ...]
    annotations: AnnotationTable
    devices: tuple[DeviceTables, ...]
    notices: tuple[Notice, ...]
