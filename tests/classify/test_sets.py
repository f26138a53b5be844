"""Sets of the user's tensors that mirror the parameters: `snapscope.classify.sets`."""

from __future__ import annotations

import pytest

from tests.builders import Raw
from tests.classify.program import (
    ENGINE,
    MAIN,
    WEIGHTS,
    Program,
    at,
    build_model,
    cloned,
    drawn,
    filled,
    forget_results,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    step,
    user,
    zero_grad,
)

P, G, O, A, T = "parameter", "gradient", "optimizer_state", "activation", "temporary"  # noqa: E741
UPDATE = user("update", 31)
MODULE_ZERO_GRAD = (at("torch/nn/modules/module.py", "zero_grad"), *MAIN)


def add_set(run: Program, prefix: str, stack: tuple[Raw, ...], times: int = 1) -> None:
    """Allocate a block of each weight's size, or of so many times it."""
    for name, size in WEIGHTS.items():
        run.alloc(f"{prefix}_{name}", size * times, stack)


def free_set(run: Program, prefix: str, stack: tuple[Raw, ...]) -> None:
    for name in WEIGHTS:
        run.free(f"{prefix}_{name}", stack)


def of_set(run: Program, prefix: str) -> set[str]:
    found = run.categories()
    return {found[f"{prefix}_{name}"] for name in WEIGHTS}


def iterate(run: Program, n: int) -> None:
    """Run forward and backward; gradients stay."""
    run_forward(run, n)
    if n:
        forget_results(run, n - 1)
    run_backward(run, n)


def update_by_hand(run: Program, n: int) -> None:
    run.brief(f"scaled{n}", WEIGHTS["w1"], UPDATE)
    for name in ("g1_", "g2_"):
        run.free(f"{name}{n}", UPDATE)


def test_zeros_are_states_and_clones_are_copies() -> None:
    run = Program()
    build_model(run)
    add_set(run, "ema", cloned(user("main", 5)))
    add_set(run, "momentum", filled(user("main", 6)))
    for n in range(2):
        iterate(run, n)
        update_by_hand(run, n)
    assert of_set(run, "momentum") == {O}
    assert of_set(run, "ema") == {P}
    assert run.fine()["ema_w1"] == "ema"


def test_a_set_with_buffers_in_it_copies_the_model() -> None:
    run = Program()
    build_model(run)
    run.alloc("running_mean", WEIGHTS["w2"], (at("torch/nn/modules/module.py", "register_buffer"), *MAIN))
    for name, size in {**WEIGHTS, "buffer": WEIGHTS["w2"]}.items():
        run.alloc(f"copy_{name}", size, user("main", 5))
    for n in range(2):
        iterate(run, n)
        update_by_hand(run, n)
    assert of_set(run, "copy") == {P}


def with_optimizer(run: Program, n: int) -> None:
    iterate(run, n)
    run_optimizer(run, n, is_first=not n)


def test_what_is_kept_after_an_optimizers_step_copies_the_parameters() -> None:
    run = Program()
    build_model(run)
    for n in range(4):
        with_optimizer(run, n)
        if n == 1:
            add_set(run, "average", user("average", 9))
        run_zero_grad(run, n)
    assert of_set(run, "average") == {P}


def test_a_copy_that_is_made_anew_after_each_step_is_one() -> None:
    run = Program()
    build_model(run)
    add_set(run, "average", cloned(user("main", 5)))
    for n in range(4):
        with_optimizer(run, n)
        add_set(run, f"average{n}", user("average", 9))
        free_set(run, f"average{n - 1}" if n else "average", user("average", 9))
        run_zero_grad(run, n)
    assert of_set(run, "average1") == of_set(run, "average3") == {P}


def accumulate(run: Program, num_steps: int) -> None:
    """Each step adds the gradients of two backwards up in fp32 copies of its own, and forgets them after it."""
    for n in range(num_steps):
        iterate(run, 2 * n)
        add_set(run, f"sum{n}", user("main", 12))
        free_gradients(run, 2 * n)
        iterate(run, 2 * n + 1)
        free_gradients(run, 2 * n + 1)
        run_optimizer(run, n, is_first=not n)
        free_set(run, f"sum{n}", user("main", 14))


def free_gradients(run: Program, n: int) -> None:
    for name in ("g1_", "g2_"):
        run.free(f"{name}{n}", MODULE_ZERO_GRAD)


def test_what_is_made_of_gradients_for_one_step_is_gradient() -> None:
    run = Program()
    build_model(run)
    accumulate(run, 3)
    assert of_set(run, "sum0") == of_set(run, "sum1") == {G}


def test_what_zero_grad_frees_is_gradient_whoever_made_it() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        iterate(run, n)
        add_set(run, f"clipped{n}", user("main", 12))
        for name in ("g1_", "g2_"):
            run.free(f"{name}{n}", user("main", 12))
        run_optimizer(run, n, is_first=not n)
        free_set(run, f"clipped{n}", zero_grad())
    assert of_set(run, "clipped0") == of_set(run, "clipped2") == {G}
    assert run.evidence()["clipped1_w1"] == "FREED_BY_ZERO_GRAD"


def per_sample(run: Program, num_steps: int) -> None:
    for n in range(num_steps):
        add_set(run, f"sum{n}", filled(user("main", 12)))
        if n:
            free_set(run, f"sum{n - 1}", user("main", 12))
        for sample in range(3):
            iterate(run, 3 * n + sample)
            free_gradients(run, 3 * n + sample)


def test_a_set_that_is_made_for_several_backwards_adds_up() -> None:
    run = Program()
    build_model(run)
    per_sample(run, 3)
    assert of_set(run, "sum0") == of_set(run, "sum1") == {G}


def test_a_pool_of_data_of_one_weights_size_adds_nothing_up() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        run.alloc(f"pool{n}", WEIGHTS["w1"], user("rollout", 12))
        if n:
            run.free(f"pool{n - 1}", user("rollout", 12))
        for batch in range(3):
            iterate(run, 3 * n + batch)
            free_gradients(run, 3 * n + batch)
    assert run.categories()["pool1"] in (A, T)


HOOK = (at("train.py", "hook", 8),)


def hooked(run: Program, n: int) -> None:
    """Run forward and a backward of which hooks let every gradient go at once."""
    run_forward(run, n)
    if n:
        forget_results(run, n - 1)
    run_backward(run, n)
    for name in ("g1_", "g2_"):
        run.free(f"{name}{n}", HOOK)
    run.brief(f"last{n}", 512, ENGINE)


@pytest.mark.parametrize("has_origins", [True, False])
def test_where_hooks_let_gradients_go_the_first_set_keeps_their_sum(*, has_origins: bool) -> None:
    run = Program()
    build_model(run)
    made = filled if has_origins else tuple
    add_set(run, "main_grad", made(user("main", 5)), 2)
    add_set(run, "master", user("main", 6), 2)
    add_set(run, "moment", made(user("main", 7)), 2)
    for n in range(2):
        hooked(run, 2 * n)
        hooked(run, 2 * n + 1)
        run.brief(f"scaled{n}", 2 * WEIGHTS["w1"], UPDATE)
    assert of_set(run, "main_grad") == {G}
    assert of_set(run, "moment") == of_set(run, "master") == {O}


def test_flat_blocks_by_their_order() -> None:
    run = Program()
    build_model(run)
    total = sum(WEIGHTS.values())
    for name, line in (("data", 5), ("grad", 6), ("exp_avg", 7)):
        run.alloc(name, total, filled(user("flatten", line)))
        if name == "data":
            for weight in WEIGHTS:
                run.free(weight, user("flatten", 5))
    run.alloc("backup", total, cloned(user("flatten", 8)))
    for n in range(2):
        hooked(run, n)
        run.brief(f"root{n}", total, UPDATE)
    found = run.categories()
    assert [found[name] for name in ("data", "grad", "exp_avg", "backup")] == [P, G, O, P]
    assert run.evidence()["grad"] == "FLAT"


def test_a_block_of_any_other_size_is_not_flat() -> None:
    run = Program()
    build_model(run)
    run.alloc("data", 2 * sum(WEIGHTS.values()) + 8192, user("load", 5))
    for n in range(2):
        iterate(run, n)
        update_by_hand(run, n)
    assert run.categories()["data"] == T


def functional(run: Program, num_steps: int) -> None:
    """Make velocities and then parameters anew in each update; the old ones go after it."""
    add_set(run, "p", drawn(user("init", 3)))
    add_set(run, "v", filled(user("init", 4)))
    before = ("p", "v")
    for n in range(num_steps):
        iterate(run, n)
        add_set(run, f"v{n}", user("update", 21))
        free_set(run, before[1], user("update", 21))
        add_set(run, f"p{n}", user("update", 22))
        run.brief(f"loss_copy{n}", 4, user("update", 23))
        free_set(run, before[0], user("main", 40))
        before = (f"p{n}", f"v{n}")
        for name in ("g1_", "g2_"):
            run.free(f"{name}{n}", user("main", 41))


def test_parameters_that_an_update_makes_anew() -> None:
    run = Program()
    functional(run, 4)
    assert of_set(run, "p") == of_set(run, "p1") == {P}
    assert of_set(run, "v0") == of_set(run, "v1") == {O}


def test_an_unfinished_update_keeps_zeros_only() -> None:
    run = Program()
    build_model(run)
    iterate(run, 0)
    for name, size in WEIGHTS.items():
        run.alloc(f"m_{name}", size, filled(user("update", 28)))
    for name, size in WEIGHTS.items():
        run.alloc(f"direction_{name}", size, user("update", 30))
    assert of_set(run, "m") == {O}
    assert of_set(run, "direction") == {T}


def test_a_set_that_is_older_than_the_history() -> None:
    run = Program()
    for name, size in WEIGHTS.items():
        run.elder(name, size, at_construction())
        run.elder(f"ema_{name}", size, cloned(user("main", 5)))
        run.elder(f"m_{name}", size, filled(user("main", 6)))
    for n in range(2):
        iterate(run, n)
        update_by_hand(run, n)
    assert of_set(run, "ema") == {P}
    assert of_set(run, "m") == {O}


def at_construction() -> tuple[Raw, ...]:
    module = "torch/nn/modules/module.py"
    return (at(module, "convert"), at(module, "_apply"), at(module, "to"), *MAIN)


def test_old_blocks_that_come_in_threes() -> None:
    run = Program()
    sizes = {"w1": 65536, "w2": 12288, "w3": 20480}
    for kind in ("w", "m", "v"):
        for name, size in sizes.items():
            run.elder(f"{kind}_{name}", size)
    run_forward(run, 0)
    run.alloc("seed0", 4, ENGINE)
    found = run.categories()
    assert {found[f"w_{name}"] for name in sizes} == {P}
    assert {found[f"{kind}_{name}"] for kind in "mv" for name in sizes} == {O}


def test_the_users_own_optimizer_class_is_one() -> None:
    own = (at("my_optim.py", "step", 12), at("torch/optim/optimizer.py", "wrapper"), *MAIN)
    run = Program()
    build_model(run)
    for n in range(2):
        iterate(run, n)
        if not n:
            add_set(run, "buf", own)
        run.brief(f"direction{n}", WEIGHTS["w1"], own)
        run_zero_grad(run, n)
    assert of_set(run, "buf") == {O}
    assert run.evidence()["buf_w1"] == "OUTLIVES_STEP"
    assert len(run.history().spans.optimizer_start) == 2


def test_a_closure_is_the_programs_own_work() -> None:
    inside = (at("train.py", "objective", 7), at("torch/optim/lbfgs.py", "step"),
              at("torch/optim/optimizer.py", "wrapper"), *MAIN)  # fmt: skip
    run = Program()
    build_model(run)
    for n in range(2):
        run.alloc(f"noise{n}", 2048, inside)
        iterate(run, n)
        run.free(f"noise{n}", inside)
        run.brief(f"direction{n}", WEIGHTS["w1"], step("lbfgs", "step"))
        run_zero_grad(run, n)
    spans = run.history().spans
    # Of the step that calls it, only what the optimizer does itself.
    assert spans.optimizer_start.tolist() == [run.births[f"direction{n}"][0] for n in range(2)]


def test_a_copy_that_is_kept_over_several_steps_adds_nothing_up() -> None:
    run = Program()
    build_model(run)
    for epoch in range(3):
        for n in range(2 * epoch, 2 * epoch + 2):
            with_optimizer(run, n)
            run_zero_grad(run, n)
        run.brief(f"validation{epoch}", 4096, validate())
        add_set(run, f"best{epoch}", user("main", 18))
        if epoch:
            free_set(run, f"best{epoch - 1}", user("main", 18))
    assert of_set(run, "best0") == of_set(run, "best1") == {P}


def validate() -> tuple[Raw, ...]:
    module = "torch/nn/modules/module.py"
    return (at("model.py", "forward", 7), at(module, "_call_impl"), at("train.py", "validate", 3), *MAIN)


def test_parameters_that_forward_replaces() -> None:
    # `y.data = y.data * m + x.data * (1 - m)` in a module, as in MoCo.
    run = Program()
    build_model(run)
    before = list(WEIGHTS)
    for n in range(3):
        run.alloc(f"x{n}", 2048, user("get_batch", 17))
        for place, size in enumerate(WEIGHTS.values()):
            run.alloc(f"key{n}_{place}", size, validate())
            run.free(before[place], validate())
        before = [f"key{n}_{place}" for place in range(len(WEIGHTS))]
        run.alloc(f"h{n}", 32768, validate())
        run.free(f"x{n}", ENGINE)
        run.alloc(f"g1_{n}", WEIGHTS["w1"], ENGINE)
        run.alloc(f"g2_{n}", WEIGHTS["w2"], ENGINE)
        run.free(f"h{n}", ENGINE)
        run.brief(f"root{n}", 4096, step())
        run_zero_grad(run, n)
    found = run.categories()
    assert {found[name] for name in ("w1", "key0_0", "key1_0", "key1_1", "key2_0")} == {P}


def test_gradients_added_up_in_fp32_beside_16_bits() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        iterate(run, 2 * n)
        add_set(run, f"sum{n}", user("main", 12), 2)
        free_gradients(run, 2 * n)
        iterate(run, 2 * n + 1)
        free_gradients(run, 2 * n + 1)
        run_optimizer(run, n, is_first=not n)
        free_set(run, f"sum{n}", user("main", 14))
    assert of_set(run, "sum0") == {G}
