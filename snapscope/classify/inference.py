"""Passes over programs that only infer: no backward tells what is kept for which purpose."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from snapscope.classify.draft import Draft, pad
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.classify.rules import Role
from snapscope.classify.sets import mirrors
from snapscope.classify.stacks import StackPhase
from snapscope.model import BoolColumn, Int64Column

_MIN_CALLS: Final = 3
_GROWN_SHARE: Final = 0.8
_CACHE_BYTES: Final = 1 << 14
_MIN_CACHES: Final = 2
_MIN_GROWTH: Final = 4
_MIN_WEIGHTS: Final = 3
_KEPT_SHARE: Final = 0.5
_WORK_TIMES: Final = 2


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of modules from outside.

    Attributes:
        begins: the event at which each begins.
        own: by row, how many had begun at birth.
        freed_in: the same at death.
        ends: the last event of each, by `own`; −1 before the first.
    """

    begins: Int64Column
    own: Int64Column
    freed_in: Int64Column
    ends: Int64Column


def _find_calls(draft: Draft) -> _Calls:
    phases = draft.spans.event_phase
    known = np.flatnonzero(phases > 0)
    begins = known[np.diff((phases[known] == StackPhase.FORWARD).astype(np.int8), prepend=0) == 1]
    forwards = known[phases[known] == StackPhase.FORWARD]
    return _Calls(
        begins=begins,
        own=np.searchsorted(begins, draft.birth, side="right"),
        freed_in=np.searchsorted(begins, draft.death, side="right"),
        ends=pad(forwards, -1)[np.searchsorted(forwards, np.append(begins, draft.num_events + 1)) - 1],
    )


def decide_inference(draft: Draft) -> None:
    """Caches are what survives from one call to the next within modules."""
    if draft.spans.is_positional:
        _decide_by_position(draft)
        return
    calls = _find_calls(draft)
    if not len(calls.begins):
        if not draft.num_backwards:
            _decide_bare(draft)
        return
    outlives = draft.forward & (calls.freed_in > calls.own) & ~draft.is_alive
    if draft.num_backwards or bool((draft.category[draft.forward] == Category.ACTIVATION).any()):
        # Generation between training: what no backward frees, and grows.
        outlives &= draft.evidence == Evidence.FREED_BEFORE_BACKWARD
        replaced = outlives & np.isin(draft.stack, _growing(draft, outlives, calls.own))
        draft.put(replaced, Category.ACTIVATION, Evidence.KV_CACHE)
        return
    draft.put(draft.forward & draft.has_role(Role.KV_CACHE), Category.ACTIVATION, Evidence.KV_CACHE)
    replaced = outlives & (draft.free_phase == StackPhase.FORWARD)
    # A result that the caller holds, or lets go, looks the same where frees have no stacks, but doesn't grow.
    replaced |= outlives & np.isin(draft.stack, _growing(draft, outlives, calls.own))
    # The caller may put them in another order between two calls.
    handed = draft.user & (calls.freed_in > calls.own) & ~draft.is_alive & (draft.free_phase == StackPhase.FORWARD)
    handed &= np.isin(draft.stack, _growing(draft, handed, calls.own))
    replaced |= _given_for(draft, handed, calls)
    caches = np.unique(draft.stack[replaced | handed])
    draft.put(replaced | handed, Category.ACTIVATION, Evidence.KV_CACHE)
    if len(caches):
        draft.put(_views_kept(draft, outlives, calls.own), Category.ACTIVATION, Evidence.KV_CACHE)
    # The last one is let go by who called, or never.
    is_last = draft.forward & np.isin(draft.stack, caches) & (draft.death > calls.ends[calls.own])
    is_last |= draft.user & np.isin(draft.stack, caches) & (calls.own == len(calls.begins))
    draft.put(is_last, Category.ACTIVATION, Evidence.KV_CACHE)
    elders = draft.kept_by_user & ~draft.is_born
    long = calls.freed_in - calls.own >= min(_MIN_CALLS, len(calls.begins))
    _decide_cache_sets(draft, (draft.user & draft.has_stack & long) | elders)


def _given_for(draft: Draft, handed: BoolColumn, calls: _Calls) -> BoolColumn:
    """Return what a call left that went before the next, and for which the caller has a block as large: its copy."""
    left = draft.forward & ~draft.is_alive & (draft.death > calls.ends[calls.own]) & (calls.freed_in == calls.own)
    keys = draft.size * (len(calls.begins) + 2) + calls.own
    given: BoolColumn = left & np.isin(keys, keys[handed])
    return given


def _decide_by_position(draft: Draft) -> None:
    """Without stacks and backwards: what was made first, mostly to stay to the end, are parameters."""
    if draft.num_backwards:
        return
    rows = np.flatnonzero(draft.is_born & (draft.size > 0))
    rows = rows[np.argsort(draft.birth[rows], kind="stable")]
    nameless = rows[~draft.has_stack[rows]]
    kept = draft.is_alive[nameless]
    share = np.cumsum(kept) / np.arange(1, len(nameless) + 1)
    mostly = np.flatnonzero(kept & (share >= _KEPT_SHARE))
    if len(mostly) and len(nameless) >= _WORK_TIMES * (mostly[-1] + 1):
        first = nameless[: mostly[-1] + 1]
        weights = first[draft.is_alive[first]]
        draft.category[weights], draft.evidence[weights] = Category.PARAMETER, Evidence.POSITION_ONLY
    draft.put(_grow_evenly(draft, rows), Category.ACTIVATION, Evidence.POSITION_ONLY)
    # What is left at the end may have stacks (`context="state"`).
    if draft.forward.any():
        _decide_cache_sets(draft, draft.user & draft.has_stack & draft.is_alive)
    else:
        _decide_bare(draft)


def _grow_evenly(draft: Draft, rows: Int64Column) -> BoolColumn:
    """Return blocks of which the next larger ones, by always as much, come before they go: caches that grow.

    Of each size there are as many, one or two for each layer.
    """
    found: BoolColumn = np.zeros(len(draft.size), bool)
    rows = rows[draft.size[rows] >= _CACHE_BYTES]
    sizes, counts = np.unique(draft.size[rows], return_counts=True)
    for count in np.unique(counts[counts >= _MIN_CACHES]).tolist():
        own = sizes[counts == count]
        steps = np.diff(own)
        edges = np.flatnonzero(np.diff(steps, prepend=-1, append=-1))
        for first, stop in pairwise(edges.tolist()):
            if stop - first < _MIN_GROWTH:
                continue
            run = own[first : stop + 1]
            of_run = rows[np.isin(draft.size[rows], run)]
            birth = np.full(len(run) + 1, draft.num_events, np.int64)
            np.minimum.at(birth, np.searchsorted(run, draft.size[of_run]), draft.birth[of_run])
            outlives = draft.death[of_run] > birth[np.searchsorted(run, draft.size[of_run]) + 1]
            if np.count_nonzero(outlives) >= _GROWN_SHARE * len(of_run) - count:
                found[of_run] = True
    return found


def _views_kept(draft: Draft, outlives: BoolColumn, call: Int64Column) -> BoolColumn:
    """Return what outlives its call though its line's blocks mostly don't: a cache began as a view of it."""
    rows = np.flatnonzero(draft.forward & draft.has_stack)
    stacks, which = np.unique(draft.stack[rows], return_inverse=True)
    num_calls = np.zeros(len(stacks), np.int64)
    num_kept = np.zeros(len(stacks), np.int64)
    for count, some in ((num_calls, rows), (num_kept, rows[outlives[rows]])):
        place = which if some is rows else which[outlives[rows]]
        pairs = np.unique(np.stack((place, call[some])), axis=1)
        np.add.at(count, pairs[0], 1)
    rarely = stacks[(num_calls >= _MIN_CALLS) & (2 * num_kept <= num_calls)]
    found: BoolColumn = outlives & np.isin(draft.stack, rarely)
    return found


def _decide_cache_sets(draft: Draft, kept: BoolColumn) -> None:
    """Equal blocks that the user's code made full of zeros and keeps over calls: a cache of every layer.

    Where frames don't say what a block was filled with, there must be one or two for each layer.
    """
    built = draft.size[draft.is_built]
    multiples = np.unique(np.unique(built[built > 0], return_counts=True)[1])
    multiples = multiples[multiples >= _MIN_CACHES]
    kept = kept & (draft.size >= _CACHE_BYTES) & ((draft.category == Category.TEMPORARY) | ~draft.forward)
    if draft.facts.has_cpp:
        kept &= draft.has_role(Role.FILLED)
    sizes, counts = np.unique(draft.size[kept], return_counts=True)
    if draft.facts.has_cpp:
        sizes = sizes[counts >= (multiples[0] if len(multiples) else _MIN_CACHES)]
    else:
        fits = np.isin(counts, np.concatenate((multiples, 2 * multiples)))
        sizes = sizes[fits & (counts >= 2 * _MIN_CACHES)]
    draft.put(kept & np.isin(draft.size, sizes), Category.ACTIVATION, Evidence.CACHE_SET)


def _decide_bare(draft: Draft) -> None:
    """Without modules either: what was drawn at random before all else and stays are weights.

    Zeros of the same sizes are states, other equal blocks of zeros are caches.
    """
    if not draft.facts.has_cpp:
        return
    draws = np.isin(draft.facts.python_key, draft.facts.python_key[draft.facts.has(Role.DRAWN)])
    by_user = draft.user | (~draft.is_born & (draft.phase == StackPhase.USER))
    stays = by_user & draft.is_alive & draft.has_stack & (draft.size > 0)
    drawn = stays & draft.of_stack(draws) & ~draft.has_role(Role.FILLED)
    num_brief = int(np.count_nonzero(draft.user & ~draft.is_alive))
    if int(np.count_nonzero(drawn)) < _MIN_WEIGHTS or num_brief < _MIN_CALLS * int(np.count_nonzero(drawn)):
        return
    draft.put(drawn, Category.PARAMETER, Evidence.DRAWN_SET)
    filled = stays & draft.has_role(Role.FILLED)
    states = filled & np.isin(draft.size, draft.size[drawn])
    states &= mirrors(draft.size[states], draft.size[drawn])
    draft.put(states, Category.OPTIMIZER_STATE, Evidence.USER_STATE)
    _decide_cache_sets(draft, filled & ~states)


def _growing(draft: Draft, rows: BoolColumn, call: Int64Column) -> Int64Column:
    """Return the stacks whose blocks grow from call to call."""
    found = np.flatnonzero(rows)
    if not len(found):
        return found
    keys = draft.stack[found].astype(np.int64) * (int(call.max()) + 2) + call[found]
    distinct, which = np.unique(keys, return_inverse=True)
    largest = np.zeros(len(distinct), np.int64)
    np.maximum.at(largest, which, draft.size[found])
    stack = distinct // (int(call.max()) + 2)
    pairs = stack[1:] == stack[:-1]
    num_pairs = np.bincount(stack[1:][pairs])
    num_grown = np.bincount(stack[1:][pairs], largest[1:][pairs] > largest[:-1][pairs])
    return np.flatnonzero((num_pairs >= _MIN_CALLS) & (num_grown >= _GROWN_SHARE * num_pairs))
