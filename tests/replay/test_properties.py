"""Properties of the replay on simulated and on mutilated histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.history import DeviceHistory
from snapscope.load import RawSnapshot, read_snapshot
from snapscope.model import BlockState, Source
from snapscope.normalise import normalise
from snapscope.replay import size_blocks
from tests.bench.make_snapshot import build
from tests.builders import Raw
from tests.conftest import fixture_path


def history_of(value: Any, device: int | None = None) -> DeviceHistory:
    """Normalise a raw snapshot made in memory."""
    source = Source(name="made", size_bytes=0, containers=(), encoding="pickle", protocol=4)
    raw = RawSnapshot(value=value, source=source, notices=(), stream_bytes=1 << 40)
    return DeviceHistory(normalise(raw), device)


def _skip(value: Any, *actions: str) -> Raw:
    traces = [[event for event in trace if event["action"] not in actions] for trace in value["device_traces"]]
    return {**value, "device_traces": traces}


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), events=st.integers(1, 4000), window=st.integers(0, 3000))
def test_simulated_allocator(seed: int, events: int, window: int) -> None:
    whole = history_of(build(events + window, seed=seed, layers=2))
    part = history_of(build(events, seed=seed, layers=2, window=window))
    lost = whole.num_events - part.num_events
    for field in ("requested_bytes", "pending_requested_bytes", "reserved_bytes"):
        np.testing.assert_array_equal(getattr(part.totals, field), getattr(whole.totals, field)[lost:])
    assert whole.blocks.is_exact.all()
    sizes = size_blocks(whole.tables, whole.pairing, whole.ranges, whole.snapshot.settings)
    assert not sizes.notices
    error = part.block_totals.allocated_bytes - whole.block_totals.allocated_bytes[lost:]
    assert np.abs(error).max() <= int((~part.blocks.is_exact).sum()) << 20


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), events=st.integers(1, 3000))
def test_live_at_the_end_are_the_active_blocks(seed: int, events: int) -> None:
    history = history_of(build(events, seed=seed, layers=2, blocks=20))
    blocks = history.tables.blocks
    live = history.lifetimes.live_at(history.num_events - 1)
    waiting = history.lifetimes.pending_at(history.num_events - 1)
    for rows, state in ((live, BlockState.ALLOCATED), (waiting, BlockState.PENDING_FREE)):
        found = sorted(history.lifetimes.addr[rows].tolist())
        assert found == sorted(blocks.addr[blocks.state == state].tolist())


@settings(max_examples=25)
@given(data=st.data())
def test_sums_of_rows_are_the_totals(data: st.DataObject) -> None:
    """At any event the live rows sum to the curve, whatever was lost from the history."""
    value = build(data.draw(st.integers(20, 1500)), seed=data.draw(st.integers(0, 99)), layers=1)
    trace = value["device_traces"][0]
    doomed = data.draw(st.sets(st.integers(0, len(trace) - 1), max_size=len(trace) // 4))
    lossy = {**value, "device_traces": [[event for i, event in enumerate(trace) if i not in doomed]]}
    history = history_of(lossy)
    event = data.draw(st.integers(-1, history.num_events - 1))
    sizes, blocks = history.lifetimes.requested_bytes, history.blocks.block_bytes
    live, waiting = history.lifetimes.live_at(event), history.lifetimes.pending_at(event)
    assert sizes[live].sum() == history.totals.requested_bytes[event + 1]
    assert sizes[waiting].sum() == history.totals.pending_requested_bytes[event + 1]
    assert blocks[live].sum() == history.block_totals.allocated_bytes[event + 1]
    assert blocks[waiting].sum() == history.block_totals.pending_bytes[event + 1]
    assert history.totals.requested_bytes.min() >= 0
    assert (blocks >= sizes).all()
    # The final picture wins, whatever the history says.
    active = history.tables.blocks
    assert blocks[history.lifetimes.live_at(history.num_events - 1)].sum() == (
        active.size_bytes[active.state == BlockState.ALLOCATED].sum()
    )
    assert history.totals.reserved_bytes[-1] == history.tables.reserved_bytes


@settings(max_examples=20)
@given(seed=st.integers(0, 999), place=st.floats(0, 1), size=st.integers(1, 1 << 20))
def test_an_unrelated_pair_changes_nothing_else(seed: int, place: float, size: int) -> None:
    value = build(600, seed=seed, layers=1)
    trace = value["device_traces"][0]
    at = int(place * len(trace))
    pair: list[Raw] = [
        {"action": action, "addr": 0x1000, "size": size, "stream": 0, "frames": []}
        for action in ("alloc", "free_requested", "free_completed")
    ]
    more = history_of({**value, "device_traces": [[*trace[:at], *pair, *trace[at:]]]})
    plain = history_of(value)
    curve = np.delete(more.totals.requested_bytes, [at + 1, at + 2, at + 3])
    np.testing.assert_array_equal(curve, plain.totals.requested_bytes)
    assert len(more.lifetimes) == len(plain.lifetimes) + 1


@pytest.mark.parametrize("name", ["torch-2.14/adamw_fp32", "torch-2.14/multi_stream", "torch-2.14/cuda_graph"])
def test_skipped_frees(name: str) -> None:
    """`skip_actions` of one of the two free events leaves all that the other one proves."""
    value = read_snapshot(fixture_path(name)).value
    whole = history_of(value)
    for skipped in ("free_requested", "free_completed"):
        part = history_of(_skip(value, skipped), whole.device)
        assert part.lifetimes.requested_bytes.sum() == whole.lifetimes.requested_bytes.sum()
        assert part.totals.requested_bytes[-1] == whole.totals.requested_bytes[-1]
        assert len(part.lifetimes) == len(whole.lifetimes)
        assert part.block_totals.allocated_bytes[-1] == whole.block_totals.allocated_bytes[-1]
        is_plain = not whole.totals.pending_requested_bytes.max() or skipped == "free_completed"
        if is_plain and name != "torch-2.14/multi_stream" and name != "torch-2.14/cuda_graph":
            assert part.totals.requested_bytes.max() == whole.totals.requested_bytes.max()


def test_skipped_allocs_count_for_nothing() -> None:
    """Without allocs nobody knows when a block was born: never draw a free as an allocation."""
    value = read_snapshot(fixture_path("torch-2.14/adamw_fp32")).value
    part = history_of(_skip(value, "alloc"))
    assert part.totals.requested_bytes.min() >= 0
    assert part.totals.requested_bytes[-1] == history_of(value).totals.requested_bytes[-1]
    assert "alloc_lost" in {notice.code for notice in part.notices}


def test_skipped_frees_altogether() -> None:
    value = read_snapshot(fixture_path("torch-2.14/adamw_fp32")).value
    part = history_of(_skip(value, "free_requested", "free_completed"))
    assert part.totals.requested_bytes[-1] == history_of(value).totals.requested_bytes[-1]
    assert {"free_lost", "not_in_final_state"} & {notice.code for notice in part.notices}
