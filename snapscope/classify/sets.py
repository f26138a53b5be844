"""Passes over sets of the user's tensors that mirror the parameters: copies, added-up gradients, flat buffers."""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.draft import Draft, pad
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.classify.rules import Role
from snapscope.classify.stacks import StackPhase
from snapscope.lifetimes import Context
from snapscope.model import BoolColumn, Int64Column

_SET_SHARE: Final = 0.5
_PADDING_SHARE: Final = 0.02
_FEW_SHARE: Final = 0.05
# What a line makes and keeps, if nothing tells what for.
_KEPT: Final = (
    Evidence.UPDATE_STATE, Evidence.REPLACES, Evidence.UPDATE_KEPT, Evidence.HELD_NOTHING_ELSE_SAVED,
    Evidence.HELD_BESIDE_SAVED, Evidence.INPUT_HELD, Evidence.KEPT_FOR_LONG,
)  # fmt: skip
_FLAT_BYTES: Final = 1 << 16
_MIN_FLAT: Final = 2
_MIN_SIZES: Final = 2


def decide_copies(draft: Draft) -> None:
    """Where an optimizer of PyTorch runs, what the user's lines keep after its step copies the parameters.

    What they keep before the step was made of gradients; it is one if it doesn't outlast the step's cycle.
    """
    steps, backwards = _step_ends(draft), draft.spans.backward_end
    if not len(steps) and not draft.uses_optimizer:
        return
    made = np.isin(draft.evidence, (Evidence.UPDATE_STATE, Evidence.REPLACES))
    kept = draft.is_update & made & (draft.category == Category.OPTIMIZER_STATE)
    last_step = pad(steps, -1)[np.searchsorted(steps, draft.birth) - 1]
    last_backward = pad(backwards, -1)[np.searchsorted(backwards, draft.birth) - 1]
    is_cyclic = ~draft.is_alive & (draft.death < _end_of_cycle(draft))
    of_gradients = last_backward > last_step
    if not len(steps):
        # An optimizer that works in place shows by its zero_grad alone, not when it steps.
        draft.put(kept & ~is_cyclic, Category.PARAMETER, Evidence.USER_COPY)
    draft.put(kept & ~of_gradients, Category.PARAMETER, Evidence.USER_COPY)
    gone = of_gradients & ((kept & is_cyclic) | (draft.user & (draft.free_phase == StackPhase.ZERO_GRAD)))
    # The last ones of a line are what those before them were.
    is_last = kept & of_gradients & draft.is_alive & np.isin(draft.stack, np.unique(draft.stack[gone]))
    draft.put((kept & of_gradients & is_cyclic) | is_last, Category.GRADIENT, Evidence.ACCUMULATED)


def _step_ends(draft: Draft) -> Int64Column:
    """Return where steps of an optimizer end, by stacks and by annotations; many twice."""
    return np.sort(np.concatenate((draft.spans.optimizer_end, draft.spans.annotated_end)))


def _end_of_cycle(draft: Draft) -> Int64Column:
    """Return, per row, where the second backward begins after the next step: until then its successor is made."""
    starts = np.sort(np.concatenate((draft.spans.optimizer_start, draft.spans.annotated_start)))
    step = pad(starts, draft.num_events)[np.searchsorted(starts, draft.birth)] if len(starts) else draft.birth
    number = np.searchsorted(draft.spans.backward_start, step, side="right") + 1
    bounds = pad(draft.spans.backward_start, draft.num_events + 1)
    return bounds[np.minimum(number, draft.num_backwards)]


def decide_replaced(draft: Draft) -> None:
    """Parameters that are made anew: the line whose blocks the old ones give way to makes parameters.

    Of several lines that make and keep blocks of their sizes it is the one that ran last before they were let go.
    """
    if draft.spans.is_positional:
        return
    made = np.isin(draft.evidence, _KEPT) & (draft.category != Category.PARAMETER) & draft.has_stack
    made &= draft.forward | draft.user
    old = (draft.category == Category.PARAMETER) & ~draft.is_alive & draft.is_born & (draft.birth < draft.first_work)
    old &= (draft.death > draft.first_work) & (draft.free_phase != StackPhase.CONSTRUCT)
    if 2 * int(draft.size[old].sum()) < draft.model_bytes or not made.any():
        return
    rows = np.flatnonzero(made)
    rows = rows[np.lexsort((draft.birth[rows], draft.size[rows]))]
    keys = draft.size[rows] * (draft.num_events + 1) + draft.birth[rows]
    wanted = draft.size[old] * (draft.num_events + 1) + draft.death[old]
    before = np.searchsorted(keys, wanted) - 1
    fits = (before >= 0) & (draft.size[rows[np.maximum(before, 0)]] == draft.size[old])
    if not fits.any() or 2 * int(draft.size[old][fits].sum()) < int(draft.size[old].sum()):
        return
    lines = draft.stack[rows[before[fits]]]
    votes = np.bincount(lines, draft.size[old][fits].astype(np.float64))
    line = int(votes.argmax())
    if mirrors(draft.size[old][fits][lines == line], draft.size[old]):
        draft.put(made & (draft.stack == line), Category.PARAMETER, Evidence.REPLACES)


def decide_accumulators(draft: Draft) -> None:
    """Sets in which gradients are added up, by who made the gradients go or by how often sets are made."""
    by_user = (draft.user | draft.is_update) & (draft.size > 0)
    if draft.material.context is not Context.ALLOC:
        draft.put(by_user & (draft.free_phase == StackPhase.ZERO_GRAD), Category.GRADIENT, Evidence.FREED_BY_ZERO_GRAD)
    if draft.spans.is_positional or not draft.num_backwards:
        return
    _decide_remade(draft)
    _decide_fed_by_hooks(draft)


def _decide_remade(draft: Draft) -> None:
    """A set that is made anew for each update, and holds over the backwards before it, adds gradients up.

    One that holds over several updates, or was cloned, copies the parameters.
    """
    asked = (Evidence.KEPT_FOR_LONG, Evidence.INPUT_HELD, Evidence.USER_STATE, Evidence.USER_PARAMETER)
    held = draft.user & draft.has_model_size & np.isin(draft.evidence, asked) & draft.has_stack
    held &= draft.death > draft.next_end
    rows = np.flatnonzero(held)
    model_bytes = draft.model_bytes
    steps = np.unique(_step_ends(draft))
    cloned = draft.facts.has(Role.CLONED)
    for stack in np.unique(draft.stack[rows]).tolist():
        own = rows[draft.stack[rows] == stack]
        of_iteration, which = np.unique(draft.next[own], return_inverse=True)
        set_bytes = np.bincount(which, draft.size[own].astype(np.float64))
        if len(of_iteration) < 2 or set_bytes.min() < _SET_SHARE * model_bytes or draft.is_alive[own].all():
            continue
        if not mirrors(draft.size[own], draft.gradient_sizes):
            continue
        num_steps = np.searchsorted(steps, draft.death[own]) - np.searchsorted(steps, draft.birth[own])
        category, evidence = Category.GRADIENT, Evidence.ACCUMULATED
        if cloned[stack] or num_steps[~draft.is_alive[own]].max() > 1:
            category, evidence = Category.PARAMETER, Evidence.USER_COPY
        draft.category[own], draft.evidence[own] = category, evidence


def mirrors(sizes: Int64Column, model: Int64Column) -> bool:
    """Tell whether blocks have most of the distinct sizes that a model's have: one size alone may be chance."""
    of_model = np.unique(model)
    shared = len(np.intersect1d(sizes, of_model))
    return shared >= max(_SET_SHARE * len(of_model), min(_MIN_SIZES, len(of_model))) > 0


def _decide_fed_by_hooks(draft: Draft) -> None:
    """Where hooks let every gradient go within its backward and the update comes later, a set keeps their sum.

    It is the first set made of zeros: the others are states of the update.
    """
    hooked = draft.evidence == Evidence.FREED_BY_HOOK
    built = int(draft.size[draft.is_built].sum())
    trained = int((draft.gradient_sizes * draft.gradient_counts).sum())
    by_hooks = int(draft.size[hooked].sum()) >= _SET_SHARE * built * draft.num_backwards
    if not built or not (by_hooks or trained < _FEW_SHARE * built):
        return
    if not draft.is_update.any() and not len(draft.spans.optimizer_start):
        return
    sets = np.isin(draft.evidence, (Evidence.USER_STATE, Evidence.MASTER_WEIGHT)) & draft.is_alive
    if draft.facts.has_cpp:
        sets &= draft.has_role(Role.FILLED)
    rows = np.flatnonzero(sets)
    stacks = draft.stack[rows]
    in_order = draft.stack[draft.by_age(rows)]
    in_order = in_order[np.sort(np.unique(in_order, return_index=True)[1])]
    if len(in_order) < (1 if draft.facts.has_cpp else 2):
        return
    first = rows[stacks == in_order[0]]
    draft.category[first], draft.evidence[first] = Category.GRADIENT, Evidence.ACCUMULATED


def decide_flat(draft: Draft) -> None:
    """Blocks as large as all parameters together: the parameters, the gradients, the states of all at once.

    Where modules' own parameters were let go, the first such block holds them; where no gradient outlives its
    backward, the next one, not cloned, holds the gradients. The rest are states.
    """
    if draft.spans.is_positional or not draft.num_backwards:
        return
    rows = np.flatnonzero(draft.kept_by_user & _has_size_of_all(draft))
    if not len(rows):
        return
    built = draft.is_built
    trains = int((draft.gradient_sizes * draft.gradient_counts).sum())
    lacks_parameters = int(draft.size[built].sum()) < _SET_SHARE * int(draft.size[rows].min())
    lacks_gradients = trains < _SET_SHARE * int(draft.size[rows].min()) / 2
    cloned = draft.has_role(Role.CLONED)
    if draft.uses_optimizer and (draft.category == Category.OPTIMIZER_STATE).any():
        # That one keeps its own states.
        cloned |= ~draft.has_role(Role.FILLED)
    for row in draft.by_age(rows).tolist():
        category = Category.OPTIMIZER_STATE
        if lacks_parameters:
            category, lacks_parameters = Category.PARAMETER, False
        elif cloned[row]:
            category = Category.PARAMETER
        elif lacks_gradients:
            category, lacks_gradients = Category.GRADIENT, False
        draft.category[row], draft.evidence[row] = category, Evidence.FLAT


def _has_size_of_all(draft: Draft) -> BoolColumn:
    """Return which blocks have the size, or twice it, of all parameters together, padded a little at most."""
    let_go = (draft.phase == StackPhase.CONSTRUCT) & draft.is_born & ~draft.is_alive
    if draft.material.context is not Context.ALLOC:
        let_go &= draft.free_phase == StackPhase.USER
    built = draft.is_built
    totals = {int(draft.size[built].sum()), int(draft.size[let_go | built].sum()), draft.model_bytes}
    found = np.zeros(len(draft.size), bool)
    if int(np.count_nonzero(let_go | built)) < _MIN_FLAT:
        return found
    for total in totals:
        for times in (1, 2):
            low = total * times
            found |= (draft.size >= max(low, _FLAT_BYTES)) & (draft.size <= low * (1 + _PADDING_SHARE))
    return found
