"""The timeline: bytes over events, exact or sampled so that no peak is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.model import NO_TIME, Int64Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bytes after chosen events, in order.

    Attributes:
        num_events: events of the device.
        is_sampled: whether events were left out.
        events: event indices (−1 = before the first).
        time_us: their times; −1 where unknown.
        requested_bytes, allocated_bytes, pending_bytes, reserved_bytes: state after each.
    """

    num_events: int
    is_sampled: bool
    events: Int64Column
    time_us: Int64Column
    requested_bytes: Int64Column
    allocated_bytes: Int64Column
    pending_bytes: Int64Column
    reserved_bytes: Int64Column


def timeline(history: DeviceHistory, *, num_points: int | None = None) -> Timeline:
    """Return the curve of a device; needs the exact block replay.

    Args:
        history: the device.
        num_points: about how many points at most; None = every event. Of each stretch of
            events the one with the most requested bytes is kept, so the peak always is;
            so are the start, the end, and the first maximum of reserved bytes.
    """
    totals, blocks = history.totals, history.block_totals
    num_states = history.num_events + 1
    if num_points is None or num_points >= num_states:
        chosen = np.arange(num_states)
    else:
        chosen = _sample(totals.requested_bytes, max(num_points, 4), int(np.argmax(totals.reserved_bytes)))
    times = history.tables.events.time_us
    time_us = times[np.maximum(chosen - 1, 0)] if len(times) else np.full(len(chosen), NO_TIME, np.int64)
    return Timeline(
        num_events=history.num_events,
        is_sampled=len(chosen) < num_states,
        events=chosen.astype(np.int64) - 1,
        time_us=time_us,
        requested_bytes=totals.requested_bytes[chosen],
        allocated_bytes=blocks.allocated_bytes[chosen],
        pending_bytes=blocks.pending_bytes[chosen],
        reserved_bytes=totals.reserved_bytes[chosen],
    )


def _sample(values: Int64Column, num_points: int, extra: int) -> Int64Column:
    """Return the index of the first maximum of each of `num_points` stretches, and the ends."""
    edges = np.linspace(0, len(values), num_points - 2, endpoint=False).astype(np.int64)
    tops = np.maximum.reduceat(values, edges)
    stretch = np.searchsorted(edges, np.arange(len(values)), side="right") - 1
    is_top = np.flatnonzero(values == tops[stretch])
    first = is_top[np.unique(stretch[is_top], return_index=True)[1]]
    return np.unique(np.concatenate((first, [0, extra, len(values) - 1])))
