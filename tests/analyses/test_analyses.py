"""Moments, ledger, cached memory, coverage, timeline: on small histories with the sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from snapscope.analyses.cached import split_cached
from snapscope.analyses.coverage import Head, explained_share, find_coverage
from snapscope.analyses.ledger import By, balance, group_live, ledger
from snapscope.analyses.moments import find_moment, find_peaks, format_time, moment_at
from snapscope.analyses.selection import LEFT_OUT_KEY, select
from snapscope.analyses.summary import summarise
from snapscope.analyses.timeline import timeline
from snapscope.errors import UsageError
from snapscope.history import DeviceHistory
from snapscope.lifetimes import Context
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.conftest import fixture_path
from tests.replay.test_properties import history_of

A = 0x7F0000000000
LOAD = b.frame("load", "/p/init.py", 5)
FORWARD = b.frame("forward", "/p/model.py", 9)
MAIN = b.frame("<module>", "/p/train.py", 1)


def _example() -> DeviceHistory:
    """4 MiB loaded, 6 MiB of forward that is freed, then an OOM; 20 MiB reserved."""
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB, time_us=10),
        b.alloc(A, 4 * MIB, frames=[LOAD, MAIN], time_us=11),
        b.alloc(A + 4 * MIB, 6 * MIB - 100, frames=[FORWARD, MAIN], time_us=12, stream=7),
        b.free(A + 4 * MIB, 6 * MIB - 100, frames=[MAIN], time_us=13),
        b.oom(30 * MIB, 5 * MIB, frames=[FORWARD, MAIN], time_us=20),
        b.alloc(A + 4 * MIB, 2 * MIB, frames=[FORWARD, MAIN], time_us=21),
    ]
    blocks = [
        b.block(4 * MIB, frames=[LOAD, MAIN]),
        b.block(2 * MIB, frames=[FORWARD, MAIN]),
        b.block(14 * MIB, state=INACTIVE),
    ]
    return history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)], allocator_settings=b.settings()))


@pytest.mark.parametrize(
    ("at", "event"),
    [
        ("peak", 2),
        ("peak-allocated", 2),
        ("peak-active", 2),
        ("peak-reserved", 0),
        ("start", -1),
        ("end", 6),
        ("oom", 5),
        ("oom:1", 5),
        ("event:3", 3),
        ("event:-1", -1),
        ("time:12", 2),
        ("time:19", 4),
        ("time:1970-01-01T00:00:00.000013", 4),
        ("time:1970-01-01T00:00:00.000012Z", 2),
        ("time:1970-01-01T01:00:00.000012+01:00", 2),
    ],
)
def test_moments(at: str, event: int) -> None:
    moment = find_moment(_example(), at)
    assert (moment.event, moment.label) == (event, at)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("event:7", "has events 0 to 6"),
        ("event:x", "no moment"),
        ("oom:2", "has oom:1 to oom:1"),
        ("oom:0", "no oom:0"),
        ("time:9", "outside the history"),
        ("time:yesterday", "no time"),
        ("", "no moment"),
    ],
)
def test_moments_refused(at: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_moment(_example(), at)


def test_no_oom() -> None:
    with pytest.raises(UsageError, match="no oom event"):
        find_moment(history_of(b.snapshot()), "oom")


def test_peaks() -> None:
    peaks = find_peaks(_example())
    assert (peaks.requested.event, peaks.requested.bytes) == (2, 10 * MIB - 100)
    assert (peaks.allocated.event, peaks.allocated.bytes) == (2, 10 * MIB)
    assert (peaks.reserved.event, peaks.reserved.bytes) == (0, 20 * MIB)


def test_ladder_at_the_peak() -> None:
    rungs = balance(_example(), find_moment(_example(), "peak"))
    assert rungs.requested_bytes == 10 * MIB - 100
    assert rungs.rounding_bytes == 100
    assert rungs.allocated_bytes == 10 * MIB
    assert rungs.cached_holes_bytes == rungs.cached_bytes == 10 * MIB
    assert rungs.reserved_bytes == 20 * MIB
    assert rungs.outside_bytes is None


def test_ladder_at_the_oom_with_the_cards_size() -> None:
    rungs = balance(_example(), find_moment(_example(), "oom"), capacity_bytes=32 * MIB)
    assert (rungs.reserved_bytes, rungs.device_free_bytes, rungs.outside_bytes) == (20 * MIB, 5 * MIB, 7 * MIB)
    # A card smaller than what was seen on it: nothing is claimed.
    assert balance(_example(), find_moment(_example(), "oom"), capacity_bytes=8 * MIB).outside_bytes is None


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        (By.SITE, [("model.py:9 forward", 6 * MIB - 100), ("init.py:5 load", 4 * MIB)]),
        (By.FILE, [("model.py", 6 * MIB - 100), ("init.py", 4 * MIB)]),
        (By.STREAM, [("stream 7", 6 * MIB - 100), ("stream 0", 4 * MIB)]),
        (By.POOL, [("default pool", 10 * MIB - 100)]),
    ],
)
def test_rows(by: By, rows: list[tuple[str, int]]) -> None:
    history = _example()
    found = ledger(history, find_moment(history, "peak"), by=by)
    assert [(row.key, row.bytes) for row in found.rows] == rows
    assert sum(row.bytes for row in found.rows) == found.balance.requested_bytes


def test_selection_keeps_the_sum() -> None:
    history = _example()
    at = find_moment(history, "peak")
    rows = group_live(history, at, selection=select(history, focus="forward"))
    assert [(row.key, row.bytes) for row in rows] == [
        ("model.py:9 forward", 6 * MIB - 100),
        (LEFT_OUT_KEY, 4 * MIB),
    ]
    rows = group_live(history, at, selection=select(history, ignore="forward"))
    assert [row.key for row in rows] == ["init.py:5 load", LEFT_OUT_KEY]
    with pytest.raises(UsageError, match="regular expression"):
        select(history, focus="(")


def test_sites_of_one_name_are_told_apart() -> None:
    linear = b.frame("linear", "/v/site-packages/torch/nn/functional.py", 3)
    norm = b.frame("norm", "/v/site-packages/torch/nn/x.py", 4)
    events = [b.segment_alloc(A, 2 * MIB)]
    stacks = [[linear, FORWARD, MAIN], [norm, FORWARD, MAIN], [linear, FORWARD, LOAD, MAIN]]
    events += [b.alloc(A + 512 * i, 512, frames=stack) for i, stack in enumerate(stacks)]
    blocks = [b.block(512) for _ in stacks] + [b.block(2 * MIB - 1536, state=INACTIVE)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)]))
    keys = {row.key for row in group_live(history, find_moment(history, "end"))}
    assert keys == {
        "model.py:9 forward > functional.py:3 linear",
        "model.py:9 forward > x.py:4 norm",
        "model.py:9 forward < init.py:5 load",
    }


def test_cached_memory_of_three_kinds() -> None:
    """A wholly free segment, a hole, and idle memory of a private pool."""
    segments = [
        b.segment(A, [b.block(20 * MIB, state=INACTIVE)]),
        b.segment(A + 20 * MIB, [b.block(8 * MIB), b.block(12 * MIB, state=INACTIVE)]),
        b.segment(A + 40 * MIB, [b.block(2 * MIB, state=INACTIVE)], pool=(1, 0)),
    ]
    cached = split_cached(history_of(b.snapshot(segments=segments)).layout_at(-1))
    assert cached.free_segments_bytes == 20 * MIB
    assert cached.holes_bytes == 12 * MIB
    assert cached.private_pool_bytes == 2 * MIB


def test_expandable_segments_give_back_whole_granules() -> None:
    """Of 60 MiB in granules of 20, a block in the middle one pins only that."""
    blocks = [b.block(21 * MIB, state=INACTIVE), b.block(2 * MIB), b.block(37 * MIB, state=INACTIVE)]
    history = history_of(b.snapshot(segments=[b.segment(A, blocks, is_expandable=True)]))
    cached = split_cached(history.layout_at(-1))
    assert cached.free_segments_bytes == 40 * MIB
    assert cached.holes_bytes == 18 * MIB


def test_coverage_of_a_late_start() -> None:
    coverage = find_coverage(DeviceHistory(load_snapshot(fixture_path("cases/05_history_starts_late/a.pickle"))))
    assert coverage.before_bytes == 943718400
    assert coverage.explained_bytes == 104857600
    assert coverage.before_stack_bytes == 209715200
    assert coverage.live_bytes - coverage.stack_bytes == 314572800
    assert coverage.freed_before_bytes == 419430400
    assert explained_share(coverage) == "alloc events explain 100 MiB of 600 MiB live (16.7%)"


@pytest.mark.parametrize(
    ("name", "head", "context"),
    [
        ("torch-2.14/adamw_fp32", Head.COMPLETE, Context.ALL),
        ("torch-2.14/late_start", Head.STARTS_LATE, Context.ALL),
        ("torch-2.14/ring_overflow", Head.LOST, Context.ALL),
        ("torch-2.14/no_context", Head.COMPLETE, Context.NONE),
        ("torch-2.14/context_state", Head.COMPLETE, Context.STATE),
        ("torch-2.0/adamw_fp32", Head.COMPLETE, Context.ALLOC),
    ],
)
def test_coverage_of_recordings(name: str, head: Head, context: Context) -> None:
    coverage = find_coverage(DeviceHistory(load_snapshot(fixture_path(name))))
    assert (coverage.head, coverage.context) == (head, context)
    assert bool(coverage.advice) == (head is not Head.COMPLETE or context in (Context.NONE, Context.STATE))


def test_a_free_stack_that_repeats_the_alloc_says_nothing() -> None:
    history = DeviceHistory(load_snapshot(fixture_path("torch-2.0/adamw_fp32")))
    assert (history.lifetimes.free_stack == -1).all()


def test_timeline_keeps_the_peak() -> None:
    history = DeviceHistory(load_snapshot(fixture_path("torch-2.14/adamw_fp32")))
    whole, part = timeline(history), timeline(history, num_points=20)
    assert len(whole.events) == history.num_events + 1
    assert part.is_sampled
    assert len(part.events) <= 21
    assert part.requested_bytes.max() == whole.requested_bytes.max()
    assert part.reserved_bytes.max() == whole.reserved_bytes.max()
    assert (np.diff(part.events) > 0).all()
    np.testing.assert_array_equal(part.requested_bytes, whole.requested_bytes[part.events + 1])


def test_timeline_of_a_selection() -> None:
    history = _example()
    curve = timeline(history, selection=select(history, focus="forward"))
    assert curve.requested_bytes.tolist() == [0, 0, 0, 6 * MIB - 100, 0, 0, 0, 2 * MIB]
    assert curve.allocated_bytes.tolist() == [0, 0, 0, 6 * MIB, 0, 0, 0, 2 * MIB]
    assert curve.pending_bytes.tolist() == [0, 0, 0, 0, 6 * MIB, 0, 0, 0]
    assert curve.reserved_bytes[-1] == 20 * MIB


def test_summary_of_an_oom() -> None:
    result = summarise(_example())
    assert [
        (oom.number, oom.request.requested_bytes, oom.request.device_free_bytes, oom.site) for oom in result.failures
    ] == [(1, 30 * MIB, 5 * MIB, "model.py:9 forward")]


def test_summary_of_nothing() -> None:
    result = summarise(history_of(b.snapshot()))
    assert result.ladder.reserved_bytes == 0
    assert result.coverage.head is Head.NO_HISTORY


def test_times() -> None:
    assert format_time(1_760_000_000_000_010) == "2025-10-09T08:53:20.000010"
    assert format_time(-5) == "-5"
    assert format_time(1 << 62) == str(1 << 62)
    assert moment_at(_example(), 3).label == "event:3"
