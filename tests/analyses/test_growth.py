"""What grew since the same place of an earlier step."""

from __future__ import annotations

from snapscope.analyses.growth import Growth, grown_since
from snapscope.analyses.step_match import match_earlier_step
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests.analyses.test_step_match import begin_step, failing
from tests.classify.program import (
    Program,
    build_model,
    forget_results,
    forward,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    user,
)
from tests.conftest import fixture_path, recordings


def grown(history: DeviceHistory) -> Growth | None:
    event = int(history.tables.events.oom_events[-1])
    match = match_earlier_step(history, event)
    return None if match is None else grown_since(history, event, match)


def check_sum(history: DeviceHistory, growth: Growth) -> None:
    event = int(history.tables.events.oom_events[-1])
    curve = history.totals.requested_bytes
    assert growth.delta_bytes == curve[event + 1] - curve[growth.event + 1]
    assert sum(row.delta_bytes for row in growth.rows) == growth.delta_bytes
    assert all(row.delta_bytes for row in growth.rows)
    sizes = [abs(row.delta_bytes) for row in growth.rows]
    assert sizes == sorted(sizes, reverse=True)


def leaking(num_steps: int) -> Program:
    """Keep 5120 bytes of every step, freed 4096 of them once: from step 1 on."""
    run = Program()
    build_model(run)
    run.alloc("warm", 4096, user("warm_up", 60))
    for n in range(num_steps):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        run_optimizer(run, n, is_first=not n)
        run_zero_grad(run, n)
        run.alloc(f"log{n}", 5120, user("log", 80))
        if n == num_steps - 1:
            run.free("warm", user("warm_up", 61))
    begin_step(run, num_steps)
    run.oom(24576, forward(9))
    return run


def test_what_a_step_left_behind() -> None:
    history = leaking(3).history()
    growth = grown(history)
    assert growth is not None
    assert growth.step == "step 2"
    found = [(row.site, row.before_bytes, row.after_bytes, row.before_count, row.after_count) for row in growth.rows]
    assert found == [
        ("train.py:80 log", 10240, 15360, 2, 3),
        ("train.py:60 warm_up", 4096, 0, 1, 0),
    ]
    assert growth.delta_bytes == 1024
    check_sum(history, growth)


def test_a_steady_run_grew_by_nothing() -> None:
    history = failing(3).history()
    growth = grown(history)
    assert growth is not None
    assert (growth.delta_bytes, growth.rows) == (0, ())


def test_states_of_the_first_step_are_growth_since_it() -> None:
    """Since step 0: AdamW's moments, 155648, and what step 0 left: its results, which are freed in backward."""
    history = failing(1).history()
    growth = grown(history)
    assert growth is not None
    check_sum(history, growth)
    states = [row for row in growth.rows if row.category is Category.OPTIMIZER_STATE]
    assert sum(row.delta_bytes for row in states) == 155648
    assert growth.delta_bytes == 155648 + 24576 + 4


def test_rows_sum_on_recordings() -> None:
    checked = 0
    for name in recordings("runs/oom"):
        history = DeviceHistory(load_snapshot(fixture_path(name)))
        growth = grown(history) if len(history.tables.events.oom_events) else None
        if growth is not None:
            check_sum(history, growth)
            checked += 1
    assert checked >= 2
