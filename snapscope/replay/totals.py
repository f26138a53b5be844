"""Totals of a device after every event, as prefix sums over columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.model import DeviceTables, Int64Column, Table
from snapscope.replay.pairing import BEFORE, NEVER, REQUESTED_BEFORE, Pairing
from snapscope.replay.ranges import RangeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Table):
    """Bytes after every event; element 0 is the state before the first, i + 1 that after event i.

    Attributes:
        requested_bytes: live allocations, alloc to free_requested, as asked for.
        pending_requested_bytes: asked to be freed but not yet free, as asked for.
        reserved_bytes: held from the driver.
    """

    requested_bytes: Int64Column
    pending_requested_bytes: Int64Column
    reserved_bytes: Int64Column


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTotals(Table):
    """Bytes of blocks after every event, indexed like `Totals`.

    Attributes:
        allocated_bytes: blocks of live allocations (`torch.cuda.memory_allocated`).
        pending_bytes: blocks that wait for another stream.
    """

    allocated_bytes: Int64Column
    pending_bytes: Int64Column


def sum_totals(tables: DeviceTables, pairing: Pairing, ranges: RangeTable) -> Totals:
    """Sum requested and reserved bytes after every event."""
    num_events = len(tables.events)
    live, pending = sum_live_and_pending(pairing, pairing.requested_bytes, num_events)
    return Totals(
        requested_bytes=live,
        pending_requested_bytes=pending,
        reserved_bytes=_sum(ranges.size_bytes, ranges.birth_event, ranges.death_event, num_events),
    )


def sum_block_totals(tables: DeviceTables, pairing: Pairing, block_bytes: Int64Column) -> BlockTotals:
    """Sum the blocks' real sizes after every event."""
    allocated, pending = sum_live_and_pending(pairing, block_bytes, len(tables.events))
    return BlockTotals(allocated_bytes=allocated, pending_bytes=pending)


def sum_live_and_pending(pairing: Pairing, sizes: Int64Column, num_events: int) -> tuple[Int64Column, Int64Column]:
    """Sum given sizes of live and of pending allocations after every event."""
    born, requested, completed = (
        pairing.birth_event,
        pairing.free_requested_event,
        pairing.free_completed_event,
    )
    # Waiting when the history began: never live within it, pending from the start.
    was_pending = requested == REQUESTED_BEFORE
    live_rows = ~was_pending
    live = _sum(sizes[live_rows], born[live_rows], requested[live_rows], num_events)
    waits = requested != NEVER
    since = np.where(was_pending, born, requested)
    pending = _sum(sizes[waits], since[waits], completed[waits], num_events)
    return live, pending


def _sum(sizes: Int64Column, since: Int64Column, until: Int64Column, num_events: int) -> Int64Column:
    """Sum sizes of intervals [since, until); `BEFORE` starts before the first event."""
    change = np.zeros(num_events + 1, np.int64)
    # bincount would sum in floats; add.at is exact, and fast since NumPy 1.25.
    np.add.at(change, np.where(since == BEFORE, 0, since + 1), sizes)
    ended = until != NEVER
    np.subtract.at(change, until[ended] + 1, sizes[ended])
    return np.cumsum(change)
