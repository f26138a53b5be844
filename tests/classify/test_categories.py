"""Small programs with the category of every allocation written out."""

from __future__ import annotations

import pytest

from tests.builders import MIB
from tests.classify.program import (
    ENGINE,
    MAIN,
    MODULE,
    WEIGHTS,
    Program,
    Stack,
    at,
    build_model,
    construct,
    forget_results,
    forward,
    init_group,
    run_backward,
    run_forward,
    run_optimizer,
    run_zero_grad,
    step,
    train,
    user,
    zero_grad,
)

CHECKPOINT = "torch/utils/checkpoint.py"
CALL = at(MODULE, "_call_impl")
P, G, O, A, T = "parameter", "gradient", "optimizer_state", "activation", "temporary"  # noqa: E741


def expected_of(num_steps: int) -> dict[str, str]:
    """What `train` makes, by name."""
    found = {"w1": P, "w2": P, "m_w1": O, "v_w1": O, "m_w2": O, "v_w2": O}
    for n in range(num_steps):
        found |= {f"x{n}": A, f"h{n}": A, f"logp{n}": A, f"t{n}": T, f"logits{n}": T}
        found |= {f"seed{n}": T, f"dlogp{n}": T, f"g1_{n}": G, f"g2_{n}": G, f"sqrt{n}": T}
    return found


def check(run: Program, expected: dict[str, str]) -> None:
    found = run.categories()
    assert {name: found[name] for name in expected} == expected


def test_the_usual_loop() -> None:
    check(train(Program(), 3), expected_of(3))


def test_the_usual_loop_with_stacks_of_allocs_only() -> None:
    # What a backward and a step free last has no stack of its own: they end where the next thing begins.
    check(train(Program(context="alloc"), 3), expected_of(3))


def test_fine_labels_of_the_usual_loop() -> None:
    fine = train(Program(), 2).fine()
    expected = {"w1": "weight", "g1_0": "grad", "m_w1": "exp_avg", "v_w1": "exp_avg_sq", "h0": "saved_tensor"}
    expected |= {"t0": "intermediate", "logits0": "logits"}
    assert {name: fine[name] for name in expected} == expected


def test_evidence_and_confidence_of_the_usual_loop() -> None:
    run = train(Program(), 2)
    evidence, confidence = run.evidence(), run.confidence()
    assert evidence["w1"] == "CONSTRUCTED"
    assert evidence["m_w1"] == "STATE_INIT"
    assert evidence["h0"] == "FREED_BY_BACKWARD"
    assert evidence["logits0"] == "HELD_BESIDE_SAVED"
    assert evidence["g1_0"].startswith("OUTLIVES_BACKWARD")
    assert confidence["w1"] == confidence["m_w1"] == confidence["h0"] == "high"


def test_what_construction_drops_is_temporary() -> None:
    run = Program()
    run.brief("on its way", 4096, construct())
    build_model(run)
    run_forward(run, 0)
    check(run, {"on its way": T, "w1": P, "w2": P})


def test_a_state_of_the_optimizers_init_is_state() -> None:
    run = Program()
    build_model(run)
    run.alloc("sum", WEIGHTS["w1"], (at("torch/optim/adagrad.py", "__init__"), *MAIN))
    run_forward(run, 0)
    run_backward(run, 0)
    check(run, {"sum": O, "w1": P})


@pytest.mark.parametrize("size", [8_519_680, 1024])
def test_workspaces_by_size_or_by_name(size: int) -> None:
    named = at("/src/aten/CUDABlas.cpp", "at::cuda::getCurrentCUDABlasHandle()")
    run = Program()
    build_model(run)
    stack = forward(7) if size == 8_519_680 else forward(7, named)
    run.alloc("workspace", size, stack)
    run_forward(run, 0)
    run_backward(run, 0)
    assert run.categories()["workspace"] == T
    assert run.fine()["workspace"] == "workspace"


def test_recomputed_activations_are_activations() -> None:
    recompute = (at("model.py", "forward", 7), CALL, at(CHECKPOINT, "recompute_fn"), at(CHECKPOINT, "unpack_hook"))
    run = Program()
    build_model(run)
    for n in range(2):
        run.alloc(f"boundary{n}", 32768, forward(5))
        run.brief(f"dropped{n}", 16384, forward(7))
        run.alloc(f"seed{n}", 4, (at("torch/_tensor.py", "backward"), *MAIN))
        run.alloc(f"again{n}", 16384, recompute)
        run.brief(f"inner{n}", 8192, recompute)
        run.alloc(f"g{n}", WEIGHTS["w1"], ENGINE)
        run.free(f"again{n}", ENGINE)
        run.free(f"boundary{n}", ENGINE)
        run.free(f"seed{n}", ENGINE)
        run.brief(f"sqrt{n}", 8192, step())
        run.free(f"g{n}", zero_grad())
    for n in range(2):
        check(run, {f"boundary{n}": A, f"dropped{n}": T, f"again{n}": A, f"inner{n}": T, f"g{n}": G})
    assert run.fine()["again0"] == "recomputed"


def test_logits_held_without_a_saved_twin_were_saved_themselves() -> None:
    run = Program()
    build_model(run)
    for n in range(2):
        run.alloc(f"h{n}", 32768, forward(7))
        run.alloc(f"out{n}", 24576, forward(9))
        if n:
            run.free(f"out{n - 1}", MAIN)
        run.alloc(f"g{n}", WEIGHTS["w1"], ENGINE)
        run.free(f"h{n}", ENGINE)
        run.brief(f"sqrt{n}", 8192, step())
        run.free(f"g{n}", zero_grad())
    check(run, {"h0": A, "out0": A, "g0": G})
    assert run.confidence()["out0"] == "low"


def test_a_batch_that_is_held_is_an_input() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        run.alloc(f"x{n}", 40960, user("get_batch", 17))
        if n:
            run.free(f"x{n - 1}", user("train", 40))
        run.alloc(f"h{n}", 32768, forward(7))
        run.alloc(f"g{n}", WEIGHTS["w1"], ENGINE)
        run.free(f"h{n}", ENGINE)
        run.brief(f"sqrt{n}", 8192, step())
        run.free(f"g{n}", zero_grad())
    assert run.categories()["x0"] == A
    assert (run.fine()["x0"], run.confidence()["x0"]) == ("input", "low")


def by_hand(*, replaces: bool) -> Program:
    """Train with an optimizer of the user's own: momentum, made lazily, and an in-place or a new-block update."""
    update = user("update", 31, "my_optim.py")
    run = Program()
    build_model(run)
    for n in range(3):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        for name, size in WEIGHTS.items():
            if not n:
                run.alloc(f"momentum_{name}", size, user("update", 28, "my_optim.py"))
            if replaces:
                run.alloc(f"{name}_{n}", size, update)
                run.free(f"{name}_{n - 1}" if n else name, update)
            else:
                run.brief(f"scaled_{name}_{n}", size, update)
        for name in ("g1_", "g2_"):
            run.free(f"{name}{n}", user("clear", 60))
    return run


def test_a_hand_written_optimizer() -> None:
    run = by_hand(replaces=False)
    check(run, {"momentum_w1": O, "momentum_w2": O, "scaled_w1_0": T, "scaled_w1_2": T, "g1_0": G, "w1": P, "h1": A})


def test_what_takes_a_parameters_place_is_a_parameter() -> None:
    run = by_hand(replaces=True)
    check(run, {"w1": P, "w1_0": P, "w1_1": P, "w2_1": P, "g1_0": G})


def test_cut_in_forward_all_is_as_before() -> None:
    run = train(Program(), 2)
    run_forward(run, 2)
    check(run, {**expected_of(2), "x2": A, "h2": A, "logp2": A, "t2": T, "logits2": T})
    assert run.evidence()["h2"] == "AS_BEFORE"


def test_cut_in_the_first_forward_nothing_was_before() -> None:
    run = Program()
    build_model(run)
    run_forward(run, 0)
    run.oom(1 << 30, forward(11))
    check(run, {"w1": P, "h0": A, "logp0": A, "t0": T, "logits0": T})
    assert run.confidence()["h0"] in ("medium", "low")


def test_cut_in_backward() -> None:
    run = train(Program(), 1)
    run_forward(run, 1)
    run.alloc("seed1", 4, ENGINE)
    run.alloc("dlogp1", 24576, ENGINE)
    run.free("logp1", ENGINE)
    run.alloc("g2_1", WEIGHTS["w2"], ENGINE)
    check(run, {"g2_1": G, "dlogp1": T, "h1": A, "logp1": A})


def test_cut_in_the_optimizers_first_step() -> None:
    run = Program()
    build_model(run)
    run_forward(run, 0)
    run_backward(run, 0)
    run.alloc("m", WEIGHTS["w1"], init_group())
    run.alloc("v", WEIGHTS["w1"], init_group())
    run.oom(WEIGHTS["w2"], init_group())
    check(run, {"m": O, "v": O, "g1_0": G, "w1": P})


def elders(run: Program) -> None:
    """Model and optimizer are older than the history: three blocks of each weight's size, the weight below."""
    for kind in ("w", "m", "v"):
        for name, size in WEIGHTS.items():
            run.elder(f"{kind}_{name}", size)


def test_elders_are_paired_by_size() -> None:
    run = Program()
    elders(run)
    for n in range(2):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        run_optimizer(run, n, is_first=False)
        run_zero_grad(run, n)
    check(run, {"w_w1": P, "w_w2": P, "m_w1": O, "v_w1": O, "m_w2": O, "v_w2": O, "g1_0": G, "h1": A})


def test_elders_that_are_freed_are_what_freed_them() -> None:
    run = Program()
    for name, size in WEIGHTS.items():
        run.elder(f"w_{name}", size)
    run.elder("g_old", WEIGHTS["w1"])
    run.elder("h_old", 32768)
    run.free("h_old", ENGINE)
    run.alloc("g_now", WEIGHTS["w1"], ENGINE)
    run.free("g_old", zero_grad())
    run.free("g_now", zero_grad())
    run_forward(run, 0)
    run_backward(run, 0)
    check(run, {"g_old": G, "h_old": A, "g_now": G})


def test_elders_with_stacks_are_what_these_say() -> None:
    run = Program()
    run.elder("w", 4096, construct())
    run.elder("m", 4096, init_group())
    run_forward(run, 0)
    check(run, {"w": P, "m": O})


def test_without_stacks_annotations_give_an_estimate() -> None:
    run = Program(context="none")
    build_model(run)
    for n in range(3):
        run_forward(run, n)
        if n:
            forget_results(run, n - 1)
        run_backward(run, n)
        run.begin("Optimizer.step#AdamW.step")
        run_optimizer(run, n, is_first=not n)
        run.end("Optimizer.step#AdamW.step")
        run_zero_grad(run, n)
    check(run, {"w1": P, "w2": P, "m_w1": O, "v_w2": O, "h0": A, "h2": A, "sqrt1": T})
    assert set(run.confidence().values()) <= {"low", "none"}


def test_without_stacks_and_annotations_nothing_is_pretended() -> None:
    run = train(Program(context="none"), 2)
    assert set(run.confidence().values()) <= {"low", "none"}


def test_gathered_parameters_are_parameters() -> None:
    gather: Stack = (at("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "alloc_all_gather_outputs"), CALL, *MAIN)
    run = Program()
    build_model(run)
    for n in range(2):
        run.alloc(f"full{n}", 131072, gather)
        run.alloc(f"h{n}", 32768, forward(7))
        run.free(f"full{n}", forward(7))
        run.alloc(f"g{n}", WEIGHTS["w1"], ENGINE)
        run.free(f"h{n}", ENGINE)
        run.brief(f"sqrt{n}", 8192, step())
        run.free(f"g{n}", zero_grad())
    check(run, {"full0": P, "full1": P, "h0": A, "g0": G})
    assert run.fine()["full0"] == "unsharded_param"


def test_inference_saves_nothing() -> None:
    run = Program()
    build_model(run)
    for n in range(3):
        run.alloc(f"x{n}", 2048, user("get_batch", 17))
        run.brief(f"h{n}", 32768, forward(7))
        run.alloc(f"out{n}", 8192, forward(9))
        run.free(f"x{n}", MAIN)
        run.free(f"out{n}", MAIN)
    check(run, {"w1": P, "x0": T, "h0": T, "out0": T})


def test_a_cache_of_keys_and_values_is_activation() -> None:
    cache = at("transformers/cache_utils.py", "update")
    run = Program()
    build_model(run)
    for n in range(3):
        run.alloc(f"kv{n}", 4096 * (n + 1), forward(5, cache))
        if n:
            run.free(f"kv{n - 1}", forward(5, cache))
        run.brief(f"h{n}", 32768, forward(7))
    check(run, {"kv0": A, "kv2": A, "h0": T})
    assert run.fine()["kv2"] == "kv_cache"


def test_a_kept_graph_is_activation() -> None:
    run = Program()
    build_model(run)
    for layer in range(16):
        run.alloc(f"saved{layer}", 4096 * (layer + 2), forward(100 + layer))
    run.alloc("seed", 4, (at("torch/_tensor.py", "backward"), *MAIN))
    run.alloc("g", WEIGHTS["w1"], ENGINE)
    run.free("seed", ENGINE)
    run.brief("sqrt", 8192, step())
    found = run.categories()
    assert {found[f"saved{layer}"] for layer in range(8)} == {A}


def test_losses_do_not_pass_for_parameters() -> None:
    run = train(Program(), 3)
    found = run.categories()
    assert {found[f"loss{n}"] for n in range(3)} <= {A, T}


def test_empty_histories() -> None:
    for run in (Program(), Program(context="none")):
        assert run.categories() == {}
    run = Program()
    run.elder("old", MIB)
    assert set(run.categories()) == {"old"}
