"""Pairing: which alloc, free_requested and free_completed belong to one allocation.

Vectorised, since it is needed on every open. An address is reused all the time, so the
events of one address are walked in order and cut into lives:

    alloc [free_requested] [free_completed]       a life within the trace
    free_requested [free_completed] (first at its address)   older than the history
    free_completed (first at its address)         older, and already pending at the start

Rules and odd cases: PyTorch's `_memory_viz` and `MemoryViz.js` disagree on them; ours
are written down in docs/explanation/replay.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from snapscope.model import (
    NO_STACK,
    UNKNOWN_BYTES,
    UNKNOWN_POOL,
    Action,
    AddressColumn,
    BlockState,
    BoolColumn,
    DeviceTables,
    Int32Column,
    Int64Column,
    Notice,
)

BEFORE: Final = -1
"""`birth_event` of an allocation older than the history."""

NEVER: Final = -1
"""A free that didn't happen within the history."""

REQUESTED_BEFORE: Final = -2
"""`free_requested_event` of a block that was already waiting when the history began."""

_MAX_OVERLAP_SEARCHES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Columns of one row per allocation, sorted by birth (older than the history first).

    Attributes:
        addr: start address.
        requested_bytes: what the code asked for; the block's size where unknown.
        birth_event: index of the alloc, or `BEFORE`.
        free_requested_event: index, `NEVER` or `REQUESTED_BEFORE`.
        free_completed_event: index, or `NEVER`.
        final_block: row in the block table of what is still active at the end, else -1.
        stream, pool: of the block.
        alloc_stack, free_stack: stacks; `NO_STACK` where nothing is known.
        notices: what didn't fit together.
    """

    addr: AddressColumn
    requested_bytes: Int64Column
    birth_event: Int64Column
    free_requested_event: Int64Column
    free_completed_event: Int64Column
    final_block: Int64Column
    stream: Int64Column
    pool: Int32Column
    alloc_stack: Int32Column
    free_stack: Int32Column
    notices: tuple[Notice, ...]


def pair_events(tables: DeviceTables) -> Pairing:
    """Cut the trace of one device into allocations, and tie them to the final blocks.

    The final picture wins: after the last event exactly the blocks that are active in
    `segments` are alive. Where trace and picture disagree (skipped actions, a ring that
    was cleared, or threads that went on between the two copies PyTorch makes), the
    difference takes effect at the last event and becomes a notice.
    """
    events = tables.events
    num_events = len(events)
    index = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
    order = index[np.argsort(events.addr[index], kind="stable")]
    action = events.action[order].astype(np.int64)
    addr = events.addr[order]
    num = len(order)

    is_same = np.zeros(num, bool)
    is_same[1:] = addr[1:] == addr[:-1]
    before = np.full(num, -1, np.int64)
    before[1:] = action[:-1]
    before[~is_same] = -1
    # A free continues a life if it follows its alloc, or completes a request.
    continues = ((action == Action.FREE_REQUESTED) & (before == Action.ALLOC)) | (
        (action == Action.FREE_COMPLETED) & ((before == Action.ALLOC) | (before == Action.FREE_REQUESTED))
    )
    first = np.flatnonzero(~continues)
    length = np.diff(np.append(first, num))
    last = first + length - 1

    has_alloc = action[first] == Action.ALLOC
    has_completed = action[last] == Action.FREE_COMPLETED
    is_request_first = action[first] == Action.FREE_REQUESTED
    request_at = np.where(is_request_first, first, np.minimum(first + 1, num - 1))
    has_request = is_request_first | (
        has_alloc & (length > 1) & (action[request_at] == Action.FREE_REQUESTED if num else False)
    )

    birth = np.where(has_alloc, order[first], BEFORE)
    completed = np.where(has_completed, order[last], NEVER)
    requested = np.where(has_request, order[request_at] if num else 0, NEVER)
    # skip_actions=["free_requested"]: the completion is all there is.
    requested = np.where(has_alloc & ~has_request & has_completed, completed, requested)
    requested = np.where(~has_alloc & ~has_request, REQUESTED_BEFORE, requested)

    notices: list[Notice] = []
    has_next = np.zeros(len(first), bool)
    has_next[:-1] = is_same[first[1:]]
    has_previous = np.zeros(len(first), bool)
    has_previous[1:] = is_same[first[1:]]
    next_first = np.append(order[first[1:]], 0)
    size = events.size_bytes[order[first]]

    # skip_actions=["free_completed"]: the block was back by the time the address was reused.
    is_uncompleted = has_request & ~has_completed & has_next
    completed = np.where(is_uncompleted, requested, completed)
    # An alloc at the address of a live block: the free between them was lost.
    is_unfreed = has_alloc & ~has_request & ~has_completed & has_next
    requested = np.where(is_unfreed, next_first, requested)
    completed = np.where(is_unfreed, next_first, completed)
    _note(notices, "free_lost", "allocations whose free is missing: ended where their address was given out again",
          is_unfreed, size)  # fmt: skip
    # A free at an address that had an earlier life: its alloc was lost, so nobody knows when
    # it was born; it counts for nothing rather than for too much.
    is_unborn = ~has_alloc & has_previous
    birth = np.where(is_unborn, np.where(requested >= 0, requested, completed), birth)
    requested = np.where(is_unborn & (requested < 0), completed, requested)
    _note(notices, "alloc_lost", "frees whose alloc is missing in mid-history: their lives are unknown, counted as 0",
          is_unborn, size)  # fmt: skip

    life = _Lives(
        addr=addr[first],
        size=size,
        birth=birth,
        requested=requested,
        completed=completed,
        final_block=np.full(len(first), -1, np.int64),
        event=order[first],
        request_event=np.where(has_request, order[request_at] if num else 0, order[last] if num else 0),
    )
    extra = _tie_to_blocks(life, tables, num_events, notices)
    _drop_impossible_elders(life, notices)
    return _assemble(life, extra, tables, notices)


@dataclass(slots=True, kw_only=True)
class _Lives:
    """The lives found in the trace, while they are being tied to the final picture."""

    addr: AddressColumn
    size: Int64Column
    birth: Int64Column
    requested: Int64Column
    completed: Int64Column
    final_block: Int64Column
    event: Int64Column
    request_event: Int64Column


def _note(notices: list[Notice], code: str, message: str, mask: BoolColumn, sizes: Int64Column) -> None:
    count = int(mask.sum())
    if count:
        notices.append(Notice(code=code, message=message, count=count, bytes=int(sizes[mask].sum())))


def _tie_to_blocks(life: _Lives, tables: DeviceTables, num_events: int, notices: list[Notice]) -> npt.NDArray[np.int64]:
    """Set `final_block` of open lives; return the blocks that no life explains.

    Also closes, at the last event, open lives that the final picture doesn't know.
    """
    blocks = tables.blocks
    active = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    active = active[np.argsort(blocks.addr[active], kind="stable")]
    is_open = life.completed == NEVER
    open_rows = np.flatnonzero(is_open)
    open_rows = open_rows[np.argsort(life.addr[open_rows], kind="stable")]

    at = np.searchsorted(blocks.addr[active], life.addr[open_rows])
    in_range = at < len(active)
    matches = np.zeros(len(open_rows), bool)
    matches[in_range] = blocks.addr[active[at[in_range]]] == life.addr[open_rows[in_range]]
    # Another size at the same address is another allocation: a free and an alloc were lost.
    asked = blocks.requested_bytes[active[at[matches]]]
    matches[matches] = (asked == UNKNOWN_BYTES) | (asked == life.size[open_rows[matches]])
    tied, block = open_rows[matches], active[at[matches]]
    life.final_block[tied] = block

    last_event = max(num_events - 1, 0)
    is_pending = blocks.state[block] == BlockState.PENDING_FREE
    # The picture is taken after the trace: a free may have been asked for in between.
    late = tied[is_pending & (life.requested[tied] == NEVER)]
    life.requested[late] = last_event
    revived = tied[~is_pending & (life.requested[tied] != NEVER)]
    life.requested[revived] = NEVER
    _count(notices, "state_differs", "blocks whose final state the history doesn't explain", len(late) + len(revived),
           int(life.size[late].sum() + life.size[revived].sum()))  # fmt: skip

    stray = open_rows[~matches]
    if len(stray):
        _close_strays(life, stray, last_event, notices)
    unexplained = np.ones(len(active), bool)
    unexplained[at[matches]] = False
    return active[unexplained]


def _close_strays(life: _Lives, stray: Int64Column, last_event: int, notices: list[Notice]) -> None:
    """End lives that are open in the trace but absent from the final picture."""
    overlapped = np.zeros(len(stray), bool)
    ends = life.addr + life.size.astype(np.uint64)
    for place, row in enumerate(stray[:_MAX_OVERLAP_SEARCHES]):
        # A later allocation over the same bytes proves that the free was lost before it.
        over = (life.birth > life.event[row]) & (life.addr < ends[row]) & (ends > life.addr[row])
        if over.any():
            end = int(life.birth[over].min())
            overlapped[place] = True
            life.completed[row] = end
            # A free asked for after that can't have been this one's.
            if life.requested[row] == NEVER or life.requested[row] > end:
                life.requested[row] = end
    rest = stray[~overlapped]
    life.completed[rest] = np.maximum(last_event, life.event[rest])
    never = rest[life.requested[rest] == NEVER]
    life.requested[never] = last_event
    _count(notices, "free_lost", "allocations whose free is missing: ended where their memory was given out again",
           int(overlapped.sum()), int(life.size[stray[overlapped]].sum()))  # fmt: skip
    _count(notices, "not_in_final_state", "allocations that are alive in the history but not in the final state: "
           "ended at the last event", len(rest), int(life.size[rest].sum()))  # fmt: skip


def _drop_impossible_elders(life: _Lives, notices: list[Notice]) -> None:
    """Of blocks 'older than the history' that overlap each other only the first freed can be."""
    elders = np.flatnonzero(life.birth == BEFORE)
    if len(elders) < 2:
        return
    elders = elders[np.argsort(life.addr[elders], kind="stable")]
    ends = np.maximum.accumulate(life.addr[elders] + np.maximum(life.size[elders], 1).astype(np.uint64))
    overlaps = np.zeros(len(elders), bool)
    overlaps[1:] = life.addr[elders[1:]] < ends[:-1]
    if not overlaps.any():
        return
    doomed = np.zeros(len(elders), bool)
    keeper = 0
    for here in range(1, len(elders)):
        end = int(life.addr[elders[keeper]]) + int(life.size[elders[keeper]])
        if int(life.addr[elders[here]]) >= end:
            keeper = here
            continue
        if life.event[elders[here]] < life.event[elders[keeper]]:
            doomed[keeper] = True
            keeper = here
        else:
            doomed[here] = True
    rows = elders[doomed]
    life.birth[rows] = life.event[rows]
    life.requested[rows] = np.where(life.requested[rows] < 0, life.event[rows], life.requested[rows])
    _count(notices, "alloc_lost", "frees whose alloc is missing in mid-history: their lives are unknown, counted as 0",
           len(rows), int(life.size[rows].sum()))  # fmt: skip


def _count(notices: list[Notice], code: str, message: str, count: int, num_bytes: int) -> None:
    if count:
        notices.append(Notice(code=code, message=message, count=count, bytes=num_bytes))


def _assemble(life: _Lives, extra: Int64Column, tables: DeviceTables, notices: list[Notice]) -> Pairing:
    """Join lives of the trace and blocks without one, in order of birth."""
    events, blocks, segments = tables.events, tables.blocks, tables.segments
    num_events = len(events)
    seen = np.isin(blocks.addr[extra], life.addr)
    extra_birth = np.where(seen, max(num_events - 1, 0), BEFORE).astype(np.int64)
    pending = blocks.state[extra] == BlockState.PENDING_FREE
    extra_size = np.where(
        blocks.requested_bytes[extra] == UNKNOWN_BYTES,
        blocks.size_bytes[extra],
        blocks.requested_bytes[extra],
    )
    _note(notices, "alloc_lost_at_end", "blocks of the final state whose alloc is missing after the address was freed: "
          "born at the last event", seen, extra_size)  # fmt: skip

    is_own = life.birth == life.event
    is_own &= events.action[life.event] == Action.ALLOC
    alloc_stack = np.where(is_own, events.stack[life.event], NO_STACK)
    tied = life.final_block >= 0
    # With context "state" the events have no frames, but the blocks do.
    use_block = tied & (alloc_stack < 0)
    alloc_stack[use_block] = blocks.stack[life.final_block[use_block]]
    freed = life.requested >= 0
    free_stack = np.where(freed, events.stack[life.request_event], NO_STACK)

    extra_segment = blocks.segment[extra]
    parts: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {
        "addr": (life.addr, blocks.addr[extra]),
        "requested_bytes": (life.size, extra_size),
        "birth_event": (life.birth, extra_birth),
        "free_requested_event": (life.requested, np.where(pending, REQUESTED_BEFORE, NEVER).astype(np.int64)),
        "free_completed_event": (life.completed, np.full(len(extra), NEVER, np.int64)),
        "final_block": (life.final_block, extra),
        "stream": (events.stream[life.event], segments.stream[extra_segment]),
        "pool": (events.pool[life.event], segments.pool[extra_segment]),
        "alloc_stack": (alloc_stack, blocks.stack[extra]),
        "free_stack": (free_stack, np.full(len(extra), NO_STACK, np.int32)),
    }
    columns = {name: np.concatenate(pair) for name, pair in parts.items()}
    # Elders have no birth to sort by: their address decides, so that the order is stable.
    order = np.lexsort((np.where(columns["birth_event"] < 0, columns["addr"], 0), columns["birth_event"]))
    columns = {name: column[order] for name, column in columns.items()}
    tied = columns["final_block"] >= 0
    unknown = tied & (columns["pool"] == UNKNOWN_POOL)
    columns["pool"] = columns["pool"].astype(np.int32)
    columns["pool"][unknown] = segments.pool[blocks.segment[columns["final_block"][unknown]]]
    columns["alloc_stack"] = columns["alloc_stack"].astype(np.int32)
    columns["free_stack"] = columns["free_stack"].astype(np.int32)
    return Pairing(**columns, notices=tuple(notices))
