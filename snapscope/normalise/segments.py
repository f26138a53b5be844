"""The final picture: list of segment dicts → `SegmentTable` and `BlockTable` per device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from snapscope.errors import MalformedError
from snapscope.model import (
    UNKNOWN_BYTES,
    BlockState,
    BlockTable,
    SegmentTable,
    SizeClass,
)
from snapscope.normalise.columns import MAX_BYTES, Entry
from snapscope.normalise.events import PoolInterner, stream_of
from snapscope.normalise.interning import StackInterner, text_of
from snapscope.normalise.notices import NoticeLog

_SEGMENT_KEYS: Final = frozenset(
    (
        "device address total_size allocated_size active_size requested_size stream segment_type segment_pool_id "
        "is_expandable frames blocks registration_counter"
    ).split()
)
_BLOCK_KEYS: Final = frozenset(
    "address size requested_size state frames forward_frames history cpp_frames user_metadata gc_counter".split()
)
_STATES: Final = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING_FREE,
    # The name in PyTorch's docstrings, which no release writes.
    "active_awaiting_free": BlockState.PENDING_FREE,
    "inactive": BlockState.INACTIVE,
}
_ADDRESS_MASK: Final = (1 << 64) - 1
_MAX_TOTAL: Final = 1 << 62


class _SegmentRows:
    def __init__(self) -> None:
        self.segments: list[tuple[Any, ...]] = []
        self.blocks: list[tuple[Any, ...]] = []


def normalise_segments(
    segments: Sequence[Any],
    *,
    what: str,
    stacks: StackInterner,
    pools: PoolInterner,
    notices: NoticeLog,
    device: int | None = None,
) -> dict[int, tuple[SegmentTable, BlockTable]]:
    """Turn the segments into tables, one pair per device.

    Args:
        segments: the list from the file, untrusted.
        what: how to call it in messages.
        stacks, pools, notices: the snapshot's.
        device: file all under this device, whatever the entries say (pinned host memory).

    Raises:
        MalformedError: an entry has impossible values.
    """
    rows: dict[int, _SegmentRows] = {}
    unknown_keys: dict[str, int] = {}
    for position, segment in enumerate(segments):
        where = f"{what} {position}"
        if type(segment) is not dict:
            raise MalformedError(f"{where} is no dict")
        _count_unknown(segment, _SEGMENT_KEYS, unknown_keys)
        ordinal = device if device is not None else _ordinal(segment, where)
        of_device = rows.setdefault(ordinal, _SegmentRows())
        _add_segment(of_device, segment, where, stacks, pools, notices, unknown_keys)
    for name, count in sorted(unknown_keys.items())[:20]:
        notices.add("unknown_key", f"unknown segment or block key {name!r}, ignored", count=count)
    return {ordinal: _tables(of_device, f"device {ordinal}", notices) for ordinal, of_device in sorted(rows.items())}


def empty_segments() -> tuple[SegmentTable, BlockTable]:
    """Return tables without rows, for a device that holds no memory."""
    return _tables(_SegmentRows(), "", NoticeLog())


def _add_segment(
    rows: _SegmentRows,
    segment: Entry,
    where: str,
    stacks: StackInterner,
    pools: PoolInterner,
    notices: NoticeLog,
    unknown_keys: dict[str, int],
) -> None:
    blocks = segment.get("blocks", [])
    if not isinstance(blocks, (list, tuple)):
        raise MalformedError(f"{where}: 'blocks' is no list")
    address = _address(segment, where)
    total = _size(segment, "total_size", where, UNKNOWN_BYTES)
    first_block = len(rows.blocks)
    cursor = address
    active = allocated = 0
    for index, block in enumerate(blocks):
        if type(block) is not dict:
            raise MalformedError(f"{where}, block {index} is no dict")
        _count_unknown(block, _BLOCK_KEYS, unknown_keys)
        row = _block_row(block, cursor, len(rows.segments), f"{where}, block {index}", stacks, notices)
        # PyTorch 2.0 and profiler-made files have no block addresses: they are running sums.
        if row[0] != cursor:
            notices.add("block_gap", "blocks that don't touch their neighbour", num_bytes=abs(row[0] - cursor))
        cursor = row[0] + row[1]
        _check_end(cursor, f"{where}, block {index}")
        active += row[1] if row[3] != BlockState.INACTIVE else 0
        allocated += row[1] if row[3] == BlockState.ALLOCATED else 0
        rows.blocks.append(row)
    covered = sum(row[1] for row in rows.blocks[first_block:])
    if total == UNKNOWN_BYTES:
        total = covered
    elif blocks and covered != total:
        notices.add("block_sum", "segments whose blocks don't add up to their size", num_bytes=abs(covered - total))
    _check_end(address + total, where)
    recorded_allocated = _size(segment, "allocated_size", where, UNKNOWN_BYTES)
    recorded_active = _size(segment, "active_size", where, UNKNOWN_BYTES)
    for recorded, summed, name in (
        (recorded_allocated, allocated, "allocated_size"),
        (recorded_active, active, "active_size"),
    ):
        if recorded not in (UNKNOWN_BYTES, summed):
            notices.add("segment_counter", f"segments whose {name} differs from the sum of their blocks",
                        num_bytes=abs(recorded - summed))  # fmt: skip
    rows.segments.append(
        (
            address,
            total,
            stream_of(segment.get("stream", 0)),
            {"small": SizeClass.SMALL, "large": SizeClass.LARGE}.get(
                text_of(segment.get("segment_type")), SizeClass.UNKNOWN
            ),
            # Before pools were recorded (PyTorch 2.1) nearly everything was the default pool.
            pools.number(segment.get("segment_pool_id", (0, 0))),
            segment.get("is_expandable") is True,
            stacks.number(segment.get("frames")),
            recorded_allocated,
            recorded_active,
            first_block,
            len(blocks),
        )
    )


def _block_row(
    block: Entry, cursor: int, segment: int, where: str, stacks: StackInterner, notices: NoticeLog
) -> tuple[int, int, int, int, int, int]:
    address = _address(block, where) if "address" in block else cursor
    size = _size(block, "size", where, 0)
    state = _STATES.get(text_of(block.get("state")))
    if state is None:
        notices.add("unknown_state", f"block state {text_of(block.get('state'))[:60]!r} counts as inactive",
                    num_bytes=size)  # fmt: skip
        state = BlockState.INACTIVE
    requested = UNKNOWN_BYTES
    frames = block.get("frames")
    if state != BlockState.INACTIVE:
        requested = _size(block, "requested_size", where, UNKNOWN_BYTES)
        history = block.get("history")
        if isinstance(history, list) and history and type(history[0]) is dict:
            # PyTorch 1.13 and 2.0: newest first; `real_size` is what was asked for.
            frames = history[0].get("frames", frames)
            if requested == UNKNOWN_BYTES:
                requested = _size(history[0], "real_size", where, UNKNOWN_BYTES)
        if requested > size:
            notices.add("requested_above_size", "blocks smaller than what was asked for", num_bytes=requested - size)
            requested = size
    return address, size, requested, state, stacks.number(frames), segment


def _tables(rows: _SegmentRows, what: str, notices: NoticeLog) -> tuple[SegmentTable, BlockTable]:
    order = sorted(range(len(rows.segments)), key=lambda row: rows.segments[row][0])
    place = {old: new for new, old in enumerate(order)}
    segments = [rows.segments[old] for old in order]
    blocks: list[tuple[Any, ...]] = []
    for new, old in enumerate(order):
        row = rows.segments[old]
        first = len(blocks)
        blocks.extend(rows.blocks[row[9] : row[9] + row[10]])
        segments[new] = (*row[:9], first, row[10])
    columns = list(zip(*segments, strict=True)) or [()] * 11
    segment_types = (np.uint64, np.int64, np.int64, np.int8, np.int32, np.bool_, np.int32) + (np.int64,) * 4
    segment_names = (
        "addr size_bytes stream size_class pool is_expandable stack allocated_bytes active_bytes first_block num_blocks"
    ).split()
    table = SegmentTable(
        **{n: np.array(c, dtype=t) for n, c, t in zip(segment_names, columns, segment_types, strict=True)}
    )
    if table.size_bytes.sum(dtype=np.float64) > _MAX_TOTAL or sum(row[1] for row in blocks) > _MAX_TOTAL:
        raise MalformedError(f"{what}: the sizes add up to an absurd total")
    if len(table) > 1:
        ends = table.addr[:-1] + table.size_bytes[:-1].astype(np.uint64)
        overlap = ends > table.addr[1:]
        notices.add("segment_overlap", f"{what}: segments that overlap", count=int(overlap.sum()),
                    num_bytes=int((ends - table.addr[1:])[overlap].sum()))  # fmt: skip
    block_columns = list(zip(*blocks, strict=True)) or [()] * 6
    block_types = (np.uint64, np.int64, np.int64, np.int8, np.int32, np.int32)
    block_names = "addr size_bytes requested_bytes state stack segment".split()
    named = {n: np.array(c, dtype=t) for n, c, t in zip(block_names, block_columns, block_types, strict=True)}
    if len(blocks):
        lookup = np.array([place[old] for old in range(len(place))], np.int32)
        named["segment"] = lookup[named["segment"]]
    return table, BlockTable(**named)


def _ordinal(segment: Entry, where: str) -> int:
    ordinal = segment.get("device", 0)
    if type(ordinal) is not int or not 0 <= ordinal < 1 << 20:
        raise MalformedError(f"{where}: 'device' is no device number")
    return ordinal


def _address(entry: Entry, where: str) -> int:
    value = entry.get("address")
    if type(value) is not int or not -(1 << 63) <= value <= _ADDRESS_MASK:
        raise MalformedError(f"{where}: 'address' is no 64-bit integer")
    return value & _ADDRESS_MASK


def _check_end(end: int, where: str) -> None:
    # Ends of ranges are computed in 64 bits later on: nothing may wrap around.
    if end > _ADDRESS_MASK:
        raise MalformedError(f"{where} ends beyond 64 bits of address")


def _size(entry: Entry, key: str, where: str, default: int) -> int:
    value = entry.get(key, default)
    if value is None:
        return default
    if type(value) is not int or not (value == default or 0 <= value <= MAX_BYTES):
        raise MalformedError(f"{where}: {key!r} is an impossible size")
    return value


def _count_unknown(entry: Entry, known: frozenset[str], counts: dict[str, int]) -> None:
    if not entry.keys() <= known:
        for key in entry.keys() - known:
            name = text_of(key)[:60]
            counts[name] = counts.get(name, 0) + 1
