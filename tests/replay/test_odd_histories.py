"""Small histories by hand, the sums written out."""

from __future__ import annotations

from snapscope.history import DeviceHistory
from snapscope.replay import BEFORE, NEVER, REQUESTED_BEFORE
from tests.builders import (
    INACTIVE,
    MIB,
    PENDING,
    alloc,
    block,
    free,
    free_completed,
    free_requested,
    oom,
    segment,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    settings,
    snapshot,
)
from tests.replay.test_properties import history_of

A = 0x7F0000000000


def _rows(history: DeviceHistory) -> list[tuple[int, ...]]:
    table = history.lifetimes
    return [
        tuple(map(int, row))
        for row in zip(
            table.addr,
            table.requested_bytes,
            history.blocks.block_bytes,
            table.birth_event,
            table.free_requested_event,
            table.free_completed_event,
            strict=True,
        )
    ]


def test_one_allocation() -> None:
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 700), free(A, 700), alloc(A, 100)]],
            segments=[segment(A, [block(512, requested=100), block(2 * MIB - 512, state=INACTIVE)])],
        )
    )
    assert _rows(history) == [(A, 700, 1024, 1, 2, 3), (A, 100, 512, 4, NEVER, NEVER)]
    assert history.totals.requested_bytes.tolist() == [0, 0, 700, 0, 0, 100]
    assert history.totals.pending_requested_bytes.tolist() == [0, 0, 0, 700, 0, 0]
    assert history.block_totals.allocated_bytes.tolist() == [0, 0, 1024, 0, 0, 512]
    assert history.block_totals.pending_bytes.tolist() == [0, 0, 0, 1024, 0, 0]
    assert history.totals.reserved_bytes.tolist() == [0, *[2 * MIB] * 5]
    assert not history.notices


def test_older_than_the_history() -> None:
    """One old block freed, one pending and completed, one alive all the time."""
    history = history_of(
        snapshot(
            traces=[[free(A, 600), free_completed(A + 1024, 512)]],
            segments=[segment(A, [block(1536, state=INACTIVE), block(512), block(2 * MIB - 2048, state=INACTIVE)])],
        )
    )
    assert _rows(history) == [
        (A, 600, 1024, BEFORE, 0, 1),
        (A + 1024, 512, 512, BEFORE, REQUESTED_BEFORE, 2),
        (A + 1536, 512, 512, BEFORE, NEVER, NEVER),
    ]
    assert history.totals.requested_bytes.tolist() == [1112, 512, 512, 512]
    assert history.totals.pending_requested_bytes.tolist() == [512, 1112, 512, 0]
    assert history.blocks.is_exact.all()


def test_pending_at_the_end() -> None:
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512), free_requested(A, 512)]],
            segments=[segment(A, [block(512, state=PENDING), block(2 * MIB - 512, state=INACTIVE)])],
        )
    )
    assert _rows(history) == [(A, 512, 512, 1, 2, NEVER)]
    assert history.totals.requested_bytes.tolist() == [0, 0, 512, 0]
    assert history.block_totals.pending_bytes.tolist() == [0, 0, 0, 512]
    assert not history.notices


def test_large_remainders_stay_inside_the_block() -> None:
    """10 MiB − 1 MiB leaves 1 MiB, which isn't split off; one byte more would be."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 20 * MIB), alloc(A, 19 * MIB), free(A, 19 * MIB), alloc(A, 19 * MIB - 512)]],
            segments=[segment(A, [block(19 * MIB - 512), block(MIB + 512, state=INACTIVE)])],
        )
    )
    assert [row[2] for row in _rows(history)] == [20 * MIB, 19 * MIB - 512]
    assert not history.notices


def test_expandable_segments_split_small_remainders() -> None:
    """An expandable segment grows by a piece, a block straddles both, one piece goes back."""
    history = history_of(
        snapshot(
            traces=[
                [
                    segment_map(A, 20 * MIB),
                    alloc(A, 12 * MIB),
                    segment_map(A + 20 * MIB, 20 * MIB),
                    alloc(A + 12 * MIB, 16 * MIB),
                    free(A + 12 * MIB, 16 * MIB),
                    segment_unmap(A + 20 * MIB, 20 * MIB),
                ]
            ],
            segments=[segment(A, [block(12 * MIB), block(8 * MIB, state=INACTIVE)], is_expandable=True)],
            allocator_settings=settings(expandable_segments=True),
        )
    )
    assert [row[2] for row in _rows(history)] == [12 * MIB, 16 * MIB]
    assert history.totals.reserved_bytes.tolist() == [0] + [size * MIB for size in (20, 20, 40, 40, 40, 40, 20)]
    assert not history.notices


def test_segments_come_and_go() -> None:
    """What was there before the history is found backwards, also when it is freed within it."""
    history = history_of(
        snapshot(traces=[[segment_free(A, 20 * MIB), segment_alloc(A, 2 * MIB), segment_free(A, 2 * MIB)]])
    )
    assert history.totals.reserved_bytes.tolist() == [20 * MIB, 0, 2 * MIB, 0]
    assert not history.notices


def test_alloc_twice_at_one_address() -> None:
    """The free between them was lost: the first ends where the second begins."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512), alloc(A, 1024)]],
            segments=[segment(A, [block(1024), block(2 * MIB - 1024, state=INACTIVE)])],
        )
    )
    assert _rows(history) == [(A, 512, 512, 1, 2, 2), (A, 1024, 1024, 2, NEVER, NEVER)]
    assert history.totals.requested_bytes.tolist() == [0, 0, 512, 1024]
    assert [notice.code for notice in history.notices] == ["free_lost"]


def test_alloc_over_a_live_block() -> None:
    """The address lies inside an older block: its free was lost too."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 4096), alloc(A + 1024, 1024)]],
            segments=[segment(A, [block(1024, state=INACTIVE), block(1024), block(2 * MIB - 2048, state=INACTIVE)])],
        )
    )
    assert [row[3:] for row in _rows(history)] == [(1, 2, 2), (2, NEVER, NEVER)]
    assert history.totals.requested_bytes.tolist() == [0, 0, 4096, 1024]
    # The allocator takes the start of a free range, so an alloc before this one was lost as well.
    codes = [(notice.code, notice.bytes) for notice in history.notices]
    assert codes[:2] == [("free_lost", 4096), ("replay_conflict", 1024)]


def test_free_without_alloc_in_mid_history() -> None:
    """Nobody knows when it was born, so it counts for nothing, and the curve never goes below 0."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512), free(A, 512), free(A, 512)]],
            segments=[segment(A, [block(2 * MIB, state=INACTIVE)])],
        )
    )
    assert history.totals.requested_bytes.tolist() == [0, 0, 512, 0, 0, 0, 0]
    assert [(notice.code, notice.bytes) for notice in history.notices] == [("alloc_lost", 512)]


def test_the_final_picture_wins() -> None:
    """Threads go on between the copy of the trace and that of the segments."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512), alloc(A + 512, 512), free(A + 512, 512)]],
            segments=[segment(A, [block(512, state=INACTIVE), block(512), block(2 * MIB - 1024, state=INACTIVE)])],
        )
    )
    assert history.totals.requested_bytes[-1] == 512
    assert history.block_totals.allocated_bytes[-1] == 512
    assert {notice.code for notice in history.notices} >= {"not_in_final_state", "alloc_lost_at_end"}


def test_oom_event_changes_nothing() -> None:
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512), oom(20 * MIB, 5 * MIB)]],
            segments=[segment(A, [block(512), block(2 * MIB - 512, state=INACTIVE)])],
        )
    )
    assert history.totals.requested_bytes.tolist() == [0, 0, 512, 512]
    assert history.tables.events.oom_device_free_bytes.tolist() == [5 * MIB]


def test_pools_of_blocks_without_pool_id() -> None:
    """Before PyTorch 2.12 the segment tells the pool."""
    history = history_of(
        snapshot(
            traces=[[segment_alloc(A, 2 * MIB), alloc(A, 512)]],
            segments=[segment(A, [block(512), block(2 * MIB - 512, state=INACTIVE)], pool=(1, 0))],
        )
    )
    assert [history.snapshot.pools[pool] for pool in history.lifetimes.pool] == [(1, 0)]
