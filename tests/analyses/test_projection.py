"""What a failing step still needed."""

from __future__ import annotations

from snapscope.analyses.projection import Projection, project
from snapscope.analyses.step_match import match_earlier_step
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests.analyses.test_step_match import failing
from tests.classify.program import (
    ENGINE,
    Program,
    build_model,
    construct,
    forward,
    init_group,
    run_backward,
    run_forward,
)
from tests.conftest import fixture_path


def projected(run: Program) -> Projection | None:
    history = run.history()
    event = history.num_events - 1
    return project(history, event, match_earlier_step(history, event))


def test_what_the_step_before_took_from_there_on() -> None:
    """Blocks that step 2 made and freed from its logits on, in order.

    +24576 logits, +24576 logp, +512 loss, −25088 results of step 1, +512 seed, +24576 dlogp, −24576 logp,
    +12288 g2, −24576 dlogp, −34816 h and x, +65536 g1, −512 seed, +65536 sqrt: 108544 at once.
    """
    found = projected(failing(3))
    assert found is not None
    assert (found.needed_bytes, found.basis, found.is_lower_bound) == (108544, "earlier_step", False)
    assert "step 2" in found.explanation


def test_states_that_the_first_step_made_are_not_needed_again() -> None:
    """Of step 0, which has no results to forget: 133632 without the 155648 of AdamW's moments.

    49664 up to the loss, 50176 with the seed, 62464 with g2 but without logp, 3072 after dlogp, h and x,
    68096 with g1, 133632 with sqrt. Where the first step begins can't be told exactly (its batch may belong to what was
    before), so that it seems smaller than the next by as much.
    """
    found = projected(failing(1))
    assert found is not None
    assert 133632 <= found.needed_bytes <= 133632 * 63488 // 61440


def test_a_larger_batch_needs_more() -> None:
    found = projected(failing(3, factor=2))
    assert found is not None
    assert found.needed_bytes == 2 * 108544
    assert "2.00" in found.explanation


def test_no_less_than_the_request() -> None:
    """The step before gave back more than it took from its last request on."""
    run = failing(3, size=1 << 20)
    found = projected(run)
    assert found is not None
    assert found.needed_bytes >= 1 << 20


def _first_step(num_states: int) -> Program:
    """Fail in the optimizer's first step after some moments of three weights: 64, 12 and 8 KiB."""
    run = Program()
    build_model(run)
    run.alloc("w3", 8192, construct())
    run_forward(run, 0)
    run_backward(run, 0)
    run.alloc("g3_0", 8192, ENGINE)
    sizes = [65536, 65536, 12288, 12288, 8192, 8192]
    for number, size in enumerate(sizes[:num_states]):
        run.alloc(f"state{number}", size, init_group())
    run.oom(sizes[num_states], init_group())
    return run


def test_states_that_the_first_step_has_yet_to_make() -> None:
    """Two of 86016 bytes of gradients: 172032, of which 143360 are there."""
    found = projected(_first_step(3))
    assert found is not None
    assert (found.needed_bytes, found.basis, found.is_lower_bound) == (172032 - 143360, "optimizer_states", True)
    assert "2 states for each gradient" in found.explanation
    found = projected(_first_step(5))
    assert found is not None
    assert found.needed_bytes == 8192


def test_the_states_of_one_weight_tell_nothing() -> None:
    """How many there will be of each can't be told before the second weight's come."""
    assert projected(_first_step(1)) is None


def test_nothing_is_known_of_a_first_forward() -> None:
    run = Program()
    build_model(run)
    run.oom(4096, forward(7))
    assert projected(run) is None


def test_a_recording_of_adamws_first_step() -> None:
    """The run on a card without limit: its step needed 378 MiB more (runs/oom/cap_first_optimizer_step)."""
    history = DeviceHistory(load_snapshot(fixture_path("runs/oom/cap_first_optimizer_step")))
    event = int(history.tables.events.oom_events[-1])
    found = project(history, event, match_earlier_step(history, event))
    assert found is not None
    assert found.needed_bytes > 50 << 20
