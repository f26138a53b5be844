"""The place in an earlier step that corresponds to a failing request."""

from __future__ import annotations

import pytest

from snapscope.analyses.step_match import StepMatch, match_earlier_step
from tests.classify.program import Program, Stack, at, build_model, forward, run_forward, train, user


def match(run: Program) -> StepMatch | None:
    history = run.history()
    return match_earlier_step(history, history.num_events - 1)


def begin_step(run: Program, n: int, *, factor: int = 1) -> None:
    """Run forward up to the request that `logits` makes."""
    run.alloc(f"x{n}", 2048 * factor, user("get_batch", 17))
    run.alloc(f"h{n}", 32768 * factor, forward(7))
    run.brief(f"t{n}", 4096 * factor, forward(8))


def failing(num_steps: int, size: int = 24576, stack: Stack = None, *, factor: int = 1) -> Program:
    run = train(Program(), num_steps)
    begin_step(run, num_steps, factor=factor)
    run.oom(size * factor, forward(9) if stack is None else stack)
    return run


def test_the_same_request_of_the_step_before() -> None:
    """The third request of `forward`; lines may differ, for a site has none."""
    run = failing(3)
    found = match(run)
    assert found is not None
    assert (found.running.name, found.earlier.name) == ("step 3", "step 2")
    assert found.event == run.births["logits2"][0]
    assert (found.is_same_request, found.scale) == (True, 1.0)


@pytest.mark.parametrize("factor", [2, 4])
def test_a_larger_batch_scales(factor: int) -> None:
    found = match(failing(3, factor=factor))
    assert found is not None
    assert found.scale == factor


def test_the_latest_step_that_has_the_request() -> None:
    """Step 2 made no such request, step 1 did."""
    stack = forward(20, at("torch/nn/functional.py", "dropout"))
    run = train(Program(), 1)
    run_forward(run, 1)
    run.alloc("odd", 512, stack)
    for name in ("logits0", "loss0"):
        run.free(name)
    rest = failing(0)
    assert match(rest) is None
    run.free("odd", stack)
    run.oom(512, stack)
    found = match(run)
    # Within the running step the second of that site: step 0 has none at all, so only the phase agrees.
    assert found is not None
    assert (found.earlier.name, found.is_same_request) == ("step 0", False)


def test_the_same_phase_where_the_request_is_new() -> None:
    run = failing(3, stack=forward(20, at("torch/nn/functional.py", "dropout")))
    history = run.history()
    found = match_earlier_step(history, history.num_events - 1)
    assert found is not None
    assert (found.earlier.name, found.is_same_request, found.scale) == ("step 2", False, 1.0)
    phase = next(phase for phase in found.earlier.phases if phase.name == "forward")
    assert found.event == phase.start_event


def test_nothing_is_like_the_first_step() -> None:
    assert match(failing(0)) is None


def test_no_steps_no_match() -> None:
    run = Program(context="none")
    build_model(run)
    run.oom(512)
    assert match(run) is None
    only = Program()
    only.oom(512, user("main"))
    assert match(only) is None
