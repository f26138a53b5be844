"""Poorer recordings made from rich ones: what PyTorch would have written with less context, or at another moment.

    python   C++ frames removed: stacks="python"
    alloc    every free has the stack of its allocation: context="alloc"
    cut      the first half of the history is lost
    peak     dumped at the peak
    none     no stacks: context=None
    state    stacks on the blocks of the final picture only: context="state"

Snapshots are changed as they were read; nothing is written, and what is left is shared with the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.lifetimes import Context
from snapscope.load import RawSnapshot
from snapscope.model import NO_TIME, SizeClass
from snapscope.normalise import normalise
from snapscope.replay import BEFORE
from tests.accuracy.score import peak_event

Entry = dict[str, Any]

_CONFLICTS: Final = frozenset(("replay_conflict", "segment_conflict"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripped:
    """A poorer recording, and which of the original's events are left.

    Attributes:
        history: of the same device.
        first_event: index in the original of its first event.
        end_event: index in the original of the first event after its last.
    """

    history: DeviceHistory
    first_event: int
    end_event: int


def strip(raw: RawSnapshot, whole: DeviceHistory, variant: str) -> Stripped | None:
    """Make a variant of a recording; None where it would be no other, or can't be told from the file.

    Args:
        raw: the recording as read; unchanged.
        whole: the history of the device in question.
        variant: a key of `VARIANTS`.
    """
    if not isinstance(raw.value, dict) or not whole.num_events:
        return None
    changed = VARIANTS[variant].make(raw.value, whole)
    if changed is None:
        return None
    first = whole.num_events // 2 if variant == "cut" else 0
    history = DeviceHistory(normalise(replace(raw, value=changed)), whole.device)
    return Stripped(history=history, first_event=first, end_event=first + history.num_events)


def conflicts_of(whole: DeviceHistory, stripped: Stripped) -> list[str]:
    """Say where a stripped recording replays in another way than the original did."""
    part, first = stripped.history, stripped.first_event
    found = {notice.code for notice in part.notices} - {notice.code for notice in whole.notices}
    problems = sorted(found & _CONFLICTS)
    window = slice(first, stripped.end_event + 1)
    for name in ("requested_bytes", "pending_requested_bytes", "reserved_bytes"):
        if not np.array_equal(getattr(part.totals, name), getattr(whole.totals, name)[window]):
            problems.append(name)
    unsure = int(np.count_nonzero(~part.blocks.is_exact)) + int(np.count_nonzero(~whole.blocks.is_exact))
    error = np.abs(part.block_totals.allocated_bytes - whole.block_totals.allocated_bytes[window]).max()
    # A block size that is an estimate, and said to be one, is off by 1 MiB at most.
    if error > unsure << 20:
        problems.append("allocated_bytes")
    return problems


# -- fewer frames ---------------------------------------------------------------------------------


def _python_only(value: Entry, whole: DeviceHistory) -> Entry | None:
    del whole
    kept: dict[int, list[Any]] = {}
    has_cpp = False

    def shorten(frames: list[Any]) -> list[Any]:
        # One object for one list, as in the original: PyTorch shares them.
        nonlocal has_cpp
        found = kept.get(id(frames))
        if found is None:
            found = kept[id(frames)] = [frame for frame in frames if _is_python(frame)]
            has_cpp = has_cpp or len(found) < len(frames)
        return found

    changed = _with_frames(value, shorten, in_events=True, in_segments=True)
    return changed if has_cpp else None


def _is_python(frame: Entry) -> bool:
    file: str = frame["filename"]
    return file.endswith(".py") or file.startswith("<")


def _no_stacks(value: Entry, whole: DeviceHistory) -> Entry | None:
    if whole.context is Context.NONE:
        return None
    return _with_frames(value, lambda _: None, in_events=True, in_segments=True)


def _state_only(value: Entry, whole: DeviceHistory) -> Entry | None:
    if whole.context in (Context.NONE, Context.STATE):
        return None
    return _with_frames(value, lambda _: None, in_events=True, in_segments=False)


def _with_frames(
    value: Entry, change: Callable[[list[Any]], list[Any] | None], *, in_events: bool, in_segments: bool
) -> Entry:
    """Return a snapshot whose frames have gone through `change`; None takes an event's key away."""

    def of_event(event: Entry) -> Entry:
        frames = change(event["frames"]) if "frames" in event else None
        rest = {key: part for key, part in event.items() if key not in ("frames", "forward_frames")}
        return rest if frames is None else {**rest, "frames": frames}

    def of_block(block: Entry) -> Entry:
        out = {key: part for key, part in block.items() if key != "forward_frames"}
        if "frames" in block:
            out["frames"] = change(block["frames"]) or []
        if "history" in block:
            # PyTorch 2.0: a list of dicts with frames; without recording there is no such key.
            history = [_changed_item(item, change) for item in block["history"]]
            if any(item.get("frames") for item in history):
                out["history"] = history
            else:
                del out["history"]
        return out

    def of_segment(segment: Entry) -> Entry:
        out = {**segment, "blocks": [of_block(block) for block in segment["blocks"]]}
        if "frames" in segment:
            out["frames"] = change(segment["frames"]) or []
        return out

    out = dict(value)
    if in_events:
        out["device_traces"] = [[of_event(event) for event in trace] for trace in value["device_traces"]]
        if "host_traces" in value:
            out["host_traces"] = [of_event(event) for event in value["host_traces"] if isinstance(event, dict)]
    if in_segments:
        out["segments"] = [of_segment(segment) for segment in value["segments"]]
    return out


def _changed_item(item: Entry, change: Callable[[list[Any]], list[Any] | None]) -> Entry:
    return {**item, "frames": change(item["frames"]) or []} if "frames" in item else item


def _alloc_stacks(value: Entry, whole: DeviceHistory) -> Entry | None:
    if whole.context is not Context.ALL:
        return None
    trace = list(value["device_traces"][whole.device])
    pairing = whole.pairing
    columns = (pairing.birth_event, pairing.free_requested_event, pairing.free_completed_event)
    for birth, *frees in zip(*(column.tolist() for column in columns), strict=True):
        # What is older than the history has lost its stack with its alloc.
        frames = trace[birth].get("frames") if birth >= 0 else None
        for free in frees:
            if free >= 0:
                rest = {key: part for key, part in trace[free].items() if key != "frames"}
                trace[free] = rest if frames is None else {**rest, "frames": frames}
    return _with_trace(value, whole.device, trace)


def _with_trace(value: Entry, device: int, trace: list[Entry]) -> Entry:
    traces = list(value["device_traces"])
    traces[device] = trace
    return {**value, "device_traces": traces}


# -- a shorter history ----------------------------------------------------------------------------


def _cut_head(value: Entry, whole: DeviceHistory) -> Entry | None:
    num_lost = whole.num_events // 2
    if not num_lost:
        return None
    changed = _with_trace(value, whole.device, value["device_traces"][whole.device][num_lost:])
    begin = int(whole.tables.events.time_us[num_lost])
    return _with_annotations(changed, lambda time_us: begin == NO_TIME or time_us >= begin)


def _with_annotations(value: Entry, is_kept: Callable[[int], bool]) -> Entry:
    if "external_annotations" not in value:
        return value
    kept = [entry for entry in value["external_annotations"] if is_kept(entry["time_us"])]
    return {**value, "external_annotations": kept}


def _dump_at_peak(value: Entry, whole: DeviceHistory) -> Entry | None:
    peak = peak_event(whole)
    if peak < 0 or whole.context is Context.STATE:
        # Where only final blocks have stacks, those of the blocks at the peak are lost.
        return None
    changed = _with_trace(value, whole.device, value["device_traces"][whole.device][: peak + 1])
    others = [segment for segment in value["segments"] if segment.get("device", 0) != whole.device]
    changed["segments"] = [*others, *_picture(value, whole, peak)]
    end = int(whole.tables.events.time_us[peak])
    return _with_annotations(changed, lambda time_us: end == NO_TIME or time_us <= end)


@dataclass(slots=True)
class _Piece:
    """A reserved range, and the entry of the file that tells its stack."""

    start: int
    end: int
    facts: Entry
    frames: list[Any]


def _picture(value: Entry, whole: DeviceHistory, event: int) -> list[Entry]:
    """Rebuild the segments of a device as they were after an event."""
    trace = value["device_traces"][whole.device]
    finals = [segment for segment in value["segments"] if segment.get("device", 0) == whole.device]
    pieces = _pieces(whole, event, trace, finals)
    blocks = _blocks(whole, event, trace, finals)
    segment_keys = set().union(*finals) or {"device", "address", "total_size", "blocks"}
    out, place = [], 0
    for piece in pieces:
        inside: list[Entry] = []
        cursor = piece.start
        while place < len(blocks) and blocks[place]["address"] < piece.end:
            block = blocks[place]
            place += 1
            if block["address"] < cursor:
                continue
            if block["address"] > cursor:
                inside.append(_hole(cursor, block["address"]))
            inside.append(block)
            cursor = block["address"] + block["size"]
        if cursor < piece.end:
            inside.append(_hole(cursor, piece.end))
        active = [block for block in inside if block["state"] != "inactive"]
        segment = {
            **piece.facts,
            "device": whole.device,
            "address": piece.start,
            "total_size": piece.end - piece.start,
            "allocated_size": _sum(active, "size", "active_allocated"),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "frames": piece.frames,
            "blocks": [_in_style(block, finals) for block in inside],
        }
        out.append({key: part for key, part in segment.items() if key in segment_keys})
    return out


def _sum(blocks: Iterable[Entry], key: str, state: str) -> int:
    return sum(block[key] for block in blocks if block["state"] == state)


def _hole(start: int, end: int) -> Entry:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


def _in_style(block: Entry, finals: list[Entry]) -> Entry:
    """Write a block as the file's PyTorch does: 2.0 has a history and no addresses."""
    sample: Entry | None = next((item for segment in finals for item in segment["blocks"]), None)
    if sample is None or "address" in sample:
        return block
    out = {key: block[key] for key in ("size", "requested_size", "state")}
    if block["state"] != "inactive" and block["frames"]:
        item = {"addr": block["address"], "real_size": block["requested_size"], "frames": block["frames"]}
        out["history"] = [item]
    return out


def _pieces(whole: DeviceHistory, event: int, trace: list[Entry], finals: list[Entry]) -> list[_Piece]:
    """Return what was reserved, by address; touching pieces of an expandable segment are one."""
    ranges, pools = whole.ranges, whole.snapshot.pools
    out: list[_Piece] = []
    for row in ranges.at(event).tolist():
        start = int(ranges.addr[row])
        end = start + int(ranges.size_bytes[row])
        facts = {
            "stream": int(ranges.stream[row]),
            "segment_type": "small" if ranges.size_class[row] == SizeClass.SMALL else "large",
            "segment_pool_id": pools[max(int(ranges.pool[row]), 0)],
            "is_expandable": bool(ranges.is_expandable[row]),
        }
        if out and facts["is_expandable"] and out[-1].end == start and out[-1].facts == facts:
            out[-1].end = end
            continue
        birth = int(ranges.birth_event[row])
        segment = next((s for s in finals if s["address"] <= start < s["address"] + s["total_size"]), None)
        source = trace[birth] if birth != BEFORE else segment or {}
        out.append(_Piece(start=start, end=end, facts=facts, frames=source.get("frames", [])))
    return out


def _blocks(whole: DeviceHistory, event: int, trace: list[Entry], finals: list[Entry]) -> list[Entry]:
    """Return the blocks that were live or pending, by address, with the stacks they would have had."""
    lifetimes, final = whole.lifetimes, _final_frames(finals)
    out = []
    for rows, state in (
        (lifetimes.live_at(event), "active_allocated"),
        (lifetimes.pending_at(event), "active_pending_free"),
    ):
        for row in rows.tolist():
            addr, birth = int(lifetimes.addr[row]), int(lifetimes.birth_event[row])
            frames = trace[birth].get("frames", []) if birth >= 0 else []
            if birth < 0 and lifetimes.final_block[row] >= 0:
                frames = final.get(addr, [])
            size, requested = int(whole.blocks.block_bytes[row]), int(lifetimes.requested_bytes[row])
            out.append({"address": addr, "size": size, "requested_size": requested, "state": state, "frames": frames})
    return sorted(out, key=lambda block: block["address"])


def _final_frames(finals: list[Entry]) -> dict[int, list[Any]]:
    frames = {}
    for segment in finals:
        cursor = segment["address"]
        for block in segment["blocks"]:
            last: Entry = next(iter(block.get("history") or ()), {})
            frames[block.get("address", cursor)] = block.get("frames") or last.get("frames") or []
            cursor = block.get("address", cursor) + block["size"]
    return frames


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to strip a recording, and how to say it."""

    text: str
    make: Callable[[Entry, DeviceHistory], Entry | None]


VARIANTS: Final = {
    "python": Variant("C++ frames removed", _python_only),
    "alloc": Variant('free stacks replaced by the allocation\'s (`context="alloc"`)', _alloc_stacks),
    "cut": Variant("first half of the history cut", _cut_head),
    "peak": Variant("dumped at the peak", _dump_at_peak),
    "none": Variant("no stacks (`context=None`)", _no_stacks),
    "state": Variant('stacks only on final blocks (`context="state"`)', _state_only),
}
"""The variants by name."""
