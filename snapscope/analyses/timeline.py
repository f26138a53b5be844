"""The timeline: bytes over events, exact or sampled so that no peak is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.model import NO_TIME, BoolColumn, Int64Column
from snapscope.replay import sum_live_and_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bytes after chosen events, in order.

    Attributes:
        num_events: events of the device.
        is_sampled: whether events were left out.
        is_selection: whether only some allocations are counted.
        capacity_bytes: the card's size, if it was given.
        events: event indices (−1 = before the first).
        time_us: their times; −1 where unknown.
        requested_bytes, allocated_bytes, pending_bytes, reserved_bytes: state after each.
        category_bytes: requested bytes by category, shape (5, points).
    """

    num_events: int
    is_sampled: bool
    is_selection: bool
    capacity_bytes: int | None
    events: Int64Column
    time_us: Int64Column
    requested_bytes: Int64Column
    allocated_bytes: Int64Column
    pending_bytes: Int64Column
    reserved_bytes: Int64Column
    category_bytes: Int64Column


def timeline(
    history: DeviceHistory,
    *,
    num_points: int | None = None,
    selection: BoolColumn | None = None,
    capacity_bytes: int | None = None,
) -> Timeline:
    """Return the curve of a device; needs the exact block replay.

    Args:
        history: the device.
        num_points: about how many points at most; None = every event. Of each stretch of
            events the one with the most requested bytes is kept, so the peak always is;
            so are the start, the end, and the first maximum of reserved bytes.
        selection: rows of the lifetime table to count; reserved bytes stay those of all.
        capacity_bytes: the card's size, which no snapshot holds.
    """
    requested, allocated, pending = _curves(history, selection)
    reserved = history.totals.reserved_bytes
    num_states = history.num_events + 1
    if num_points is None or num_points >= num_states:
        chosen = np.arange(num_states)
    else:
        chosen = _sample(requested, max(num_points, 4), int(np.argmax(reserved)))
    times = history.tables.events.time_us
    time_us = times[np.maximum(chosen - 1, 0)] if len(times) else np.full(len(chosen), NO_TIME, np.int64)
    return Timeline(
        num_events=history.num_events,
        is_sampled=len(chosen) < num_states,
        is_selection=selection is not None,
        capacity_bytes=capacity_bytes,
        events=chosen.astype(np.int64) - 1,
        time_us=time_us,
        requested_bytes=requested[chosen],
        allocated_bytes=allocated[chosen],
        pending_bytes=pending[chosen],
        reserved_bytes=reserved[chosen],
        category_bytes=category_curves(history, selection)[:, chosen],
    )


def category_curves(history: DeviceHistory, selection: BoolColumn | None = None) -> Int64Column:
    """Return requested bytes by category after every event, shape (5, events + 1); they sum to the requested curve."""
    sizes, category = history.lifetimes.requested_bytes, history.classification.category
    counted = sizes if selection is None else np.where(selection, sizes, 0)
    return np.stack(
        [
            sum_live_and_pending(history.pairing, np.where(category == each, counted, 0), history.num_events)[0]
            for each in Category
        ]
    )


def _curves(history: DeviceHistory, selection: BoolColumn | None) -> tuple[Int64Column, Int64Column, Int64Column]:
    """Return requested, allocated and pending bytes after every event."""
    if selection is None:
        totals, blocks = history.totals, history.block_totals
        return totals.requested_bytes, blocks.allocated_bytes, blocks.pending_bytes
    sizes, blocks_of = history.lifetimes.requested_bytes, history.blocks.block_bytes
    num_events = history.num_events
    requested, _ = sum_live_and_pending(history.pairing, np.where(selection, sizes, 0), num_events)
    allocated, pending = sum_live_and_pending(history.pairing, np.where(selection, blocks_of, 0), num_events)
    return requested, allocated, pending


def _sample(values: Int64Column, num_points: int, extra: int) -> Int64Column:
    """Return the index of the first maximum of each of `num_points` stretches, and the ends."""
    edges = np.linspace(0, len(values), num_points - 2, endpoint=False).astype(np.int64)
    tops = np.maximum.reduceat(values, edges)
    stretch = np.searchsorted(edges, np.arange(len(values)), side="right") - 1
    is_top = np.flatnonzero(values == tops[stretch])
    first = is_top[np.unique(stretch[is_top], return_index=True)[1]]
    return np.unique(np.concatenate((first, [0, extra, len(values) - 1])))
