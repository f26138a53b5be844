"""Passes over what the phase of birth decides: construction, backward, optimizer, forward."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import Final

import numpy as np

from snapscope.classify.draft import Draft, pad, sizes_by_order
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.classify.rules import Role
from snapscope.classify.stacks import StackPhase
from snapscope.lifetimes import Context
from snapscope.model import BoolColumn

_OUT_OF_ORDER_SHARE: Final = 0.6
_MIN_SAVED: Final = 8
_TINY_BYTES: Final = 512
_MIN_GRAPH: Final = 8


def decide_forward_members(draft: Draft) -> None:
    """Find what is born in forward or in the user's code, and what of it backward frees."""
    spans = draft.spans
    draft.forward = (draft.phase == StackPhase.FORWARD) & ~draft.on_engine & draft.is_born
    users = np.isin(draft.phase, (StackPhase.USER, StackPhase.ZERO_GRAD, StackPhase.CLIP))
    draft.user = users & ~draft.on_engine & draft.is_born
    members = draft.forward | draft.user
    # An unfinished backward hasn't freed what is alive at the end.
    unfinished = draft.is_alive & spans.ends_in_backward & (draft.next == draft.num_backwards - 1)
    draft.freed_by_backward = (
        members & (draft.death >= draft.next_start) & (draft.death <= draft.next_end) & ~unfinished
        & (draft.next < draft.num_backwards)
    )  # fmt: skip
    if spans.is_positional or draft.material.context is Context.ALLOC:
        draft.freed_by_backward &= ~_out_of_order(draft)
    # A functional model has no module calls: its forward is user code whose results backward frees.
    saved_by_users = draft.freed_by_backward & draft.user & (draft.size > 0) & draft.has_stack
    draft.forward_stack = np.isin(draft.stack, np.unique(draft.stack[saved_by_users])) & draft.user & draft.has_stack
    draft.work = spans.forward_events
    if not len(draft.work):
        draft.work = np.unique(draft.birth[draft.forward_stack])
    firsts = [events[0] for events in (draft.work, spans.backward_start, spans.optimizer_start) if len(events)]
    draft.first_work = int(min(firsts, default=draft.num_events + 1))
    rows = np.flatnonzero(members)
    draft.rank = np.zeros(len(members), np.int64)
    draft.rank[rows[np.argsort(draft.birth[rows], kind="stable")]] = np.arange(len(rows))


def _out_of_order(draft: Draft) -> BoolColumn:
    """Find what was held past its backward by the order of frees alone.

    Saved tensors are freed in reverse order of birth. One that outlives most of the older
    ones wasn't saved: a variable held it, and the free only seems to lie in the backward.
    """
    found = np.zeros(len(draft.stack), bool)
    freed = np.flatnonzero(draft.freed_by_backward)
    freed = freed[np.lexsort((draft.birth[freed], draft.next[freed]))]
    bounds = np.searchsorted(draft.next[freed], np.arange(draft.num_backwards + 1))
    for first, stop in pairwise(bounds.tolist()):
        rows = freed[first:stop]
        if len(rows) < _MIN_SAVED:
            continue
        older: list[int] = []
        for place, death in enumerate(draft.death[rows].tolist()):
            if place >= _MIN_SAVED // 2 and bisect_left(older, death) > _OUT_OF_ORDER_SHARE * place:
                found[rows[place]] = True
            insort(older, death)
    return found


def decide_construction(draft: Draft) -> None:
    """Modules that are built, moved or loaded leave parameters."""
    made = (draft.phase == StackPhase.CONSTRUCT) & draft.is_born
    briefly = (draft.death < draft.first_work) | (
        (draft.birth > draft.first_work) & (draft.free_phase == StackPhase.CONSTRUCT) & ~draft.is_alive
    )
    if draft.spans.is_positional:
        briefly = draft.death < int(pad(draft.spans.backward_start, draft.num_events)[0])
    draft.put(made & ~briefly, Category.PARAMETER, Evidence.CONSTRUCTED)
    draft.put(made & briefly, Category.TEMPORARY, Evidence.CONSTRUCTED_BRIEFLY)
    kept = made & ~briefly & (draft.size > 0)
    draft.parameter_sizes = np.unique(draft.size[kept])


def decide_backward(draft: Draft) -> None:
    """What a backward makes is temporary if it dies within, else a gradient; with exceptions."""
    made = (draft.phase == StackPhase.BACKWARD) & draft.is_born
    end = np.where(draft.in_backward, pad(draft.spans.backward_end, draft.num_events)[draft.own], draft.birth)
    is_cut = draft.is_alive & (end == draft.num_events)
    within = made & (draft.death <= end) & ~is_cut
    outlives = made & ~within & ~is_cut
    by_user = made & draft.of_stack(draft.facts.has_user)
    has_python = made & draft.of_stack(draft.facts.has_python)
    built = np.isin(draft.size, draft.parameter_sizes)
    if not len(draft.parameter_sizes):
        draft.parameter_sizes = np.unique(draft.size[outlives & ~draft.workspace & ~by_user])
    has_size = draft.has_model_size

    draft.put(within, Category.TEMPORARY, Evidence.FREED_IN_ITS_BACKWARD)
    recomputing = draft.freed_under(Role.RECOMPUTE) & np.isin(
        draft.free_python_phase, (StackPhase.FORWARD, StackPhase.USER)
    )
    # A reentrant checkpoint runs a backward of its own inside: what that makes is no recomputation.
    ran_forward = np.isin(draft.python_phase, (StackPhase.FORWARD, StackPhase.USER))
    recomputed = within & draft.has_role(Role.RECOMPUTE) & ran_forward
    # The results of a reentrant recomputation die when its Function returns, unsaved.
    returned = draft.of_free_stack(draft.facts.has_python) & ~draft.freed_under(Role.RECOMPUTE)
    draft.put(recomputed & ~recomputing & ~returned, Category.ACTIVATION, Evidence.RECOMPUTED)
    # A Function of one's own that computes again differentiates that by a backward within its backward.
    by_hand = within & by_user & draft.has_role(Role.AUTOGRAD_APPLY) & ~draft.has_role(Role.NESTED_BACKWARD)
    by_hand &= draft.of_free_stack(draft.facts.has(Role.NESTED_BACKWARD))
    draft.put(by_hand, Category.ACTIVATION, Evidence.RECOMPUTED)

    later = np.searchsorted(draft.spans.backward_start, draft.death, side="right") - 1
    in_later = (
        (later > draft.own) & (draft.death <= pad(draft.spans.backward_end, -1)[np.maximum(later, 0)]) & ~draft.is_alive
    )
    draft.put(outlives, Category.GRADIENT, Evidence.OUTLIVES_BACKWARD)
    draft.put(outlives & built, Category.GRADIENT, Evidence.OUTLIVES_BACKWARD_PARAMETER_SIZE)
    _keep_graphs_of_grads(draft, outlives & draft.is_alive)
    by_engine = draft.free_phase == StackPhase.BACKWARD
    draft.put(outlives & in_later & (by_engine | ~has_size), Category.ACTIVATION, Evidence.FREED_BY_LATER_BACKWARD)
    after_next = pad(draft.spans.backward_start, draft.num_events + 1)[np.minimum(draft.own + 1, draft.num_backwards)]
    # A hook's stack has no autograd Function in it; a Function's backward makes gradients.
    in_hook = by_user & ~draft.has_role(Role.AUTOGRAD_APPLY)
    kept_on = (outlives | (made & is_cut)) & in_hook & (draft.death > after_next) & (draft.size > _TINY_BYTES)
    draft.put(kept_on, Category.OPTIMIZER_STATE, Evidence.HOOK_STATE)
    hooked = within & has_size & by_engine & draft.free_is_users & (draft.free_python_phase == StackPhase.USER)
    draft.put(hooked & ~has_python, Category.GRADIENT, Evidence.FREED_BY_HOOK)
    draft.put(
        within & ~has_python & draft.freed_under(Role.COMMUNICATION), Category.GRADIENT, Evidence.FREED_BY_REDUCTION
    )
    # FSDP2 frees them outside its own frames; they have the size of what was gathered.
    gathered = np.unique(draft.size[draft.has_role(Role.UNSHARD) & draft.is_born])
    reduced = within & ~has_python & np.isin(draft.size, gathered) & draft.of_free_stack(draft.facts.has_python)
    draft.put(reduced, Category.GRADIENT, Evidence.FREED_BY_REDUCTION)
    cut = made & is_cut & draft.in_backward & ~kept_on
    draft.put(cut & ~has_size, Category.TEMPORARY, Evidence.ALIVE_IN_BACKWARD)
    draft.put(cut & has_size, Category.GRADIENT, Evidence.ALIVE_IN_BACKWARD_PARAMETER_SIZE)
    draft.put(cut & _exceeds_parameters(draft, cut & has_size), Category.TEMPORARY, Evidence.ALIVE_IN_BACKWARD)
    draft.put(made & draft.workspace, Category.TEMPORARY, Evidence.WORKSPACE)
    _count_gradients(draft, (outlives | cut) & (draft.category == Category.GRADIENT))


def _keep_graphs_of_grads(draft: Draft, rows: BoolColumn) -> None:
    """Where a backward leaves much of no parameter's size, it made a graph of its own (`create_graph`)."""
    if not draft.is_built.any() or (~draft.is_born & ~draft.has_stack & draft.is_alive).any():
        return
    rows = rows & ~np.isin(draft.size, draft.size[draft.is_built])
    numbers, counts = np.unique(draft.own[rows], return_counts=True)
    many = numbers[counts >= _MIN_GRAPH]
    draft.put(rows & np.isin(draft.own, many), Category.ACTIVATION, Evidence.GRAPH_KEPT)


def _exceeds_parameters(draft: Draft, rows: BoolColumn) -> BoolColumn:
    """Return the youngest of the rows of a size of which fewer parameters were built."""
    sizes, counts = np.unique(draft.size[draft.is_built], return_counts=True)
    found: BoolColumn = np.zeros(len(rows), bool)
    if not len(sizes):
        return found
    own = np.flatnonzero(rows)
    place = np.minimum(np.searchsorted(sizes, draft.size[own]), len(sizes) - 1)
    of_size = np.where(sizes[place] == draft.size[own], counts[place], len(rows))
    found[own[sizes_by_order(draft, own) >= of_size]] = True
    return found


def _count_gradients(draft: Draft, gradients: BoolColumn) -> None:
    """Count the gradients of each size that one backward makes: the parameters that train."""
    rows = np.flatnonzero(gradients & (draft.size > 0))
    pairs, counts = np.unique(np.stack((draft.own[rows], draft.size[rows])), axis=1, return_counts=True)
    draft.gradient_sizes, place = np.unique(pairs[1], return_inverse=True)
    draft.gradient_counts = np.zeros(len(draft.gradient_sizes), np.int64)
    np.maximum.at(draft.gradient_counts, place, counts)


def decide_optimizer(draft: Draft) -> None:
    """What an optimizer's step makes is its state if it outlives the step."""
    spans = draft.spans
    made = (draft.phase == StackPhase.OPTIMIZER) & draft.is_born
    step = np.searchsorted(spans.optimizer_start, draft.birth, side="right") - 1
    end = pad(spans.optimizer_end, draft.num_events)[np.maximum(step, 0)]
    draft.put(made & (draft.death <= end), Category.TEMPORARY, Evidence.FREED_IN_ITS_STEP)
    draft.put(made & (draft.death > end), Category.OPTIMIZER_STATE, Evidence.OUTLIVES_STEP)
    is_state = draft.has_role(Role.OPTIMIZER_STATE)
    draft.put(made & is_state & (draft.death > end), Category.OPTIMIZER_STATE, Evidence.STATE_INIT)
    if spans.ends_in_optimizer:
        cut = made & draft.is_alive & (step == len(spans.optimizer_end) - 1)
        draft.put(cut & ~is_state, Category.TEMPORARY, Evidence.ALIVE_IN_STEP)
        draft.put(cut & is_state, Category.OPTIMIZER_STATE, Evidence.STATE_INIT)
        if not is_state[made].any():
            _split_cut_step(draft, cut, made & (step == len(spans.optimizer_end) - 1))
    built = draft.has_role(Role.OPTIMIZER_INIT) & draft.is_born & (draft.death >= draft.first_work)
    draft.put(built, Category.OPTIMIZER_STATE, Evidence.STATE_INIT)


def _split_cut_step(draft: Draft, cut: BoolColumn, made: BoolColumn) -> None:
    """In an interrupted step without a named state, a line whose blocks mostly stay makes state."""
    for stack in np.unique(draft.stack[cut]).tolist():
        stays = cut & (draft.stack == stack)
        born = np.count_nonzero(made & (draft.stack == stack))
        if np.count_nonzero(stays) > 2 and np.count_nonzero(stays) * 2 >= born:
            draft.put(stays, Category.OPTIMIZER_STATE, Evidence.ALIVE_IN_STEP)


def decide_forward(draft: Draft) -> None:
    """Forward's results: freed by backward = saved for it; freed before = temporary."""
    members = draft.forward | draft.user
    draft.put(members, Category.TEMPORARY, Evidence.FREED_BEFORE_BACKWARD)
    draft.put(draft.freed_by_backward, Category.ACTIVATION, Evidence.FREED_BY_BACKWARD)
