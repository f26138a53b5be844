"""When the allocator gave its cache back, and why that can be told."""

from __future__ import annotations

from typing import Final

import pytest

from snapscope.analyses.releases import find_retries, find_unwinding, release_before
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import MIB, Raw
from tests.classify.program import ENGINE, MAIN, Program, at, forget_results, forward, run_forward, train, user
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
GAP: Final = 1 << 30
HERE: Final = [b.frame("forward", "/p/model.py", 9)]
THERE: Final = [b.frame("evaluate", "/p/eval.py", 4)]
START: Final[list[Raw]] = [b.segment_alloc(A + n * GAP, 20 * MIB, frames=THERE, time_us=n) for n in range(4)]


def history(*events: b.Events) -> DeviceHistory:
    return history_of(b.snapshot([[START, *events]]))


def given_back(number: int, *, frames: list[Raw] | None = HERE, time_us: int | None = 9000) -> Raw:
    return b.segment_free(A + number * GAP, 20 * MIB, frames=frames, time_us=time_us)


def failed(*, frames: list[Raw] | None = HERE, time_us: int | None = 9000) -> Raw:
    return b.oom(30 * MIB, 0, frames=frames, time_us=time_us)


def test_segments_given_back_by_the_call_that_fails() -> None:
    made = history(given_back(0), given_back(1), failed())
    found = release_before(made, 6)
    assert found is not None
    assert (found.start_event, found.end_event, found.num_segments) == (4, 5, 2)
    assert (found.released_bytes, found.site) == (40 * MIB, "model.py:9 forward")


def test_another_calls_release_is_not_this_ones() -> None:
    """`empty_cache()` in the line before has another stack."""
    made = history(given_back(0, frames=THERE), given_back(1), failed())
    found = release_before(made, 6)
    assert found is not None
    assert (found.start_event, found.released_bytes) == (5, 20 * MIB)
    assert release_before(history(given_back(0, frames=THERE), failed()), 5) is None
    assert release_before(history(failed()), 4) is None


def test_frees_that_the_call_waited_for_belong_to_it() -> None:
    """A block that waited comes back within the call; an ordinary free before it does not."""
    pending: list[b.Events] = [
        b.alloc(A, 8 * MIB, frames=THERE, time_us=10),
        b.alloc(A + 8 * MIB, 8 * MIB, frames=THERE, time_us=11),
        b.free_requested(A, 8 * MIB, frames=THERE, time_us=12),
        b.free(A + 8 * MIB, 8 * MIB, frames=THERE, time_us=8999),
        b.free_completed(A, 8 * MIB, frames=THERE, time_us=9000),
    ]
    found = release_before(history(*pending, given_back(0), failed()), 11)
    assert found is not None
    # The free of the second block is events 7 and 8.
    assert (found.start_event, found.end_event, found.num_segments) == (9, 10, 1)
    assert found.released_bytes == 20 * MIB


@pytest.mark.parametrize(("since_us", "is_found"), [(0, True), (2000, True), (2001, False)])
def test_without_stacks_time_tells(since_us: int, is_found: bool) -> None:
    made = history(given_back(0, frames=None, time_us=9000 - since_us), failed(frames=None))
    found = release_before(made, 5)
    assert (found is not None) == is_found
    if found is not None:
        assert found.site is None


def test_without_stacks_and_times_what_is_next_to_it_counts() -> None:
    made = history(given_back(0, frames=None, time_us=None), failed(frames=None, time_us=None))
    assert release_before(made, 5) is not None


def test_granules_that_go_back_count() -> None:
    events = [
        b.segment_map(A, 60 * MIB, frames=THERE, time_us=1),
        b.segment_unmap(A + 20 * MIB, 40 * MIB, frames=HERE, time_us=9000),
        failed(),
    ]
    kept = b.segment(A, [b.block(20 * MIB)], is_expandable=True)
    found = release_before(history_of(b.snapshot([events], [kept])), 2)
    assert found is not None
    assert (found.num_segments, found.released_bytes) == (1, 40 * MIB)


# ------------------------------------------------------------------------------- retries


def test_a_request_that_was_served_after_all() -> None:
    made = history(
        given_back(0), given_back(1), b.segment_alloc(A + 9 * GAP, 40 * MIB, frames=HERE, time_us=9001),
        given_back(2, frames=THERE), b.segment_alloc(A + 10 * GAP, 20 * MIB, frames=HERE, time_us=9100),
    )  # fmt: skip
    (found,) = find_retries(made)
    assert (found.start_event, found.end_event, found.released_bytes) == (4, 5, 40 * MIB)


def test_a_recording_that_nearly_ran_out() -> None:
    """PyTorch counted one retry, and gave 450 MiB back for it."""
    (found,) = find_retries(DeviceHistory(load_snapshot(fixture_path("runs/oom/retry_then_fine"))))
    assert found.released_bytes > 100 * MIB


@pytest.mark.parametrize("name", ["torch-2.14/adamw_fp32", "torch-2.14/kv_cache", "torch-2.0/adamw_fp32"])
def test_ordinary_runs_have_none(name: str) -> None:
    assert find_retries(DeviceHistory(load_snapshot(fixture_path(name)))) == ()


def test_no_history() -> None:
    assert find_retries(history_of(b.snapshot())) == ()


# ------------------------------------------------------------------------------- unwinding


def unwound(run: Program) -> None:
    """Let go of all that the running step of number 2 holds."""
    for name in [name for name in run.live if name.endswith("2") and not name.startswith(("w", "m_", "v_", "g"))]:
        run.free(name, MAIN)


def test_what_an_exception_in_backward_let_go_of() -> None:
    """x, h, logits, logp and the loss go; what backward made is a gradient, and isn't counted."""
    run = train(Program(), 2)
    run_forward(run, 2)
    forget_results(run, 1)
    run.alloc("seed2", 4, (at("torch/autograd/__init__.py", "_make_grads"), at("torch/_tensor.py", "backward"), *MAIN))
    run.alloc("dlogp2", 24576, ENGINE)
    live = sum(run.placed[name][1] for name in run.live)
    last = len(run.events) - 1
    unwound(run)
    found = find_unwinding(run.history())
    assert found is not None
    assert (found.event, found.live_bytes) == (last, live)
    assert found.freed_bytes == 2048 + 32768 + 2 * 24576 + 4


def test_what_an_exception_in_forward_let_go_of() -> None:
    run = train(Program(), 2)
    run_forward(run, 2)
    last = len(run.events) - 1
    unwound(run)
    found = find_unwinding(run.history())
    assert found is not None
    assert found.event == last


def test_a_step_that_ends_as_it_should_is_no_unwinding() -> None:
    assert find_unwinding(train(Program(), 3).history()) is None


def test_little_is_no_unwinding() -> None:
    run = train(Program(), 2)
    run.alloc("x2", 2048, user("get_batch", 17))
    run.alloc("h2", 2048, forward(7))
    run.free("h2", MAIN)
    assert find_unwinding(run.history()) is None


@pytest.mark.parametrize(
    "name", [name for name in recordings() if "/oom_" not in name and "/fragmentation" not in name]
)
def test_recordings_end_without_an_exception(name: str) -> None:
    history = DeviceHistory(load_snapshot(fixture_path(name)))
    assert not len(history.tables.events.oom_events)
    assert find_unwinding(history) is None
