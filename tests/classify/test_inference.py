"""Caches and weights of programs that only infer: `snapscope.classify.inference`."""

from __future__ import annotations

import pytest

from tests.builders import Raw
from tests.classify.program import (
    MAIN,
    Program,
    build_model,
    construct,
    drawn,
    filled,
    forget_results,
    forward,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    user,
)

P, O, A, T = "parameter", "optimizer_state", "activation", "temporary"  # noqa: E741
LAYERS = range(4)
CACHE = 65536
STEP = 4096


def decode(run: Program, n: int) -> None:
    """Run one call: the batch, what each layer makes, and the logits, which the caller holds until the next one."""
    run.alloc(f"ids{n}", 512, user("generate", 3))
    run.brief(f"hidden{n}", 16384, forward(7))
    run.alloc(f"logits{n}", 24576, forward(9))
    run.free(f"ids{n}", MAIN)
    if n:
        run.free(f"logits{n - 1}", MAIN)


def test_a_cache_that_the_caller_puts_in_order() -> None:
    run = Program()
    build_model(run)
    for n in range(6):
        run.alloc(f"grown{n}", CACHE + STEP * n, forward(5))
        if n:
            run.free(f"ordered{n - 1}", forward(5))
        decode(run, n)
        run.alloc(f"ordered{n}", CACHE + STEP * n, user("beam", 40))
        run.free(f"grown{n}", user("beam", 40))
    found = run.categories()
    assert {found[f"{kind}{n}"] for kind in ("grown", "ordered") for n in range(1, 6)} == {A}
    assert found["logits2"] == T


def test_a_cache_that_the_caller_replaces_before_the_next_call() -> None:
    run = Program()
    build_model(run)
    for n in range(6):
        run.alloc(f"grown{n}", CACHE + STEP * n, forward(5))
        if n:
            run.free(f"ordered{n - 1}", forward(5))
        run.alloc(f"ordered{n}", CACHE + STEP * n, user("beam", 40))
        run.free(f"grown{n}", user("beam", 40))
    found = run.categories()
    assert {found[f"{kind}{n}"] for kind in ("grown", "ordered") for n in range(5)} == {A}


def test_a_sequence_that_grows_in_the_callers_hands_is_no_cache() -> None:
    run = Program()
    build_model(run)
    for n in range(6):
        decode(run, n)
        run.alloc(f"tokens{n}", CACHE + STEP * n, user("append", 40))
        if n:
            run.free(f"tokens{n - 1}", user("append", 40))
    assert {run.categories()[f"tokens{n}"] for n in range(6)} == {T}


def test_what_a_cache_began_as_a_view_of() -> None:
    run = Program()
    build_model(run)
    for n in range(6):
        run.alloc(f"qkv{n}", 49152 if n else 8 * 49152, forward(4))
        if n:
            run.alloc(f"cat{n}", CACHE + STEP * n, forward(5))
            run.free(f"qkv{n}", forward(5))
        decode(run, n)
        if n:
            run.free(f"cat{n - 1}" if n > 1 else "qkv0", MAIN)
    found = run.categories()
    assert (found["qkv0"], found["cat1"], found["qkv3"], found["logits1"]) == (A, A, T, T)


def prealloc(stack: tuple[Raw, ...], count: int) -> Program:
    run = Program()
    for layer in LAYERS:
        run.alloc(f"w{layer}", 131072, construct())
        run.alloc(f"b{layer}", 2048, construct())
    for number in range(count):
        run.alloc(f"k{number}", CACHE, stack)
    for n in range(4):
        decode(run, n)
    return run


@pytest.mark.parametrize(
    ("stack", "count", "expected"),
    [
        (filled(user("setup", 8)), 2 * len(LAYERS), A),
        (user("setup", 8), 2 * len(LAYERS), A),
        (user("setup", 8), len(LAYERS), A),
        # As many as no number of layers makes.
        (user("setup", 8), 7, T),
        (filled(user("setup", 8)), 1, T),
    ],
)
def test_equal_blocks_for_each_layer_are_a_cache(stack: tuple[Raw, ...], count: int, expected: str) -> None:
    run = prealloc(stack, count)
    assert {run.categories()[f"k{number}"] for number in range(count)} == {expected}


def test_where_stacks_tell_it_a_cache_is_made_of_zeros() -> None:
    run = prealloc(user("load_batches", 8), 2 * len(LAYERS))
    run.brief("mask", 512, filled(user("mask", 3)))
    assert {run.categories()[f"k{number}"] for number in range(8)} == {T}


def bare(stack: tuple[Raw, ...]) -> Program:
    """Compute by the user's functions alone, with weights drawn at random."""
    run = Program()
    for name, size in (("w1", 65536), ("w2", 131072), ("w3", 262144)):
        run.alloc(name, size, stack)
        run.brief(f"{name} unscaled", size, drawn(user("init", 3)))
    for name, size in (("v1", 65536), ("v2", 131072), ("k1", 98304), ("k2", 98304)):
        run.alloc(name, size, filled(user("init", 9)))
    for n in range(8):
        run.alloc(f"x{n}", 4096, user("layer", 20))
        run.brief(f"y{n}", 8192, user("layer", 21))
        run.free(f"x{n}", user("layer", 20))
    return run


@pytest.mark.parametrize("stack", [drawn(user("init", 3)), user("init", 3)])
def test_a_program_without_modules(stack: tuple[Raw, ...]) -> None:
    # Drawn, or scaled at the line that draws.
    found = bare(stack).categories()
    assert {found[name] for name in ("w1", "w2", "w3")} == {P}
    assert {found[name] for name in ("v1", "v2")} == {O}
    assert {found[name] for name in ("k1", "k2")} == {A}
    assert found["x3"] == T


def test_without_work_after_them_nothing_is_a_weight() -> None:
    run = Program()
    for number in range(12):
        run.alloc(f"chunk{number}", 65536 * (number + 1), drawn(user("fill", 3)))
    assert set(run.categories().values()) == {T}


def test_a_cache_that_grows_between_two_backwards() -> None:
    run = Program()
    build_model(run)
    for it in range(2):
        for n in range(6):
            run.alloc(f"kv{it}_{n}", CACHE + STEP * n, forward(5))
            if n:
                run.free(f"kv{it}_{n - 1}", forward(5))
            run.brief(f"ids{it}_{n}", 512, user("sample", 3))
        run.free(f"kv{it}_5", MAIN)
        run_forward(run, it)
        if it:
            forget_results(run, it - 1)
        run_backward(run, it)
        run_optimizer(run, it, is_first=not it)
        run_zero_grad(run, it)
    found = run.categories()
    assert {found[f"kv{it}_{n}"] for it in range(2) for n in range(5)} == {A}


def nameless(*, work: int) -> Program:
    run = Program(context="none")
    for layer in LAYERS:
        run.alloc(f"w{layer}", 131072)
        run.brief(f"init{layer}", 4096)
    for n in range(work):
        for layer in LAYERS:
            run.alloc(f"kv{layer}_{n}", CACHE + STEP * n)
            if n:
                run.free(f"kv{layer}_{n - 1}")
            run.brief(f"scores{layer}_{n}", 20480 + 2048 * n)
    return run


def test_without_stacks_what_comes_first_and_stays_are_weights() -> None:
    found = nameless(work=8).categories()
    assert {found[f"w{layer}"] for layer in LAYERS} == {P}


def test_without_stacks_caches_grow_evenly() -> None:
    found = nameless(work=8).categories()
    assert {found[f"kv{layer}_{n}"] for layer in LAYERS for n in range(7)} == {A}
    # What grows as evenly and goes at once is no cache.
    assert {found[f"scores{layer}_{n}"] for layer in LAYERS for n in range(8)} == {T}


def test_without_stacks_and_work_nothing_is_a_weight() -> None:
    found = nameless(work=0).categories()
    assert P not in {found[f"w{layer}"] for layer in LAYERS}
