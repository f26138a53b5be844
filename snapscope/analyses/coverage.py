"""Coverage: what this file can tell, and how to record one that tells more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.lifetimes import Context
from snapscope.model import NO_TIME, Action, BlockState
from snapscope.replay import BEFORE
from snapscope.sites import FrameKind
from snapscope.units import MIB, count_of

RECORD_LINE: Final = "torch.cuda.memory._record_memory_history(max_entries=1_000_000)"
_ROUND: Final = 1000
DUMP_LINE: Final = 'torch.cuda.memory._dump_snapshot("snap.pickle")'


class Head(str, Enum):
    """What became of the beginning of the history."""

    COMPLETE = "complete"
    STARTS_LATE = "starts_late"
    LOST = "lost"
    NO_HISTORY = "no_history"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What one device's part of the file covers.

    Attributes:
        head: `complete` where nothing is older than the history; `lost` where recorded
            events were overwritten (a final block has a stack but no alloc event);
            `starts_late` where recording began with memory in use.
        head_evidence: the sentence that says why.
        num_events: events of this device.
        start_time_us, end_time_us: span of the history, None where unknown.
        before_bytes, num_before: requested bytes older than the history, at its start.
        context: what context was recorded.
        has_python_stacks, has_cpp_stacks: which frames occur.
        missing_actions: kinds of events that never occur although they should.
        live_bytes: requested bytes live at the end.
        explained_bytes: of these, with an alloc event.
        stack_bytes: of these, with a stack.
        before_stack_bytes: of these, with a stack but older than the history.
        freed_before_bytes: older than the history and freed within it.
        other_devices: (device, events, reserved bytes) of the other devices that hold
            anything.
        advice: lines of Python that would record it better; empty where nothing is missing.
    """

    head: Head
    head_evidence: str
    num_events: int
    start_time_us: int | None
    end_time_us: int | None
    before_bytes: int
    num_before: int
    context: Context
    has_python_stacks: bool
    has_cpp_stacks: bool
    missing_actions: tuple[str, ...]
    live_bytes: int
    explained_bytes: int
    stack_bytes: int
    before_stack_bytes: int
    freed_before_bytes: int
    other_devices: tuple[tuple[int, int, int], ...]
    advice: tuple[str, ...]


def find_coverage(history: DeviceHistory) -> Coverage:
    """Tell what the file covers of this device's life."""
    events, lifetimes = history.tables.events, history.lifetimes
    num_events = len(events)
    is_before = lifetimes.birth_event == BEFORE
    live = lifetimes.live_at(num_events - 1)
    sizes = lifetimes.requested_bytes[live]
    born = lifetimes.birth_event[live] != BEFORE
    has_stack = lifetimes.alloc_stack[live] > 0
    head, evidence = find_head(history)
    missing = _missing_actions(history)
    python, cpp = _stack_kinds(history)
    has_times = num_events > 0 and int(events.time_us[0]) != NO_TIME
    return Coverage(
        head=head,
        head_evidence=evidence,
        num_events=num_events,
        start_time_us=int(events.time_us[0]) if has_times else None,
        end_time_us=int(events.time_us[-1]) if has_times else None,
        before_bytes=int(history.totals.requested_bytes[0] + history.totals.pending_requested_bytes[0]),
        num_before=int(is_before.sum()),
        context=history.context,
        has_python_stacks=python,
        has_cpp_stacks=cpp,
        missing_actions=missing,
        live_bytes=int(sizes.sum()),
        explained_bytes=int(sizes[born].sum()),
        stack_bytes=int(sizes[has_stack].sum()),
        before_stack_bytes=int(sizes[has_stack & ~born].sum()),
        freed_before_bytes=int(lifetimes.requested_bytes[is_before & (lifetimes.free_completed_event >= 0)].sum()),
        other_devices=_other_devices(history),
        advice=_advice(head, history.context, missing),
    )


def find_head(history: DeviceHistory) -> tuple[Head, str]:
    """Tell what became of the beginning of the history, and by what evidence, strongest first."""
    lifetimes = history.lifetimes
    num_events = history.num_events
    if not num_events:
        return Head.NO_HISTORY, "the file has no events of this device"
    if num_events == 1:
        return Head.NO_HISTORY, 'one event only, as recorded with enabled="state"'
    if history.snapshot.settings.raw.get("trace_alloc_overflowed") is True:
        return Head.LOST, "PyTorch says that its ring of events overflowed"
    is_before = lifetimes.birth_event == BEFORE
    if not is_before.any():
        return Head.COMPLETE, "nothing is older than the first event"
    recorded = is_before & (lifetimes.final_block >= 0)
    blocks = history.tables.blocks
    with_stack = int((blocks.stack[lifetimes.final_block[recorded]] > 0).sum())
    if with_stack and history.context is not Context.STATE and num_events > 1:
        return Head.LOST, (
            f"the allocs of {count_of(with_stack, 'block')} were recorded, but are gone: overwritten in a ring "
            f"of {num_events:,} events, or cleared"
        )
    if num_events % _ROUND == 0:
        return Head.LOST, f"the history holds exactly {num_events:,} events, as a full ring does"
    return Head.STARTS_LATE, "recording began with memory in use"


def _missing_actions(history: DeviceHistory) -> tuple[str, ...]:
    """Name actions that never occur although the rest of the file implies them."""
    counts = np.bincount(history.tables.events.action, minlength=len(Action))
    if history.num_events < 2:
        return ()
    missing = []
    num_allocs, num_requests, num_frees = (
        int(counts[a]) for a in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    )
    waiting = (history.tables.blocks.state == BlockState.PENDING_FREE).any()
    if num_requests and not num_frees and not waiting:
        missing.append("free_completed")
    if num_frees and not num_requests:
        missing.append("free_requested")
    if not num_allocs and (num_requests or num_frees) and history.num_events > 100:
        missing.append("alloc")
    if num_allocs and not num_requests and not num_frees:
        gone = (history.lifetimes.final_block < 0).sum()
        missing += ["free_requested", "free_completed"] if gone else []
    if any(notice.code == "segment_conflict" for notice in history.notices):
        missing.append("some segment events")
    return tuple(missing)


def _stack_kinds(history: DeviceHistory) -> tuple[bool, bool]:
    stacks = np.unique(history.lifetimes.alloc_stack)
    table = history.snapshot.stacks
    frames = np.unique(np.concatenate([table.frames_of(s) for s in stacks.tolist()] or [table.stack_frames[:0]]))
    kinds = {history.sites.kind_of(frame) for frame in frames.tolist()}
    return any(kind < FrameKind.CPP for kind in kinds), FrameKind.CPP in kinds


def _other_devices(history: DeviceHistory) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (tables.device, len(tables.events), tables.reserved_bytes)
        for tables in history.snapshot.devices
        if tables.device != history.device and (len(tables.events) or tables.reserved_bytes)
    )


def _advice(head: Head, context: Context, missing: tuple[str, ...]) -> tuple[str, ...]:
    lines = []
    if head in (Head.NO_HISTORY, Head.STARTS_LATE):
        lines.append(f"{RECORD_LINE}  # first thing in the program, before the model")
        if head is Head.NO_HISTORY:
            lines.append(f"{DUMP_LINE}  # while recording is still on: disabling clears the history")
    if head is Head.LOST:
        lines.append("torch.cuda.memory._record_memory_history(max_entries=1_000_000)  # a larger ring than now")
    if head is not Head.NO_HISTORY and context in (Context.NONE, Context.STATE):
        lines.append('torch.cuda.memory._record_memory_history(context="all")  # stacks of allocs and frees')
    if missing:
        lines.append("torch.cuda.memory._record_memory_history(skip_actions=None)  # record every kind of event")
    return tuple(lines)


def explained_share(coverage: Coverage) -> str:
    """Say how much of the memory live at the end the alloc events explain."""
    share = 100 * coverage.explained_bytes / coverage.live_bytes if coverage.live_bytes else 100.0
    return (
        f"alloc events explain {coverage.explained_bytes // MIB:,} MiB of {coverage.live_bytes // MIB:,} MiB live "
        f"({share:.1f}%)"
    )
