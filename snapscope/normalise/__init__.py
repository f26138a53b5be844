"""RawSnapshot → Snapshot: every PyTorch version's differences end here.

Values are checked once, in this package; later stages trust the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from snapscope.errors import HostileError, InputError, MalformedError
from snapscope.escaping import escape
from snapscope.load import EventColumns, RawSnapshot
from snapscope.model import HOST_DEVICE, AnnotationTable, DeviceTables, EventTable, Snapshot, Stage
from snapscope.normalise.columns import integers
from snapscope.normalise.events import PoolInterner, normalise_trace
from snapscope.normalise.interning import Interner, StackInterner, text_of
from snapscope.normalise.notices import NoticeLog
from snapscope.normalise.segments import empty_segments, normalise_segments
from snapscope.normalise.settings import normalise_settings
from snapscope.normalise.version import find_format

__all__ = ["normalise"]

_MAX_DEVICES: Final = 4096
_KNOWN_KEYS: Final = frozenset(
    "segments device_traces allocator_settings external_annotations host_segments host_traces".split()
)


def normalise(raw: RawSnapshot) -> Snapshot:
    """Turn what was read into columnar tables.

    Args:
        raw: the unwrapped snapshot; it may be dropped afterwards.

    Raises:
        MalformedError: an entry has an impossible type or value.
        HostileError: shared parts blow the snapshot up beyond what its bytes can hold.
    """
    try:
        return _normalise(raw)
    except InputError as error:
        raise type(error)(f"{escape(raw.source.name, limit=300)}: {error}") from None


def _normalise(raw: RawSnapshot) -> Snapshot:
    notices = NoticeLog(raw.notices)
    is_list = isinstance(raw.value, list)
    value: dict[str, Any] = {"segments": raw.value} if isinstance(raw.value, list) else raw.value
    segments = _list_of(value, "segments")
    traces = _list_of(value, "device_traces")
    host_segments = _list_of(value, "host_segments")
    host_traces = _list_of(value, "host_traces")
    _check_counts([segments, host_segments], [*traces, host_traces, *_nested(host_traces)], raw.stream_bytes)
    for key in value:
        if key not in _KNOWN_KEYS:
            notices.add("unknown_key", f"unknown top-level key {text_of(key)[:60]!r}, ignored")

    stacks = StackInterner(by_identity=raw.source.encoding == "pickle")
    pools = PoolInterner()
    shared: dict[str, Any] = {"stacks": stacks, "pools": pools, "notices": notices}
    tables = normalise_segments(segments, what="segment", **shared)
    events: dict[int, EventTable] = {}
    for ordinal, trace in enumerate(traces):
        if not isinstance(trace, (list, EventColumns)):
            raise MalformedError(f"device_traces[{ordinal}] is no list")
        events[ordinal] = normalise_trace(trace, what=f"trace of device {ordinal}", **shared)
    if len(tables.keys() | events.keys()) > _MAX_DEVICES:
        raise MalformedError(f"an absurd number of devices ({len(tables.keys() | events.keys())})")
    if host_segments or host_traces:
        tables |= normalise_segments(host_segments, what="host segment", device=HOST_DEVICE, **shared)
        # PyTorch 2.14 writes one flat list; a list of lists would follow device_traces.
        events[HOST_DEVICE] = normalise_trace(_flat(host_traces), what="host trace", **shared)

    annotations = _annotations(_list_of(value, "external_annotations"), stacks.strings, notices)
    _note_oddities(stacks, pools, notices)
    stack_table = stacks.table()
    format_facts = find_format(value, is_list=is_list, segments=segments, strings=stack_table.strings)
    settings = normalise_settings(value.get("allocator_settings"), backend=format_facts.backend, notices=notices)
    return Snapshot(
        source=raw.source,
        format=format_facts,
        settings=settings,
        stacks=stack_table,
        pools=pools.freeze(),
        annotations=annotations,
        devices=tuple(_devices(tables, events, shared)),
        notices=notices.freeze(),
    )


def _flat(traces: list[Any]) -> list[Any] | EventColumns:
    # Where the reader made columns of a trace, it is the only one.
    if len(traces) == 1 and isinstance(traces[0], EventColumns):
        return traces[0]
    return [event for trace in traces for event in (trace if isinstance(trace, list) else (trace,))]


def _list_of(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if found is None:
        return []
    if isinstance(found, EventColumns):
        return [found]
    if not isinstance(found, (list, tuple)):
        raise MalformedError(f"{key!r} is no list (a {type(found).__name__})")
    return list(found)


def _nested(traces: Sequence[Any]) -> list[Any]:
    return [trace for trace in traces if isinstance(trace, (list, EventColumns))]


def _check_counts(segment_lists: Sequence[list[Any]], traces: Sequence[Any], stream_bytes: int) -> None:
    """Refuse more entries than the file has bytes for.

    A pickle can refer to one list a million times in two bytes each; a real snapshot
    shares frames only, and every event and block costs dozens of bytes.
    """
    num_entries = sum(len(trace) for trace in traces if isinstance(trace, (list, EventColumns)))
    for segments in segment_lists:
        num_entries += len(segments)
        for segment in segments:
            blocks = segment.get("blocks") if type(segment) is dict else None
            num_entries += len(blocks) if isinstance(blocks, (list, tuple)) else 0
    if num_entries > max(stream_bytes, 64):
        raise HostileError(f"claims {num_entries:,} events and blocks in {stream_bytes:,} bytes: refused")


def _annotations(raw: list[Any], strings: Interner, notices: NoticeLog) -> AnnotationTable:
    entries = [entry for entry in raw if type(entry) is dict]
    notices.add("bad_annotation", "annotations that are no dict: ignored", count=len(raw) - len(entries))
    staged = [entry for entry in entries if entry.get("stage") in ("START", "END")]
    notices.add("bad_annotation", "annotations without START or END: ignored", count=len(entries) - len(staged))
    device = integers(staged, "device", -1, "annotation")
    time_us = integers(staged, "time_us", -1, "annotation")
    if len(device) and (device.max() >= 1 << 31 or device.min() < -(1 << 31)):
        raise MalformedError("annotation: 'device' is no device number")
    return AnnotationTable(
        name=np.array([strings[text_of(entry.get("name"))] for entry in staged], np.int32),
        stage=np.array([Stage.START if entry["stage"] == "START" else Stage.END for entry in staged], np.int8),
        device=device.astype(np.int32),
        time_us=time_us,
    )


def _note_oddities(stacks: StackInterner, pools: PoolInterner, notices: NoticeLog) -> None:
    notices.add("bad_frame", "frames that are no frames", count=stacks.num_bad_frames)
    notices.add("unknown_key", "unknown frame keys, ignored", count=stacks.num_unknown_frame_keys)
    notices.add("bad_pool_id", "pool ids that are no pair of numbers", count=pools.num_bad)


def _devices(tables: dict[int, Any], events: dict[int, EventTable], shared: dict[str, Any]) -> list[DeviceTables]:
    # Pinned host memory comes last. A snapshot without any device still answers "nothing".
    ordinals = sorted((tables.keys() | events.keys()) or {0}, key=lambda ordinal: (ordinal == HOST_DEVICE, ordinal))
    devices = []
    for ordinal in ordinals:
        segments, blocks = tables.get(ordinal) or empty_segments()
        trace = events.get(ordinal)
        if trace is None:
            trace = normalise_trace([], what=f"trace of device {ordinal}", **shared)
        devices.append(DeviceTables(device=ordinal, events=trace, segments=segments, blocks=blocks))
    return devices
