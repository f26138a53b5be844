"""Backwards found by the order in which memory dies: `snapscope.classify.shape`."""

from __future__ import annotations

import random
import time

import pytest

from snapscope.classify.shape import backwards_by_shape
from snapscope.classify.spans import _between_steps
from tests.classify.program import Program

SIZES = (65536, 147456, 270336, 81920, 12288, 20992, 45056, 28672)
STEP = "Optimizer.step#AdamW.step"


def build(run: Program) -> None:
    for layer, size in enumerate(SIZES):
        run.alloc(f"w{layer}", size)


def forward(run: Program, n: int) -> None:
    run.alloc(f"x{n}", 16384)
    for layer in range(len(SIZES)):
        run.alloc(f"h{n}_{layer}", 49152)
        run.brief(f"t{n}_{layer}", 8192)
    run.alloc(f"loss{n}", 4)


def backward(run: Program, n: int, *, keeps: bool = True) -> None:
    """Free what forward saved in reverse order; gradients stay, or go at once."""
    run.alloc(f"seed{n}", 4)
    for layer in reversed(range(len(SIZES))):
        run.alloc(f"d{n}_{layer}", 49152)
        if keeps:
            run.alloc(f"g{n}_{layer}", SIZES[layer])
        else:
            run.brief(f"g{n}_{layer}", SIZES[layer])
        run.free(f"h{n}_{layer}")
        run.free(f"d{n}_{layer}")
    run.free(f"seed{n}")


def zero_grad(run: Program, n: int) -> None:
    for layer in range(len(SIZES)):
        run.free(f"g{n}_{layer}")


def hold(run: Program, n: int) -> None:
    """Let the batch and the loss of the iteration before go."""
    if n:
        run.free(f"x{n - 1}")
        run.free(f"loss{n - 1}")


def starts(run: Program) -> list[int]:
    return [start for _, start, _ in backwards_by_shape(run.history()._material)]


def events(run: Program, *names: str) -> list[int]:
    return [run.births[name][0] for name in names]


def test_each_backward_begins_with_the_gradient_of_its_loss() -> None:
    run = Program(context="none")
    build(run)
    for n in range(3):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        zero_grad(run, n)
    assert starts(run) == events(run, "seed0", "seed1", "seed2")
    spans = run.history().spans
    # What a variable holds until the next iteration doesn't make the backward longer.
    assert (spans.backward_end[:2] < events(run, "x1", "x2")).all()
    found = run.categories()
    assert {found[f"h{n}_{layer}"] for n in range(3) for layer in range(8)} == {"activation"}
    assert {found[f"g{n}_{layer}"] for n in range(2) for layer in range(8)} == {"gradient"}
    assert {found[f"w{layer}"] for layer in range(8)} == {"parameter"}


def test_gradients_that_go_at_once_count_too() -> None:
    run = Program(context="none")
    build(run)
    for n in range(2):
        forward(run, n)
        hold(run, n)
        backward(run, n, keeps=False)
    assert starts(run) == events(run, "seed0", "seed1")


def test_one_alone_that_leaves_no_gradients_may_be_anything() -> None:
    run = Program(context="none")
    build(run)
    forward(run, 0)
    backward(run, 0, keeps=False)
    assert starts(run) == []


def test_without_blocks_of_old_sizes_it_is_no_backward() -> None:
    run = Program(context="none")
    run.alloc("other", 1 << 20)
    run.alloc("another", 1 << 21)
    for n in range(2):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        zero_grad(run, n)
    assert starts(run) == []


def test_a_loss_that_is_not_tiny() -> None:
    run = Program(context="none")
    build(run)
    for n in range(2):
        forward(run, n)
        hold(run, n)
        run.alloc(f"seed{n}", 4096)
        for operator in range(6):
            run.brief(f"of loss {n} {operator}", 4096)
        for layer in reversed(range(len(SIZES))):
            run.alloc(f"g{n}_{layer}", SIZES[layer])
            run.free(f"h{n}_{layer}")
        run.free(f"seed{n}")
        zero_grad(run, n)
    found = starts(run)
    # After the last block that it frees was made, and before it frees it.
    assert len(found) == 2
    for n, start in enumerate(found):
        assert run.births[f"h{n}_7"][0] < start <= run.births[f"g{n}_7"][0]


def accumulate(*, annotated: bool) -> Program:
    run = Program(context="none")
    build(run)
    for n in range(4):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        if n % 2:
            if annotated:
                run.begin(STEP)
            run.brief(f"root{n}", 4096)
            if annotated:
                run.end(STEP)
            zero_grad(run, n - 1)
            zero_grad(run, n)
    return run


@pytest.mark.parametrize("annotated", [True, False])
def test_every_backward_before_a_step(*, annotated: bool) -> None:
    run = accumulate(annotated=annotated)
    assert run.history().spans.backward_start.tolist() == events(run, "seed0", "seed1", "seed2", "seed3")
    found = run.categories()
    assert {found[f"g{n}_{layer}"] for n in range(4) for layer in range(8)} == {"gradient"}


def test_a_rollout_before_a_step_is_no_backward() -> None:
    material = accumulate(annotated=False).history()._material
    # (first birth, first event, last event) of what looks like backwards; a step after events 100 and 200.
    found = [(0, 10, 20), (30, 40, 90), (110, 120, 150), (160, 170, 190), (210, 220, 250)]
    kept = _between_steps(material, found, [(100, 105), (200, 205)])
    assert [start for _, start, _ in kept] == [40, 120, 170, 220]
    # The last before a step lasts until it.
    assert [end for _, _, end in kept] == [99, 150, 199, 250]


def test_a_step_that_works_in_place_bounds_a_backward() -> None:
    run = Program(context="none")
    build(run)
    for n in range(3):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        run.begin("Optimizer.step#SGD.step")
        run.end("Optimizer.step#SGD.step")
        zero_grad(run, n)
    spans = run.history().spans
    assert spans.backward_start.tolist() == events(run, "seed0", "seed1", "seed2")
    assert len(spans.optimizer_start) == 0
    assert (spans.annotated_end < spans.annotated_start).tolist() == [True, True, True]


def with_old(sizes: dict[str, int]) -> Program:
    run = Program(context="none")
    build(run)
    for name, size in sizes.items():
        run.alloc(name, size)
    for n in range(3):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        zero_grad(run, n)
    return run


def test_more_than_there_are_gradients_of_are_states() -> None:
    found = with_old({f"m{layer}": size for layer, size in enumerate(SIZES)}).categories()
    assert {found[f"m{layer}"] for layer in range(8)} == {"optimizer_state"}
    assert {found[f"w{layer}"] for layer in range(8)} == {"parameter"}


def test_blocks_of_twice_the_sizes_are_states() -> None:
    sizes = {f"master{layer}": 2 * size for layer, size in enumerate(SIZES)}
    found = with_old(sizes).categories()
    assert {found[f"w{layer}"] for layer in range(8)} == {"parameter"}
    assert {found[f"master{layer}"] for layer in range(8)} == {"optimizer_state"}


def test_a_wider_layer_is_no_state() -> None:
    found = with_old({"wide": 2 * SIZES[0], "wider": 2 * SIZES[3]}).categories()
    assert found["wide"] == found["wider"] != "optimizer_state"


def test_a_large_block_alone_is_data() -> None:
    found = with_old({"data": 3_000_000, "mask1": 500_000, "mask2": 500_000}).categories()
    assert (found["data"], found["mask1"]) == ("temporary", "parameter")


def test_a_set_that_comes_later() -> None:
    run = Program(context="none")
    build(run)
    for n in range(3):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        run.begin("Optimizer.step#SGD.step")
        run.end("Optimizer.step#SGD.step")
        if n == 1:
            for layer, size in enumerate(SIZES):
                run.alloc(f"average{layer}", size)
        zero_grad(run, n)
    found = run.categories()
    assert {found[f"average{layer}"] for layer in range(8)} == {"parameter"}


def test_weights_that_are_older_than_the_history() -> None:
    run = Program(context="none")
    for layer, size in enumerate(SIZES):
        run.elder(f"w{layer}", size)
    for n in range(2):
        forward(run, n)
        hold(run, n)
        backward(run, n)
        zero_grad(run, n)
    assert starts(run) == events(run, "seed0", "seed1")


def test_the_search_ends_where_there_is_no_order() -> None:
    run = Program(context="none")
    build(run)
    order = random.Random(7)
    live: list[str] = []
    for number in range(900):
        run.alloc(f"block{number}", order.choice((4096, 16384, 65536)))
        live.append(f"block{number}")
        if len(live) > 200:
            run.free(live.pop(order.randrange(len(live))))
    history = run.history()
    before = time.process_time()
    assert backwards_by_shape(history._material) == []
    assert time.process_time() - before < 5
