"""Passes over what outlives its phase: held results and inputs, hand-written updates, cuts."""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.draft import Draft, pad, sizes_by_order
from snapscope.classify.evidence import Evidence
from snapscope.classify.material import Category
from snapscope.classify.rules import Role
from snapscope.classify.stacks import StackPhase
from snapscope.model import BoolColumn, Int64Column

_NEAR_RANKS: Final = 12
_LOSS_RANKS: Final = 40
_MIN_KEPT_STACKS: Final = 8
_LAST_RANKS: Final = 6
_RESULT_BYTES: Final = 1 << 16
_QUANTISED_BYTES: Final = 1 << 12
_REPLACE_EVENTS: Final = 60
_MAX_BACKWARDS: Final = 4
_STATE_SHARE: Final = 0.5
_FEW_DATA: Final = 4
_TINY: Final = 512
_DOUBLED_SHARE: Final = 0.8
_MIN_DOUBLES: Final = 3
_TRAINING_SHARE: Final = 0.3


def mark_updates(draft: Draft) -> None:
    """Find the user's lines between a backward and the next forward: hand-written updates.

    A line that also ran before the first backward loads data or computes; it updates nothing.
    """
    first_backward = int(pad(draft.spans.backward_start, draft.num_events + 1)[0])
    early = np.unique(draft.stack[draft.user & draft.has_stack & (draft.birth < first_backward)])
    draft.is_early = np.isin(draft.stack, early)
    last_work = pad(draft.work, -1)[np.searchsorted(draft.work, draft.birth, side="right") - 1]
    last_backward = np.where(draft.next > 0, pad(draft.spans.backward_end, -1)[np.maximum(draft.next - 1, 0)], -1)
    draft.is_update = (
        draft.user & (draft.next > 0) & (last_backward > last_work) & ~draft.is_early & ~draft.forward_stack
    )
    if draft.spans.is_positional:
        draft.is_update[:] = False


def decide_held(draft: Draft) -> None:
    """What forward or the user made before a backward, and a variable held past it."""
    members = draft.forward | draft.user
    held = members & (draft.next < draft.num_backwards) & (draft.death > draft.next_end)
    if draft.spans.is_positional:
        _decide_held_by_position(draft, held)
        return
    results = held & (draft.forward | draft.forward_stack) & ~draft.is_update
    beside = results & draft.forward & _has_saved_twin(draft, results)
    draft.put(results, Category.ACTIVATION, Evidence.HELD_NOTHING_ELSE_SAVED)
    # Made once and for all, as targets are; what a graph holds is let go with it.
    until = np.searchsorted(draft.spans.backward_start, draft.death)
    lasting = results & (draft.next == 0) & (until > _MAX_BACKWARDS)
    draft.put(lasting, Category.TEMPORARY, Evidence.KEPT_FOR_LONG)
    draft.put(beside, Category.TEMPORARY, Evidence.HELD_BESIDE_SAVED)
    draft.put(_kept_by_graph(draft, results), Category.ACTIVATION, Evidence.GRAPH_KEPT)
    draft.put(held & draft.has_role(Role.KV_CACHE), Category.ACTIVATION, Evidence.KV_CACHE)

    inputs = held & draft.user & ~draft.forward_stack & ~draft.is_update
    after_next = pad(draft.spans.backward_end, draft.num_events + 1)[np.minimum(draft.next + 1, draft.num_backwards)]
    draft.put(inputs, Category.ACTIVATION, Evidence.INPUT_HELD)
    draft.put(
        inputs & (draft.death > after_next) & ~_is_replaced(draft, inputs), Category.TEMPORARY, Evidence.KEPT_FOR_LONG
    )
    draft.put(inputs & _has_saved_copy(draft, inputs), Category.TEMPORARY, Evidence.HELD_BESIDE_SAVED)
    forward = draft.spans.forward_events
    if len(forward):
        last = pad(forward, -1)[np.searchsorted(forward, draft.next_start, side="left") - 1]
        small = draft.size <= _RESULT_BYTES
        draft.put(inputs & (draft.birth > last) & (last >= 0) & small, Category.TEMPORARY, Evidence.RESULT_HELD)
    # Two backwards over one graph (a GAN's generator, a meta-learner): a later one freed it.
    later = held & ~draft.is_alive & (draft.free_phase == StackPhase.BACKWARD)
    draft.put(later, Category.ACTIVATION, Evidence.FREED_BY_BACKWARD)


def _is_replaced(draft: Draft, inputs: BoolColumn) -> BoolColumn:
    """Tell which held blocks their line's next ones replace: a loop's batch, over however many backwards.

    It dies before its line runs in the iteration after the next one. What serves many backwards is no
    batch, but data that batches are taken from.
    """
    rows = np.flatnonzero(inputs & draft.has_stack)
    rows = rows[np.lexsort((draft.birth[rows], draft.next[rows], draft.stack[rows]))]
    found: BoolColumn = np.zeros(len(inputs), bool)
    if not len(rows):
        return found
    stack, number = draft.stack[rows], draft.next[rows]
    begins = np.flatnonzero(np.append([True], (np.diff(stack) != 0) | (np.diff(number) != 0)))
    group = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(rows))))
    # Stack and first birth of the groups of rows, with two behind the last.
    stacks = np.append(stack[begins], [-1, -1])
    births = np.append(draft.birth[rows[begins]], [0, 0])
    has_next = stacks[group + 1] == stack
    after_next = np.where(stacks[group + 2] == stack, births[group + 2], draft.num_events)
    until = np.searchsorted(draft.spans.backward_start, draft.death[rows])
    is_short = has_next & (draft.death[rows] < after_next) & (until - number <= _MAX_BACKWARDS)
    # The last ones of a line are what those before them were.
    shorts = np.setdiff1d(stack[is_short], stack[has_next & ~is_short])
    found[rows[is_short | (~has_next & np.isin(stack, shorts))]] = True
    return found


def _has_saved_copy(draft: Draft, inputs: BoolColumn) -> BoolColumn:
    """Tell which batches forward copied or cast, before anything else, into a block that it saved instead."""
    by_rank = np.argsort(draft.rank + np.where(draft.forward | draft.user, 0, len(draft.rank)), kind="stable")
    num = int(np.count_nonzero(draft.forward | draft.user))
    is_copy = (draft.has_role(Role.COPIED) | draft.has_role(Role.AUTOCAST)) & draft.forward & draft.freed_by_backward
    rows = np.flatnonzero(inputs)
    found: BoolColumn = np.zeros(len(inputs), bool)
    for distance in range(1, _NEAR_RANKS + 1):
        place = draft.rank[rows] + distance
        other = by_rank[np.clip(place, 0, max(num - 1, 0))]
        sizes = draft.size[rows]
        same = (draft.size[other] == sizes) | (2 * draft.size[other] == sizes)
        found[rows[(place < num) & same & is_copy[other] & (draft.next[other] == draft.next[rows])]] = True
    return found


def _decide_held_by_position(draft: Draft, held: BoolColumn) -> None:
    """Without stacks: what is older than the first backward and stays are parameters and what mirrors them.

    As many blocks of a size as there are gradients of it are parameters, the eldest; further ones states. So
    are sets of twice their sizes. A large one that is alone with its size is data.
    """
    ends = draft.spans.backward_end
    draft.put(held, Category.TEMPORARY, Evidence.POSITION_ONLY)
    if not len(ends):
        return
    stays = draft.is_alive | (draft.death > ends[-1])
    old = draft.user & (draft.birth < draft.spans.backward_start[0]) & (draft.death > ends[0]) & stays
    draft.put(old, Category.PARAMETER, Evidence.POSITION_ONLY)
    rows = np.flatnonzero(old & (draft.size > 0))
    rows = rows[np.argsort(draft.birth[rows], kind="stable")]
    rows = rows[~_put_doubled(draft, rows)]
    _put_later_sets(draft, held & ~old & (draft.birth > ends[0]))
    counts = draft.count_of(draft.size[rows])
    if not counts.any():
        return
    surplus = rows[(counts > 0) & (sizes_by_order(draft, rows) >= counts)]
    states = draft.size[(draft.category == Category.OPTIMIZER_STATE) & draft.is_born & draft.is_alive]
    is_copy = np.isin(draft.size[surplus], states).any()
    # Where steps make states of these sizes, an older set copies the parameters.
    if len(ends) > 1 and not is_copy and int(draft.size[surplus].sum()) >= _STATE_SHARE * draft.model_bytes:
        draft.category[surplus] = Category.OPTIMIZER_STATE
    _, which, repeats = np.unique(draft.size[rows], return_inverse=True, return_counts=True)
    alone = rows[(counts == 0) & (repeats[which] == 1) & (draft.size[rows] >= _RESULT_BYTES)]
    if len(alone) <= _FEW_DATA:
        draft.category[alone] = Category.TEMPORARY


def _put_doubled(draft: Draft, rows: Int64Column) -> BoolColumn:
    """Call blocks states where for most of the others there are some of twice the size: fp32 beside 16 bits.

    Returns:
        Which of the rows these are.
    """
    sizes, which, counts = np.unique(draft.size[rows], return_inverse=True, return_counts=True)
    halves = np.minimum(np.searchsorted(sizes, sizes // 2), max(len(sizes) - 1, 0))
    doubles = (sizes % 2 == 0) & (sizes > _TINY) & (sizes[halves] == sizes // 2) & (counts % counts[halves] == 0)
    # Of a chain of doublings the smallest stays what it is.
    doubles &= ~doubles[halves]
    has_double = np.zeros(len(sizes), bool)
    has_double[halves[doubles]] = True
    others = ~doubles & (sizes > _TINY)
    found: BoolColumn = doubles[which] if len(rows) else np.zeros(0, bool)
    is_most = (sizes * counts)[has_double].sum() >= _DOUBLED_SHARE * (sizes * counts)[others].sum()
    times = np.unique(counts[doubles] // counts[halves[doubles]])
    if np.count_nonzero(doubles) < _MIN_DOUBLES or len(times) > 1 or not is_most:
        # A layer twice as wide as another has twice its size as well.
        return np.zeros(len(rows), bool)
    draft.category[rows[found]] = Category.OPTIMIZER_STATE
    return found


def _put_later_sets(draft: Draft, later: BoolColumn) -> None:
    """Sets of the gradients' sizes that appear after a backward and stay: copies, or the states of one's own update."""
    # Twice the size: fp32 beside 16 bits.
    sizes = np.union1d(draft.gradient_sizes, 2 * draft.gradient_sizes)
    rows = np.flatnonzero(later & draft.is_alive & np.isin(draft.size, sizes) & (draft.size > _TINY))
    _, which = np.unique(draft.next[rows], return_inverse=True)
    if not len(rows):
        return
    of_set = np.bincount(which, draft.size[rows].astype(np.float64)) >= _STATE_SHARE * draft.model_bytes
    category = Category.PARAMETER if draft.uses_optimizer else Category.OPTIMIZER_STATE
    draft.category[rows[of_set[which]]] = category


def _has_saved_twin(
    draft: Draft, results: BoolColumn, *, saved: BoolColumn | None = None, loss_only: bool = False
) -> BoolColumn:
    """Tell which held results have a saved block of their size born right after them.

    log_softmax saves its own result, so logits that a variable holds weren't saved. Under
    autocast the twin has twice or half the size.
    """
    by_rank = np.argsort(draft.rank + np.where(draft.forward | draft.user, 0, len(draft.rank)), kind="stable")
    num = int(np.count_nonzero(draft.forward | draft.user))
    unfinished = draft.is_alive & draft.spans.ends_in_backward & (draft.next == draft.num_backwards - 1)
    saved = draft.freed_by_backward | unfinished if saved is None else saved
    is_loss = draft.has_role(Role.LOSS)
    rows = np.flatnonzero(results)
    found = np.zeros(len(draft.rank), bool)
    for distance in range(-_LOSS_RANKS, _LOSS_RANKS + 1):
        place = draft.rank[rows] + distance
        inside = (place >= 0) & (place < num) & (distance != 0)
        twin = by_rank[np.clip(place, 0, max(num - 1, 0))]
        sizes = draft.size[rows]
        same = (draft.size[twin] == sizes) | (draft.size[twin] == 2 * sizes) | (2 * draft.size[twin] == sizes)
        near = is_loss[twin] & (distance > 0) if loss_only else is_loss[twin] | (0 < distance <= _NEAR_RANKS)
        found[rows[inside & same & near & saved[twin] & (draft.next[twin] == draft.next[rows])]] = True
    return found


def _kept_by_graph(draft: Draft, results: BoolColumn) -> BoolColumn:
    """Find iterations of which very many different results stay: their graph is kept."""
    rows = np.flatnonzero(results & draft.forward & (draft.size > 512))
    kept = np.zeros(len(results), bool)
    for number in np.unique(draft.next[rows]).tolist():
        own = rows[draft.next[rows] == number]
        if len(np.unique(draft.stack[own])) >= _MIN_KEPT_STACKS:
            kept[own[draft.rank[own] < draft.rank[own].max() - _LAST_RANKS]] = True
    return kept


def decide_updates(draft: Draft) -> None:
    """Hand-written optimizers: what their lines make and keep, of a parameter's size, is state."""
    next_work = pad(draft.work, draft.num_events + 1)[np.searchsorted(draft.work, draft.birth, side="right")]
    brief = draft.is_update & (draft.death < next_work) & ~draft.is_alive
    draft.put(brief, Category.TEMPORARY, Evidence.UPDATE_TEMPORARY)
    stays = draft.is_update & ~brief & (draft.size > 0)
    sizes = np.union1d(draft.parameter_sizes, draft.gradient_sizes)
    # Twice the size: fp32 states of half-precision weights; a quarter: states in 8 bits.
    scaled = np.isin(draft.size, 2 * sizes) | (np.isin(draft.size, sizes // 4) & (draft.size >= _QUANTISED_BYTES))
    sized = stays & (draft.has_model_size | scaled)
    draft.put(stays, Category.TEMPORARY, Evidence.UPDATE_KEPT)
    if not len(draft.spans.optimizer_start):
        # Factored or preconditioned states have no parameter's size, but are made only once.
        draft.put(stays & draft.is_alive & _made_once(draft, stays), Category.OPTIMIZER_STATE, Evidence.UPDATE_KEPT)
        # What each update makes anew and the next one lets go is carried from step to step: a state.
        draft.put(_carried(draft, stays), Category.OPTIMIZER_STATE, Evidence.UPDATE_STATE)
    draft.put(sized, Category.OPTIMIZER_STATE, Evidence.UPDATE_STATE)
    cut = stays & draft.is_alive & (next_work > draft.num_events)
    filled = draft.has_role(Role.FILLED)
    if (cut & filled).any():
        # States begin as zeros: what else is alive in an unfinished update is on its way.
        draft.put(cut & ~filled & ~draft.has_role(Role.CLONED), Category.TEMPORARY, Evidence.UPDATE_KEPT)
        cut &= filled
    for stack in np.unique(draft.stack[cut]).tolist():
        rows = cut & (draft.stack == stack)
        number = draft.next[np.flatnonzero(rows)[0]]
        born = np.count_nonzero(draft.is_update & (draft.next == number) & (draft.stack == stack))
        kept = np.count_nonzero(rows)
        if kept < 2 or kept * 2 < born:
            draft.put(rows, Category.TEMPORARY, Evidence.UPDATE_KEPT)
    _inherit(draft, sized & (draft.category == Category.OPTIMIZER_STATE))


def tell_copies_from_states(draft: Draft) -> None:
    """A set of the parameters' sizes from before the work is a copy where updates made another set.

    An optimizer keeps all its moments alike: those of one that makes them lazily don't stand in
    `__init__`. What does, in the parameters' sizes, is then a copy of them (EMA, target network).
    """
    sets = draft.evidence == Evidence.USER_STATE
    lazy = draft.is_update & (draft.evidence == Evidence.UPDATE_STATE) & draft.is_alive
    if not sets.any() or not lazy.any() or (sets & ~draft.is_alive).any():
        # A set that updates replace was a state's from the start.
        return
    first = draft.next[lazy].min()
    lazy &= draft.next == first
    model_bytes = int((draft.gradient_sizes * draft.gradient_counts).sum())
    if 2 * int(draft.size[lazy].sum()) < model_bytes:
        return
    copies = sets & draft.is_alive & ~draft.has_role(Role.FILLED) & np.isin(draft.size, draft.size[lazy])
    draft.put(copies, Category.PARAMETER, Evidence.USER_COPY)


def _carried(draft: Draft, stays: BoolColumn) -> BoolColumn:
    """Return what was born in one update and freed in the next, at lines of which nothing lives otherwise."""
    ends = pad(draft.spans.backward_end, draft.num_events + 1)
    after_next = ends[np.minimum(draft.next, draft.num_backwards)]
    is_freed_in_update = ~draft.is_alive & (draft.death > after_next) & (draft.free_phase != StackPhase.FORWARD)
    is_last = draft.is_alive & (draft.next >= draft.num_backwards)
    carried = stays & (is_freed_in_update | is_last)
    stacks = np.unique(draft.stack[stays & is_freed_in_update])
    stacks = np.setdiff1d(stacks, np.unique(draft.stack[stays & ~carried]))
    found: BoolColumn = carried & np.isin(draft.stack, stacks) & (draft.size >= _QUANTISED_BYTES)
    return found


def _made_once(draft: Draft, stays: BoolColumn) -> BoolColumn:
    pairs = np.unique(np.stack((draft.stack[stays], draft.next[stays])), axis=1)
    stacks, counts = np.unique(pairs[0], return_counts=True)
    return np.isin(draft.stack, stacks[counts == 1])


def _inherit(draft: Draft, made: BoolColumn) -> None:
    """What takes the place of a block of its size at the same line is what that block was.

    An out-of-place update (`p = p - lr * g`) makes the new block right before the old one dies.
    """
    rows = np.flatnonzero(made)
    if not len(rows):
        return
    table = draft.material.lifetimes
    sizes = np.unique(draft.size[rows])
    dead = np.flatnonzero(~draft.is_alive & (table.free_stack > 0) & np.isin(draft.size, sizes))
    dead = dead[np.lexsort((draft.death[dead], draft.size[dead]))]
    keys = draft.size[dead] * (draft.num_events + 1) + draft.death[dead]
    sites = draft.material.sites
    inherited = np.array([Category.PARAMETER, Category.OPTIMIZER_STATE])
    for row in rows[np.argsort(draft.birth[rows], kind="stable")].tolist():
        own = sites.of_stack(int(draft.stack[row])).number
        at = int(np.searchsorted(keys, draft.size[row] * (draft.num_events + 1) + draft.birth[row], side="right"))
        for other in dead[at : at + 3].tolist():
            near = draft.size[other] == draft.size[row] and draft.death[other] - draft.birth[row] < _REPLACE_EVENTS
            if not near or draft.birth[other] >= draft.birth[row] or draft.category[other] not in inherited:
                continue
            if sites.of_stack(int(table.free_stack[other])).number == own:
                draft.category[row] = draft.category[other]
                draft.evidence[row] = Evidence.REPLACES
                break


def decide_cuts(draft: Draft) -> None:
    """What is alive where the history ends before a backward could decide it.

    Also what was alive at an OOM and freed by the exception: no backward ever came.
    """
    ooms = draft.material.tables.events.oom_events
    members = (draft.forward | draft.user) & ~draft.is_update
    last = draft.num_backwards - 1
    no_later = draft.next >= draft.num_backwards
    open_end = draft.is_alive & draft.spans.ends_in_backward & (draft.next == last)
    oom = pad(ooms, draft.num_events + 2)[np.searchsorted(ooms, draft.birth, side="left")]
    failed = (oom < draft.death) & (draft.next_start > oom) & ~draft.is_alive
    kept_before = draft.user & (draft.birth < draft.first_work) & (draft.death > draft.first_work)
    undecided = members & ((no_later & draft.is_alive) | open_end | failed) & ~kept_before
    if not undecided.any():
        return
    is_training = draft.num_backwards > 0
    if not is_training:
        made = members if draft.spans.is_positional else draft.forward
        born = int(draft.size[made].sum())
        is_training = born > 0 and int(draft.size[made & draft.is_alive].sum()) > _TRAINING_SHARE * born
        # A function under `no_grad` calls the model; where it is a `with`, the stacks don't show it.
        is_training &= not (draft.forward.any() and draft.has_role(Role.NO_GRAD)[draft.forward].all())
    made_in_forward = draft.forward | draft.forward_stack | draft.spans.is_positional
    category = Category.ACTIVATION if is_training else Category.TEMPORARY
    draft.put(undecided & made_in_forward, category, Evidence.ALIVE_IN_FORWARD)
    saved = draft.freed_by_backward & (draft.next == last)
    if draft.spans.ends_in_backward and saved.any():
        # Saved tensors go in reverse order: what is younger than the oldest one gone was not saved.
        passed = undecided & open_end & draft.forward & (draft.birth > draft.birth[saved].min())
        draft.put(passed, Category.TEMPORARY, Evidence.BEHIND_FRONTIER)
    logits = (
        undecided & draft.forward & _has_saved_twin(draft, undecided & draft.forward, saved=undecided, loss_only=True)
    )
    draft.put(logits, Category.TEMPORARY, Evidence.HELD_BESIDE_SAVED)
    by_user = undecided & ~made_in_forward
    before_last_forward = draft.birth <= (
        draft.spans.forward_events[-1] if len(draft.spans.forward_events) else draft.num_events
    )
    draft.put(by_user, Category.TEMPORARY, Evidence.DEFAULT)
    if is_training:
        draft.put(
            by_user & before_last_forward & (draft.birth >= draft.first_work), Category.ACTIVATION, Evidence.INPUT_HELD
        )
    _as_before(draft, members, undecided, members & ~undecided & ~no_later)


def _as_before(draft: Draft, members: BoolColumn, undecided: BoolColumn, decided: BoolColumn) -> None:
    """Decide by what the same line, in the same place of an earlier iteration, became.

    All members count for the place, whether decided or not.
    """
    if draft.spans.ends_in_backward:
        decided &= draft.next < draft.num_backwards - 1
    keys = draft.stack.copy()
    calls = np.full(len(keys), -1, np.int64)
    calls[draft.has_stack] = draft.facts.module_key[draft.stack[draft.has_stack]]
    # Inside a module call the caller's line doesn't matter (it moves between train and eval).
    keys = np.where(calls >= 0, calls + draft.material.snapshot.stacks.num_stacks, keys)
    rows = np.flatnonzero(members & draft.has_stack)
    rows = rows[np.lexsort((draft.birth[rows], draft.next[rows], keys[rows]))]
    if not len(rows):
        return
    group = np.flatnonzero(np.diff(keys[rows], prepend=-1) | np.diff(draft.next[rows], prepend=-1))
    ordinal = np.arange(len(rows)) - np.repeat(group, np.diff(np.append(group, len(rows))))
    width = int(ordinal.max()) + 1
    code = np.unique(keys[rows], return_inverse=True)[1] * width + ordinal
    known = decided[rows]
    # The latest iteration counts: of equal codes the last in the order of `next` wins.
    order = np.lexsort((draft.next[rows][known], code[known]))
    codes, categories = code[known][order], draft.category[rows[known]][order]
    if not len(codes):
        return
    open_rows = undecided[rows]
    wanted, targets = code[open_rows], rows[open_rows]
    at = np.searchsorted(codes, wanted, side="right") - 1
    found = (at >= 0) & (codes[np.maximum(at, 0)] == wanted)
    sites = np.unique(codes // width)
    low = np.full(len(sites), 9, np.int8)
    high = np.full(len(sites), -1, np.int8)
    place = np.searchsorted(sites, codes // width)
    np.minimum.at(low, place, categories)
    np.maximum.at(high, place, categories)
    mine = np.minimum(np.searchsorted(sites, wanted // width), len(sites) - 1)
    always = (sites[mine] == wanted // width) & (low[mine] == high[mine])
    draft.category[targets[always]] = low[mine][always]
    draft.evidence[targets[always]] = Evidence.AS_SITE
    draft.category[targets[found]] = categories[np.maximum(at, 0)][found]
    draft.evidence[targets[found]] = Evidence.AS_BEFORE
