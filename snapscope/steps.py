"""Steps and phases of the run on the event axis.

From annotations where the program made them (`ProfilerStep#N`, `## step N ##`,
`Optimizer.step#…`); else inferred from the stacks: a step ends where the optimizer, or a
hand-written update, has run and the next forward or data loading begins. Without stacks
and annotations nothing is invented: there are no steps.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from snapscope.classify.material import Material
from snapscope.classify.spans import Spans, annotated_steps
from snapscope.classify.stacks import StackPhase
from snapscope.model import NO_TIME, Action, BoolColumn, Int64Column, Stage

_STEP_NAME: Final = re.compile(
    r"(?:ProfilerStep#|##?\s*)?(?:iteration|iter|step|batch)?[ _#:]*(\d{1,9})(?:\s*##)?\Z", re.I
)
_MAX_STEPS: Final = 100_000
_MAX_NAME: Final = 64
_PHASE_NAMES: Final = {
    StackPhase.CONSTRUCT: "init",
    StackPhase.FORWARD: "forward",
    StackPhase.BACKWARD: "backward",
    StackPhase.OPTIMIZER: "optimizer",
    StackPhase.ZERO_GRAD: "zero_grad",
    StackPhase.CLIP: "optimizer",
    StackPhase.USER: "between",
}
# Codes beside those of `StackPhase`: forwards that no backward follows.
_EVAL: Final = 100
_GENERATE: Final = 101
_CODE_NAMES: Final[dict[int, str]] = {
    **{int(phase): name for phase, name in _PHASE_NAMES.items()},
    _EVAL: "eval",
    _GENERATE: "generate",
}
_WORK: Final = (StackPhase.FORWARD, StackPhase.BACKWARD)
_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP, Action.FREE_COMPLETED)
_FEW_BIRTHS: Final = 8
_KEPT_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of events in which the program did one thing.

    Attributes:
        name: init, data, forward, backward, optimizer, zero_grad, eval, generate or between.
        start_event, end_event: first and last event.
    """

    name: str
    start_event: int
    end_event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the run.

    Attributes:
        name: `step 3` (`step 3 #2` if the program gave the name twice), `init`, `between`, or `rest`
            for what follows the last step.
        start_event, end_event: first and last event.
        is_complete: False of a step that the history ends in.
        phases: what happened within, in order.
    """

    name: str
    start_event: int
    end_event: int
    is_complete: bool = True
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps of a device's history; they cover every event, in order.

    Attributes:
        source: `annotated`, `inferred` or `none`.
        steps: the steps; empty where none can be told.
    """

    source: str
    steps: tuple[Step, ...]

    def index_of(self, events: Int64Column) -> Int64Column:
        """Return, per event, the index of its step; −1 for events before the first."""
        starts = np.array([step.start_event for step in self.steps], np.int64)
        return np.searchsorted(starts, events, side="right") - 1

    def phases_at(self, events: Int64Column) -> list[str | None]:
        """Return, per event, the name of its phase; None before the first and where none is known."""
        phases = [phase for step in self.steps for phase in step.phases]
        starts = np.array([phase.start_event for phase in phases], np.int64)
        which = np.searchsorted(starts, events, side="right") - 1
        return [phases[place].name if place >= 0 else None for place in which.tolist()]


def find_steps(material: Material, spans: Spans, updates: Int64Column) -> Steps:
    """Find the steps of a run.

    Args:
        material: the device.
        spans: its backward passes and optimizer runs.
        updates: births of what hand-written updates made, for runs without a known optimizer.
    """
    num_events = len(material.tables.events)
    if not num_events:
        return Steps(source="none", steps=())
    codes = _phase_codes(material, spans)
    named = _annotated(material)
    if named:
        return Steps(source="annotated", steps=_cover(named, spans, codes, is_cut=named[-1][2] >= num_events))
    annotated = np.array([last for _, last in annotated_steps(material)], np.int64)
    ends = _last_after_each_backward(spans, annotated) if len(annotated) else _inferred_ends(material, spans, updates)
    if len(ends):
        ends = _with_completions(material, ends)
        bounds = [_first_work(spans, ends), *(int(end) + 1 for end in ends)]
    else:
        bounds = [0]
    # What begins another iteration and doesn't end it died in the middle of a step.
    is_born = material.tables.events.action == Action.ALLOC
    begun = np.flatnonzero(is_born & np.isin(codes, _WORK) & (np.arange(num_events) >= bounds[-1]))
    is_cut = len(begun) > 0 and not spans.is_positional
    if is_cut:
        bounds = [*(bounds if len(ends) else [int(begun[0])]), num_events]
    elif len(ends) and (failed := _failed_at(material, bounds[-1])) is not None:
        # The update ran out of memory.
        is_cut = True
        bounds[-1] = failed + 1
    elif not len(ends):
        return Steps(source="none", steps=())
    inferred = [
        (f"step {number}", start, stop - 1) for number, (start, stop) in enumerate(pairwise(bounds)) if stop > start
    ]
    source = "annotated" if len(annotated) else "inferred"
    return Steps(source=source, steps=_cover(inferred, spans, codes, is_cut=is_cut))


def _failed_at(material: Material, event: int) -> int | None:
    """Return the `oom` event that is next, or follows what the failing call gave back first; else None."""
    action = material.tables.events.action
    ooms = material.tables.events.oom_events
    place = int(np.searchsorted(ooms, event))
    if place == len(ooms):
        return None
    failed = int(ooms[place])
    return failed if np.isin(action[event:failed], _GIVEN_BACK).all() else None


def _annotated(material: Material) -> list[tuple[str, int, int]]:
    """Return (name, first, last event) of ranges that name steps and don't overlap."""
    snapshot, times = material.snapshot, material.tables.events.time_us
    annotations = snapshot.annotations
    if not len(annotations) or times[0] == NO_TIME:
        return []
    names = {}
    for number in np.unique(annotations.name).tolist():
        text = snapshot.stacks.strings[number].strip()
        match = _STEP_NAME.fullmatch(text) if len(text) <= _MAX_NAME else None
        if match:
            names[number] = (f"step {int(match[1])}", text[: match.start(1)])
    opened: dict[int, int] = {}
    kinds: dict[str, list[tuple[str, int, int]]] = {}
    rows = zip(annotations.name.tolist(), annotations.stage.tolist(), annotations.time_us.tolist(), strict=True)
    for name, stage, time in rows:
        if name not in names:
            continue
        if stage == Stage.START:
            opened[name] = time
        elif name in opened:
            first = int(np.searchsorted(times, opened.pop(name), side="left"))
            last = int(np.searchsorted(times, time, side="right")) - 1
            if last >= first:
                step, kind = names[name]
                kinds.setdefault(kind, []).append((step, first, last))
    for name, time in opened.items():
        # A range without an end: the program died in it, unless its end was lost and others follow.
        step, kind = names[name]
        first = int(np.searchsorted(times, time, side="left"))
        if first < len(times) and all(last < first for _, _, last in kinds.get(kind, ())):
            kinds.setdefault(kind, []).append((step, first, len(times)))
    # Where kinds of names overlap (`batch 1` within `ProfilerStep#3`), the one that covers most counts.
    wholes = sorted(kinds.values(), key=lambda own: -sum(last - first for _, first, last in own))
    for found in ([step for own in wholes for step in own], *wholes):
        found.sort(key=lambda step: step[1])
        if len(found) <= _MAX_STEPS and not any(after[1] <= before[2] for before, after in pairwise(found)):
            return _tell_apart(found)
    return []


def _tell_apart(found: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Make names unique: the second `step 1` (of another epoch) is `step 1 #2`."""
    seen: Counter[str] = Counter()
    out = []
    for name, first, last in found:
        seen[name] += 1
        out.append((name if seen[name] == 1 else f"{name} #{seen[name]}", first, last))
    return out


def _inferred_ends(material: Material, spans: Spans, updates: Int64Column) -> Int64Column:
    """Return the last event of each step."""
    if spans.is_positional:
        return np.zeros(0, np.int64)
    if not len(spans.backward_start):
        return _inference_ends(spans)
    # A step of the optimizer counts if a backward came since the one before: two optimizers
    # that step after one backward, or accumulation before one step, make one step of the run.
    ends = spans.optimizer_end if len(spans.optimizer_end) else updates
    if not len(ends):
        # Optimizer-in-backward, or none at all: every backward ends a step.
        return spans.backward_end[spans.backward_end < len(material.tables.events)]
    return _last_after_each_backward(spans, ends)


def _last_after_each_backward(spans: Spans, events: Int64Column) -> Int64Column:
    """Return the last of the events that follow each backward."""
    events = np.sort(events)
    backward = np.searchsorted(spans.backward_start, events, side="right")
    is_last = np.append(backward[1:] != backward[:-1], [True])
    return events[is_last & (backward > 0)] if len(events) else events


def _with_completions(material: Material, ends: Int64Column) -> Int64Column:
    """Let a step end with the completion of its last free, not with the request."""
    action = np.append(material.tables.events.action, Action.OTHER)
    return np.where(action[ends + 1] == Action.FREE_COMPLETED, ends + 1, ends)


def _inference_ends(spans: Spans) -> Int64Column:
    """Without any backward, each call of the model from outside is a step."""
    phases = spans.event_phase
    known = np.flatnonzero(phases > 0)
    if not len(known):
        return known
    in_forward = phases[known] == StackPhase.FORWARD
    edges = np.flatnonzero(in_forward[:-1] & ~in_forward[1:])
    return known[edges]


def _first_work(spans: Spans, ends: Int64Column) -> int:
    firsts = [int(events[0]) for events in (spans.forward_events, spans.backward_start) if len(events)]
    return min([*firsts, int(ends[0])])


def _phase_codes(material: Material, spans: Spans) -> Int64Column:
    """Return what the program did at every event: `StackPhase`, `_EVAL` or `_GENERATE`; 0 unknown."""
    phases = spans.event_phase.astype(np.int64)
    if spans.is_positional:
        return phases
    phases[phases == StackPhase.CLIP] = StackPhase.OPTIMIZER
    known = np.flatnonzero(phases > 0)
    # Within a backward everything is backward, whatever its hooks do.
    phases[known[_within(spans.backward_start, spans.backward_end, known)]] = StackPhase.BACKWARD
    cuts = np.flatnonzero(np.diff(phases[known], prepend=-1))
    kind = phases[known][cuts]
    # A stretch is what lies between two backwards or updates.
    stretch = np.cumsum(~np.isin(kind, [StackPhase.FORWARD, StackPhase.USER, StackPhase.CONSTRUCT]))
    is_forward = kind == StackPhase.FORWARD
    starts = known[cuts][is_forward]
    ends = known[np.append(cuts[1:], len(known)) - 1][is_forward]
    is_quiet = _saves_nothing(material, spans, starts, ends, stretch[is_forward])
    generates = _generates(material)
    for start, end in zip(starts[is_quiet].tolist(), ends[is_quiet].tolist(), strict=True):
        own = known[np.searchsorted(known, start) : np.searchsorted(known, end, side="right")]
        phases[own] = _GENERATE if generates[own].any() else _EVAL
    return phases


def _within(starts: Int64Column, ends: Int64Column, events: Int64Column) -> BoolColumn:
    number = np.searchsorted(starts, events, side="right") - 1
    inside: BoolColumn = (number >= 0) & (events <= np.append(ends, -1)[number])
    return inside


def _saves_nothing(
    material: Material, spans: Spans, starts: Int64Column, ends: Int64Column, stretch: Int64Column
) -> BoolColumn:
    """Return which forwards no backward belongs to: none frees what they made, nor is it kept.

    Runs of few allocations (a module that only reshapes) are judged by those around them. What
    was alive at an out-of-memory error counts as kept: the exception freed it.
    """
    table, ooms = material.lifetimes, material.tables.events.oom_events
    rows = np.flatnonzero(_within(starts, ends, table.birth_event))
    run = np.searchsorted(starts, table.birth_event[rows], side="right") - 1
    never = len(material.tables.events) + 1
    death = np.where(table.free_requested_event[rows] < 0, never, table.free_requested_event[rows])
    next_oom = np.append(ooms, never)[np.searchsorted(ooms, table.birth_event[rows])]
    is_kept = (death == never) | (next_oom < death)
    is_saved = _within(spans.backward_start, spans.backward_end, death)
    births = np.bincount(run, minlength=len(starts))
    sizes = table.requested_bytes[rows].astype(np.float64)
    born_bytes = np.bincount(run, sizes, minlength=len(starts))
    kept_bytes = np.bincount(run[is_kept], sizes[is_kept], minlength=len(starts))
    saved = np.bincount(run[is_saved], minlength=len(starts))
    quiet = (saved == 0) & (kept_bytes <= _KEPT_SHARE * born_bytes)
    is_loud = np.isin(stretch, stretch[~quiet])
    answer: BoolColumn = quiet & ((births >= _FEW_BIRTHS) | ~is_loud)
    return answer


def _generates(material: Material) -> BoolColumn:
    """Return, per event, whether a function called `generate` is in its stack."""
    stacks = material.snapshot.stacks
    is_generate = np.array([stacks.function_of(frame) == "generate" for frame in range(stacks.num_frames)], bool)
    owner = np.repeat(np.arange(stacks.num_stacks), np.diff(stacks.stack_offsets))
    found = np.zeros(stacks.num_stacks + 1, bool)
    # Element -1 stands for no stack.
    found[owner[is_generate[stacks.stack_frames]]] = True
    of_event: BoolColumn = found[material.tables.events.stack]
    return of_event


def _cover(named: list[tuple[str, int, int]], spans: Spans, codes: Int64Column, *, is_cut: bool) -> tuple[Step, ...]:
    """Fill the gaps: what precedes the first step is `init`, between steps `between`, after them `rest`.

    Args:
        named: name, first and last event of each step.
        spans, codes: what happened when.
        is_cut: whether the history ends within the last of them.
    """
    out: list[Step] = []
    cursor = 0
    for name, first, last in named:
        if first > cursor:
            gap = "init" if not out else "between"
            out.append(_step(gap, cursor, first - 1, spans, codes))
        out.append(_step(name, max(first, cursor), min(last, len(codes) - 1), spans, codes))
        cursor = last + 1
    if is_cut and out:
        out[-1] = replace(out[-1], is_complete=False)
    if cursor < len(codes):
        out.append(_step("rest", cursor, len(codes) - 1, spans, codes))
    return tuple(out)


def _step(name: str, first: int, last: int, spans: Spans, codes: Int64Column) -> Step:
    return Step(name=name, start_event=first, end_event=last, phases=_phases(first, last, spans, codes))


def _phases(first: int, last: int, spans: Spans, codes: Int64Column) -> tuple[Phase, ...]:
    """Cut a step into phases; events without a stack belong to the phase around them."""
    if spans.is_positional:
        return _positional_phases(first, last, spans)
    phases = codes[first : last + 1]
    known = np.flatnonzero(phases > 0)
    if not len(known):
        return (Phase(name="between", start_event=first, end_event=last),)
    code = phases[known]
    cuts = np.flatnonzero(np.diff(code, prepend=-1))
    starts = [first, *(known[cuts[1:]] + first).tolist()]
    stops = [*(start - 1 for start in starts[1:]), last]
    names = [_CODE_NAMES[int(code[cut])] for cut in cuts]
    if "forward" in names:
        # The user's lines before the first forward load the data.
        names = ["data" if name == "between" and place < names.index("forward") else name
                 for place, name in enumerate(names)]  # fmt: skip
    return tuple(
        Phase(name=name, start_event=start, end_event=stop)
        for name, start, stop in zip(names, starts, stops, strict=True)
    )


def _positional_phases(first: int, last: int, spans: Spans) -> tuple[Phase, ...]:
    cuts: list[tuple[int, str]] = [(first, "forward")]
    for starts, ends, name in (
        (spans.backward_start, spans.backward_end, "backward"),
        (spans.optimizer_start, spans.optimizer_end, "optimizer"),
    ):
        within = slice(*np.searchsorted(starts, [first, last + 1]).tolist())
        for start, end in zip(starts[within].tolist(), ends[within].tolist(), strict=True):
            cuts.append((start, name))
            cuts.append((end + 1, "between"))
    cuts.sort(key=lambda cut: cut[0])
    out: list[Phase] = []
    for (start, name), (stop, _) in zip(cuts, [*cuts[1:], (last + 1, "")], strict=True):
        if stop > start and start <= last:
            out.append(Phase(name=name, start_event=start, end_event=min(stop - 1, last)))
    return tuple(out)
