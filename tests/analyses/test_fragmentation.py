"""The free memory split by why it isn't used."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.fragmentation import Fragmentation, fragmentation
from snapscope.analyses.moments import find_moment
from snapscope.analyses.oom import find_oom
from snapscope.errors import MalformedError
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.analyses.test_oom import held, waiting
from tests.builders import INACTIVE, KIB, MIB, Raw
from tests.classify.program import Program, train
from tests.conftest import fixture_path, recordings
from tests.replay.test_contradictions import EVENTS, SETTINGS
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000


def split_of(*segments: Raw, device_free: int | None = None, size: int = 500, **conf: Any) -> Fragmentation:
    """Look at segments of a file: without a history, or at a request of MiB that fails."""
    events = [] if device_free is None else [b.oom(size * MIB, device_free * MIB)]
    history = history_of(b.snapshot([events], segments, allocator_settings=b.settings(**conf)))
    return fragmentation(history, find_moment(history, "end"))


def check_sums(history: DeviceHistory, found: Fragmentation) -> None:
    """The four parts, and what waits, are all that is reserved and wasn't asked for."""
    split, state = found.split, found.balance
    parts = (split.free_segments_bytes, split.holes_bytes, split.rounding_bytes, split.other_pool_bytes)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == state.reserved_bytes - state.requested_bytes - state.pending_bytes
    assert sum(row.reserved_bytes for row in found.pools) == state.reserved_bytes
    assert sum(row.block_bytes for row in found.pending) == state.pending_bytes
    assert 0 <= split.largest_hole_bytes <= split.holes_bytes + split.free_segments_bytes
    assert (split.num_holes > 0) == (split.largest_hole_bytes > 0)
    assert split.largest_cached_request_bytes <= split.largest_request_bytes
    assert split.other_stream_bytes <= split.free_segments_bytes + split.holes_bytes
    for pin in found.pins:
        assert pin.held_alone_bytes <= pin.held_any_bytes
    for point in found.curve:
        assert point.reserved_bytes == history.totals.reserved_bytes[point.event + 1]
        assert point.largest_hole_bytes <= point.reserved_bytes
        free = point.free_segments_bytes + point.holes_bytes + point.other_pool_bytes
        pending = history.block_totals.pending_bytes[point.event + 1]
        assert point.allocated_bytes + pending + free == point.reserved_bytes


def test_four_ways_to_be_free() -> None:
    """20 in a free segment, 7 and 3 in holes, 100 bytes of rounding, 14 in a graph's pool; 4 wait."""
    blocks = [b.block(2 * MIB, requested=2 * MIB - 100), b.block(7 * MIB, state=INACTIVE),
              b.block(8 * MIB), b.block(3 * MIB, state=INACTIVE)]  # fmt: skip
    found = split_of(
        held(0, -20), b.segment(A + (9 << 36), blocks), held(2, 6, -14, pool=(1, 0)), waiting(3, 4, stream=7)
    )
    split = found.split
    assert (split.free_segments_bytes, split.holes_bytes) == (20 * MIB, 10 * MIB)
    assert (split.rounding_bytes, split.other_pool_bytes) == (100, 14 * MIB)
    assert (split.num_holes, split.largest_hole_bytes) == (2, 7 * MIB)
    assert (split.stream, split.other_stream_bytes) == (0, 0)
    assert split.largest_cached_request_bytes == split.largest_request_bytes == 20 * MIB
    assert (found.balance.pending_bytes, found.packing, found.curve, found.is_whole) == (4 * MIB, None, (), False)


def test_what_other_streams_keep() -> None:
    """Stream 0 has most; 40 + 5 of the free bytes are stream 7's, and its 40 serve nobody else."""
    found = split_of(held(0, 80, -20), held(1, -40, stream=7), held(2, 5, -5, stream=7))
    assert (found.split.stream, found.split.other_stream_bytes) == (0, 45 * MIB)
    assert found.split.largest_cached_request_bytes == 20 * MIB
    # Holes are those of the device.
    assert (found.split.num_holes, found.split.largest_hole_bytes) == (2, 20 * MIB)


def test_nothing_but_private_pools() -> None:
    found = split_of(held(0, 6, -14, pool=(1, 0)))
    assert (found.split.stream, found.split.largest_request_bytes, found.split.num_holes) == (None, 0, 0)
    assert found.split.other_pool_bytes == 14 * MIB
    assert found.cheapest is None


def test_a_hole_of_an_expandable_segment_counts_whole() -> None:
    """55 free behind 5: a request may take 55, though 40 of them could go back."""
    split = split_of(held(0, 5, -55, is_expandable=True), expandable_segments=True).split
    assert (split.free_segments_bytes, split.holes_bytes) == (40 * MIB, 15 * MIB)
    assert (split.num_holes, split.largest_hole_bytes, split.largest_request_bytes) == (1, 55 * MIB, 55 * MIB)


@pytest.mark.parametrize(
    ("device_free", "largest"),
    [
        # A segment from 10 MiB on is a multiple of 2.
        (31, 30), (10, 10),
        # Below, up to 1 MiB fit: larger requests take a segment of 20. The hole of 4 still serves more.
        (9, 4), (1, 4),
    ],
)  # fmt: skip
def test_the_largest_request_where_the_driver_has_some(device_free: int, largest: int) -> None:
    split = split_of(held(0, 16, -4), device_free=device_free).split
    assert split.largest_request_bytes == largest * MIB
    assert split.largest_cached_request_bytes == 4 * MIB


def test_a_small_segment_is_all_that_the_driver_can_give() -> None:
    assert split_of(held(0, 20), device_free=9).split.largest_request_bytes == MIB
    assert split_of(held(0, 20), device_free=1).split.largest_request_bytes == 0


def test_an_expandable_segment_would_grow_behind_its_free_end() -> None:
    """45 at the driver are two granules of 20; 4 are free at the end."""
    split = split_of(held(0, 16, -4, is_expandable=True), device_free=45, expandable_segments=True).split
    assert split.largest_request_bytes == 44 * MIB


def test_a_small_expandable_segment_would_grow() -> None:
    split = split_of(held(0, 20, is_expandable=True), device_free=9, expandable_segments=True).split
    assert split.largest_request_bytes == MIB


def test_under_a_limit_the_driver_gives_nothing() -> None:
    """The driver had the 500 MiB: a limit keeps them, and only the cached 4 can be had."""
    assert split_of(held(0, 16, -4), device_free=600).split.largest_request_bytes == 4 * MIB


@pytest.mark.parametrize(("hole", "limit"), [(90, 80), (70, 80), (300, 80)])
def test_max_split_size_lets_a_hole_serve_a_request_of_its_own_size(hole: int, limit: int) -> None:
    """A request of the hole's size may always take it: it is below the limit with it, or from the limit on with it."""
    split = split_of(held(0, 16, -hole), max_split_size=limit * MIB).split
    assert split.largest_cached_request_bytes == hole * MIB


# ------------------------------------------------------------------------------- over the history


def test_the_curve_is_by_step_where_there_are_steps() -> None:
    run = train(Program(), 3)
    history = run.history()
    found = fragmentation(history, find_moment(history, "end"))
    assert [point.step for point in found.curve] == ["step 0", "step 1", "step 2"]
    ends = {step.name: step.end_event for step in history.steps.steps}
    assert [point.event for point in found.curve] == [ends[f"step {n}"] for n in range(3)]
    check_sums(history, found)


def test_the_curve_has_at_most_48_points() -> None:
    events = [b.segment_alloc(A, 2 * MIB), *(b.free(A, 512) if n % 2 else b.alloc(A, 512) for n in range(400))]
    history = history_of(b.snapshot([events], [b.segment(A, [b.block(2 * MIB, state=INACTIVE)])]))
    curve = fragmentation(history, find_moment(history, "end")).curve
    assert len(curve) == 48
    assert (curve[0].event, curve[-1].event) == (-1, history.num_events - 1)
    assert {point.step for point in curve} == {None}
    assert {point.allocated_bytes for point in curve} == {0, 512}


# ------------------------------------------------------------------------------- recordings and odd files


@pytest.mark.parametrize("name", [*recordings("runs/oom"), "torch-2.14/cuda_graph", "torch-2.14/multi_stream",
                                  "torch-2.14/two_gpu", "torch-2.0/adamw_fp32",
                                  "cases/05_history_starts_late/a.pickle"])  # fmt: skip
def test_sums_on_recordings(name: str) -> None:
    snapshot = load_snapshot(fixture_path(name))
    for tables in snapshot.devices:
        history = DeviceHistory(snapshot, tables.device)
        for at in ("peak", "end", *(["oom"] if len(tables.events.oom_events) else [])):
            check_sums(history, fragmentation(history, find_moment(history, at)))


def test_case_02() -> None:
    history = DeviceHistory(load_snapshot(fixture_path("cases/02_fragmentation_oom/a.pickle")))
    split = fragmentation(history, find_moment(history, "oom")).split
    assert (split.num_holes, split.holes_bytes, split.largest_hole_bytes) == (8, 512 * MIB, 64 * MIB)
    assert split.free_segments_bytes == 0
    # The driver has 115 MiB: a segment of 114 would be had.
    assert split.largest_request_bytes == 114 * MIB


@settings(max_examples=100)
@given(events=EVENTS, conf=SETTINGS, size=st.sampled_from([512, 2 * MIB, 30 * MIB, 1 << 50]), place=st.integers(0, 14),
       free=st.sampled_from([0, 5 * KIB, 1 << 40]))  # fmt: skip
def test_contradictory_files_are_judged_somehow(events: list[Raw], conf: Raw, size: int, place: int, free: int) -> None:
    """No crash, and nothing negative."""
    failing = [*events[:place], b.oom(size, free), *events[place:]]
    try:
        history = history_of({"segments": [], "device_traces": [failing], "allocator_settings": conf})
    except MalformedError:
        return
    for at in ("start", "oom", "end"):
        split = fragmentation(history, find_moment(history, at)).split
        sizes = (split.free_segments_bytes, split.rounding_bytes, split.other_pool_bytes, split.other_stream_bytes)
        assert all(value >= 0 for value in (*sizes, split.largest_hole_bytes, split.largest_request_bytes))
    report = find_oom(history)
    (failure,) = report.failures
    assert failure.request.requested_bytes == size
    assert failure.verdict.room.short_by_bytes >= 0
    assert failure.verdict.room.left_bytes >= 0
    assert all(remedy.frees_bytes >= 0 for remedy in report.remedies)
    assert all(pin.held_alone_bytes >= 0 for pin in report.pins)
