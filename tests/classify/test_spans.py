"""Backward passes and optimizer steps on the event axis: `snapscope.classify.spans`."""

from __future__ import annotations

import pytest

from snapscope.classify.spans import annotated_steps
from snapscope.classify.stacks import StackPhase
from tests.builders import Raw
from tests.classify.program import (
    ENGINE,
    MAIN,
    WEIGHTS,
    Program,
    at,
    build_model,
    forward,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    step,
    train,
    user,
    zero_grad,
)


def event_of(run: Program, name: str) -> int:
    return run.births[name][0]


def test_spans_of_the_usual_loop() -> None:
    run = train(Program(), 2)
    spans = run.history().spans
    assert spans.backward_start.tolist() == [event_of(run, "seed0"), event_of(run, "seed1")]
    assert spans.optimizer_start.tolist() == [event_of(run, "m_w1"), event_of(run, "sqrt1")]
    # Both end with a free: of the seed, and of what the step made last.
    assert spans.backward_end[0] in (event_of(run, "m_w1") - 1, event_of(run, "m_w1") - 2)
    assert (spans.backward_end < spans.optimizer_start).all()
    assert (spans.optimizer_end >= spans.optimizer_start).all()
    assert event_of(run, "h0") in spans.forward_events.tolist()
    assert not spans.is_positional
    assert not spans.ends_in_backward
    assert spans.event_phase[event_of(run, "w1")] == StackPhase.CONSTRUCT
    assert spans.event_phase[event_of(run, "x0")] == StackPhase.USER
    assert spans.event_phase[event_of(run, "dlogp0")] == StackPhase.BACKWARD


@pytest.mark.parametrize("middle", [zero_grad(), user("log", 70), (at("torch/nn/utils/clip_grad.py", "clip"), *MAIN)])
def test_small_things_between_do_not_part_a_step_in_two(middle: tuple[Raw, ...]) -> None:
    run = Program()
    run_forward(run, 0)
    run_backward(run, 0)
    run.brief("first", 512, step())
    run.brief("between", 512, middle)
    run.brief("second", 512, step())
    assert run.history().spans.optimizer_start.tolist() == [event_of(run, "first")]


@pytest.mark.parametrize("middle", [forward(3), ENGINE])
def test_work_between_parts_two_steps(middle: tuple[Raw, ...]) -> None:
    run = Program()
    run_forward(run, 0)
    run_backward(run, 0)
    run.brief("first", 512, step())
    run.brief("between", 512, middle)
    run.brief("second", 512, step())
    assert run.history().spans.optimizer_start.tolist() == [event_of(run, "first"), event_of(run, "second")]


def test_a_history_that_ends_in_backward() -> None:
    run = Program()
    build_model(run)
    run_forward(run, 0)
    run.alloc("dlogp0", 24576, ENGINE)
    spans = run.history().spans
    assert spans.ends_in_backward
    assert not spans.ends_in_optimizer
    assert spans.backward_end.tolist() == [len(run.events)]


def test_a_history_that_ends_in_the_optimizer() -> None:
    run = Program()
    build_model(run)
    run_forward(run, 0)
    run_backward(run, 0)
    run.alloc("m", 4096, step())
    spans = run.history().spans
    assert spans.ends_in_optimizer
    assert not spans.ends_in_backward


def annotated(context: str, num_steps: int = 2) -> tuple[Program, list[tuple[int, int]]]:
    run, places = Program(context=context), []
    build_model(run)
    for n in range(num_steps):
        run_forward(run, n)
        run_backward(run, n)
        first = len(run.events)
        run.begin("Optimizer.step#AdamW.step")
        run_optimizer(run, n, is_first=not n)
        run.end("Optimizer.step#AdamW.step")
        places.append((first, len(run.events) - 1))
        run_zero_grad(run, n)
    return run, places


def test_annotated_optimizer_steps() -> None:
    run, places = annotated("all")
    assert annotated_steps(run.history()._material) == places


def test_annotations_place_the_spans_where_there_are_no_stacks() -> None:
    run, places = annotated("none")
    spans = run.history().spans
    assert spans.is_positional
    assert list(zip(spans.optimizer_start.tolist(), spans.optimizer_end.tolist(), strict=True)) == places
    assert len(spans.backward_start) == 2
    for n, (start, end) in enumerate(zip(spans.backward_start.tolist(), spans.backward_end.tolist(), strict=True)):
        assert event_of(run, f"h{n}") < start <= event_of(run, f"g2_{n}")
        assert end == places[n][0] - 1


def test_a_step_in_place_makes_no_event() -> None:
    run = Program(context="none")
    run.alloc("a", 512)
    run.begin("Optimizer.step#SGD.step")
    run.end("Optimizer.step#SGD.step")
    run.alloc("b", 512)
    assert annotated_steps(run.history()._material) == [(1, 0)]


@pytest.mark.parametrize("lost", ["START", "END"])
def test_half_an_annotation_is_none(lost: str) -> None:
    run, places = annotated("none")
    run.annotations.remove(next(each for each in run.annotations if each["stage"] == lost))
    found = annotated_steps(run.history()._material)
    assert len(found) <= len(places)
    assert found[-1:] != [(0, 0)]


def test_without_anything_there_are_no_spans() -> None:
    run = Program(context="none")
    for name, size in WEIGHTS.items():
        run.alloc(name, size)
    spans = run.history().spans
    assert len(spans.backward_start) == len(spans.optimizer_start) == 0
    assert spans.is_positional
