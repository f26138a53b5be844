"""Where backward passes and optimizer steps lie on the event axis.

From the stacks of the events where there are any (an allocation made on an autograd thread
is made in a backward); else from the annotations `Optimizer.step#…`, which PyTorch records
even without stacks, and the shape of the curve between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.classify.material import Material
from snapscope.classify.shape import SEED_NEIGHBOURS, TINY_BYTES, backwards_by_shape
from snapscope.classify.stacks import StackFacts, StackPhase
from snapscope.lifetimes import Context
from snapscope.model import (
    EMPTY_STACK,
    NO_TIME,
    Action,
    BoolColumn,
    Int8Column,
    Int64Column,
    Stage,
)

OPTIMIZER_ANNOTATION: Final = "Optimizer.step#"
_ALIKE_SHARE: Final = 0.5
_SEED_WINDOW_EVENTS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Backward passes and optimizer steps of one device, in order.

    Attributes:
        backward_start, backward_end: first and last event of each backward; the end is the
            number of events where the history stops within it.
        optimizer_start, optimizer_end: the same of each run of the optimizer.
        forward_events: events within a module's forward.
        event_phase: `StackPhase` of every event, 0 where nothing is known.
        is_positional: found without stacks.
        ends_in_optimizer: the history stops within an optimizer step.
        ends_in_backward: the history stops within a backward.
        annotated_start, annotated_end: first and last event of each step that PyTorch annotated; one that
            works in place makes none, and ends before it starts.
    """

    backward_start: Int64Column
    backward_end: Int64Column
    optimizer_start: Int64Column
    optimizer_end: Int64Column
    forward_events: Int64Column
    event_phase: Int8Column
    is_positional: bool
    ends_in_backward: bool
    ends_in_optimizer: bool
    annotated_start: Int64Column
    annotated_end: Int64Column


def find_spans(material: Material, facts: StackFacts) -> Spans:
    """Find the backward passes and optimizer steps of a device."""
    phase, on_engine, is_signal = _event_phases(material, facts)
    index = np.flatnonzero(is_signal)
    if not len(index):
        return _positional_spans(material, phase)
    phases, engine = phase[index], on_engine[index]
    in_backward = (phases == StackPhase.BACKWARD) | engine
    start, end = _runs(index, in_backward)
    # zero_grad, clipping and the user's own lines don't part one step of the optimizer in two.
    parts = np.isin(phases, (StackPhase.OPTIMIZER, StackPhase.FORWARD, StackPhase.CONSTRUCT)) | in_backward
    step_start, step_end = _runs(index[parts], phases[parts] == StackPhase.OPTIMIZER)
    last = int(index[-1])
    ends_in_backward = bool(len(end)) and int(end[-1]) >= last
    ends_in_optimizer = bool(len(step_end)) and int(step_end[-1]) >= last and not ends_in_backward
    if material.context is Context.ALLOC:
        # Frees tell nothing then: a span goes on until another one allocates.
        end, step_end = (_before_next(index, ends, len(phase)) for ends in (end, step_end))
    if ends_in_backward:
        end[-1] = len(material.tables.events)
    annotated = annotated_steps(material)
    return Spans(
        backward_start=start,
        backward_end=end,
        optimizer_start=step_start,
        optimizer_end=step_end,
        forward_events=index[(phases == StackPhase.FORWARD) & ~engine],
        event_phase=phase,
        is_positional=False,
        ends_in_backward=ends_in_backward,
        ends_in_optimizer=ends_in_optimizer,
        annotated_start=np.array([first for first, _ in annotated], np.int64),
        annotated_end=np.array([last for _, last in annotated], np.int64),
    )


def _before_next(index: Int64Column, ends: Int64Column, num_events: int) -> Int64Column:
    """Return the event before the next signal after each end."""
    return np.append(index, num_events)[np.searchsorted(index, ends, side="right")] - 1


def _event_phases(material: Material, facts: StackFacts) -> tuple[Int8Column, BoolColumn, BoolColumn]:
    """Return every event's phase, whether it is on an autograd thread, and whether it counts.

    Frees count where they have a stack of their own (context "all").
    """
    events = material.tables.events
    stack = events.stack
    phase = np.zeros(len(events), np.int8)
    engine = np.zeros(len(events), bool)
    known = stack > EMPTY_STACK
    phase[known] = facts.phase[stack[known]]
    engine[known] = facts.on_engine[stack[known]]
    if known.any() and facts.has_python[np.unique(stack[known])].any():
        # Others have Python frames and this one has none at all: a C++ autograd thread.
        phase[stack == EMPTY_STACK] = StackPhase.BACKWARD
        engine[stack == EMPTY_STACK] = True
    counts = events.action == Action.ALLOC
    if material.context is not Context.ALLOC:
        counts |= events.action == Action.FREE_REQUESTED
    return phase, engine, counts & (phase > 0)


def _runs(index: Int64Column, flag: BoolColumn) -> tuple[Int64Column, Int64Column]:
    """Return the first and last event of each run of consecutive signals with a flag."""
    edges = np.diff(np.concatenate(([0], flag.astype(np.int8), [0])))
    return index[np.flatnonzero(edges == 1)], index[np.flatnonzero(edges == -1) - 1]


def _positional_spans(material: Material, phase: Int8Column) -> Spans:
    """Find the spans without stacks: backwards by the order in which memory dies, steps by annotations.

    Without annotations what follows a backward until the next forward is the optimizer's.
    """
    num_events = len(material.tables.events)
    found = backwards_by_shape(material)
    annotated = annotated_steps(material)
    if annotated:
        found = _between_steps(material, found, annotated)
        steps = [(first, last) for first, last in annotated if last >= first]
    else:
        firsts = [first for first, _, _ in found[1:]]
        ends = [end for _, _, end in found]
        steps = [(end + 1, after - 1) for end, after in zip(ends, [*firsts, num_events], strict=bool(found))]
        steps = [(first, last) for first, last in steps if last >= first]
    return Spans(
        backward_start=np.array([start for _, start, _ in found], np.int64),
        backward_end=np.array([end for _, _, end in found], np.int64),
        optimizer_start=np.array([first for first, _ in steps], np.int64),
        optimizer_end=np.array([last for _, last in steps], np.int64),
        forward_events=np.zeros(0, np.int64),
        event_phase=phase,
        is_positional=True,
        ends_in_backward=False,
        ends_in_optimizer=False,
        annotated_start=np.array([first for first, _ in annotated], np.int64),
        annotated_end=np.array([last for _, last in annotated], np.int64),
    )


def _between_steps(
    material: Material, found: list[tuple[int, int, int]], steps: list[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return the backwards before each annotated step; the last one lasts until the step.

    Where none was found by its shape, one begins at the loss's gradient before the curve's peak.
    """
    out: list[tuple[int, int, int]] = []
    before = 0
    for first, last in steps:
        own = [span for span in found if before <= span[1] < first]
        if own:
            # Several before one step are accumulated gradients, and much alike; a rollout before it is not.
            least = _ALIKE_SHARE * (own[-1][2] - own[-1][1])
            own = [span for span in own if span[2] - span[1] >= least]
            out += [*own[:-1], (own[-1][0], own[-1][1], max(first - 1, own[-1][1]))]
        elif first > before + 1:
            top = before + int(np.argmax(material.requested_bytes[before + 1 : first + 1]))
            begin = _gradient_seed(material, before, top)
            out.append((begin, begin, max(first - 1, begin)))
        before = max(before, last)
    return out + [span for span in found if span[1] > before]


def annotated_steps(material: Material) -> list[tuple[int, int]]:
    """Return (first, last) event of every annotated optimizer step, in order.

    A step that works in place makes no event: then `last` is the one before `first`.
    """
    snapshot, times = material.snapshot, material.tables.events.time_us
    if not len(times) or times[0] == NO_TIME:
        return []
    annotations = snapshot.annotations
    wanted = np.array([text.startswith(OPTIMIZER_ANNOTATION) for text in snapshot.stacks.strings], bool)
    rows = np.flatnonzero(wanted[annotations.name]) if len(annotations) else np.zeros(0, np.int64)
    opened: dict[int, list[int]] = {}
    steps = []
    for row in rows.tolist():
        name, time = int(annotations.name[row]), int(annotations.time_us[row])
        if annotations.stage[row] == Stage.START:
            opened.setdefault(name, []).append(time)
        elif opened.get(name):
            begun = opened[name].pop()
            first = int(np.searchsorted(times, begun, side="left"))
            last = int(np.searchsorted(times, time, side="right")) - 1
            steps.append((first, max(last, first - 1)))
    return sorted(steps)


def _gradient_seed(material: Material, low: int, top: int) -> int:
    """Find where the loss got its gradient: two tiny blocks of one size right after each other.

    The curve's peak lies some allocations into the backward; `loss.backward()` begins by
    making a gradient as small as the loss.
    """
    events = material.tables.events
    first = max(low, top - _SEED_WINDOW_EVENTS)
    allocs = np.flatnonzero(events.action[first : top + 1] == Action.ALLOC) + first
    sizes = events.size_bytes[allocs]
    for place in range(len(allocs) - 1, 0, -1):
        near = sizes[max(place - SEED_NEIGHBOURS, 0) : place]
        if sizes[place] <= TINY_BYTES and (near == sizes[place]).any():
            return int(allocs[place])
    return top
