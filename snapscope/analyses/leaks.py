"""Leak or not: what live bytes do from step to step, and whose allocations stay.

Bytes are compared at the ends of complete steps. A leak is a pattern of single places in the
code, not of the sum: a place whose live bytes rise in step after step, up to the last, and
also at their lowest point within each step. So memory that appears once (optimizer state,
workspaces, caches), that a garbage collection gives back in bursts, or that follows the size
of a batch, isn't taken for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from snapscope.analyses.ledger import LedgerRow, group_rows
from snapscope.analyses.steady import (
    Crossing,
    Group,
    Marks,
    find_crossing,
    is_steady,
    live_curve,
    mark_steps,
    span_of,
    steady_groups,
)
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn, Int64Column

MIN_STEPS: Final = 3
_OUTLIER: Final = 1.5
_NOTABLE_BYTES: Final = 1 << 20
_NOTABLE_SHARE: Final = 100


class LeakVerdict(str, Enum):
    """Whether live bytes grow with the steps."""

    GROWS = "grows"
    FLAT = "flat"
    TOO_FEW_STEPS = "too_few_steps"


class Pattern(str, Enum):
    """How memory behaves over the steps.

    `kept`: new allocations stay. `graph_kept`: so do the tensors that forward saved. `replaced`: each
    step's allocation is larger than the one that it replaces. `flat`: none of these; `settled`: grew at
    first, then no more; `jump`: something appeared once, later; `bursts`: kept for steps, then freed
    together. `unknown`: too few steps.
    """

    KEPT = "kept"
    GRAPH_KEPT = "graph_kept"
    REPLACED = "replaced"
    FLAT = "flat"
    SETTLED = "settled"
    JUMP = "jump"
    BURSTS = "bursts"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """Where a complete step left the memory.

    Attributes:
        name: as in `Steps`; `round 3` where they are rounds of a loop.
        start_event, end_event: first and last event.
        is_warmup: whether it isn't counted: something appeared in it that stays as it is.
        requested_bytes: live after its last event.
        change_bytes: the same, less that at the end of the step before.
        growth_bytes: what of the change the survivors made.
        reserved_bytes: reserved after its last event.
    """

    name: str
    start_event: int
    end_event: int
    is_warmup: bool
    requested_bytes: int
    change_bytes: int
    growth_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A site whose live bytes grow with the steps.

    Attributes:
        site: its label (untrusted text).
        lines: source lines, most bytes first.
        category, confidence: of most of its bytes.
        fine: the fine label of most of its bytes.
        pattern: `kept` or `replaced`.
        count, bytes: allocations made in these steps and live at the end of the last.
        growth_bytes: what it grew by over the counted steps.
        growth_per_step_bytes: the same a step, since it grows.
        births: allocations that the steps since then left behind.
        span_steps: over how many steps it grows, from the first to where the next growth would be due.
        one_per_step: whether each of these steps left exactly one.
        since_step: name of the first step that it grew in.
        steps_grown: in how many of the counted steps it grew.
        birth_event: of its youngest survivor, for `explain`.
        lifetimes: rows of the lifetime table.
    """

    site: str
    lines: tuple[int, ...]
    category: Category
    confidence: Confidence
    fine: str
    pattern: Pattern
    count: int
    bytes: int
    growth_bytes: int
    growth_per_step_bytes: int
    births: int
    span_steps: int
    one_per_step: bool
    since_step: str
    steps_grown: int
    birth_event: int
    lifetimes: Int64Column


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceRow:
    """What isn't a leak but could look like one: a site, its bytes, and the (last) step that it is about."""

    site: str
    category: Category
    fine: str
    bytes: int
    count: int
    step: str
    step_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """The answer.

    Attributes:
        verdict: grows, flat or too_few_steps.
        pattern: what the verdict rests on.
        source: of the steps: `annotated`, `inferred`, `rounds` or `none`.
        steps: the complete ones, in order.
        warmup_steps: how many of them, at the beginning, aren't counted.
        steps_grown: in how many of the counted steps the survivors grew.
        growth_bytes, growth_per_step_bytes: of the survivors over the counted steps; 0 unless it grows.
        since_step: the first counted step that grew; empty unless it grows.
        survivors: most growth first, optimizer state last; their growth sums to `growth_bytes`.
        reserved_grows: whether reserved bytes grow with the steps, by the same pattern.
        reserved_growth_per_step_bytes: 0 unless they do.
        once: what appeared after the first step, once, and stayed; most bytes first.
        bursts: what was kept over several steps and then freed together; most bytes first.
        start_bytes, end_bytes: live before the first and after the last event of the history.
        is_selection: whether only some allocations are counted.
    """

    verdict: LeakVerdict
    pattern: Pattern
    source: str
    steps: tuple[StepEnd, ...]
    warmup_steps: int
    steps_grown: int
    growth_bytes: int
    growth_per_step_bytes: int
    since_step: str
    survivors: tuple[Survivor, ...]
    reserved_grows: bool
    reserved_growth_per_step_bytes: int
    once: tuple[OnceRow, ...]
    bursts: tuple[OnceRow, ...]
    start_bytes: int
    end_bytes: int
    is_selection: bool

    @property
    def num_counted(self) -> int:
        """How many steps the verdict rests on."""
        return len(self.steps) - self.warmup_steps


def find_leaks(history: DeviceHistory, *, selection: BoolColumn | None = None) -> Leaks:
    """Tell whether live bytes grow with the steps; needs no block replay.

    Args:
        history: the device.
        selection: rows of the lifetime table to count; reserved bytes stay those of the device.
    """
    marks = mark_steps(history)
    requested = live_curve(history, marks.ends, selection)
    reserved = history.totals.reserved_bytes[marks.ends + 1]
    crossing = find_crossing(history, marks.ends, selection)
    num_steps = len(marks.names)
    if num_steps < MIN_STEPS:
        return _leaks(history, marks, requested, reserved, np.zeros(num_steps, np.int64), selection)
    groups = steady_groups(history, marks, crossing)
    growth = np.zeros(num_steps, np.int64)
    for group in groups:
        growth += np.diff(group.curve)
    grows = np.zeros(len(crossing.rows), bool)
    for group in groups:
        grows[group.members] = True
    warmup = _count_warmup(crossing, grows, growth, num_steps)
    return _leaks(
        history,
        marks,
        requested,
        reserved,
        growth,
        selection,
        warmup=warmup,
        survivors=_survivors(history, marks, crossing, groups, warmup),
        once=_once(history, marks, crossing, grows),
        bursts=_bursts(history, marks, crossing, grows),
    )


def _leaks(
    history: DeviceHistory,
    marks: Marks,
    requested: Int64Column,
    reserved: Int64Column,
    growth: Int64Column,
    selection: BoolColumn | None,
    *,
    warmup: int = 0,
    survivors: tuple[Survivor, ...] = (),
    once: tuple[OnceRow, ...] = (),
    bursts: tuple[OnceRow, ...] = (),
) -> Leaks:
    num_steps = len(marks.names)
    change = np.diff(requested)
    counted = growth[warmup:]
    up = np.flatnonzero(counted > 0)
    total = int(counted.sum())
    verdict = LeakVerdict.GROWS if survivors else LeakVerdict.FLAT
    if num_steps < MIN_STEPS:
        verdict = LeakVerdict.TOO_FEW_STEPS
    reserved_deltas = np.diff(reserved)[max(warmup, 1) :] if num_steps >= MIN_STEPS else np.zeros(0, np.int64)
    reserved_grows = is_steady(reserved_deltas)
    steps = tuple(
        StepEnd(
            name=marks.names[number],
            start_event=marks.starts[number],
            end_event=int(marks.ends[number + 1]),
            is_warmup=number < warmup,
            requested_bytes=int(requested[number + 1]),
            change_bytes=int(change[number]),
            growth_bytes=int(growth[number]) if number >= warmup else 0,
            reserved_bytes=int(reserved[number + 1]),
        )
        for number in range(num_steps)
    )
    whole = live_curve(history, np.array([-1, history.num_events - 1]), selection)
    return Leaks(
        verdict=verdict,
        pattern=_pattern(verdict, steps, survivors, once, bursts),
        source=marks.source,
        steps=steps,
        warmup_steps=warmup,
        steps_grown=len(up),
        growth_bytes=total,
        growth_per_step_bytes=_per_step(total, span_of(counted)),
        since_step=marks.names[warmup + int(up[0])] if len(up) else "",
        survivors=survivors,
        reserved_grows=reserved_grows,
        reserved_growth_per_step_bytes=(
            _per_step(int(reserved_deltas.sum()), len(reserved_deltas)) if reserved_grows else 0
        ),
        once=once,
        bursts=bursts,
        start_bytes=int(whole[0]),
        end_bytes=int(whole[1]),
        is_selection=selection is not None,
    )


def _per_step(total: int, num_steps: int) -> int:
    """Divide and round to the nearest whole byte."""
    return (2 * total + num_steps) // (2 * num_steps) if num_steps else 0


def _pattern(
    verdict: LeakVerdict,
    steps: tuple[StepEnd, ...],
    survivors: tuple[Survivor, ...],
    once: tuple[OnceRow, ...],
    bursts: tuple[OnceRow, ...],
) -> Pattern:
    if verdict is LeakVerdict.TOO_FEW_STEPS:
        return Pattern.UNKNOWN
    if verdict is LeakVerdict.GROWS:
        total = sum(row.growth_bytes for row in survivors)
        replaced = sum(row.growth_bytes for row in survivors if row.pattern is Pattern.REPLACED)
        if 2 * replaced > total:
            return Pattern.REPLACED
        saved = [row for row in survivors if row.category is Category.ACTIVATION and row.fine == "saved_tensor"]
        is_graph = len(saved) > 1 and 2 * sum(row.growth_bytes for row in saved) > total
        return Pattern.GRAPH_KEPT if is_graph else Pattern.KEPT
    notable = max(_NOTABLE_BYTES, steps[-1].requested_bytes // _NOTABLE_SHARE)
    late = [row for row in once if not steps[row.step_number].is_warmup and row.fine != "workspace"]
    kinds = [(rows[0].bytes, pattern) for rows, pattern in ((bursts, Pattern.BURSTS), (late, Pattern.JUMP)) if rows]
    if kinds and max(kinds)[0] >= notable:
        return max(kinds)[1]
    return Pattern.SETTLED if sum(step.is_warmup for step in steps) > 1 else Pattern.FLAT


def _count_warmup(crossing: Crossing, grows: BoolColumn, growth: Int64Column, num_steps: int) -> int:
    """Count the first steps that made something that stays as it is: they show no growth.

    So do first steps in which what grows grew by much more than later, such as a cache that begins
    with the whole prompt.
    """
    stays = ~grows & (crossing.stop > num_steps) & (crossing.first >= 1) & (crossing.first < num_steps)
    made = np.bincount(crossing.first[stays] - 1, minlength=num_steps) > 0
    warmup = 0
    while warmup < num_steps - 2 and made[warmup]:
        warmup += 1
    while warmup < min(max(num_steps // 3, 1), num_steps - 2):
        usual = float(np.median(growth[warmup + 1 :]))
        if usual <= 0 or 0 <= float(growth[warmup]) <= _OUTLIER * usual:
            break
        warmup += 1
    return warmup


# -------------------------------------------------------------------------------------------- rows


def _survivors(
    history: DeviceHistory, marks: Marks, crossing: Crossing, groups: list[Group], warmup: int
) -> tuple[Survivor, ...]:
    num_ends = len(marks.ends)
    owner = np.full(len(history.lifetimes), -1, np.int64)
    first = np.zeros(len(history.lifetimes), np.int64)
    chosen = []
    for number, group in enumerate(groups):
        own = group.members[(crossing.first[group.members] >= 1) & (crossing.stop[group.members] == num_ends)]
        rows = crossing.rows[own]
        owner[rows] = number
        first[rows] = crossing.first[own]
        chosen.append(rows)
    if not chosen:
        return ()
    rows = np.sort(np.concatenate(chosen))
    out = [
        _survivor(history, marks, crossing, [groups[number] for number in np.unique(owner[row.lifetimes]).tolist()],
                  row, first[row.lifetimes] - 1, warmup)
        for row in group_rows(history, rows)
    ]  # fmt: skip
    out = [row for row in out if row.growth_bytes > 0]
    return tuple(sorted(out, key=lambda row: (row.category is Category.OPTIMIZER_STATE, -row.growth_bytes, row.site)))


def _survivor(
    history: DeviceHistory,
    marks: Marks,
    crossing: Crossing,
    groups: list[Group],
    row: LedgerRow,
    born: Int64Column,
    warmup: int,
) -> Survivor:
    num_steps = len(marks.names)
    curve = np.sum([group.curve for group in groups], axis=0)
    deltas = np.diff(curve)[warmup:]
    up = np.flatnonzero(deltas > 0)
    since = warmup + int(up[0]) if len(up) else warmup
    growth = int(deltas.sum())
    is_replaced = 2 * sum(int(group.curve[-1]) for group in groups if group.is_replaced) > int(curve[-1])
    if is_replaced:
        born = np.concatenate([crossing.first[group.members] for group in groups]) - 1
    born = born[(born >= since) & (born < num_steps)]
    births = np.bincount(born - since, minlength=num_steps - since)[: span_of(deltas)]
    assert row.category is not None
    assert row.confidence is not None
    return Survivor(
        site=row.key,
        lines=row.lines,
        category=row.category,
        confidence=row.confidence,
        fine=_fine_of(history, row.lifetimes),
        pattern=Pattern.REPLACED if is_replaced else Pattern.KEPT,
        count=row.num_allocations,
        bytes=row.bytes,
        growth_bytes=growth,
        growth_per_step_bytes=_per_step(growth, span_of(deltas)),
        births=int(births.sum()),
        span_steps=span_of(deltas),
        one_per_step=bool((births == 1).all()),
        since_step=marks.names[since],
        steps_grown=len(up),
        birth_event=int(history.lifetimes.birth_event[row.lifetimes].max()),
        lifetimes=row.lifetimes,
    )


def _once(history: DeviceHistory, marks: Marks, crossing: Crossing, grows: BoolColumn) -> tuple[OnceRow, ...]:
    """Return what appeared after the first step and stays as it is, without what the last step made."""
    num_ends = len(marks.ends)
    stays = ~grows & (crossing.stop == num_ends) & (crossing.first > 1) & (crossing.first < num_ends - 1)
    # A place that also gives back (a window, a queue, a variable) only rotates.
    rotates = np.unique(crossing.group[(crossing.first >= 1) & (crossing.stop < num_ends)])
    stays &= ~np.isin(crossing.group, rotates)
    return _once_rows(history, marks, crossing, np.flatnonzero(stays), crossing.first - 1, is_whole=True)


def _bursts(history: DeviceHistory, marks: Marks, crossing: Crossing, grows: BoolColumn) -> tuple[OnceRow, ...]:
    """Return what outlived at least one whole step and was freed together with that of other steps."""
    num_ends = len(marks.ends)
    gone = np.flatnonzero(
        ~grows & (crossing.first >= 1) & (crossing.stop < num_ends) & (crossing.stop - crossing.first >= 1)
    )
    if not len(gone):
        return ()
    # Of each place: the steps in which it gave back what several steps had made.
    keys = crossing.group[gone] * np.int64(num_ends + 1) + crossing.stop[gone]
    distinct, which = np.unique(keys, return_inverse=True)
    births = np.unique(np.stack((which, crossing.first[gone])), axis=1)[0]
    num_births = np.bincount(births, minlength=len(distinct))
    chosen = gone[num_births[which] >= 2]
    return _once_rows(history, marks, crossing, chosen, crossing.stop - 1, is_whole=False)


def _once_rows(
    history: DeviceHistory, marks: Marks, crossing: Crossing, members: Int64Column, step: Int64Column, *, is_whole: bool
) -> tuple[OnceRow, ...]:
    """Sum up members by site: all of them, about the last step; or those of the step of most bytes."""
    if not len(members):
        return ()
    at = np.zeros(len(history.lifetimes), np.int64)
    at[crossing.rows[members]] = step[members]
    out = []
    for row in group_rows(history, crossing.rows[members]):
        sizes, steps = history.lifetimes.requested_bytes[row.lifetimes], at[row.lifetimes]
        about = int(steps.max() if is_whole else np.bincount(steps, sizes.astype(np.float64)).argmax())
        chosen = (steps == about) | is_whole
        assert row.category is not None
        out.append(
            OnceRow(
                site=row.key,
                category=row.category,
                fine=_fine_of(history, row.lifetimes),
                bytes=int(sizes[chosen].sum()),
                count=int(np.count_nonzero(chosen)),
                step=marks.names[about],
                step_number=about,
            )
        )
    return tuple(sorted(out, key=lambda row: (-row.bytes, row.site)))


def _fine_of(history: DeviceHistory, rows: Int64Column) -> str:
    """Return the fine label of most bytes."""
    sizes = history.lifetimes.requested_bytes[rows].astype(np.float64)
    return FINE_LABELS[int(np.bincount(history.classification.fine[rows], sizes).argmax())]
