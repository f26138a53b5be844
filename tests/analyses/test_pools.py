"""The allocator's free lists at one moment, and what waits for another stream."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from snapscope.analyses.moments import find_moment
from snapscope.analyses.pools import may_take, pending_rows, pool_rows
from snapscope.history import DeviceHistory
from snapscope.lifetimes import REQUESTED_BEFORE
from snapscope.model import AllocatorSettings, SizeClass
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import INACTIVE, KIB, MIB, PENDING
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
GAP: Final = 1 << 30
LOAD: Final = [b.frame("load", "/p/init.py", 5)]
COPY: Final = [b.frame("copy", "/p/data.py", 8)]


def final(*segments: b.Raw) -> DeviceHistory:
    return history_of(b.snapshot(segments=segments))


def test_one_row_for_each_pool_stream_and_size_class() -> None:
    history = final(
        b.segment(A, [b.block(8 * MIB), b.block(12 * MIB, state=INACTIVE)]),
        b.segment(A + GAP, [b.block(2 * MIB, state=PENDING), b.block(28 * MIB, state=INACTIVE)]),
        b.segment(A + 2 * GAP, [b.block(2 * MIB, state=INACTIVE)]),
        b.segment(A + 3 * GAP, [b.block(20 * MIB, state=INACTIVE)], stream=7),
        b.segment(A + 4 * GAP, [b.block(6 * MIB), b.block(14 * MIB, state=INACTIVE)], pool=(1, 0)),
    )
    rows = pool_rows(history, history.layout_at(-1))
    found = [
        (row.name, row.stream, row.size_class.name, row.num_segments, row.reserved_bytes // MIB,
         row.allocated_bytes // MIB, row.pending_bytes // MIB, row.free_bytes // MIB, row.free_segments_bytes // MIB,
         row.num_holes, row.largest_hole_bytes // MIB, row.is_private)
        for row in rows
    ]  # fmt: skip
    assert found == [
        ("default pool", 0, "LARGE", 2, 50, 8, 2, 40, 0, 2, 28, False),
        ("default pool", 7, "LARGE", 1, 20, 0, 0, 20, 20, 1, 20, False),
        ("private pool (1, 0)", 0, "LARGE", 1, 20, 6, 0, 14, 0, 1, 14, True),
        ("default pool", 0, "SMALL", 1, 2, 0, 0, 2, 2, 1, 2, False),
    ]
    assert [row.segments.tolist() for row in rows] == [[0, 1], [3], [4], [2]]


def test_the_largest_request_of_a_free_list() -> None:
    """A hole of 2 MiB in the small pool serves 1 MiB at most: what is larger is another list's."""
    history = final(
        b.segment(A, [b.block(2 * MIB, state=INACTIVE)]),
        b.segment(A + GAP, [b.block(8 * MIB), b.block(12 * MIB, state=INACTIVE)]),
        b.segment(A + 2 * GAP, [b.block(2 * MIB - 4 * KIB), b.block(4 * KIB, state=INACTIVE)], stream=7),
    )
    rows = {(row.stream, row.size_class): row for row in pool_rows(history, history.layout_at(-1))}
    assert rows[0, SizeClass.SMALL].largest_request_bytes == MIB
    assert rows[0, SizeClass.LARGE].largest_request_bytes == 12 * MIB
    assert rows[7, SizeClass.SMALL].largest_request_bytes == 4 * KIB


def test_a_large_free_list_serves_no_small_request() -> None:
    """Expandable segments split off what is left from 512 bytes on, so that small holes occur in large ones."""
    blocks = [b.block(20 * MIB - 300 * KIB), b.block(300 * KIB, state=INACTIVE)]
    history = final(b.segment(A, blocks, is_expandable=True))
    (row,) = pool_rows(history, history.layout_at(-1))
    assert row.largest_request_bytes == 0


@pytest.mark.parametrize(
    ("request_mib", "limit_mib", "takes"),
    [
        # Pieces of 10, 30, 100 and 119 MiB.
        (10, None, [True, True, True, True]),
        (11, None, [False, True, True, True]),
        # Below the limit: only pieces below it.
        (10, 100, [True, True, False, False]),
        (50, 100, [False, False, False, False]),
        # From the limit on: only what is less than 20 MiB larger.
        (100, 100, [False, False, True, True]),
        (99, 99, [False, False, True, False]),
        (120, 100, [False, False, False, False]),
    ],
)
def test_which_pieces_may_serve_a_request(request_mib: int, limit_mib: int | None, takes: list[bool]) -> None:
    conf = AllocatorSettings(max_split_size_bytes=None if limit_mib is None else limit_mib * MIB)
    pieces = np.array([10, 30, 100, 119]) * MIB
    assert may_take(pieces, request_mib * MIB, conf).tolist() == takes


def test_nothing_is_reserved() -> None:
    history = history_of(b.snapshot())
    assert pool_rows(history, history.layout_at(-1)) == ()


# ------------------------------------------------------------------------------- pending


def test_what_waits_says_for_how_long_and_who_freed_it() -> None:
    """Two of three blocks of a site wait, since events 4 and 6; another site's since before the history."""
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB, time_us=1),
        b.alloc(A, 4 * MIB - 100, frames=LOAD, time_us=2),
        b.alloc(A + 4 * MIB, 2 * MIB, frames=LOAD, time_us=3),
        b.alloc(A + 6 * MIB, 2 * MIB, frames=LOAD, time_us=4),
        b.free_requested(A, 4 * MIB - 100, frames=COPY, time_us=1000),
        b.event("snapshot", time_us=1001),
        b.free_requested(A + 4 * MIB, 2 * MIB, frames=COPY, time_us=2000),
        b.event("snapshot", time_us=3500),
    ]
    blocks = [
        b.block(4 * MIB, state=PENDING, requested=4 * MIB - 100, frames=LOAD),
        b.block(2 * MIB, state=PENDING, frames=LOAD),
        b.block(2 * MIB, frames=LOAD),
        b.block(12 * MIB, state=INACTIVE),
    ]
    older = b.segment(A + GAP, [b.block(20 * MIB, state=PENDING)], stream=7)
    history = history_of(b.snapshot([events], [b.segment(A, blocks), older]))
    old, new = pending_rows(history, history.num_events - 1)
    assert (new.row.key, new.row.num_allocations, new.row.bytes) == ("init.py:5 load", 2, 6 * MIB - 100)
    assert (new.block_bytes, new.stream, new.pool) == (6 * MIB, 0, "default pool")
    assert (new.since_event, new.num_events, new.waited_us) == (4, 3, 2500)
    assert new.freed_by == "data.py:8 copy"
    assert (old.block_bytes, old.stream, old.freed_by, old.waited_us) == (20 * MIB, 7, None, None)
    assert (old.since_event, old.num_events) == (REQUESTED_BEFORE, history.num_events)
    assert [row.block_bytes for row in pending_rows(history, 4)] == [20 * MIB, 4 * MIB]
    assert [row.block_bytes for row in pending_rows(history, -1)] == [20 * MIB]


# ------------------------------------------------------------------------------- recordings


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_rows_sum_to_the_ladder(name: str) -> None:
    snapshot = load_snapshot(fixture_path(name))
    for tables in snapshot.devices:
        history = DeviceHistory(snapshot, tables.device)
        for at in ("start", "peak", "peak-reserved", "end", *(["oom"] if len(tables.events.oom_events) else [])):
            event = find_moment(history, at).event
            layout = history.layout_at(event)
            rows = pool_rows(history, layout)
            assert sum(row.reserved_bytes for row in rows) == history.totals.reserved_bytes[event + 1]
            assert sum(row.allocated_bytes for row in rows) == history.block_totals.allocated_bytes[event + 1]
            assert sum(row.pending_bytes for row in rows) == history.block_totals.pending_bytes[event + 1]
            owned = [segment for row in rows for segment in row.segments.tolist()]
            assert sorted(owned) == list(range(len(layout.segments)))
            for row in rows:
                assert row.reserved_bytes == row.allocated_bytes + row.pending_bytes + row.free_bytes
                assert row.largest_request_bytes <= row.largest_hole_bytes <= row.free_bytes
                assert row.free_segments_bytes <= row.free_bytes
            waiting = pending_rows(history, event)
            assert sum(row.block_bytes for row in waiting) == history.block_totals.pending_bytes[event + 1]
