"""Leak or not: programs of named steps whose answer is known, and the recordings' own answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.leaks import Leaks, LeakVerdict, Pattern, find_leaks
from snapscope.analyses.rounds import find_rounds
from snapscope.analyses.selection import select
from snapscope.analyses.steady import is_steady, span_of
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests.classify.program import Program, build_model, forward, train, user
from tests.conftest import fixture_path

MIB: Final = 1 << 20
Body = Callable[[Program, int], None]


def steps(body: Body, num_steps: int = 8, *, context: str = "all", named: bool = True) -> Program:
    """Run named steps; each has work of its own that leaves nothing."""
    run = Program(context=context)
    run.alloc("weights", 4 * MIB, user("make", 1))
    for n in range(num_steps):
        if named:
            run.begin(f"step {n}")
        run.alloc(f"work{n}", MIB, user("work", 2))
        body(run, n)
        run.free(f"work{n}", user("work", 2))
        run.brief(f"end{n}", 512, user("end", 3))
        if named:
            run.end(f"step {n}")
    run.brief("after", 512, user("after", 9))
    return run


def ask(run: Program) -> Leaks:
    return find_leaks(run.history())


def frees(run: Program, names: Iterable[str]) -> None:
    for name in names:
        run.free(name, user("free", 90))


# ------------------------------------------------------------------------------------------- grows


def test_one_block_a_step_is_a_leak() -> None:
    found = ask(steps(lambda run, n: run.alloc(f"x{n}", 2 * MIB, user("log", 31))))
    assert (found.verdict, found.pattern) == (LeakVerdict.GROWS, Pattern.KEPT)
    assert (found.growth_per_step_bytes, found.steps_grown, found.num_counted) == (2 * MIB, 8, 8)
    assert (found.warmup_steps, found.growth_bytes) == (0, 16 * MIB)
    (row,) = found.survivors
    assert (row.site, row.count, row.bytes) == ("train.py:31 log", 8, 16 * MIB)
    assert row.one_per_step
    assert (row.births, row.span_steps, row.since_step) == (8, 8, "step 0")
    assert [step.requested_bytes for step in found.steps] == [(4 + 2 * (n + 1)) * MIB for n in range(8)]


def test_two_places_leak_and_their_growth_adds_up() -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"x{n}", MIB, user("log", 31))
        for k in range(3):
            run.alloc(f"y{n}.{k}", 1000 + n, user("keep", 41))

    found = ask(steps(body))
    assert [(row.site, row.one_per_step, row.births) for row in found.survivors] == [
        ("train.py:31 log", True, 8),
        ("train.py:41 keep", False, 24),
    ]
    assert sum(row.growth_bytes for row in found.survivors) == found.growth_bytes
    assert sum(step.growth_bytes for step in found.steps) == found.growth_bytes


def test_a_leak_in_each_third_step() -> None:
    found = ask(steps(lambda run, n: run.alloc(f"x{n}", 3 * MIB, user("log")) if n % 3 == 1 else None, 15))
    assert (found.verdict, found.growth_per_step_bytes, found.steps_grown) == (LeakVerdict.GROWS, MIB, 5)


def test_a_leak_that_begins_late() -> None:
    found = ask(steps(lambda run, n: run.alloc(f"x{n}", MIB, user("log")) if n >= 5 else None, 12))
    assert (found.verdict, found.since_step, found.steps_grown) == (LeakVerdict.GROWS, "step 5", 7)
    assert found.growth_per_step_bytes == MIB


def test_a_leak_of_varying_sizes_among_varying_work() -> None:
    sizes = [5, 1, 7, 3, 2, 9, 4, 6]

    def body(run: Program, n: int) -> None:
        run.brief(f"batch{n}", 70_000 * sizes[-n], user("batch", 5))
        run.alloc(f"x{n}", 1000 * sizes[n], user("log", 31))

    found = ask(steps(body))
    assert (found.verdict, found.growth_bytes) == (LeakVerdict.GROWS, 37_000)
    assert [row.site for row in found.survivors] == ["train.py:31 log"]


def test_a_cache_that_is_replaced_by_a_longer_one() -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"cache{n}", 100_000 + 512 * n, user("extend", 31))
        if n:
            run.free(f"cache{n - 1}", user("extend", 31))

    found = ask(steps(body))
    assert (found.verdict, found.pattern, found.growth_per_step_bytes) == (LeakVerdict.GROWS, Pattern.REPLACED, 512)
    (row,) = found.survivors
    assert (row.pattern, row.count, row.bytes) == (Pattern.REPLACED, 1, 100_000 + 512 * 7)
    assert row.one_per_step


def test_a_cache_that_moves_to_another_place_within_the_step() -> None:
    """A beam search reorders it: the place that made it holds nothing for a moment."""

    def body(run: Program, n: int) -> None:
        if n:
            run.alloc(f"order{n}", 100_000 + 512 * (n - 1), user("reorder", 21))
            run.free(f"cache{n - 1}", user("reorder", 21))
        run.alloc(f"cache{n}", 100_000 + 512 * n, user("extend", 31))
        if n:
            run.free(f"order{n}", user("extend", 31))

    found = ask(steps(body))
    assert (found.verdict, found.pattern, found.growth_per_step_bytes) == (LeakVerdict.GROWS, Pattern.REPLACED, 512)


def test_warm_up_is_not_counted() -> None:
    def body(run: Program, n: int) -> None:
        if not n:
            run.alloc("once", 50 * MIB, user("prepare", 11))
        run.alloc(f"x{n}", MIB, user("log", 31))

    found = ask(steps(body))
    assert (found.verdict, found.warmup_steps) == (LeakVerdict.GROWS, 1)
    assert (found.growth_per_step_bytes, found.steps_grown, found.num_counted) == (MIB, 7, 7)


def test_without_stacks_a_leak_still_shows() -> None:
    found = ask(steps(lambda run, n: run.alloc(f"x{n}", MIB, user("log")), context="none"))
    assert (found.verdict, found.growth_per_step_bytes) == (LeakVerdict.GROWS, MIB)
    assert [row.site for row in found.survivors] == ["(no stack)"]


def test_without_stacks_one_size_may_leak_beside_others() -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"x{n}", 2000, user("log"))
        run.alloc(f"held{n}", 100_000 * (3 + (n * 7) % 5), user("hold"))
        if n:
            run.free(f"held{n - 1}")

    found = ask(steps(body, 9, context="none"))
    assert (found.verdict, found.growth_per_step_bytes) == (LeakVerdict.GROWS, 2000)


def test_without_names_rounds_of_a_loop_are_steps() -> None:
    run = steps(lambda run, n: run.alloc(f"x{n}", MIB, user("log", 31)), named=False)
    found = ask(run)
    assert (found.verdict, found.source) == (LeakVerdict.GROWS, "rounds")
    # Nothing shows where the last round ends.
    assert [step.name for step in found.steps] == [f"round {n}" for n in range(7)]
    assert found.growth_per_step_bytes == MIB


def test_inferred_steps_serve() -> None:
    run = train(Program(), 6)
    found = ask(run)
    assert (found.verdict, found.source) == (LeakVerdict.FLAT, "inferred")


# -------------------------------------------------------------------------------------------- flat


def test_steady_work_is_flat() -> None:
    found = ask(steps(lambda _run, _n: None))
    assert (found.verdict, found.pattern) == (LeakVerdict.FLAT, Pattern.FLAT)
    assert (found.growth_per_step_bytes, found.survivors, found.once, found.bursts) == (0, (), (), ())


def test_what_appears_once_is_no_leak() -> None:
    found = ask(steps(lambda run, n: run.alloc("state", 9 * MIB, user("prepare", 11)) if n == 4 else None))
    assert (found.verdict, found.pattern) == (LeakVerdict.FLAT, Pattern.JUMP)
    assert [(row.site, row.bytes, row.step) for row in found.once] == [("train.py:11 prepare", 9 * MIB, "step 4")]


def test_one_late_burst_is_no_leak() -> None:
    def body(run: Program, n: int) -> None:
        for k in range(20 if n == 7 else 0):
            run.alloc(f"x{k}", MIB, user("log", 31))

    assert ask(steps(body, 10)).verdict is LeakVerdict.FLAT


def test_growth_that_ends_is_no_leak() -> None:
    found = ask(steps(lambda run, n: run.alloc(f"c{n}", MIB, user("cache", 11)) if n < 3 else None, 10))
    assert (found.verdict, found.pattern, found.warmup_steps) == (LeakVerdict.FLAT, Pattern.SETTLED, 3)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_what_is_freed_together_is_no_leak(period: int) -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"x{n}", 2 * MIB, user("cycle", 31))
        if n % period == period - 1:
            frees(run, [f"x{k}" for k in range(n - period + 1, n + 1)])

    found = ask(steps(body, 13))
    assert found.verdict is LeakVerdict.FLAT
    if period > 2:
        assert found.pattern is Pattern.BURSTS
        assert found.bursts[0].site == "train.py:31 cycle"


@pytest.mark.parametrize("depth", [1, 3])
def test_a_window_is_no_leak(depth: int) -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"x{n}", 2 * MIB, user("prefetch", 31))
        if n >= depth:
            run.free(f"x{n - depth}", user("work", 2))

    found = ask(steps(body, 12))
    assert (found.verdict, found.pattern) == (LeakVerdict.FLAT, Pattern.FLAT)


def test_longer_batches_are_no_leak() -> None:
    """The result of a step is held until the next one's: it grows as the batch does."""

    def body(run: Program, n: int) -> None:
        run.brief(f"x{n}", 100_000 + 20_000 * n, user("load", 21))
        run.alloc(f"out{n}", 100_000 + 20_000 * n, user("apply", 31))
        if n:
            run.free(f"out{n - 1}", user("apply", 31))

    assert ask(steps(body, 10)).verdict is LeakVerdict.FLAT


def test_what_is_gone_within_each_step_is_no_leak() -> None:
    def body(run: Program, n: int) -> None:
        if n:
            run.free(f"batch{n - 1}", user("load", 21))
        run.alloc(f"batch{n}", 100_000 + 512 * n, user("load", 21))

    assert ask(steps(body, 10)).verdict is LeakVerdict.FLAT


# --------------------------------------------------------------------------------------- too few


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_fewer_than_three_steps_say_nothing(num_steps: int) -> None:
    found = ask(steps(lambda run, n: run.alloc(f"x{n}", MIB, user("log")), num_steps))
    assert (found.verdict, found.growth_per_step_bytes) == (LeakVerdict.TOO_FEW_STEPS, 0)
    assert found.survivors == ()
    assert len(found.steps) == num_steps
    assert found.end_bytes == (4 + num_steps) * MIB


def test_a_model_under_construction_makes_no_rounds() -> None:
    run = Program()
    build_model(run)
    for n in range(12):
        run.alloc(f"layer{n}", MIB, user("build", 5))
        run.alloc(f"bias{n}", 4096, user("build", 6))
    assert len(find_rounds(run.history())) == 0


def test_layers_of_a_model_make_no_rounds() -> None:
    run = Program()
    for n in range(12):
        run.alloc(f"h{n}", MIB, forward(7))
        run.brief(f"t{n}", MIB, forward(8))
    assert len(find_rounds(run.history())) == 0


# -------------------------------------------------------------------------------------- selection


def test_focus_asks_about_a_part() -> None:
    def body(run: Program, n: int) -> None:
        run.alloc(f"x{n}", MIB, user("log", 31))
        run.alloc(f"y{n}", 1000, user("keep", 41))

    history = steps(body).history()
    found = find_leaks(history, selection=select(history, focus="keep"))
    assert found.is_selection
    assert [row.site for row in found.survivors] == ["train.py:41 keep"]
    assert [step.requested_bytes for step in found.steps] == [1000 * (n + 1) for n in range(8)]
    assert find_leaks(history, selection=select(history, ignore="keep|log")).verdict is LeakVerdict.FLAT


# ------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([5, 5, 5, 5], True),
        ([5, 5], True),
        ([0, 5, 5], False),
        ([0, 0, 0, 5], False),
        ([5, 5, 5, 0, 0], False),
        ([5, 5, 5, 0], True),
        ([0, 5, 0, 5, 0, 5, 0], True),
        ([5, 5, 5, -15, 5, 5, 5], False),
        ([9, 9, 9, -1, 9], True),
        ([], False),
    ],
)
def test_steady(deltas: list[int], expected: bool) -> None:
    assert is_steady(np.array(deltas, np.int64)) == expected


@given(st.lists(st.integers(-9, 9), max_size=30))
def test_a_span_holds_all_rises(deltas: list[int]) -> None:
    rises = [n for n, delta in enumerate(deltas) if delta > 0]
    span = span_of(np.array(deltas, np.int64))
    assert span >= (rises[-1] - rises[0] + 1 if rises else 0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_add_up_whatever_a_program_does(data: st.DataObject) -> None:
    """Growth of the survivors is that of the steps and never more than all there is."""
    num_steps = data.draw(st.integers(3, 7))
    actions = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000), st.integers(1, 4)), max_size=4)
    plan = [data.draw(actions) for _ in range(num_steps)]
    dying: dict[int, list[str]] = {}

    def body(run: Program, n: int) -> None:
        frees(run, dying.pop(n, []))
        for number, (place, size, life) in enumerate(plan[n]):
            run.alloc(f"x{n}.{number}", size, user("do", 10 + place))
            if life < 4:
                dying.setdefault(n + life, []).append(f"x{n}.{number}")

    found = ask(steps(body, num_steps))
    assert sum(row.growth_bytes for row in found.survivors) == found.growth_bytes
    assert sum(step.growth_bytes for step in found.steps) == found.growth_bytes
    assert (found.verdict is LeakVerdict.GROWS) == bool(found.survivors)
    assert sum(row.bytes for row in found.survivors) <= found.steps[-1].requested_bytes
    assert 0 <= found.warmup_steps <= num_steps - 2


# -------------------------------------------------------------------------------------- recordings


def check_answer(path: Path, answer: dict[str, Any]) -> None:
    found = find_leaks(DeviceHistory(load_snapshot(path)))
    assert found.verdict.value == answer["verdict"]
    assert found.growth_per_step_bytes == answer["growth_per_step_requested_bytes"]
    assert bool(found.survivors) == (answer["survivor"] is not None)
    if found.survivors:
        assert answer["survivor"] in found.survivors[0].site


@pytest.mark.parametrize("name", ["cublas_workspaces", "dynamic_reserved_grows", "losses_with_graph"])
def test_the_answers_of_the_recordings(name: str) -> None:
    path = fixture_path(f"runs/leak/{name}")
    check_answer(path, json.loads((path.parent / f"{name}.answer.json").read_bytes()))


def test_the_answers_of_more_recordings(shared: Path) -> None:
    for path in sorted((shared / "snapshots/runs/leak").glob("*.answer.json")):
        check_answer(Path(str(path).replace(".answer.json", ".pickle")), json.loads(path.read_bytes()))


def test_reserved_grows_while_live_is_flat() -> None:
    found = find_leaks(DeviceHistory(load_snapshot(fixture_path("runs/leak/dynamic_reserved_grows"))))
    assert found.reserved_grows
    assert found.reserved_growth_per_step_bytes > 20 * MIB


def test_a_kept_graph_is_named_so() -> None:
    found = find_leaks(DeviceHistory(load_snapshot(fixture_path("runs/leak/losses_with_graph"))))
    assert found.pattern is Pattern.GRAPH_KEPT


@pytest.mark.parametrize("name", ["leak", "kv_cache", "fragmentation"])
def test_recordings_that_grow(name: str) -> None:
    assert find_leaks(DeviceHistory(load_snapshot(fixture_path(f"torch-2.14/{name}")))).verdict is LeakVerdict.GROWS


@pytest.mark.parametrize("name", ["adamw_fp32", "amp_bf16", "fsdp_rank0", "grad_accum", "multi_stream", "cuda_graph"])
def test_recordings_that_are_flat(name: str) -> None:
    found = find_leaks(DeviceHistory(load_snapshot(fixture_path(f"torch-2.14/{name}"))))
    assert (found.verdict, found.warmup_steps) == (LeakVerdict.FLAT, 1)
