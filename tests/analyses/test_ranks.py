"""Ranks side by side: on small histories with the sums written out; and names."""

from __future__ import annotations

import pickle

import pytest

from snapscope.analyses.diff import Change
from snapscope.analyses.moments import find_moment
from snapscope.analyses.rank_names import RankId, choose_set, name_ranks, number_of
from snapscope.analyses.ranks import Rank, RankFile, RankReport, compare_ranks, read_rank
from snapscope.classify.material import Category
from tests import builders as b
from tests.builders import MIB
from tests.replay.test_properties import history_of

A = 0x7F0000000000
WEIGHTS = [b.frame("build", "/p/model.py", 3)]
HEAD = [b.frame("head", "/p/head.py", 4)]
LOG = [b.frame("log", "/p/log.py", 7)]


def rank_file(
    *sites: tuple[int, list[b.Raw]], device: int = 0, oom_us: int | None = None, free: int = MIB, stray: int = 0
) -> RankFile:
    """Make a rank that allocates these bytes at these sites, and then maybe runs out of memory."""
    total = sum(size for size, _ in sites)
    events: list[b.Events] = [b.segment_alloc(A, total, time_us=1)]
    blocks, cursor = [], A
    for size, frames in sites:
        events.append(b.alloc(cursor, size, frames=frames, time_us=2))
        blocks.append(b.block(size, frames=frames))
        cursor += size
    if oom_us is not None:
        events.append(b.oom(64 * MIB, free, frames=HEAD, time_us=oom_us))
    segments = [b.segment(A, blocks, device=device)]
    if stray:
        segments.append(b.segment(A + (1 << 40), [b.block(stray)], device=device + 1))
    traces: list[b.Events] = [*([] for _ in range(device)), events]
    history = history_of(b.snapshot(traces=traces, segments=segments))
    assert history.device == device
    return read_rank(history, find_moment(history, "peak"))


def compared(*files: RankFile) -> RankReport:
    return compare_ranks(list(enumerate(files)))


def numbers(ranks: tuple[Rank, ...]) -> list[RankId]:
    return [rank.rank for rank in ranks]


def test_one_rank_holds_more_at_a_site_of_its_own() -> None:
    usual = [rank_file((40 * MIB, WEIGHTS), device=device) for device in range(3)]
    report = compared(*usual, rank_file((40 * MIB, WEIGHTS), (20 * MIB, HEAD), device=3))
    assert report.median_bytes == 40 * MIB
    assert report.max_over_median == 1.5
    assert (report.is_unbalanced, numbers(report.outliers)) == (True, [3])
    assert [numbers(group) for group in report.groups] == [[0, 1, 2], [3]]
    assert report.diff is not None
    assert [(row.change, row.delta_bytes) for row in report.diff.rows] == [(Change.NEW, 20 * MIB), (Change.SAME, 0)]
    assert sum(row.delta_bytes for row in report.diff.rows) == report.diff.delta_bytes == 20 * MIB
    assert [rank.source.profile.device for rank in report.ranks] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sizes", "outliers", "unbalanced"),
    [
        ([100, 100, 100, 105], [], False),  # exactly 5 % is within
        ([100, 100, 100, 106], [3], True),
        ([100, 100, 100, 94], [3], True),  # less is out of line too
        ([100, 100, 200, 20], [2, 3], True),  # above first
        ([100, 120, 100, 130], [3, 1], True),  # the highest first
        ([100, 150], [1], True),  # the lower one stands for the median of two
        ([100, 104], [], False),
        ([100, 100, 150, 150], [2, 3], True),
        ([100], [], False),
    ],
)
def test_more_than_five_percent_from_the_median(sizes: list[int], outliers: list[int], unbalanced: bool) -> None:
    report = compared(*(rank_file((size * MIB, WEIGHTS)) for size in sizes))
    assert numbers(report.outliers) == outliers
    assert report.is_unbalanced == unbalanced


def test_ranks_that_hold_nothing_are_balanced() -> None:
    history = history_of(b.snapshot(segments=[b.segment(A, [b.block(2 * MIB, state=b.INACTIVE)])]))
    nothing = read_rank(history, find_moment(history, "peak"))
    report = compared(nothing, nothing)
    assert (report.max_over_median, report.outliers, report.diff) == (None, (), None)


def test_a_difference_nobody_would_look_for_is_none() -> None:
    report = compared(rank_file((40 * MIB, WEIGHTS)), rank_file((40 * MIB, WEIGHTS), (4096, LOG)))
    assert [numbers(group) for group in report.groups] == [[0, 1]]
    assert report.diff is None


def test_the_same_bytes_at_another_site_are_not_identical() -> None:
    report = compared(rank_file((40 * MIB, WEIGHTS)), rank_file((40 * MIB, HEAD)))
    assert [numbers(group) for group in report.groups] == [[0], [1]]
    assert not report.is_unbalanced


def test_the_first_oom_is_the_first_in_time() -> None:
    files = [rank_file((40 * MIB, WEIGHTS), oom_us=time_us) for time_us in (300, 100, 200)]
    report = compared(*files, rank_file((40 * MIB, WEIGHTS)))
    assert report.first_oom is not None
    assert report.first_oom.rank == 1
    assert numbers(report.ooms) == [1, 2, 0]
    # Failing alike is looking alike.
    assert [numbers(group) for group in report.groups] == [[0, 1, 2], [3]]


def test_a_rank_that_failed_with_less_room_than_another_had() -> None:
    report = compared(
        rank_file((100 * MIB, WEIGHTS)),
        rank_file((60 * MIB, WEIGHTS), oom_us=9, free=5 * MIB),
        rank_file((90 * MIB, HEAD)),
    )
    (shortage,) = report.shortages
    assert (shortage.rank.rank, shortage.room_bytes) == (1, 65 * MIB)
    assert (shortage.other.rank, shortage.other_bytes) == (0, 100 * MIB)


def test_failing_with_the_most_room_is_no_shortage() -> None:
    report = compared(rank_file((100 * MIB, WEIGHTS), oom_us=9), rank_file((60 * MIB, WEIGHTS)))
    assert report.shortages == ()


def test_memory_on_another_device_is_told() -> None:
    assert rank_file((40 * MIB, WEIGHTS), device=1, stray=2 * MIB).other_devices == ((2, 2 * MIB),)
    assert rank_file((40 * MIB, WEIGHTS)).other_devices == ()


def test_deltas_by_category_add_up() -> None:
    report = compared(rank_file((40 * MIB, WEIGHTS)), rank_file((40 * MIB, WEIGHTS), (20 * MIB, HEAD)))
    assert sum(report.delta_of(report.compared, category) for category in Category) == 20 * MIB


def test_what_is_compared_can_be_sent_between_processes() -> None:
    file = rank_file((40 * MIB, WEIGHTS), oom_us=5)
    copy = pickle.loads(pickle.dumps(file))
    assert copy.profile == file.profile
    assert copy.failure.verdict == file.failure.verdict  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank0_memory_snapshot.pickle", 0),
        ("snap_rank3.pickle.gz", 3),
        ("rank-7.pkl", 7),
        ("mem_global_rank=12.pickle", 12),
        ("oom_rank_3_pid77_1700000000.pickle", 3),
        ("local_rank_0_global_rank_8.pkl", 8),
        ("fsdp_rank2.pickle.gz", 2),
        ("memory_snapshot_rank_3_of_8.pickle", 3),
        ("Rank00012.json.zst", 12),
        ("rank_5/snapshot.pickle", 5),
        ("rank_5/rank6.pickle", 6),
        ("node1_local_rank3.pickle", None),
        ("dp_rank0_tp_rank1.pickle", None),
        ("r03.pickle", None),
        ("ranks/snapshot.pickle", None),
        ("frankfurt.pickle", None),
    ],
)
def test_the_name_says_the_rank(path: str, rank: int | None) -> None:
    assert number_of(path) == rank


@pytest.mark.parametrize(
    ("paths", "devices", "ranks"),
    [
        (["dp0_tp0.pkl", "dp0_tp1.pkl", "dp1_tp0.pkl"], [0, 1, 0], ["dp0_tp0", "dp0_tp1", "dp1_tp0"]),
        (["local_rank0.pkl", "local_rank1.pkl"], [0, 0], [0, 1]),
        (["node0_local_rank1.pkl", "node1_local_rank1.pkl"], [1, 1], ["node0_local1", "node1_local1"]),
        (["a_r03.pkl", "a_r11.pkl"], [0, 0], [3, 11]),
        (["a_r03.pkl", "b_r03.pkl"], [0, 1], [0, 1]),  # letters that tell nothing
        (["gpu2.pkl", "gpu5.pkl"], [0, 0], [2, 5]),
        (["host.4711.pkl", "host.4712.pkl"], [1, 0], [1, 0]),
        (["snap_0.pkl", "snap_1.pkl"], [0, 0], [0, 1]),
        (["snap_100.pkl", "snap_200.pkl"], [0, 0], ["snap_100", "snap_200"]),  # iterations, more likely
        (["a/snap.pkl", "b/snap.pkl"], [0, 0], ["a", "b"]),
        (["a/rank0.pkl", "b/rank0.pkl"], [0, 0], ["a/0", "b/0"]),
        (["rank0.pkl", "rank0.pkl.gz"], [0, 0], ["0 (rank0.pkl)", "0 (rank0.pkl.gz)"]),
        (["rank1.pkl", "other.pkl"], [0, 1], [1, "other"]),
        (["x.pkl"], [3], [3]),
    ],
)
def test_files_are_told_apart(paths: list[str], devices: list[int], ranks: list[RankId]) -> None:
    assert name_ranks(paths, devices) == ranks


@pytest.mark.parametrize(
    ("paths", "chosen", "others"),
    [
        (["rank0.p", "rank1.p"], ["rank0.p", "rank1.p"], []),
        (["iteration_9/rank0.p", "iteration_10/rank0.p"], ["iteration_10/rank0.p"], ["iteration_9"]),
        # Too few have written the last one.
        (
            ["i_1/rank0.p", "i_1/rank1.p", "i_1/rank2.p", "i_2/rank1.p"],
            ["i_1/rank0.p", "i_1/rank1.p", "i_1/rank2.p"], ["i_2"],
        ),
        (["node0/rank0.p", "node1/rank0.p"], ["node0/rank0.p", "node1/rank0.p"], []),
        (["a/rank0.p", "b/rank1.p"], ["a/rank0.p", "b/rank1.p"], []),
        (["0/s.p", "1/s.p"], ["0/s.p", "1/s.p"], []),
        (["rank0.p", "old/rank0.p"], ["rank0.p"], ["old"]),
        (["rank0_5.p", "rank0_10.p", "rank1_5.p", "rank1_10.p"], ["rank0_10.p", "rank1_10.p"], ["rank*_5.p"]),
        (["rank0_pid7.p", "rank0_pid8.p", "rank1_pid9.p"], ["rank0_pid8.p", "rank1_pid9.p"], ["earlier files"]),
    ],
)  # fmt: skip
def test_of_several_sets_the_last_is_chosen(paths: list[str], chosen: list[str], others: list[str]) -> None:
    found = choose_set(paths)
    assert (list(found.paths), list(found.others)) == (chosen, others)
