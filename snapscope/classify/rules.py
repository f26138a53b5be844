"""Frame rules: what a frame says about the phase and the purpose of an allocation.

Data, not code: a rule is (file, function) by regular expressions, tried in order, first
match wins. Files are normalised (`torch/optim/adam.py`, `accelerate/optimizer.py`), names
are `co_name` for Python frames and demangled for C++.

Sources: the Python files of torch 1.13 to 2.14, transformers, peft, accelerate, Lightning,
DeepSpeed, Megatron, bitsandbytes, vLLM; and recordings of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
"""Number of the rule table; part of every piece of evidence that names it."""


class Role(IntEnum):
    """What a frame is doing."""

    NONE = 0
    # Structural: they decide the phase of a stack, the innermost first.
    MODULE_CALL = 1
    BACKWARD = 2
    OPTIMIZER = 3
    ZERO_GRAD = 4
    CLIP = 5
    CONSTRUCT = 6
    # Purposes: flags beside the phase.
    RECOMPUTE = 7
    OPTIMIZER_STATE = 8
    OPTIMIZER_INIT = 9
    WORKSPACE = 10
    UNSHARD = 11
    COMMUNICATION = 12
    UNSHARDED_GRAD = 13
    GRAD_BUCKET = 14
    KV_CACHE = 15
    ENGINE = 16
    AUTOCAST = 17
    AUTOGRAD_APPLY = 18
    NO_GRAD = 19
    DATA = 20
    GENERATE = 21
    LOSS = 22
    REDUCE = 23
    # A closure that the optimizer calls: what is inside is the program's own work again.
    CLOSURE = 24
    # What a block was filled with when it was made, by the operator that Python called.
    FILLED = 25
    CLONED = 26
    DRAWN = 27
    # A backward that a backward runs, to differentiate what it computed again.
    NESTED_BACKWARD = 28
    # `zero_grad` of an optimizer, not of a module; it marks a stack beside ZERO_GRAD.
    OPTIMIZER_ZERO_GRAD = 29
    # An operator copied it, as `contiguous` and `to` do within others.
    COPIED = 30


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table.

    Attributes:
        role: what a matching frame does.
        file: expression on the normalised file, `search`ed; empty = any.
        function: expression on the function, matched from its start; empty = any.
    """

    role: Role
    file: str
    function: str = ""


PYTHON_RULES: Final = (
    # Optimizers. `__init__` first: Adagrad and Rprop make their state there.
    Rule(Role.NONE, r"^torch/optim/(lr_scheduler|swa_utils)\.py$"),
    Rule(Role.OPTIMIZER_ZERO_GRAD, r"^torch/optim/optimizer\.py$", r"zero_grad$"),
    Rule(Role.ZERO_GRAD, r"^torch/nn/modules/module\.py$", r"zero_grad$"),
    Rule(Role.OPTIMIZER_INIT, r"^torch/optim/\w+\.py$", r"__init__$"),
    Rule(Role.OPTIMIZER_STATE, r"^torch/optim/\w+\.py$", r"_init_group$"),
    # Around every `step`, also that of a subclass in the user's file.
    Rule(Role.OPTIMIZER, r"^torch/optim/optimizer\.py$", r"wrapper$"),
    Rule(Role.NONE, r"^torch/optim/optimizer\.py$"),
    Rule(Role.OPTIMIZER, r"^torch/optim/(_\w+/)?\w+\.py$"),
    Rule(Role.OPTIMIZER_STATE, r"(^|/)bitsandbytes/optim/optimizer\.py$", r"(init_state|get_state_buffer)$"),
    Rule(Role.OPTIMIZER, r"(^|/)bitsandbytes/optim/"),
    Rule(Role.OPTIMIZER_INIT, r"(^|/)(apex|transformer_engine|deepspeed/ops|megatron)/.*optim", r"__init__$"),
    Rule(Role.OPTIMIZER, r"(^|/)(apex/optimizers|transformer_engine/pytorch/optimizers|deepspeed/ops/adam)/"),
    Rule(Role.OPTIMIZER_INIT, r"(^|/)deepspeed/runtime/(zero/stage|bf16_optimizer|fp16/)",
         r"__init__$|initialize_optimizer_states$"),
    Rule(Role.UNSHARD, r"(^|/)deepspeed/runtime/zero/partition_parameters\.py$", r"_all_?gather|all_gather_coalesced"),
    Rule(Role.COMMUNICATION, r"(^|/)deepspeed/runtime/zero/", r"\w*(reduce|average|bucket)"),
    Rule(Role.OPTIMIZER, r"^(torch_optimizer|pytorch_optimizer|lion_pytorch|timm/optim|transformers/optimization\.py|"
         r"dadaptation|prodigyopt|came_pytorch|galore_torch|schedulefree|heavyball|muon)(/|$)", r"(?!__init__)\w+$"),
    Rule(Role.OPTIMIZER, r"(^|/)megatron/(core/)?optimizer/", r"(step|prepare_grads|step_with_ready_grads|_copy_\w+)$"),
    Rule(Role.CLIP, r"^torch/nn/utils/clip_grad\.py$"),
    Rule(Role.CLIP, r"^torch/(cuda/)?amp/grad_scaler\.py$"),
    Rule(Role.CLIP, r"^torch/distributed/fsdp/fully_sharded_data_parallel\.py$", r"clip_grad_norm_|_get_grad_norm"),
    # Fully sharded data parallel, both generations.
    Rule(Role.UNSHARD, r"^torch/distributed/fsdp/_fully_shard/_fsdp_param\.py$",
         r"(alloc_storage|init_all_gather_outputs|"
         r"alloc_all_gather_outputs|init_unsharded_param)$"),
    Rule(Role.UNSHARD, r"^torch/distributed/_composable/fsdp/_fsdp_param\.py$",
         r"(alloc_storage|init_all_gather_outputs|"
         r"alloc_all_gather_outputs|init_unsharded_param)$"),
    Rule(Role.UNSHARD, r"^torch/distributed/fsdp/_flat_param\.py$", r"_alloc_padded_unsharded_flat_param$"),
    Rule(Role.CONSTRUCT, r"^torch/distributed/fsdp/_fully_shard/_fsdp_param\.py$", r"(_init_sharded_param|__init__)$"),
    Rule(Role.CONSTRUCT, r"^torch/distributed/fsdp/_flat_param\.py$", r"(__init__|flatten_tensors|shard|_get_shard)$"),
    Rule(Role.COMMUNICATION, r"^torch/distributed/(_composable/fsdp|fsdp/_fully_shard)/_fsdp_collectives\.py$"),
    Rule(Role.COMMUNICATION, r"^torch/distributed/fsdp/_runtime_utils\.py$",
         r"(_reduce_grad|_get_reduce_scatter_tensors)$"),
    # Distributed data parallel.
    Rule(Role.GRAD_BUCKET, r"^torch/nn/parallel/distributed\.py$", r"(_ddp_init_helper|_default_broadcast_coalesced|"
         r"_distributed_broadcast_coalesced|_sync_module_states)$"),
    Rule(Role.COMMUNICATION, r"^torch/distributed/(distributed_c10d|_functional_collectives|utils)\.py$"),
    # Recomputation of checkpointed activations.
    Rule(Role.RECOMPUTE, r"^torch/utils/checkpoint\.py$", r"(unpack_hook|recompute_fn|inner_unpack|unpack|backward|"
         r"_recomputation_hook)$"),
    Rule(Role.RECOMPUTE, r"(^|/)(deepspeed/runtime/activation_checkpointing/|megatron/core/tensor_parallel/random)",
         r"backward$"),
    # Backward.
    Rule(Role.BACKWARD, r"^torch/_tensor\.py$", r"backward$"),
    Rule(Role.BACKWARD, r"^torch/autograd/__init__\.py$", r"(backward|grad|_make_grads)$"),
    Rule(Role.BACKWARD, r"^torch/autograd/graph\.py$", r"_engine_run_backward$"),
    Rule(Role.AUTOGRAD_APPLY, r"^torch/autograd/function\.py$", r"apply$"),
    # Construction, moving and loading.
    Rule(Role.CONSTRUCT, r"^torch/nn/modules/module\.py$",
         r"(_apply|convert|to|cuda|to_empty|half|float|bfloat16|double|"
         r"load_state_dict|_load_from_state_dict|load|register_buffer)$"),
    Rule(Role.CONSTRUCT, r"^torch/nn/(modules/(?!module\.py)\w+|init|parameter)\.py$",
         r"(__init__|reset_parameters|_reset_parameters|flatten_parameters|__deepcopy__|\w+_$|__new__)$"),
    Rule(Role.CONSTRUCT, r"^torch/(serialization|_utils)\.py$"),
    Rule(Role.CONSTRUCT, r"^safetensors/"),
    Rule(Role.CONSTRUCT, r"^(transformers/(modeling_utils|core_model_loading|initialization)|accelerate/(big_modeling|"
         r"utils/modeling))\.py$", r"(from_pretrained|_load\w*|load\w*|set_module_tensor_to_device|_init_weights|"
         r"caching_allocator_warmup|init_weights|to|cuda)$"),
    Rule(Role.CONSTRUCT, r"^peft/", r"(inject_adapter|_create_and_replace|update_layer|__init__|_move_adapter\w*)$"),
    Rule(Role.CONSTRUCT, r"^timm/utils/model_ema", r"__init__$"),
    Rule(Role.CONSTRUCT, r"(^|/)copy\.py$", r"deepcopy$"),
    Rule(Role.CONSTRUCT, r"^torch/_tensor\.py$", r"__deepcopy__$"),
    # Losses save log_softmax's result, not the logits that they get.
    Rule(Role.LOSS, r"^torch/nn/functional\.py$",
         r"(cross_entropy|nll_loss|log_softmax|softmax|kl_div|binary_cross_entropy\w*)$"),
    # Forward.
    Rule(Role.MODULE_CALL, r"^torch/nn/modules/module\.py$", r"(_call_impl|_wrapped_call_impl|__call__)$"),
    Rule(Role.CLOSURE, r"^(pytorch_)?lightning/(pytorch/)?(strategies/strategy|loops/optimization/\w+)\.py$",
         r"(_?training_step|closure)$"),
    Rule(Role.CLOSURE, r"", r"_?closure$"),
    Rule(Role.KV_CACHE, r"^transformers/cache_utils\.py$"),
    # Caches of one's own are called so as well.
    Rule(Role.KV_CACHE, r"(^|/)\w*cache\w*\.py$", r"(update|append|_?quantize)\w*$"),
    Rule(Role.KV_CACHE, r"(^|/)vllm/.*", r"(_allocate_kv_cache\w*|initialize_kv_cache\w*)$"),
    Rule(Role.GENERATE, r"^transformers/generation/utils\.py$"),
    Rule(Role.NO_GRAD, r"^torch/utils/_contextlib\.py$", r"decorate_context$"),
    Rule(Role.DATA, r"^torch/utils/data/"),
)  # fmt: skip

CPP_RULES: Final = (
    (Role.ENGINE, r"torch::autograd::(Engine::(thread_main|evaluate_function|thread_init|reentrant_thread_init)|"
     r"python::PythonEngine::thread_init)"),
    (Role.WORKSPACE, r"(getNewWorkspace|getCurrentCUDABlasHandle|getCUDABlasLtWorkspace|cublasLtWorkspace|"
     r"parseChosenWorkspaceSize|CUDABlasLtWorkspace|(?<!\w)Workspace::Workspace|cublas\w*Workspace)"),
    (Role.AUTOCAST, r"at::autocast::cached_cast"),
    # The binding, not the operator: many operators clone or fill something on their way.
    (Role.FILLED, r"torch::autograd::THPVariable_(new_)?(zeros|ones|full|eye)(_like)?\b"),
    (Role.CLONED, r"torch::autograd::THPVariable_clone\b"),
    (Role.COPIED, r"at::_ops::(contiguous|clone|_to_copy)::call\b"),
    (Role.DRAWN, r"torch::autograd::THPVariable_(randn|rand|normal)(_like)?\b"),
)  # fmt: skip


class FrameRoles:
    """Looks frames up in the table; compiled once."""

    def __init__(self) -> None:
        self._python = [
            (
                rule.role,
                re.compile(rule.file) if rule.file else None,
                re.compile(rule.function) if rule.function else None,
            )
            for rule in PYTHON_RULES
        ]
        self._cpp = [(role, re.compile(pattern)) for role, pattern in CPP_RULES]

    def of_python(self, file: str, function: str) -> Role:
        """Return the role of a Python frame by normalised file and function."""
        for role, file_pattern, function_pattern in self._python:
            if file_pattern is not None and not file_pattern.search(file):
                continue
            if function_pattern is None or function_pattern.match(function):
                return role
        return Role.NONE

    def of_cpp(self, function: str) -> Role:
        """Return the role of a C++ frame by its demangled name."""
        for role, pattern in self._cpp:
            if pattern.search(function):
                return role
        return Role.NONE
