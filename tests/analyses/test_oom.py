"""The report on an out-of-memory error: recordings with the right answer, and one small file for each cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.analyses.oom import Failure, OomReport, find_oom
from snapscope.analyses.verdict import Cause
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import GIB, INACTIVE, KIB, MIB, PENDING
from tests.conftest import FIXTURES, fixture_path, read_truth, recordings
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
GAP: Final = 1 << 36


@dataclass(frozen=True)
class Recorded:
    """A recording and its answer."""

    history: DeviceHistory
    answer: Any

    def report(self) -> OomReport:
        return find_oom(self.history, capacity_bytes=self.answer.get("ledger", {}).get("capacity_bytes"))


def answers_in(folder: Path) -> Iterator[Recorded]:
    """Yield every recording of a folder that has a `NAME.answer.json`."""
    for path in sorted(folder.glob("*.answer.json")):
        snapshot = path.with_name(path.name.replace(".answer.json", ".pickle"))
        if not snapshot.exists():
            snapshot = snapshot.with_suffix(".pickle.gz")
        answer = json.loads(path.read_bytes())
        yield Recorded(DeviceHistory(load_snapshot(snapshot), answer.get("device")), answer)


def recorded(name: str) -> Recorded:
    path = fixture_path(name)
    answer = json.loads(path.with_name(path.name.replace(".pickle.gz", ".answer.json")).read_bytes())
    return Recorded(DeviceHistory(load_snapshot(path), answer.get("device")), answer)


def last_of(report: OomReport) -> Failure:
    return report.failures[-1]


def check_answer(case: Recorded) -> None:
    """Compare the verdict and every figure, to the byte."""
    answer, report = case.answer, case.report()
    assert report.num_ooms == answer["num_ooms"] == len(report.failures)
    if not answer["num_ooms"]:
        assert answer["verdict"] == "none"
        return
    failure = last_of(report)
    request, verdict, state = failure.request, failure.verdict, failure.balance
    assert verdict.cause.value in (answer["verdict"], *answer["also_acceptable"]), answer["scenario"]
    for each, event in zip(report.failures, answer["oom_events"], strict=True):
        assert each.at.event == event["event"]
        assert each.request.requested_bytes == event["requested_bytes"]
        assert each.request.device_free_bytes == event["device_free_bytes"]
    found = {
        "requested_bytes": request.requested_bytes,
        "segment_bytes_asked": request.segment_bytes,
        "device_free_bytes": request.device_free_bytes,
        "holes_bytes": request.holes_bytes,
        "num_holes": request.num_holes,
        "largest_hole_bytes": request.largest_hole_bytes,
        "other_stream_free_bytes": request.other_stream_holes_bytes,
        "other_size_class_free_bytes": request.other_class_bytes,
        "private_pool_free_bytes": request.private_pool_bytes,
        "short_by_bytes": verdict.room.short_by_bytes,
    }
    assert found == {key: answer[key] for key in found}, answer["scenario"]
    pool = answer["request_pool"]
    assert (request.size_class.name.lower(), request.stream) == (pool["segment_type"], pool["stream"])
    assert case.history.snapshot.pools[request.pool] == tuple(pool["pool_id"])
    ladder = {key: value for key, value in answer["ledger"].items() if hasattr(state, key)}
    assert len(ladder) >= 12
    assert {key: getattr(state, key) for key in ladder} == ladder, answer["scenario"]
    assert report.ledger.balance == state
    released = sum(size for key, size in answer["released_just_before"].items() if key != "events")
    assert (report.before_release.release.released_bytes if report.before_release else 0) == released
    expected = {
        (row["segment_type"], row["stream"], tuple(row["pool_id"])): [
            row[key] for key in ("segments", "reserved", "allocated", "pending", "free", "num_holes", "largest_hole")
        ]
        for row in answer["pools"]
    }
    pools = {
        (row.size_class.name.lower(), row.stream, case.history.snapshot.pools[row.pool]): [
            row.num_segments, row.reserved_bytes, row.allocated_bytes, row.pending_bytes, row.free_bytes,
            row.num_holes, row.largest_hole_bytes,
        ]
        for row in report.pools
    }  # fmt: skip
    assert pools == expected, answer["scenario"]


@pytest.mark.parametrize("name", recordings("runs/oom"))
def test_the_answers(name: str) -> None:
    check_answer(recorded(name))


def test_more_answers(shared: Path) -> None:
    cases = list(answers_in(shared / "snapshots/runs/oom"))
    assert len(cases) >= 15
    for case in cases:
        check_answer(case)


def test_a_dump_after_the_exception_tells_what_its_twin_does() -> None:
    """What unwinding frees comes after the `oom` event, which is what counts."""
    twins = [name for name in recordings("runs/oom") if name.endswith("_except")]
    assert twins
    for name in twins:
        late, early = recorded(name), recorded(name.removesuffix("_except"))
        assert late.history.num_events > early.history.num_events or late.answer["dumped_in"] == "except"
        one, other = last_of(late.report()), last_of(early.report())
        assert one.request.holes_bytes == other.request.holes_bytes
        assert (one.verdict, one.balance, one.site, one.phase) == (
            other.verdict,
            other.balance,
            other.site,
            other.phase,
        )


@pytest.mark.parametrize(
    ("name", "needed"),
    [("torch-2.0/oom_forward", None), ("torch-2.14/oom_forward", None), ("torch-2.6/oom_backward", None),
     ("torch-2.14/oom_optimizer_step", "optimizer_states")],
)  # fmt: skip
def test_recordings_of_a_card_that_is_too_small(name: str, needed: str | None) -> None:
    """What PyTorch told its observer, to the byte."""
    truth = read_truth(name)
    failure = last_of(find_oom(DeviceHistory(load_snapshot(fixture_path(name)))))
    assert failure.verdict.cause is Cause.CAPACITY
    assert failure.phase == truth["oom"]["phase"].rpartition(".")[2]
    assert failure.request.segment_bytes == truth["oom"]["alloc"]
    assert failure.request.device_free_bytes == truth["oom"]["device_free"]
    # Unwinding hasn't begun: the dump is made in the observer.
    assert (failure.balance.allocated_bytes, failure.balance.reserved_bytes) == (
        truth["allocated_bytes"], truth["reserved_bytes"],
    )  # fmt: skip
    basis = failure.verdict.projection.basis if failure.verdict.projection is not None else None
    assert basis == needed


def test_an_oom_of_somebody_elses_training(shared: Path) -> None:
    path = shared / "snapshots/public/dit-train-oom.pickle"
    if not path.exists():
        pytest.skip("the recording isn't there")
    failure = last_of(find_oom(DeviceHistory(load_snapshot(path))))
    assert failure.verdict.cause is Cause.CAPACITY
    assert failure.request.requested_bytes == failure.request.segment_bytes == 384 * MIB
    # 252.375 MiB at the driver and 13.6 in holes, of 384.
    assert failure.verdict.room.short_by_bytes == (
        384 * MIB - (failure.request.device_free_bytes or 0) - failure.request.holes_bytes
    )
    assert failure.verdict.room.short_by_bytes // MIB == 118


# ------------------------------------------------------------------------------- one file for each cause


def failing(
    size: int, device_free: int, *segments: b.Raw, stream: int = 0, pool: tuple[int, int] = (0, 0), **conf: Any
) -> Failure:
    """Judge a request that fails over segments that were there all the time."""
    history = history_of(
        b.snapshot(
            [[b.oom(size, device_free, stream=stream, pool=pool)]], segments, allocator_settings=b.settings(**conf)
        )
    )
    return last_of(find_oom(history))


def held(number: int, *sizes: int, **fields: Any) -> b.Raw:
    """Make a segment of MiB in use (positive), pending (a fraction) or free (negative)."""
    blocks = [b.block(abs(size) * MIB, state=INACTIVE if size < 0 else b.ALLOCATED) for size in sizes]
    return b.segment(A + number * GAP, blocks, **fields)


def waiting(number: int, *sizes: int, **fields: Any) -> b.Raw:
    blocks = [b.block(abs(size) * MIB, state=INACTIVE if size < 0 else PENDING) for size in sizes]
    return b.segment(A + number * GAP, blocks, **fields)


def test_limit() -> None:
    """The driver had all of the 100 MiB."""
    failure = failing(100 * MIB, 100 * MIB, held(0, 500))
    assert failure.verdict.cause is Cause.LIMIT
    assert failing(100 * MIB, 100 * MIB - 1, held(0, 500)).verdict.cause is Cause.CAPACITY


def test_a_limit_counts_the_segment_and_not_the_request() -> None:
    """5 MiB want a segment of 20: the driver's 15 aren't enough, and 20 are."""
    assert failing(5 * MIB, 15 * MIB, held(0, 500)).verdict.cause is Cause.CAPACITY
    failure = failing(5 * MIB, 20 * MIB, held(0, 500))
    assert failure.verdict.cause is Cause.LIMIT
    assert (failure.request.segment_bytes, failure.request.driver_bytes) == (20 * MIB, 20 * MIB)


def test_pending_free() -> None:
    """30 MiB wait between holes of 35 each: 100 in one piece without them."""
    segment = b.segment(
        A,
        [
            b.block(20 * MIB),
            b.block(35 * MIB, state=INACTIVE),
            b.block(30 * MIB, state=PENDING),
            b.block(35 * MIB, state=INACTIVE),
            b.block(20 * MIB),
        ],
    )
    failure = failing(100 * MIB, 0, segment)
    assert failure.verdict.cause is Cause.PENDING_FREE
    assert (failure.request.pending_bytes, failure.request.largest_with_pending_bytes) == (30 * MIB, 100 * MIB)
    assert failing(101 * MIB, 0, segment).verdict.cause is not Cause.PENDING_FREE


def test_capture() -> None:
    """A graph's pool asks for 100 MiB: 60 at the driver and a free segment of 40, that may not go back."""
    request: dict[str, Any] = {"stream": 9, "pool": (1, 0)}
    assert failing(100 * MIB, 60 * MIB, held(0, -40), held(1, 500), **request).verdict.cause is Cause.CAPTURE
    assert failing(100 * MIB, 60 * MIB, held(0, -38), held(1, 500), **request).verdict.cause is Cause.CAPACITY


def test_private_pool() -> None:
    """60 at the driver, 40 idle in a graph's pool."""
    live = held(1, 500)
    assert failing(100 * MIB, 60 * MIB, held(0, 10, -40, pool=(1, 0)), live).verdict.cause is Cause.PRIVATE_POOL
    assert failing(100 * MIB, 60 * MIB, held(0, 10, -38, pool=(1, 0)), live).verdict.cause is Cause.CAPACITY
    # What is live there is plain demand.
    assert failing(100 * MIB, 60 * MIB, held(0, 50, pool=(1, 0)), live).verdict.cause is Cause.CAPACITY


def test_capacity() -> None:
    """30 at the driver, 40 in holes, 20 for another stream: 10 short of 100."""
    failure = failing(100 * MIB, 30 * MIB, held(0, 500, -40), held(1, 500, -20, stream=7))
    assert (failure.verdict.cause, failure.verdict.also) == (Cause.CAPACITY, ())
    assert failure.verdict.room.short_by_bytes == 10 * MIB
    assert failure.verdict.full is None
    # 500 and 500 live, 40 + 20 free, 30 at the driver.
    assert (failure.verdict.room.room_bytes, failure.verdict.room.left_bytes) == (1090 * MIB, 90 * MIB)


def test_a_full_card_is_capacity_though_the_holes_sum_to_more() -> None:
    """6 MiB asked for, 18 in holes: but of 2,042 MiB only 42 aren't live."""
    failure = failing(6 * MIB, 2 * MIB, held(0, 1000, -5, 1000, -5), held(1, 5, -5, 5, -5, 5, -5, 5))
    assert (failure.verdict.cause, failure.verdict.also) == (Cause.CAPACITY, (Cause.FRAGMENTATION,))
    assert failure.verdict.room.short_by_bytes == 0
    assert failure.request.holes_bytes == 25 * MIB


def test_other_stream() -> None:
    """A hole of 200 MiB is another stream's."""
    failure = failing(100 * MIB, 10 * MIB, held(0, 50, -50), held(1, 10, -200, stream=7))
    assert failure.verdict.cause is Cause.OTHER_STREAM
    assert failure.request.other_stream_holes_bytes == failure.request.largest_other_stream_hole_bytes == 200 * MIB


def test_fragmentation() -> None:
    """20 + 60 + 60 MiB are free for 100, and half of the card is."""
    failure = failing(100 * MIB, 20 * MIB, held(0, 70, -60, 70, -60))
    assert (failure.verdict.cause, failure.verdict.also) == (Cause.FRAGMENTATION, ())
    assert (failure.request.num_holes, failure.request.largest_hole_bytes) == (2, 60 * MIB)


def test_fitting_hole() -> None:
    """Under max_split_size_mb:80 100 MiB may not take a hole of 130; without it the allocator missed it."""
    blocks = held(0, 70, -130)
    failure = failing(100 * MIB, 20 * MIB, blocks, max_split_size=80 * MIB, expandable_segments=True)
    assert failure.verdict.cause is Cause.FITTING_HOLE
    assert (failure.request.largest_hole_bytes, failure.request.usable_hole_bytes) == (130 * MIB, 0)
    failure = failing(100 * MIB, 20 * MIB, blocks)
    assert failure.verdict.cause is Cause.FITTING_HOLE
    assert failure.request.usable_hole_bytes == 130 * MIB


def test_small_requests_have_holes_of_their_own() -> None:
    """Large holes are nothing to a small request, nor small ones to a large request."""
    small = b.segment(A + GAP, [b.block(2 * MIB - 512 * KIB), b.block(512 * KIB, state=INACTIVE)])
    failure = failing(MIB, 0, held(0, 70, -130), small)
    assert failure.request.holes_bytes == 512 * KIB
    assert failure.request.other_class_bytes == 130 * MIB
    assert (failure.verdict.cause, failure.verdict.room.short_by_bytes) == (Cause.CAPACITY, 512 * KIB)
    assert failing(MIB + 512, 130 * MIB, held(0, 70, -130), small).request.other_class_bytes == 512 * KIB


def test_an_unknown_device_free_is_no_limit() -> None:
    """Files of a fork may not tell what the driver had."""
    oom = {key: value for key, value in b.oom(100 * MIB, 0).items() if key != "device_free"}
    failure = last_of(find_oom(history_of(b.snapshot([[oom]], [held(0, 500)]))))
    assert failure.request.device_free_bytes is None
    assert failure.verdict.cause is Cause.CAPACITY
    assert failure.verdict.room.short_by_bytes == 100 * MIB


# ------------------------------------------------------------------------------- the report around it


def test_no_oom_event() -> None:
    history = history_of(b.snapshot([[b.segment_alloc(A, 20 * MIB)]], [held(0, -20)]))
    report = find_oom(history)
    assert (report.failures, report.num_ooms, report.remedies) == ((), 0, ())
    assert report.ledger.at.event == 0
    assert find_oom(history_of(b.snapshot())).num_ooms == 0


def test_many_ooms_show_the_last_twenty() -> None:
    events = [b.oom(100 * MIB, n * MIB) for n in range(25)]
    report = find_oom(history_of(b.snapshot([events], [held(0, 500)])))
    assert (report.num_ooms, len(report.failures)) == (25, 20)
    assert [failure.number for failure in report.failures] == list(range(6, 26))
    assert [failure.at.label for failure in report.failures][-2:] == ["oom:24", "oom"]
    assert last_of(report).request.device_free_bytes == 24 * MIB


def test_the_state_before_the_cache_was_given_back() -> None:
    """The failing call first freed a segment of 40 MiB that nobody used."""
    where = [b.frame("forward", "/p/model.py", 9)]
    events: list[b.Events] = [
        b.segment_alloc(A, 60 * MIB, frames=[b.frame()], time_us=1),
        b.alloc(A, 60 * MIB, frames=[b.frame()], time_us=2),
        b.segment_alloc(A + GAP, 40 * MIB, frames=[b.frame()], time_us=3),
        b.segment_free(A + GAP, 40 * MIB, frames=where, time_us=1000),
        b.oom(100 * MIB, 45 * MIB, frames=where, time_us=1001),
    ]
    report = find_oom(history_of(b.snapshot([events], [held(0, 60)])))
    assert report.before_release is not None
    assert report.before_release.at.event == 2
    assert report.before_release.release.released_bytes == 40 * MIB
    assert report.before_release.balance.reserved_bytes == 100 * MIB
    assert report.before_release.balance.cached_free_segments_bytes == 40 * MIB
    assert last_of(report).balance.reserved_bytes == 60 * MIB


def test_the_capacity_tells_what_is_outside() -> None:
    history = history_of(b.snapshot([[b.oom(3 * GIB, GIB)]], [held(0, 1024)]))
    state = last_of(find_oom(history, capacity_bytes=4 * GIB)).balance
    assert (state.reserved_bytes, state.device_free_bytes, state.outside_bytes) == (GIB, GIB, 2 * GIB)


def test_cases_of_the_fixtures() -> None:
    expected = json.loads((FIXTURES / "cases/expected.json").read_bytes())
    for name in ("01_capacity_oom", "02_fragmentation_oom"):
        answer = expected[name]["expected"]
        failure = last_of(find_oom(DeviceHistory(load_snapshot(fixture_path(f"cases/{name}/a.pickle")))))
        assert failure.verdict.cause.value == answer["verdict"]
        assert failure.request.requested_bytes == answer["oom"]["requested"]
        assert failure.request.device_free_bytes == answer["oom"]["device_free"]
        assert failure.verdict.room.short_by_bytes == answer["oom"].get("short_by", 0)
