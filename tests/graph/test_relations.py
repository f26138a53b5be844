"""Each relation, on histories made by hand with the sums written out."""

from __future__ import annotations

import pytest

from snapscope.graph import (
    Pairs,
    find_follows,
    find_made_room,
    find_pins,
    find_reuses,
    find_sites,
    lifetime_ids,
)
from snapscope.history import DeviceHistory
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.graph.histories import FORWARD, LOAD, A, late_start, split_and_merge
from tests.replay.test_properties import history_of


def named(history: DeviceHistory, pairs: Pairs) -> list[tuple[str, str, int]]:
    """Return pairs as (source, target, MiB), by name."""
    source, target = lifetime_ids(history, pairs.source), lifetime_ids(history, pairs.target)
    return sorted(zip(source, target, (pairs.num_bytes // MIB).tolist(), strict=True))


def test_reuses_goes_by_bytes_not_by_address() -> None:
    history = split_and_merge()
    assert named(history, find_reuses(history)) == [
        ("event:1", "event:11", 2),
        ("event:1", "event:4", 2),
        ("event:1", "event:5", 4),
        ("event:4", "event:10", 2),
        ("event:5", "event:10", 4),
    ]


def test_made_room_is_credited_to_the_next_request() -> None:
    history = split_and_merge()
    assert named(history, find_made_room(history)) == [
        ("event:1", "event:4", 8),
        ("event:4", "event:10", 2),
        ("event:5", "event:10", 4),
    ]


def test_follows_is_the_previous_of_the_same_site() -> None:
    history = split_and_merge()
    assert named(history, find_follows(history, find_sites(history))) == [
        ("event:4", "event:5", 4),
        ("event:5", "event:11", 4),
    ]


def test_what_is_older_than_the_history_is_named_by_its_free_and_reused() -> None:
    history = late_start()
    rows = history.lifetimes.live_at(-1).tolist() + history.lifetimes.pending_at(-1).tolist()
    assert sorted(lifetime_ids(history, history.lifetimes.live_at(-1))) == ["block:0x7f0000800000", "event:0"]
    assert len(rows) == 3
    assert named(history, find_reuses(history)) == [("event:0", "event:3", 4), ("event:2", "event:3", 4)]
    assert named(history, find_made_room(history)) == [("event:0", "event:3", 4), ("event:2", "event:3", 4)]
    # Who is older than the history has no order.
    assert not len(find_follows(history, find_sites(history)))


def test_memory_that_went_back_to_the_driver_is_nobodys() -> None:
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB),
        b.alloc(A, 4 * MIB, frames=LOAD),
        b.free(A, 4 * MIB, frames=LOAD),
        b.segment_free(A, 20 * MIB),
        b.segment_alloc(A, 20 * MIB),
        b.alloc(A, 4 * MIB, frames=LOAD),
    ]
    blocks = [b.block(4 * MIB, frames=LOAD), b.block(16 * MIB, state=INACTIVE)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)]))
    assert not len(find_reuses(history))
    assert named(history, find_made_room(history)) == [("event:1", "event:6", 4)]


def test_part_of_an_expandable_segment_that_was_unmapped_is_nobodys() -> None:
    events: list[b.Events] = [
        b.segment_map(A, 40 * MIB),
        b.alloc(A, 40 * MIB, frames=LOAD),
        b.free(A, 40 * MIB, frames=LOAD),
        b.segment_unmap(A + 20 * MIB, 20 * MIB),
        b.segment_map(A + 20 * MIB, 20 * MIB),
        b.alloc(A, 40 * MIB, frames=LOAD),
    ]
    segments = [b.segment(A, [b.block(40 * MIB, frames=LOAD)], is_expandable=True)]
    history = history_of(b.snapshot(traces=[events], segments=segments))
    assert named(history, find_reuses(history)) == [("event:1", "event:6", 20)]


def test_room_is_made_on_the_same_stream_and_pool_only() -> None:
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB),
        b.segment_alloc(A + 20 * MIB, 20 * MIB, stream=7),
        b.alloc(A, 4 * MIB, frames=LOAD),
        b.free(A, 4 * MIB, frames=LOAD),
        b.alloc(A + 20 * MIB, 2 * MIB, frames=FORWARD, stream=7),
        b.alloc(A, 6 * MIB, frames=FORWARD),
    ]
    segments = [
        b.segment(A, [b.block(6 * MIB), b.block(14 * MIB, state=INACTIVE)]),
        b.segment(A + 20 * MIB, [b.block(2 * MIB), b.block(18 * MIB, state=INACTIVE)], stream=7),
    ]
    history = history_of(b.snapshot(traces=[events], segments=segments))
    assert named(history, find_made_room(history)) == [("event:2", "event:6", 4)]


def test_a_free_that_was_lost_made_room_for_who_came_next() -> None:
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB),
        b.alloc(A, 4 * MIB, frames=LOAD),
        b.alloc(A, 4 * MIB, frames=FORWARD),
        b.alloc(A + 4 * MIB, 4 * MIB, frames=FORWARD),
    ]
    blocks = [b.block(4 * MIB), b.block(4 * MIB), b.block(12 * MIB, state=INACTIVE)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)]))
    assert named(history, find_made_room(history)) == [("event:1", "event:2", 4)]
    assert named(history, find_reuses(history)) == [("event:1", "event:2", 4)]


def pins_of(history: DeviceHistory, event: int) -> list[tuple[str, int, int]]:
    pins = find_pins(history, event)
    return [
        (name, segment, hostage // MIB)
        for name, segment, hostage in zip(
            lifetime_ids(history, pins.row), pins.segment.tolist(), pins.hostage_bytes.tolist(), strict=True
        )
    ]


def test_every_block_holds_the_free_bytes_of_its_segment() -> None:
    history = split_and_merge()
    # 20 − 6 − 4 at the end, 20 − 2 − 4 after event 5, 20 − 8 while a waits for nobody after event 2.
    assert pins_of(history, 11) == [("event:10", 0, 10), ("event:11", 0, 10)]
    assert pins_of(history, 5) == [("event:4", 0, 14), ("event:5", 0, 14)]
    assert pins_of(history, 2) == [("event:1", 0, 12)]
    assert pins_of(history, 3) == []
    assert pins_of(history, -1) == []
    segments = find_pins(history, 11).segments
    assert (segments.size_bytes.tolist(), segments.free_bytes.tolist()) == ([20 * MIB], [10 * MIB])
    assert segments.num_blocks.tolist() == [2]


@pytest.mark.parametrize(
    ("sizes", "hostage"),
    [
        # 60 MiB in granules of 20: a block in the second holds that one only.
        ([(21, False), (2, True), (37, False)], [18]),
        # A block over the border of two holds both.
        ([(18, False), (4, True), (38, False)], [36]),
        # Two blocks in one granule hold the same bytes.
        ([(2, True), (3, False), (2, True), (53, False)], [16, 16]),
        # The first granule is full.
        ([(20, True), (20, False), (20, True)], [0, 0]),
    ],
)
def test_an_expandable_segment_is_held_by_the_granule(sizes: list[tuple[int, bool]], hostage: list[int]) -> None:
    blocks = [b.block(size * MIB) if used else b.block(size * MIB, state=INACTIVE) for size, used in sizes]
    history = history_of(b.snapshot(segments=[b.segment(A, blocks, is_expandable=True)]))
    assert [held for _, _, held in pins_of(history, -1)] == hostage


def test_nothing_has_no_relations() -> None:
    history = history_of(b.snapshot())
    for pairs in (find_reuses(history), find_made_room(history), find_follows(history, find_sites(history))):
        assert not len(pairs)
    assert not len(find_pins(history, -1).row)


def test_names_are_unique_where_the_file_contradicts_itself() -> None:
    # The same address with another size at the end: both would be named by the last event.
    events: list[b.Events] = [b.alloc(A, MIB, frames=LOAD), b.free(A, MIB), b.alloc(A, MIB, frames=LOAD)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, [b.block(2 * MIB)])]))
    names = lifetime_ids(history, history.lifetimes.birth_event * 0 + range(len(history.lifetimes)))
    assert sorted(names) == ["block:0x7f0000000000", "event:0", "event:3"]
