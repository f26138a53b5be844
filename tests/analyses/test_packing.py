"""The packing bound: valid always, optimal where the optimum is known, and close to the load on recordings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.packing import (
    GRANULE_BYTES,
    Packing,
    by_size,
    in_time,
    pack_lifetimes,
    peak_load,
    place,
    round_requests,
)
from snapscope.analyses.packing.by_size import place_by_size
from snapscope.analyses.packing.items import Items
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, AllocatorSettings, Int64Column
from snapscope.opening import load_snapshot
from snapscope.replay.rounding import round_request
from tests import builders as b
from tests.bench.make_snapshot import build
from tests.builders import INACTIVE, MIB
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

A = 0x7F0000000000
Interval = tuple[int, int, int]
"""Begin, end, size."""


def columns(intervals: list[Interval]) -> tuple[Int64Column, Int64Column, Int64Column]:
    """Make the arguments of `place`."""
    table = np.array(intervals, np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()


def check_packing(begin: Int64Column, end: Int64Column, size: Int64Column, offset: Int64Column) -> int:
    """Check that no two intervals meet in time and in address; return the height. O(n log n) but for one list."""
    rows = np.flatnonzero((end > begin) & (size > 0)).tolist()
    assert (offset >= 0).all()
    ends = [(int(end[row]), 0, row) for row in rows]
    begins = [(int(begin[row]), 1, row) for row in rows]
    starts: list[int] = []
    tops: dict[int, int] = {}
    for _, is_begin, row in sorted(ends + begins):
        low, high = int(offset[row]), int(offset[row] + size[row])
        at = bisect_left(starts, low)
        if not is_begin:
            del starts[at]
            continue
        assert at == 0 or tops[starts[at - 1]] <= low, f"row {row} begins within another"
        assert at == len(starts) or starts[at] >= high, f"row {row} reaches into another"
        starts.insert(at, low)
        tops[low] = high
    return max((int(offset[row] + size[row]) for row in rows), default=0)


def packed_height(intervals: list[Interval]) -> int:
    """Place intervals, check the packing and return its height."""
    table = columns(intervals)
    return check_packing(*table, place(*table))


def first_fit(intervals: list[Interval]) -> int:
    """Place in the order given, each as low as it fits; return the height. Slow and simple."""
    done: list[tuple[int, int, int, int]] = []
    for begin, end, size in intervals:
        low = 0
        for other_low, high in sorted((low, high) for low, high, since, until in done if since < end and until > begin):
            if other_low - low >= size:
                break
            low = max(low, high)
        done.append((low, low + size, begin, end))
    return max((high for _, high, _, _ in done), default=0)


def least_height(intervals: list[Interval]) -> int:
    """Return the optimum: any packing, pushed down item by item, is first fit in the order of its offsets."""
    return min(first_fit(list(order)) for order in permutations(intervals))


# ------------------------------------------------------------------------------- the checker itself


def test_checker_sees_overlaps() -> None:
    begin, end, size = columns([(0, 2, 10), (1, 3, 10)])
    assert check_packing(begin, end, size, np.array([0, 10])) == 20
    for bad in ([0, 9], [9, 0], [0, 0], [5, 5]):
        with pytest.raises(AssertionError):
            check_packing(begin, end, size, np.array(bad))
    inner = columns([(0, 2, 10), (1, 3, 2)])
    with pytest.raises(AssertionError):
        check_packing(*inner, np.array([0, 4]))


def test_checker_lets_an_end_make_room_for_a_begin() -> None:
    begin, end, size = columns([(0, 2, 10), (2, 3, 10)])
    assert check_packing(begin, end, size, np.array([0, 0])) == 10


# ------------------------------------------------------------------------------- known optima


@pytest.mark.parametrize(
    ("intervals", "height"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([(3, 3, 7)], 0, id="holds nothing"),
        pytest.param([(0, 9, 0)], 0, id="no bytes"),
        pytest.param([(0, 4, 5), (0, 4, 6)], 11, id="there all the time"),
        pytest.param([(0, 1, 5), (1, 2, 5), (2, 3, 5)], 5, id="one after another"),
        pytest.param([(0, 6, 1), (1, 5, 2), (2, 4, 3)], 6, id="nested"),
        # Best fit by time puts c beside the hole of a, where d (4) finds only 2 + 2.
        pytest.param([(0, 2, 2), (0, 4, 2), (1, 5, 2), (4, 6, 4)], 6, id="checkerboard"),
        # Both long ones must lie together: the middle is free from 2 to 4.
        pytest.param([(0, 4, 1), (0, 2, 2), (1, 5, 1), (2, 4, 2)], 4, id="one hole reused"),
    ],
)
def test_known_optimum(intervals: list[Interval], height: int) -> None:
    scaled = [(begin, end, size * GRANULE_BYTES) for begin, end, size in intervals]
    assert packed_height(scaled) == height * GRANULE_BYTES
    assert peak_load(*columns(scaled)) == height * GRANULE_BYTES


def test_rolling_pairs() -> None:
    """Two chains of large and slightly smaller buffers, as a loop over samples makes them.

    Always two large (5) and one small (4), or one large and two small, beside a large one that stays: load 19. Placed
    largest first, the large ones keep two slots, and the small ones two more: 23.
    """
    large = [(6 * i, 6 * i + 8, 5 * GRANULE_BYTES) for i in range(6)]
    small = [(6 * i + 3, 6 * i + 11, 4 * GRANULE_BYTES) for i in range(6)]
    intervals = [(0, 60, 5 * GRANULE_BYTES), *large, *small]
    assert peak_load(*columns(intervals)) == 19 * GRANULE_BYTES
    by_size = sorted(intervals, key=lambda interval: -interval[2])
    assert first_fit(by_size) == 23 * GRANULE_BYTES
    assert packed_height(intervals) <= 20 * GRANULE_BYTES


# ------------------------------------------------------------------------------- whole histories


def _grown_request() -> DeviceHistory:
    """Two requests of 12 MiB, one after another freed, then one of 24 MiB that neither segment holds.

    Reserved 48 MiB; at most 24 MiB live at once, and 24 MiB are enough.
    """
    events: list[b.Events] = [
        b.segment_alloc(A, 12 * MIB),
        b.alloc(A, 12 * MIB),
        b.segment_alloc(A + 64 * MIB, 12 * MIB),
        b.alloc(A + 64 * MIB, 12 * MIB),
        b.free(A, 12 * MIB),
        b.free(A + 64 * MIB, 12 * MIB),
        b.segment_alloc(A + 128 * MIB, 24 * MIB),
        b.alloc(A + 128 * MIB, 24 * MIB),
    ]
    segments = [
        b.segment(A, [b.block(12 * MIB, state=INACTIVE)]),
        b.segment(A + 64 * MIB, [b.block(12 * MIB, state=INACTIVE)]),
        b.segment(A + 128 * MIB, [b.block(24 * MIB)]),
    ]
    return history_of(b.snapshot(traces=[events], segments=segments))


def test_fragmentation_is_avoidable() -> None:
    assert pack_lifetimes(_grown_request()) == Packing(
        peak_reserved_bytes=48 * MIB,
        lower_bound_bytes=24 * MIB,
        packed_bytes=24 * MIB,
        avoidable_bytes=24 * MIB,
        num_lifetimes=3,
    )


def test_rounding_is_the_allocators() -> None:
    """A request of 1 byte needs 512, and the driver gives 2 MiB; a remainder that wasn't split off isn't needed."""
    events = [b.segment_alloc(A, 20 * MIB), b.alloc(A, 1), b.alloc(A + MIB, 19 * MIB - 1)]
    blocks = [b.block(MIB, requested=1), b.block(19 * MIB, requested=19 * MIB - 1)]
    found = pack_lifetimes(history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)])))
    assert (found.lower_bound_bytes, found.packed_bytes) == (19 * MIB + 512, 20 * MIB)
    assert (found.peak_reserved_bytes, found.avoidable_bytes) == (20 * MIB, 0)


def test_pending_memory_is_needed_until_it_is_back() -> None:
    """The block waits for another stream until after the second alloc: both are needed."""
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB),
        b.alloc(A, 4 * MIB),
        b.free_requested(A, 4 * MIB),
        b.alloc(A + 4 * MIB, 4 * MIB),
        b.free_completed(A, 4 * MIB),
        b.alloc(A, 4 * MIB),
    ]
    blocks = [b.block(4 * MIB), b.block(4 * MIB), b.block(12 * MIB, state=INACTIVE)]
    found = pack_lifetimes(history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)])))
    assert (found.lower_bound_bytes, found.packed_bytes, found.avoidable_bytes) == (8 * MIB, 8 * MIB, 12 * MIB)


def test_blocks_from_before_the_history_count_from_its_start() -> None:
    """6 MiB stay, 4 MiB are freed first: 10 MiB at the start, and the freed 4 serve the new 3."""
    events: list[b.Events] = [b.free(A, 4 * MIB), b.alloc(A, 3 * MIB)]
    blocks = [b.block(3 * MIB), b.block(MIB, state=INACTIVE), b.block(6 * MIB), b.block(10 * MIB, state=INACTIVE)]
    found = pack_lifetimes(history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)])))
    assert (found.num_lifetimes, found.lower_bound_bytes, found.packed_bytes) == (3, 10 * MIB, 10 * MIB)
    assert found.avoidable_bytes == 10 * MIB


def test_no_history() -> None:
    """Without events the picture is all there is: what is active, packed tightly."""
    blocks = [b.block(3 * MIB), b.block(MIB, state=INACTIVE), b.block(6 * MIB), b.block(10 * MIB, state=INACTIVE)]
    found = pack_lifetimes(history_of(b.snapshot(segments=[b.segment(A, blocks)])))
    assert (found.peak_reserved_bytes, found.lower_bound_bytes) == (20 * MIB, 9 * MIB)
    assert (found.packed_bytes, found.avoidable_bytes) == (10 * MIB, 10 * MIB)


def test_nothing_at_all() -> None:
    zero = Packing(peak_reserved_bytes=0, lower_bound_bytes=0, packed_bytes=0, avoidable_bytes=0, num_lifetimes=0)
    assert pack_lifetimes(history_of(b.snapshot())) == zero


def test_pinned_host_memory_is_not_rounded() -> None:
    host = b.segment(A, [b.block(3 * MIB + 1)], device=0)
    value = b.snapshot(host_segments=[host], host_traces=[])
    history = history_of(value, HOST_DEVICE)
    assert pack_lifetimes(history).lower_bound_bytes == 3 * MIB + 1


def test_sizes_beyond_all_sense_do_not_overflow() -> None:
    """Loading lets each table of a hostile file add up to 2⁶²: both together, and rounded up, may be more than 2⁶³."""
    events = [b.alloc(0x1000 + (i << 60), (1 << 60) - 5) for i in range(1, 5)]
    conf = b.settings(roundup_power2_divisions={str(1 << power): 2 for power in range(16)})
    segments = [b.segment((8 + i) << 60, [b.block((1 << 60) - 512)]) for i in range(4)]
    found = pack_lifetimes(history_of(b.snapshot(traces=[events], segments=segments, allocator_settings=conf)))
    assert 0 < found.lower_bound_bytes <= found.packed_bytes < 1 << 63


# ------------------------------------------------------------------------------- properties


def intervals_of(most: int, sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Interval]]:
    """Draw intervals, some of them without length or size."""
    one = st.tuples(st.integers(-1, 40), st.integers(0, 12), sizes)
    return st.lists(one.map(lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])), max_size=most)


ANY_SIZE = st.one_of(st.integers(0, 9), st.integers(1, 40).map(lambda units: units * MIB), st.integers(0, 1 << 40))


@given(intervals=intervals_of(40, ANY_SIZE))
def test_every_packing_is_valid(intervals: list[Interval]) -> None:
    table = columns(intervals)
    height = check_packing(*table, place(*table))
    assert peak_load(*table) <= height <= table[2].sum()


@given(intervals=intervals_of(5, st.integers(1, 9).map(lambda units: units * GRANULE_BYTES)))
@settings(max_examples=50)
def test_small_packings_are_no_worse_than_first_fit(intervals: list[Interval]) -> None:
    """Between the optimum and first fit by decreasing size; the load is a lower bound of both."""
    intervals = [interval for interval in intervals if interval[1] > interval[0]]
    by_size = sorted(intervals, key=lambda interval: (-interval[2], interval[0] - interval[1], interval[0]))
    height = packed_height(intervals)
    assert peak_load(*columns(intervals)) <= least_height(intervals) <= height <= first_fit(by_size)


@pytest.mark.parametrize(
    "limits",
    [
        {"_ITEMS_PER_WINDOW": 2},
        {"_ITEMS_PER_WINDOW": 2, "_MAX_WINDOWS": 3, "_REPAIR_BUDGET": 3000},
        {"_PLACE_BUDGET": 100},
        {"_PLACE_BUDGET": 100, "_MAX_TO_COME": 0},
        {"_PLACE_BUDGET": 100, "_COMPARE_BUDGET": 0},
        {"_PLACE_BUDGET": 100, "_MOVE_BUDGET": 12},
        {"_PLACE_BUDGET": 0, "_MOVE_BUDGET": 0, "_REPAIR_BUDGET": 0},
    ],
    ids=str,
)
@given(intervals=intervals_of(40, ANY_SIZE))
@settings(max_examples=40)
def test_budgets_cost_height_only(limits: dict[str, int], intervals: list[Interval]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(by_size if hasattr(by_size, name) else in_time, name, value)
        table = columns(intervals)
        height = check_packing(*table, place(*table))
    assert height >= peak_load(*table)


def test_windows_change_nothing() -> None:
    """First fit finds the same places, however the time is cut."""
    table = _random_intervals(400)
    heights = set()
    for num_items in (1, 7, 100, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(by_size, "_ITEMS_PER_WINDOW", num_items)
            patch.setattr(by_size, "_REPAIR_BUDGET", 0)
            patch.setattr(by_size, "_PLACE_BUDGET", 1 << 40)
            items = Items(begin=table[0], end=table[1], size=table[2])
            offset = place_by_size(items, 0, 1 << 60)
            check_packing(*table, offset)
            heights.add(offset.tobytes())
    assert len(heights) == 1


def test_same_answer_every_time() -> None:
    table = _random_intervals(300)
    assert place(*table).tobytes() == place(*table).tobytes()


def _random_intervals(count: int) -> tuple[Int64Column, Int64Column, Int64Column]:
    random = np.random.default_rng(1)
    begin = random.integers(0, count, count)
    return begin, begin + random.integers(1, count // 4, count), random.integers(1, 64, count) * MIB


@pytest.mark.parametrize("count", [20_000])
def test_a_checkerboard_of_holes(count: int) -> None:
    """All alive at once, then every other one freed, then short ones: as many holes as there can be."""
    row = np.arange(count)
    begin = np.concatenate((row, 2 * count + row))
    end = np.concatenate((np.where(row % 2, 4 * count, count + row), 2 * count + row + 3))
    size = np.tile(np.random.default_rng(0).integers(1, 4096, count) * 512, 2)
    assert check_packing(begin, end, size, place(begin, end, size)) >= peak_load(begin, end, size)


@given(
    sizes=st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 1 << 60)), max_size=30),
    divisions=st.lists(st.sampled_from([0, 1, 2, 4, 8, 64]), min_size=16, max_size=16),
    padding=st.sampled_from([0, 32]),
)
def test_round_requests(sizes: list[int], divisions: list[int], padding: int) -> None:
    for drawn in (tuple(divisions), (0,) * 16):
        conf = AllocatorSettings(roundup_power2_divisions=drawn, request_padding_bytes=padding)
        expected = [round_request(size, conf) for size in sizes]
        assert round_requests(np.array(sizes, np.int64), conf).tolist() == expected


@settings(max_examples=10)
@given(data=st.data())
def test_mutilated_histories(data: st.DataObject) -> None:
    value: Any = build(data.draw(st.integers(20, 1200)), seed=data.draw(st.integers(0, 99)), layers=1)
    trace = value["device_traces"][0]
    doomed = data.draw(st.sets(st.integers(0, len(trace) - 1), max_size=len(trace) // 4))
    lossy = {**value, "device_traces": [[event for i, event in enumerate(trace) if i not in doomed]]}
    check_bound(history_of(lossy))


# ------------------------------------------------------------------------------- recordings


def check_bound(history: DeviceHistory) -> Packing:
    """Check what must hold of any history's packing."""
    found = pack_lifetimes(history)
    lifetimes = history.lifetimes
    assert found.num_lifetimes == len(lifetimes)
    assert found.peak_reserved_bytes == history.totals.reserved_bytes.max()
    assert found.lower_bound_bytes <= found.packed_bytes
    assert found.packed_bytes % GRANULE_BYTES == 0
    assert found.packed_bytes < max(found.peak_reserved_bytes, found.lower_bound_bytes) + GRANULE_BYTES
    assert found.avoidable_bytes == max(0, found.peak_reserved_bytes - found.packed_bytes)
    in_use = history.totals.requested_bytes + history.totals.pending_requested_bytes
    assert found.lower_bound_bytes >= in_use.max()
    return found


def histories(path: Path) -> Iterator[DeviceHistory]:
    """Yield every device of a file."""
    snapshot = load_snapshot(path)
    for tables in snapshot.devices:
        yield DeviceHistory(snapshot, tables.device)


def check_tight(path: Path) -> None:
    """A recording of real work packs within 5 % of its load, and validly."""
    for history in histories(path):
        found = check_bound(history)
        assert found.packed_bytes <= 1.05 * found.lower_bound_bytes + GRANULE_BYTES
        size = history.lifetimes.requested_bytes
        done = history.lifetimes.free_completed_event
        end = np.where(done == -1, history.num_events, done)
        check_packing(history.lifetimes.birth_event, end, size, place(history.lifetimes.birth_event, end, size))


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_recordings(name: str) -> None:
    check_tight(fixture_path(name))


def test_more_recordings(shared: Path) -> None:
    """Every snapshot of the shared folder."""
    paths = sorted(path for path in (shared / "snapshots").rglob("*") if path.name.endswith((".pickle", "-json.json")))
    if not paths:
        pytest.skip(f"no snapshots below {shared}")
    for path in paths:
        check_tight(path)
