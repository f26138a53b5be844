"""What single frames and whole stacks say: `snapscope.classify.rules` and `.stacks`."""

from __future__ import annotations

import pytest

from snapscope.classify.rules import CPP_RULES, PYTHON_RULES, FrameRoles, Role
from snapscope.classify.stacks import StackFacts, StackPhase
from tests import builders as b
from tests.classify.program import (
    MAIN,
    MODULE,
    SITE_PACKAGES,
    Stack,
    at,
    construct,
    forward,
    history_of,
    init_group,
    loss,
    step,
    user,
    zero_grad,
)

ROLES = FrameRoles()


@pytest.mark.parametrize(
    ("file", "function", "role"),
    [
        # Optimizers of PyTorch, by version and by implementation.
        ("torch/optim/adamw.py", "_init_group", Role.OPTIMIZER_STATE),
        ("torch/optim/adamw.py", "_multi_tensor_adamw", Role.OPTIMIZER),
        ("torch/optim/adam.py", "_fused_adam", Role.OPTIMIZER),
        ("torch/optim/sgd.py", "_single_tensor_sgd", Role.OPTIMIZER),
        ("torch/optim/_multi_tensor/adam.py", "step", Role.OPTIMIZER),
        ("torch/optim/adagrad.py", "__init__", Role.OPTIMIZER_INIT),
        ("torch/optim/rprop.py", "__init__", Role.OPTIMIZER_INIT),
        ("torch/optim/optimizer.py", "zero_grad", Role.OPTIMIZER_ZERO_GRAD),
        ("torch/optim/optimizer.py", "wrapper", Role.OPTIMIZER),
        ("torch/optim/optimizer.py", "_use_grad", Role.NONE),
        ("torch/optim/lr_scheduler.py", "step", Role.NONE),
        ("torch/optim/swa_utils.py", "update_parameters", Role.NONE),
        (MODULE, "zero_grad", Role.ZERO_GRAD),
        # And of others.
        ("bitsandbytes/optim/optimizer.py", "init_state", Role.OPTIMIZER_STATE),
        ("bitsandbytes/optim/optimizer.py", "step", Role.OPTIMIZER),
        ("lion_pytorch/lion_pytorch.py", "step", Role.OPTIMIZER),
        ("lion_pytorch/lion_pytorch.py", "__init__", Role.NONE),
        ("transformers/optimization.py", "step", Role.OPTIMIZER),
        ("timm/optim/lamb.py", "step", Role.OPTIMIZER),
        ("apex/optimizers/fused_adam.py", "step", Role.OPTIMIZER),
        ("deepspeed/runtime/zero/stage_1_and_2.py", "__init__", Role.OPTIMIZER_INIT),
        ("deepspeed/runtime/zero/stage_1_and_2.py", "reduce_ipg_grads", Role.COMMUNICATION),
        ("deepspeed/runtime/zero/partition_parameters.py", "_all_gather", Role.UNSHARD),
        ("megatron/core/optimizer/optimizer.py", "step", Role.OPTIMIZER),
        ("torch/nn/utils/clip_grad.py", "clip_grad_norm_", Role.CLIP),
        ("torch/amp/grad_scaler.py", "unscale_", Role.CLIP),
        ("torch/cuda/amp/grad_scaler.py", "step", Role.CLIP),
        # Sharding.
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "alloc_all_gather_outputs", Role.UNSHARD),
        ("torch/distributed/_composable/fsdp/_fsdp_param.py", "init_all_gather_outputs", Role.UNSHARD),
        ("torch/distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param", Role.UNSHARD),
        ("torch/distributed/fsdp/_flat_param.py", "shard", Role.CONSTRUCT),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", Role.COMMUNICATION),
        ("torch/nn/parallel/distributed.py", "_ddp_init_helper", Role.GRAD_BUCKET),
        ("torch/nn/parallel/distributed.py", "forward", Role.NONE),
        # Backward and recomputation.
        ("torch/_tensor.py", "backward", Role.BACKWARD),
        ("torch/autograd/__init__.py", "_make_grads", Role.BACKWARD),
        ("torch/autograd/graph.py", "_engine_run_backward", Role.BACKWARD),
        ("torch/autograd/function.py", "apply", Role.AUTOGRAD_APPLY),
        ("torch/utils/checkpoint.py", "unpack_hook", Role.RECOMPUTE),
        ("torch/utils/checkpoint.py", "recompute_fn", Role.RECOMPUTE),
        ("torch/utils/checkpoint.py", "checkpoint", Role.NONE),
        # Construction.
        (MODULE, "_apply", Role.CONSTRUCT),
        (MODULE, "to", Role.CONSTRUCT),
        (MODULE, "load_state_dict", Role.CONSTRUCT),
        ("torch/nn/modules/linear.py", "__init__", Role.CONSTRUCT),
        ("torch/nn/modules/linear.py", "forward", Role.NONE),
        ("torch/nn/init.py", "kaiming_uniform_", Role.CONSTRUCT),
        ("torch/serialization.py", "load", Role.CONSTRUCT),
        ("safetensors/torch.py", "load_file", Role.CONSTRUCT),
        ("transformers/modeling_utils.py", "_load_state_dict_into_meta_model", Role.CONSTRUCT),
        ("peft/tuners/lora/layer.py", "update_layer", Role.CONSTRUCT),
        ("copy.py", "deepcopy", Role.CONSTRUCT),
        # Forward, losses, caches.
        (MODULE, "_call_impl", Role.MODULE_CALL),
        (MODULE, "_wrapped_call_impl", Role.MODULE_CALL),
        ("torch/nn/functional.py", "cross_entropy", Role.LOSS),
        ("torch/nn/functional.py", "linear", Role.NONE),
        ("transformers/cache_utils.py", "update", Role.KV_CACHE),
        ("my/kv_cache.py", "update", Role.KV_CACHE),
        ("my/kv_cache.py", "clear", Role.NONE),
        ("transformers/generation/utils.py", "generate", Role.GENERATE),
        # The user's own words mean nothing.
        ("train.py", "forward", Role.NONE),
        ("optim/adam.py", "step", Role.NONE),
        ("train.py", "zero_grad", Role.NONE),
        ("", "", Role.NONE),
    ],
)
def test_role_of_a_python_frame(file: str, function: str, role: Role) -> None:
    assert ROLES.of_python(file, function) is role


@pytest.mark.parametrize(
    ("function", "role"),
    [
        ("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", Role.ENGINE),
        ("torch::autograd::python::PythonEngine::thread_init(int, bool)", Role.ENGINE),
        ("at::cuda::(anonymous namespace)::getNewWorkspace()", Role.WORKSPACE),
        ("at::cuda::getCurrentCUDABlasHandle()", Role.WORKSPACE),
        ("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", Role.AUTOCAST),
        ("at::native::addmm_out_cuda_impl(at::Tensor&)", Role.NONE),
        ("", Role.NONE),
    ],
)
def test_role_of_a_cpp_frame(function: str, role: Role) -> None:
    assert ROLES.of_cpp(function) is role


def test_every_rule_can_match() -> None:
    assert all(rule.file or rule.function for rule in PYTHON_RULES)
    assert len({(rule.file, rule.function) for rule in PYTHON_RULES}) == len(PYTHON_RULES)
    assert len({pattern for _, pattern in CPP_RULES}) == len(CPP_RULES)


# ------------------------------------------------------------------------------------------- stacks

CHECKPOINT = "torch/utils/checkpoint.py"
FUNCTION = at("torch/autograd/function.py", "apply")
ENGINE_CPP = b.frame("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", "??", 0)
CALL = at(MODULE, "_call_impl")

# Name, stack, phase, on an autograd thread.
STACKS = {
    "module moved": (construct(), StackPhase.CONSTRUCT, False),
    "forward": (forward(3), StackPhase.FORWARD, False),
    "forward by way of optimizer.step(closure)": (
        (at("model.py", "forward", 3), CALL, at("train.py", "closure"), at("torch/optim/lbfgs.py", "step"), *MAIN),
        StackPhase.FORWARD,
        False,
    ),
    "backward called by hand": ((at("torch/_tensor.py", "backward"), *MAIN), StackPhase.BACKWARD, False),
    "clip": ((at("torch/nn/utils/clip_grad.py", "clip_grad_norm_"), *MAIN), StackPhase.CLIP, False),
    "optimizer": (step(), StackPhase.OPTIMIZER, False),
    "optimizer state": (init_group(), StackPhase.OPTIMIZER, False),
    "zero_grad": (zero_grad(), StackPhase.ZERO_GRAD, False),
    "the user's lines": (user("get_batch"), StackPhase.USER, False),
    "C++ thread of the engine": ((ENGINE_CPP,), StackPhase.BACKWARD, True),
    "Function.apply in forward": (
        (at("flash.py", "forward"), FUNCTION, at("model.py", "forward"), CALL, *MAIN), StackPhase.FORWARD, False,
    ),
    "Function's backward": ((at("flash.py", "backward"), FUNCTION), StackPhase.BACKWARD, True),
    "Function's own apply on the engine": ((FUNCTION,), StackPhase.BACKWARD, True),
    "hook on an autograd thread": ((at("train.py", "hook"),), StackPhase.BACKWARD, True),
    "optimizer in a hook": (
        (at("torch/optim/sgd.py", "step"), at("train.py", "hook")), StackPhase.OPTIMIZER, True,
    ),
    "recomputation on an autograd thread": (
        (at("model.py", "forward"), CALL, at(CHECKPOINT, "recompute_fn"), at(CHECKPOINT, "unpack_hook")),
        StackPhase.BACKWARD,
        True,
    ),
    "recomputation on the main thread": (
        (at("model.py", "forward"), CALL, at(CHECKPOINT, "unpack_hook"), at("torch/_tensor.py", "backward"), *MAIN),
        StackPhase.FORWARD,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_phase_of_a_stack(name: str) -> None:
    stack, phase, on_engine = STACKS[name]
    facts, number = facts_of(stack)
    assert (StackPhase(int(facts.phase[number])), bool(facts.on_engine[number])) == (phase, on_engine)


def test_unknown_roots_say_nothing_where_all_are_unknown() -> None:
    made_by_hand = b.alloc(1 << 30, 512, frames=[b.frame("forward", "model.py", 9)])
    history = history_of(b.snapshot([[made_by_hand]]))
    facts = history._stack_facts
    assert not facts.on_engine.any()
    assert StackPhase.BACKWARD not in facts.phase


def facts_of(stack: Stack) -> tuple[StackFacts, int]:
    """Return the facts of all stacks of a snapshot, and the number of the one given."""
    event = b.alloc(0x7F0000000000, 512, frames=stack, time_us=1)
    segment = b.segment(0x7F0000000000, [b.block(512)])
    # Another stack that begins where programs begin: not all of them may be an autograd thread's.
    other = b.alloc(0x7F0001000000, 512, frames=MAIN, time_us=2)
    history = history_of(b.snapshot([[event, other]], [segment, b.segment(0x7F0001000000, [b.block(512)])]))
    rows = history.lifetimes.alloc_stack[history.lifetimes.birth_event == 0]
    return history._stack_facts, int(rows[0])


def test_facts_beside_the_phase() -> None:
    facts, number = facts_of(loss(3))
    assert facts.has(Role.LOSS)[number]
    assert facts.has(Role.MODULE_CALL)[number]
    assert not facts.has(Role.OPTIMIZER)[number]
    assert facts.has_python[number]
    assert facts.has_user[number]
    assert facts.module_key[number] >= 0
    facts, number = facts_of((ENGINE_CPP,))
    assert not facts.has_python[number]
    assert not facts.has_user[number]
    assert facts.module_key[number] == -1


def test_the_key_of_a_module_call_forgets_the_callers_line() -> None:
    inner = (at("model.py", "forward", 3), CALL)
    stacks = [
        (*inner, *user("train", 50)),
        (*inner, *user("evaluate", 90)),
        (at("model.py", "forward", 4), CALL, *MAIN),
    ]
    events = [b.alloc(0x7F0000000000 + n * 512, 512, frames=stack) for n, stack in enumerate(stacks)]
    history = history_of(b.snapshot([events], [b.segment(0x7F0000000000, [b.block(512)] * 3)]))
    first, second, other = history._stack_facts.module_key[history.lifetimes.alloc_stack].tolist()
    assert first == second != other


def test_paths_are_normalised_before_they_are_looked_up() -> None:
    for path in (f"{SITE_PACKAGES}/torch/optim/adamw.py", r"C:\py\Lib\site-packages\torch\optim\adamw.py"):
        facts, number = facts_of((b.frame("_init_group", path, 1), *MAIN))
        assert facts.has(Role.OPTIMIZER_STATE)[number], path
