"""Histories that contradict themselves: the replay notes it, and what it says still adds up."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from snapscope.analyses.ledger import balance
from snapscope.analyses.moments import find_moment
from snapscope.errors import MalformedError
from snapscope.history import DeviceHistory
from tests.replay.test_properties import history_of

ADDRESSES = [512 * n for n in (0, 2, 10, 11, 20, 22, 24, 2048, 4096, 4118)] + [1 << 62]
SIZES = [0, 1, 512, 1024, 1 << 20, 2 << 20, 2_181_856, 20 << 20, 1 << 50]
ACTIONS = "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap snapshot".split()
Event = dict[str, Any]

EVENTS = st.lists(
    st.fixed_dictionaries(
        {"action": st.sampled_from(ACTIONS), "addr": st.sampled_from(ADDRESSES), "size": st.sampled_from(SIZES)}
    ),
    max_size=14,
)
SETTINGS = st.sampled_from(
    [{}, {"expandable_segments": True}, {"max_split_size": 1, "expandable_segments": True}, {"max_split_size": 1}]
)


def _event(action: str, addr: int, size: int) -> Event:
    return {"action": action, "addr": addr, "size": size}


@given(EVENTS, SETTINGS)
@example(
    [
        _event("free_requested", 10240, 512),
        _event("segment_map", 5632, 2 << 20),
        _event("free_requested", 10240, 512),
        _event("segment_map", 10752, 1),
    ],
    {"expandable_segments": True},
)
@example(
    [
        _event("segment_map", 10240, 20 << 20),
        _event("free_requested", 11264, 1024),
        _event("segment_alloc", 12288, 20 << 20),
        _event("segment_free", 11264, 2 << 20),
        _event("alloc", 11264, 20 << 20),
        _event("segment_unmap", 0, 2 << 20),
    ],
    {"max_split_size": 1, "expandable_segments": True},
)
@example(
    [
        _event("alloc", 1 << 20, 2 << 20),
        _event("alloc", 2 << 20, 2_181_856),
        _event("free_requested", 1 << 20, 2 << 20),
    ],
    {"max_split_size": 1},
)
def test_any_order_of_events_adds_up(events: list[Event], settings: dict[str, Any]) -> None:
    try:
        history = history_of({"segments": [], "device_traces": [events], "allocator_settings": settings})
    except MalformedError as error:
        assert "absurd total" in str(error)  # noqa: PT017 - any other refusal would be a failure
        return
    _check(history)


def _check(history: DeviceHistory) -> None:
    totals = (
        history.totals.requested_bytes,
        history.totals.pending_requested_bytes,
        history.totals.reserved_bytes,
        history.block_totals.allocated_bytes,
        history.block_totals.pending_bytes,
    )
    assert all((column >= 0).all() for column in totals)
    assert (history.blocks.block_bytes >= history.lifetimes.requested_bytes).all()
    assert len(history.classification.category) == len(history.lifetimes)
    for name in ("start", "peak", "end"):
        rungs = balance(history, find_moment(history, name))
        assert rungs.requested_bytes + rungs.rounding_bytes == rungs.allocated_bytes
        assert rungs.allocated_bytes + rungs.pending_bytes + rungs.cached_bytes == rungs.reserved_bytes
        parts = (rungs.cached_free_segments_bytes, rungs.cached_holes_bytes, rungs.cached_private_pool_bytes)
        assert sum(parts) == rungs.cached_bytes
        assert parts[0] >= 0
        assert parts[2] >= 0
