"""Passes over what is older than the work or than the history."""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.draft import Draft, pad, sizes_by_order
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import CATEGORY_LABELS, Category
from snapscope.classify.rules import Role
from snapscope.classify.stacks import StackPhase
from snapscope.model import BoolColumn, Int8Column, Int64Column
from snapscope.sites import FrameKind

_SET_SHARE: Final = 0.5
_BUFFER_SHARE: Final = 0.1
_MOMENTS_AND_SELF: Final = 3
_THIRDS_SHARE: Final = 0.9
_OF_SETS: Final = (
    Evidence.USER_PARAMETER, Evidence.USER_COPY, Evidence.USER_STATE, Evidence.MASTER_WEIGHT, Evidence.FLAT,
    Evidence.ACCUMULATED, Evidence.CACHE_SET, Evidence.DRAWN_SET,
)  # fmt: skip


def decide_user_tensors(draft: Draft) -> None:
    """What the user's code made before the work began and kept: parameters, copies, states.

    Sets of tensors are recognised by their sizes: gradients repeat the parameters' one for one.
    """
    kept = draft.kept_by_user
    if draft.spans.is_positional or not kept.any():
        return
    constructed = draft.is_built
    has_state = np.unique(draft.size[draft.category == Category.OPTIMIZER_STATE])
    sizes, counts = np.unique(draft.size[constructed], return_counts=True)
    model = np.union1d(draft.gradient_sizes, sizes)
    model_bytes = int((draft.gradient_sizes * draft.gradient_counts).sum()) or int((sizes * counts).sum())
    # How many of the parameters that train were not built by a module.
    missing = dict(zip(draft.gradient_sizes.tolist(), draft.gradient_counts.tolist(), strict=True))
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        if size in missing:
            missing[size] = max(missing[size] - count, 0)
    stays = draft.is_alive | (
        draft.death > pad(draft.spans.backward_end, draft.num_events)[min(1, draft.num_backwards)]
    )
    rows = draft.by_age(np.flatnonzero(kept))
    stacks = draft.stack[rows]
    cloned = draft.facts.has(Role.CLONED)
    built = dict(zip(sizes.tolist(), counts.tolist(), strict=True))
    for stack in stacks[np.sort(np.unique(stacks, return_index=True)[1])].tolist():
        own = rows[stacks == stack]
        hits = own[np.isin(draft.size[own], model)]
        quota = np.array([missing.get(size, 0) for size in draft.size[hits].tolist()], np.int64)
        is_parameter = sizes_by_order(draft, hits) < quota
        parameters, rest = hits[is_parameter], hits[~is_parameter]
        for size in draft.size[parameters].tolist():
            missing[size] -= 1
        _put(draft, parameters, Category.PARAMETER, Evidence.USER_PARAMETER)
        is_set = int(draft.size[hits].sum()) >= _SET_SHARE * model_bytes > 0
        in_init = _is_init(draft, stack)
        if is_set:
            # Before the work began there was nothing to clone but parameters.
            copied = np.isin(draft.size[rest], has_state) | cloned[stack] | _exceeds(draft, rest, built)
            _put(draft, rest[copied], Category.PARAMETER, Evidence.USER_COPY)
            _put(draft, rest[~copied], Category.OPTIMIZER_STATE, Evidence.USER_STATE)
        elif len(rest) >= 2 and draft.count_of(draft.size[rest]).all():
            _put(draft, rest, Category.OPTIMIZER_STATE, Evidence.USER_STATE)
        else:
            _put_kept(draft, rest, stays, in_init=in_init, model_bytes=model_bytes)
        others = own[~np.isin(draft.size[own], model)]
        doubled = others[np.isin(draft.size[others] // 2, model) & (draft.size[others] % 2 == 0)]
        if len(doubled) >= 2 and int(draft.size[doubled].sum()) >= _SET_SHARE * 2 * model_bytes > 0:
            _put(draft, doubled, Category.OPTIMIZER_STATE, Evidence.MASTER_WEIGHT)
            others = np.setdiff1d(others, doubled)
        _put_kept(draft, others, stays, in_init=in_init, model_bytes=model_bytes)
    made = (draft.category == Category.PARAMETER) & kept
    if made.any():
        draft.parameter_sizes = np.union1d(draft.parameter_sizes, draft.size[made])


def _exceeds(draft: Draft, rows: Int64Column, built: dict[int, int]) -> bool:
    """Tell whether a set has more blocks of some sizes than train, as many as were built: it copies buffers too."""
    sizes, counts = np.unique(draft.size[rows], return_counts=True)
    trained = draft.count_of(sizes)
    more = (counts > trained) & (trained > 0)
    fits = [built.get(size) == count for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)]
    return bool((more & np.array(fits, bool)).any())


def _put(draft: Draft, rows: Int64Column, category: Category, evidence: Evidence) -> None:
    draft.category[rows] = category
    draft.evidence[rows] = evidence


def _put_kept(draft: Draft, rows: Int64Column, stays: BoolColumn, *, in_init: bool, model_bytes: int) -> None:
    """Single tensors: a small one made by an `__init__` is a buffer; else data that is kept."""
    rows = rows[stays[rows] & ~draft.freed_by_backward[rows]]
    # What a program with an update of its own fills, keeps and gives no parameter's size preconditions it.
    by_hand = draft.is_update.any() and not draft.uses_optimizer
    filled = draft.has_role(Role.FILLED)[rows] & draft.is_alive[rows] & by_hand
    _put(draft, rows[filled], Category.OPTIMIZER_STATE, Evidence.USER_STATE)
    rows = rows[~filled]
    small = draft.size[rows] <= _BUFFER_SHARE * model_bytes
    if in_init:
        _put(draft, rows[small], Category.PARAMETER, Evidence.USER_BUFFER)
        rows = rows[~small]
    _put(draft, rows, Category.TEMPORARY, Evidence.KEPT_FOR_LONG)


def _is_init(draft: Draft, stack: int) -> bool:
    """Tell whether the user's `__init__` stands in a stack."""
    stacks, sites = draft.material.snapshot.stacks, draft.material.sites
    frames = stacks.frames_of(stack).tolist() if stack > 0 else []
    return any(sites.kind_of(f) is FrameKind.USER and stacks.function_of(f) == "__init__" for f in frames)


def decide_elders(draft: Draft) -> None:
    """What is older than the history: by its own frames, by what freed it, by pairing sizes."""
    elder = ~draft.is_born
    if not elder.any():
        return
    table = draft.material.lifetimes
    freed = elder & ~draft.is_alive
    known = draft.has_stack & elder
    in_sets = known & np.isin(draft.evidence, _OF_SETS)
    draft.put(elder & ~in_sets, Category.PARAMETER, Evidence.BEFORE_DEFAULT)
    for phase, category in (
        (StackPhase.OPTIMIZER, Category.OPTIMIZER_STATE),
        (StackPhase.CONSTRUCT, Category.PARAMETER),
        (StackPhase.BACKWARD, Category.GRADIENT),
    ):
        draft.put(known & (draft.phase == phase), category, Evidence.BEFORE_OWN_FRAMES)
    settled = known & np.isin(draft.phase, (StackPhase.OPTIMIZER, StackPhase.CONSTRUCT, StackPhase.BACKWARD))
    cached = known & ~settled & draft.has_role(Role.KV_CACHE)
    draft.put(cached, Category.ACTIVATION, Evidence.KV_CACHE)
    settled |= cached | in_sets
    # What a module's own move or load lets go was its parameter.
    moved = freed & ~settled & ~known & (draft.free_phase == StackPhase.CONSTRUCT)
    draft.put(moved, Category.PARAMETER, Evidence.BEFORE_FREED_BY)
    by_zero = freed & ~settled & (draft.free_phase == StackPhase.ZERO_GRAD)
    draft.put(by_zero, Category.GRADIENT, Evidence.BEFORE_FREED_BY)
    by_backward = freed & (draft.free_phase == StackPhase.BACKWARD) & ~(known & (draft.phase == StackPhase.BACKWARD))
    draft.put(by_backward, Category.ACTIVATION, Evidence.BEFORE_FREED_BY)

    sites = draft.material.sites
    own_lines = _majority(draft.stack[draft.is_born], draft.size[draft.is_born], draft.category[draft.is_born])
    has_size = draft.has_model_size
    for row in np.flatnonzero(known & ~settled).tolist():
        seen = own_lines.get(int(draft.stack[row]))
        is_kept = draft.is_alive[row] and draft.phase[row] == StackPhase.USER and has_size[row]
        # What stayed isn't what its line makes and drops since: `state.setdefault(name, zeros_like(p))`.
        if seen is not None and not (seen == Category.TEMPORARY and is_kept and draft.num_backwards):
            category = Category(seen)
        elif is_kept:
            category = Category.OPTIMIZER_STATE
        elif draft.is_alive[row] and draft.phase[row] == StackPhase.FORWARD and draft.num_backwards:
            category = Category.ACTIVATION
        else:
            category = Category.TEMPORARY
        draft.category[row], draft.evidence[row] = category, Evidence.BEFORE_OWN_FRAMES
    others = np.flatnonzero(freed & ~known & ~by_zero & ~by_backward & ~moved)
    if len(others):
        # What a line frees in the history tells what it freed at first; temporaries can't be so old.
        lived = np.flatnonzero(draft.is_born & ~draft.is_alive & (table.free_stack > 0))
        lived = lived[
            (draft.category[lived] != Category.TEMPORARY) & np.isin(table.free_stack[lived], table.free_stack[others])
        ]
        lines = np.array([sites.of_stack(int(s)).number for s in table.free_stack[lived].tolist()], np.int64)
        freers = _majority(lines, draft.size[lived], draft.category[lived])
        for row in others.tolist():
            line = sites.of_stack(int(table.free_stack[row])).number if table.free_stack[row] > 0 else -1
            fallback = Category.OPTIMIZER_STATE if has_size[row] and line >= 0 else Category.TEMPORARY
            draft.category[row] = freers.get(line, fallback)
            draft.evidence[row] = Evidence.BEFORE_FREED_BY
    _pair_elders(draft, elder & ~known & draft.is_alive, by_zero)
    _match_cut_gradients(draft, elder)
    _split_thirds(draft, elder & ~known & draft.is_alive)
    draft.put(elder & draft.workspace, Category.TEMPORARY, Evidence.WORKSPACE)


def _match_cut_gradients(draft: Draft, elder: BoolColumn) -> None:
    """In a backward without an end, what has the size of an old parameter is a gradient, one for each."""
    rows = np.flatnonzero(draft.evidence == Evidence.ALIVE_IN_BACKWARD)
    if not len(rows):
        return
    parameters = draft.size[elder & (draft.category == Category.PARAMETER)]
    sizes, counts = np.unique(parameters[parameters > 0], return_counts=True)
    if not len(sizes):
        return
    place = np.minimum(np.searchsorted(sizes, draft.size[rows]), len(sizes) - 1)
    fits = (sizes[place] == draft.size[rows]) & (sizes_by_order(draft, rows) < counts[place])
    _put(draft, rows[fits], Category.GRADIENT, Evidence.ALIVE_IN_BACKWARD_PARAMETER_SIZE)


def _split_thirds(draft: Draft, stays: BoolColumn) -> None:
    """Where no backward was seen to its end: old blocks that come in threes are parameters and two moments each."""
    rows = np.flatnonzero(stays & (draft.evidence == Evidence.BEFORE_DEFAULT) & (draft.size > 0))
    sizes, which, counts = np.unique(draft.size[rows], return_inverse=True, return_counts=True)
    in_threes = (counts % _MOMENTS_AND_SELF == 0)[which]
    is_seen = draft.num_backwards > 1 or (draft.num_backwards == 1 and not draft.spans.ends_in_backward)
    if len(sizes) < _MOMENTS_AND_SELF or is_seen:
        return
    if int(draft.size[rows[in_threes]].sum()) < _THIRDS_SHARE * int(draft.size[rows].sum()):
        return
    rows = rows[np.argsort(draft.material.lifetimes.addr[rows], kind="stable")]
    sizes, which, counts = np.unique(draft.size[rows], return_inverse=True, return_counts=True)
    is_state = sizes_by_order(draft, rows) >= counts[which] // _MOMENTS_AND_SELF
    states = rows[is_state & (counts % _MOMENTS_AND_SELF == 0)[which]]
    _put(draft, states, Category.OPTIMIZER_STATE, Evidence.BEFORE_BY_SIZE)


def _majority(keys: Int64Column, sizes: Int64Column, categories: Int8Column) -> dict[int, int]:
    """Return, per key, the category of most bytes."""
    distinct, place = np.unique(keys, return_inverse=True)
    weight = np.zeros((len(distinct), len(CATEGORY_LABELS)), np.int64)
    np.add.at(weight, (place, categories.astype(np.int64)), sizes)
    return dict(zip(distinct.tolist(), weight.argmax(axis=1).tolist(), strict=True))


def _pair_elders(draft: Draft, stays: BoolColumn, gradients: BoolColumn) -> None:
    """Old blocks without frames: of each gradient's size the lowest addresses are parameters.

    Twins of equal size may be exchanged, but the sums by category are right.
    """
    counts = dict(zip(draft.gradient_sizes.tolist(), draft.gradient_counts.tolist(), strict=True))
    sizes, number = np.unique(draft.size[gradients], return_counts=True)
    for size, count in zip(sizes.tolist(), number.tolist(), strict=True):
        counts[size] = max(counts.get(size, 0), count)
    addr = draft.material.lifetimes.addr
    rows = np.flatnonzero(stays)
    seen: dict[int, int] = {}
    for row in rows[np.argsort(addr[rows], kind="stable")].tolist():
        size = int(draft.size[row])
        if counts.get(size):
            draft.evidence[row] = Evidence.BEFORE_BY_SIZE
            if seen.get(size, 0) >= counts[size]:
                draft.category[row] = Category.OPTIMIZER_STATE
            seen[size] = seen.get(size, 0) + 1
        elif size % 2 == 0 and counts.get(size // 2):
            draft.category[row] = Category.OPTIMIZER_STATE
            draft.evidence[row] = Evidence.BEFORE_BY_SIZE
