"""Which places in the code hold more after every step: the pattern of a leak.

A place is a stack with its lines; without stacks, the sizes. It grows if its bytes rise at
the ends of the steps, again and again up to the last, and also at their lowest within each
step. What only follows the size of a batch is left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from snapscope.analyses.rounds import MIN_ROUNDS, find_rounds
from snapscope.classify.fine import FINE_LABELS
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn, Int32Column, Int64Column
from snapscope.replay import NEVER, REQUESTED_BEFORE

_MAX_CELLS: Final = 20_000_000
_MAX_FALL: Final = 0.1
_MIN_TIMES: Final = 3
_FOLLOWS: Final = 10
_WORKSPACE: Final = FINE_LABELS.index("workspace")
_KV_CACHE: Final = FINE_LABELS.index("kv_cache")
_OF_A_BATCH: Final = tuple(FINE_LABELS.index(label) for label in ("input", "logits", "loss"))


class Marks(NamedTuple):
    """Complete steps: their names and first events, and the states that are compared.

    `ends[0]` is the event before the first step, `ends[k + 1]` the last of step k.
    """

    source: str
    names: list[str]
    starts: list[int]
    ends: Int64Column


class Crossing(NamedTuple):
    """Allocations that are live at the end of some step.

    `first` is the first place in `ends` at which one is live, `stop` the first at which it no more is;
    `group` numbers the places in the code.
    """

    rows: Int64Column
    sizes: Int64Column
    first: Int64Column
    stop: Int64Column
    group: Int64Column


class Group(NamedTuple):
    """A place whose bytes grow steadily: members in `Crossing`, live bytes at `ends`."""

    members: Int64Column
    curve: Int64Column
    is_replaced: bool


def mark_steps(history: DeviceHistory) -> Marks:
    """Return the complete steps of a history; rounds of a loop where it has no steps."""
    found = history.steps
    named = [step for step in found.steps if step.name.startswith("step ")]
    if not named:
        begins = find_rounds(history).tolist()
        if len(begins) >= MIN_ROUNDS:
            names = [f"round {number}" for number in range(len(begins) - 1)]
            return Marks("rounds", names, begins[:-1], np.array(begins, np.int64) - 1)
    whole = [step for step in named if step.is_complete]
    starts = [step.start_event for step in whole]
    before = starts[0] - 1 if starts else -1
    ends = np.array([before, *(step.end_event for step in whole)], np.int64)
    return Marks(found.source, [step.name for step in whole], starts, ends)


def live_curve(history: DeviceHistory, events: Int64Column, selection: BoolColumn | None) -> Int64Column:
    """Return the requested bytes that are live after some events, in order."""
    if selection is None:
        return history.totals.requested_bytes[events + 1]
    crossing = find_crossing(history, events, selection)
    return _curve(crossing.sizes, crossing.first, crossing.stop, len(events))


def _curve(sizes: Int64Column, first: Int64Column, stop: Int64Column, length: int) -> Int64Column:
    change = np.zeros(length + 1, np.int64)
    np.add.at(change, first, sizes)
    np.add.at(change, stop, -sizes)
    return np.cumsum(change)[:-1]


def find_crossing(history: DeviceHistory, ends: Int64Column, selection: BoolColumn | None) -> Crossing:
    """Return the allocations that are live after one of some events, in order."""
    table = history.lifetimes
    asked = table.free_requested_event
    never = history.num_events + 1
    death = np.where(asked == NEVER, never, asked)
    first = np.searchsorted(ends, table.birth_event, side="left")
    stop = np.searchsorted(ends, death, side="left")
    crosses = (first < stop) & (asked != REQUESTED_BEFORE)
    if selection is not None:
        crosses &= selection
    rows = np.flatnonzero(crosses)
    return Crossing(
        rows=rows,
        sizes=table.requested_bytes[rows],
        first=first[rows],
        stop=stop[rows],
        group=_places_of(history, table.alloc_stack[rows])[0],
    )


def is_steady(deltas: Int64Column) -> bool:
    """Tell whether something rises by these steps: again and again, hardly falling, up to the end.

    One that rises in each n-th step only does, too; one that rose a few times and then no more doesn't.
    """
    rises = np.flatnonzero(deltas > 0)
    gained = int(deltas[rises].sum())
    if len(rises) < min(_MIN_TIMES, len(deltas)) or not len(rises):
        return False
    if gained + int(deltas.sum()) * -1 > _MAX_FALL * gained:
        return False
    # The gap behind the last rise is like those between them.
    since = len(deltas) - 1 - int(rises[-1])
    gaps = np.diff(rises)
    usual = int(np.median(gaps)) if len(gaps) else 1
    return since < max(2 * usual, 2) and int(gaps.max(initial=1)) <= max(4 * usual, len(deltas) // 2)


def _places_of(history: DeviceHistory, stacks: Int32Column) -> tuple[Int64Column, BoolColumn]:
    """Number the places of some stacks, and tell which are lines of code.

    Stacks without one (none recorded, empty, C++ only) are one place for each label: what lives at the
    end may have an empty stack where what was freed has none.
    """
    distinct, which = np.unique(stacks, return_inverse=True)
    sites = [history.sites.of_stack(stack) for stack in distinct.tolist()]
    has_line = np.array([bool(site.file) for site in sites], bool)
    keys = [stack if site.file else -1 - site.number for stack, site in zip(distinct.tolist(), sites, strict=True)]
    numbers = np.unique(np.array(keys, np.int64), return_inverse=True)[1]
    return numbers[which], has_line[which]


def span_of(deltas: Int64Column) -> int:
    """Return over how many steps something rises: from the first rise to where the next would be due.

    Where the last step ends may be told badly, and what rises in each third step need not in the last.
    """
    rises = np.flatnonzero(deltas > 0)
    if not len(rises):
        return 0
    usual = int(np.median(np.diff(rises))) if len(rises) > 1 else 1
    return int(rises[-1]) + usual - int(rises[0])


def steady_groups(history: DeviceHistory, marks: Marks, crossing: Crossing) -> list[Group]:
    """Return the places that grow: by their bytes at the ends, and at their lowest in each step."""
    whole = _candidates(marks, crossing, crossing.group, np.ones(len(crossing.rows), bool))
    found = [group for group in whole if _grows(history, crossing, group)]
    # Without a stack everything is one place; there, allocations of one size are.
    rest = ~_places_of(history, history.lifetimes.alloc_stack[crossing.rows])[1]
    for group in found:
        rest[group.members] = False
    if rest.any():
        by_size = np.unique(np.stack((crossing.group, crossing.sizes)), axis=1, return_inverse=True)[1].reshape(-1)
        parts = _candidates(marks, crossing, by_size, rest)
        found += [group for group in parts if _grows(history, crossing, group)]
    return _without_batches(history, marks, crossing, found)


def _candidates(marks: Marks, crossing: Crossing, group: Int64Column, chosen: BoolColumn) -> list[Group]:
    """Return the groups that hold more at the end of the last step than at that of the first."""
    num_ends = len(marks.ends)
    members = np.flatnonzero(chosen)
    if not len(members):
        return []
    net = np.zeros(int(group.max()) + 1, np.int64)
    first, stop, sizes = crossing.first[members], crossing.stop[members], crossing.sizes[members]
    at_last = (first <= num_ends - 1) & (stop > num_ends - 1)
    at_first = (first <= 1) & (stop > 1)
    np.add.at(net, group[members], np.where(at_last, sizes, 0) - np.where(at_first, sizes, 0))
    grown = np.flatnonzero(net > 0)
    # A bound for hostile files; what grows most is looked at.
    most = max(_MAX_CELLS // num_ends, 1)
    if len(grown) > most:
        grown = np.sort(grown[np.argsort(-net[grown], kind="stable")[:most]])
    members = members[np.isin(group[members], grown)]
    members = members[np.argsort(group[members], kind="stable")]
    cuts = np.flatnonzero(np.diff(group[members])) + 1
    return [
        Group(own, _curve(crossing.sizes[own], crossing.first[own], crossing.stop[own], num_ends), is_replaced=False)
        for own in np.split(members, cuts)
        if len(own)
    ]


def _grows(history: DeviceHistory, crossing: Crossing, group: Group) -> bool:
    if not is_steady(np.diff(group.curve)[1:]):
        return False
    members = group.members
    kinds = history.classification.fine[crossing.rows[members]]
    return 2 * int(crossing.sizes[members][kinds == _WORKSPACE].sum()) <= int(crossing.sizes[members].sum())


def _rises_at_its_lowest(history: DeviceHistory, marks: Marks, crossing: Crossing, group: Group) -> bool:
    floors, settled = _floors(history, marks, crossing, group), _settled_at(marks)
    return 2 * int(floors[-1] - floors[settled]) >= int(group.curve[-2] - group.curve[settled])


def _settled_at(marks: Marks) -> int:
    """Return the step from which on what happens in first steps only is over."""
    return max(len(marks.names) // 3, 1)


def _floors(history: DeviceHistory, marks: Marks, crossing: Crossing, group: Group) -> Int64Column:
    """Return the least that a group holds within each step."""
    table, rows, ends = history.lifetimes, crossing.rows[group.members], marks.ends
    sizes = crossing.sizes[group.members]
    death = table.free_requested_event[rows]
    dies = death >= 0
    events = np.concatenate((table.birth_event[rows], death[dies]))
    change = np.concatenate((sizes, -sizes[dies]))
    order = np.argsort(events, kind="stable")
    events, held = events[order], np.cumsum(change[order])
    step = np.searchsorted(ends, events, side="left") - 1
    inside = (step >= 0) & (step < len(ends) - 1)
    floors: Int64Column = group.curve[:-1].copy()
    np.minimum.at(floors, step[inside], held[inside])
    return floors


def _is_replaced(crossing: Crossing, group: Group, num_ends: int) -> bool:
    """Tell whether what is live at the end was made in few steps: each made the place's bytes anew."""
    own = group.members
    first, stop = crossing.first[own], crossing.stop[own]
    alive = first[(stop == num_ends) & (first >= 2) & (first < num_ends - 1)]
    rises = int(np.count_nonzero(np.diff(group.curve)[1:-1] > 0))
    return 2 * len(np.unique(alive)) < rises


def _without_batches(history: DeviceHistory, marks: Marks, crossing: Crossing, found: list[Group]) -> list[Group]:
    """Leave out what only follows the size of a batch, and mark what is replaced by larger ones.

    A variable that holds each batch, or what was computed from it, grows while the batches do. Then what
    the step makes before it grows alike; a growing cache grows by itself. What is gone at some moment of
    each step, while no copy took its place, doesn't grow either.
    """
    num_ends = len(marks.ends)
    replaced = [_is_replaced(crossing, group, num_ends) for group in found]
    kinds = history.classification.fine[crossing.rows]
    out = [group for group, is_replaced in zip(found, replaced, strict=True) if not is_replaced]
    out = [group for group in out if _rises_at_its_lowest(history, marks, crossing, group)]
    sure, batches, gone = [], [], []
    for group in (group for group, is_replaced in zip(found, replaced, strict=True) if is_replaced):
        own = group.members
        fine = int(np.bincount(kinds[own], crossing.sizes[own].astype(np.float64)).argmax())
        group = group._replace(is_replaced=True)
        if fine in _OF_A_BATCH:
            batches.append(group)
        elif _rises_at_its_lowest(history, marks, crossing, group):
            sure.append(group)
        else:
            gone.append(group)
    # Moved to another place within the step, such as a cache that a beam search reorders?
    sure += [group for group in gone if _is_copied(history, marks, crossing, group)]
    caches = [group for group in sure if (kinds[group.members] == _KV_CACHE).any()]
    if caches or not _follows_a_batch(history, marks, crossing, sure):
        out += sure
    return out


def _is_copied(history: DeviceHistory, marks: Marks, crossing: Crossing, group: Group) -> bool:
    """Tell whether the last step made copies elsewhere of what the one before had left at a place."""
    table, num_ends = history.lifetimes, len(marks.ends)
    own = group.members
    before = own[(crossing.first[own] < num_ends - 1) & (crossing.stop[own] >= num_ends - 1)]
    made = (table.birth_event > marks.ends[-2]) & (table.birth_event <= marks.ends[-1])
    made &= np.isin(table.requested_bytes, crossing.sizes[before])
    made &= ~np.isin(table.alloc_stack, table.alloc_stack[crossing.rows[own]])
    return 2 * int(table.requested_bytes[made].sum()) >= int(crossing.sizes[before].sum()) > 0


def _follows_a_batch(history: DeviceHistory, marks: Marks, crossing: Crossing, groups: list[Group]) -> bool:
    """Tell whether what the last step made before these groups' blocks had grown as they have."""
    if not groups:
        return False
    table, num_ends = history.lifetimes, len(marks.ends)
    own = np.concatenate([group.members for group in groups])
    rows = crossing.rows[own]
    in_last, in_early = crossing.first[own] == num_ends - 1, crossing.first[own] == 2
    if not in_last.any() or not in_early.any():
        return False
    begin = int(table.birth_event[rows[in_last]].min())
    size = int(crossing.sizes[own][in_last].sum())
    ratio = size / max(int(crossing.sizes[own][in_early].sum()), 1)
    last = (table.birth_event > marks.ends[-2]) & (table.birth_event < begin)
    # Copies of what was there before, such as a reordered cache, come of it.
    before = crossing.sizes[own][(crossing.first[own] < num_ends - 1) & (crossing.stop[own] >= num_ends - 1)]
    last &= ~np.isin(table.requested_bytes, before)
    early = (table.birth_event > marks.ends[1]) & (table.birth_event <= marks.ends[2])
    places = np.unique(table.alloc_stack[last], return_inverse=True)
    then = np.zeros(len(places[0]), np.int64)
    now = np.bincount(places[1], table.requested_bytes[last].astype(np.float64), minlength=len(then))
    at = np.searchsorted(places[0], table.alloc_stack[early])
    at = np.minimum(at, len(then) - 1) if len(then) else at
    known = places[0][at] == table.alloc_stack[early] if len(then) else np.zeros(0, bool)
    np.add.at(then, at[known], table.requested_bytes[early][known])
    grown = now / np.maximum(then, 1) - 1
    alike = (then > 0) & (grown >= 0.5 * (ratio - 1)) & (grown <= 2 * (ratio - 1))
    return bool(now[alike].sum() * _FOLLOWS >= size)
