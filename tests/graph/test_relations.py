"""Each relation, on histories made by hand with the sums written out."""

from __future__ import annotations

from snapscope.graph import (
    Pairs,
    find_follows,
    find_made_room,
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


def test_nothing_has_no_relations() -> None:
    history = history_of(b.snapshot())
    for pairs in (find_reuses(history), find_made_room(history), find_follows(history, find_sites(history))):
        assert not len(pairs)


def test_names_are_unique_where_the_file_contradicts_itself() -> None:
    # The same address with another size at the end: both would be named by the last event.
    events: list[b.Events] = [b.alloc(A, MIB, frames=LOAD), b.free(A, MIB), b.alloc(A, MIB, frames=LOAD)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, [b.block(2 * MIB)])]))
    names = lifetime_ids(history, history.lifetimes.birth_event * 0 + range(len(history.lifetimes)))
    assert sorted(names) == ["block:0x7f0000000000", "event:0", "event:3"]
