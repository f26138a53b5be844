"""One row per allocation, from birth to death: the table that every analysis reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from snapscope.model import (
    NO_STACK,
    UNKNOWN_POOL,
    AddressColumn,
    DeviceTables,
    Int32Column,
    Int64Column,
    Table,
)
from snapscope.replay import BEFORE, NEVER, REQUESTED_BEFORE, Pairing, RangeTable

_SAME_STACK_SHARE: Final = 0.9
_MIN_PAIRS: Final = 3
_MAX_STEPS: Final = 100_000_000


class Context(str, Enum):
    """What `_record_memory_history(context=…)` was, as far as the events show it."""

    NONE = "none"
    STATE = "state"
    ALLOC = "alloc"
    ALL = "all"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeTable(Table):
    """The allocations of one device, older than the history first, then by birth.

    Row identity is the birth event (or the final block), never the address: addresses are
    reused all the time.

    Attributes:
        addr: start address.
        requested_bytes: what the code asked for.
        birth_event: index of the alloc event; −1 = before the history.
        free_requested_event: −1 = not asked for; −2 = asked for before the history.
        free_completed_event: −1 = alive (or pending) at the end.
        stream: raw stream handle.
        pool: number in `Snapshot.pools`, or `UNKNOWN_POOL`.
        range_row: row of the reserved range it was born in; −1 unknown.
        alloc_stack: where it was allocated; `NO_STACK` unknown.
        free_stack: where it was freed; `NO_STACK` unknown (with context "alloc" PyTorch
            repeats the allocation's stack there, which says nothing about the free).
        final_block: row of its block in the final picture; −1 gone.
    """

    addr: AddressColumn
    requested_bytes: Int64Column
    birth_event: Int64Column
    free_requested_event: Int64Column
    free_completed_event: Int64Column
    stream: Int64Column
    pool: Int32Column
    range_row: Int64Column
    alloc_stack: Int32Column
    free_stack: Int32Column
    final_block: Int64Column

    def __len__(self) -> int:
        return len(self.addr)

    def live_at(self, event: int) -> Int64Column:
        """Return the rows that are live after `event`: born, and no free asked for yet."""
        asked = self.free_requested_event
        is_live = (self.birth_event <= event) & ((asked == NEVER) | (asked > event))
        return np.flatnonzero(is_live)

    def pending_at(self, event: int) -> Int64Column:
        """Return the rows that wait after `event`: free asked for, memory not yet back."""
        asked, done = self.free_requested_event, self.free_completed_event
        waits = (self.birth_event <= event) & (asked != NEVER) & (asked <= event) & ((done == NEVER) | (done > event))
        return np.flatnonzero(waits)


def find_context(tables: DeviceTables, pairing: Pairing) -> Context:
    """Tell from the events which context was recorded (snapshot-wide setting of PyTorch).

    With "alloc" the free events repeat the allocation's stack; with "all" they have their
    own. PyTorch 2.0 always behaves like "alloc".
    """
    events, blocks = tables.events, tables.blocks
    if not len(events):
        return Context.STATE if (blocks.stack > 0).any() else Context.UNKNOWN
    if (events.stack == NO_STACK).all():
        return Context.STATE if (blocks.stack > 0).any() else Context.NONE
    # An empty free stack counts: with "all" that is an autograd thread's free of what forward made,
    # while a line's own temporaries have one stack on both sides in either mode.
    both = (pairing.alloc_stack > 0) & (pairing.free_stack >= 0) & (pairing.birth_event != BEFORE)
    if np.count_nonzero(both) < _MIN_PAIRS:
        return Context.UNKNOWN
    same = float(np.mean(pairing.alloc_stack[both] == pairing.free_stack[both]))
    return Context.ALLOC if same >= _SAME_STACK_SHARE else Context.ALL


def build_lifetimes(tables: DeviceTables, pairing: Pairing, ranges: RangeTable) -> LifetimeTable:
    """Complete the pairing with pools, reserved ranges and what the context allows to say."""
    range_row = _find_ranges(pairing, ranges, len(tables.events))
    pool = pairing.pool.copy()
    unknown = (pool == UNKNOWN_POOL) & (range_row >= 0)
    pool[unknown] = ranges.pool[range_row[unknown]]
    alloc_stack, free_stack = pairing.alloc_stack, pairing.free_stack
    if find_context(tables, pairing) is Context.ALLOC:
        # What looks like the free's stack is where the block was allocated: for blocks
        # older than the history that is the only trace of their birth.
        alloc_stack = np.where(alloc_stack == NO_STACK, free_stack, alloc_stack)
        free_stack = np.full_like(free_stack, NO_STACK)
    return LifetimeTable(
        addr=pairing.addr,
        requested_bytes=pairing.requested_bytes,
        birth_event=pairing.birth_event,
        free_requested_event=pairing.free_requested_event,
        free_completed_event=pairing.free_completed_event,
        stream=pairing.stream,
        pool=pool,
        range_row=range_row,
        alloc_stack=alloc_stack,
        free_stack=free_stack,
        final_block=pairing.final_block,
    )


def _find_ranges(pairing: Pairing, ranges: RangeTable, num_events: int) -> Int64Column:
    """Find the reserved range around every allocation at the moment of its birth.

    Ranges are sorted by (start, birth); a binary search gives the youngest one with the
    nearest start, and only where that doesn't cover the block the next lower start is tried.
    """
    found = np.full(len(pairing.addr), -1, np.int64)
    if not len(ranges) or not len(found):
        return found
    starts, rank = np.unique(ranges.addr, return_inverse=True)
    span = np.int64(num_events + 2)
    keys = rank.astype(np.int64) * span + ranges.birth_event + 1
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    ends = ranges.addr + ranges.size_bytes.astype(np.uint64)
    todo = np.arange(len(found))
    nearest = np.searchsorted(starts, pairing.addr, side="right").astype(np.int64) - 1
    budget = _MAX_STEPS
    while len(todo) and budget > 0:
        budget -= len(todo)
        todo = todo[nearest[todo] >= 0]
        birth = pairing.birth_event[todo]
        at = np.searchsorted(keys, nearest[todo] * span + birth + 1, side="right") - 1
        row = order[np.maximum(at, 0)]
        death = ranges.death_event[row]
        fits = (
            (at >= 0)
            & (ranges.addr[row] <= pairing.addr[todo])
            & (ends[row] > pairing.addr[todo])
            & ((death == NEVER) | (death > birth))
        )
        found[todo[fits]] = row[fits]
        todo = todo[~fits]
        nearest[todo] -= 1
    return found


__all__ = [
    "BEFORE",
    "NEVER",
    "REQUESTED_BEFORE",
    "Context",
    "LifetimeTable",
    "build_lifetimes",
    "find_context",
]
