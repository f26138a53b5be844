"""Fine labels: what an allocation is within its category.

They name what the evidence shows; where it shows nothing finer, the label is the
category's most common one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.draft import Draft
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.classify.rules import Role
from snapscope.model import Int8Column

FINE_LABELS: Final = (
    "weight", "buffer", "unsharded_param", "ema",
    "grad", "unsharded_grad",
    "state", "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta", "sum",
    "exp_inf", "master_weight",
    "saved_tensor", "recomputed", "input", "autocast_weight", "kv_cache",
    "intermediate", "logits", "loss", "workspace", "comm_buffer", "kept",
)  # fmt: skip
"""Names of the fine labels, by number."""

_NUMBER: Final = {label: number for number, label in enumerate(FINE_LABELS)}
_TINY_BYTES: Final = 8

# Tensors that `_init_group` makes for each parameter, in order, by the file's stem.
_STATES: Final = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam"), ("exp_avg", "exp_avg_sq")),
    "sgd": ("momentum_buffer",),
    "rmsprop": ("square_avg",),
    "adadelta": ("square_avg", "acc_delta"),
    "adamax": ("exp_avg", "exp_inf"),
    "adagrad": ("sum",),
}

_BY_CATEGORY: Final = {
    Category.PARAMETER: "weight",
    Category.GRADIENT: "grad",
    Category.OPTIMIZER_STATE: "state",
    Category.ACTIVATION: "saved_tensor",
    Category.TEMPORARY: "intermediate",
}
_BY_EVIDENCE: Final = (
    (Category.PARAMETER, Evidence.UNSHARDED, "unsharded_param"),
    (Category.PARAMETER, Evidence.USER_COPY, "ema"),
    (Category.PARAMETER, Evidence.USER_BUFFER, "buffer"),
    (Category.GRADIENT, Evidence.FREED_BY_REDUCTION, "unsharded_grad"),
    (Category.OPTIMIZER_STATE, Evidence.MASTER_WEIGHT, "master_weight"),
    (Category.ACTIVATION, Evidence.RECOMPUTED, "recomputed"),
    (Category.ACTIVATION, Evidence.KV_CACHE, "kv_cache"),
    (Category.ACTIVATION, Evidence.INPUT_HELD, "input"),
    (Category.TEMPORARY, Evidence.WORKSPACE, "workspace"),
    (Category.TEMPORARY, Evidence.COMMUNICATION, "comm_buffer"),
    (Category.TEMPORARY, Evidence.HELD_BESIDE_SAVED, "logits"),
    (Category.TEMPORARY, Evidence.KEPT_FOR_LONG, "kept"),
)


def label_fine(draft: Draft) -> Int8Column:
    """Return the number of each row's fine label."""
    fine = np.zeros(len(draft.category), np.int8)
    for category, label in _BY_CATEGORY.items():
        fine[draft.category == category] = _NUMBER[label]
    for category, evidence, label in _BY_EVIDENCE:
        fine[(draft.category == category) & (draft.evidence == evidence)] = _NUMBER[label]
    cast = draft.has_role(Role.AUTOCAST) & (fine == _NUMBER["saved_tensor"])
    fine[cast & np.isin(2 * draft.size, draft.parameter_sizes)] = _NUMBER["autocast_weight"]
    tiny = (draft.size <= _TINY_BYTES) & (draft.category == Category.TEMPORARY)
    fine[tiny & np.isin(draft.evidence, (Evidence.RESULT_HELD, Evidence.HELD_BESIDE_SAVED))] = _NUMBER["loss"]
    _label_states(draft, fine)
    return fine


def _label_states(draft: Draft, fine: Int8Column) -> None:
    """Name the states that `_init_group` made by their order: two of one size are exp_avg, exp_avg_sq."""
    rows = np.flatnonzero((draft.category == Category.OPTIMIZER_STATE) & (draft.evidence == Evidence.STATE_INIT))
    rows = rows[np.argsort(draft.birth[rows], kind="stable")]
    stems = {stack: _state_file(draft, stack) for stack in np.unique(draft.stack[rows]).tolist()}
    previous, place = -1, 0
    for row, stack, size in zip(rows.tolist(), draft.stack[rows].tolist(), draft.size[rows].tolist(), strict=True):
        names = _STATES.get(stems[stack])
        if size <= _TINY_BYTES:
            fine[row] = _NUMBER["step"]
            previous = -1
            continue
        place = place + 1 if size == previous else 0
        previous = size
        if names:
            fine[row] = _NUMBER[names[place % len(names)]]


def _state_file(draft: Draft, stack: int) -> str:
    """Return the stem of the optimizer's file in a stack: `adamw`."""
    stacks, sites = draft.material.snapshot.stacks, draft.material.sites
    if stack <= 0:
        return ""
    for frame in stacks.frames_of(stack).tolist():
        if stacks.function_of(frame) == "_init_group":
            return sites.file_of(frame).rpartition("/")[2].removesuffix(".py")
    return ""
