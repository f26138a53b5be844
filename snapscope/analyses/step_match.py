"""The place in an earlier step that corresponds to an event of the running one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.coverage import Head, find_head
from snapscope.history import DeviceHistory
from snapscope.model import Action, Int64Column
from snapscope.steps import Phase, Step

_MAX_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMatch:
    """An event of an earlier, complete step that does what an event of the running one does.

    Attributes:
        running, earlier: the two steps.
        event: the corresponding alloc of the earlier step; the state before it is the one to
            compare with.
        is_same_request: whether the stack and the ordinal agree; else only the phase does.
        scale: bytes that the running step has asked for so far, in units of what the earlier
            one had at its place: sizes change with the batch.
    """

    running: Step
    earlier: Step
    event: int
    is_same_request: bool
    scale: float


def match_earlier_step(history: DeviceHistory, event: int) -> StepMatch | None:
    """Find where an earlier complete step was when it did what the running step did at `event`.

    Matches the n-th request of a site within its step; where the earlier step has none, the
    beginning of the same phase. The latest step counts that has either.
    """
    steps = history.steps.steps
    index = int(history.steps.index_of(np.array([event]))[0])
    if index < 0 or not (steps[index].name.startswith("step ") or steps[index].name == "rest"):
        return None
    running = steps[index]
    earlier = whole_steps_before(history, index)
    sites = _site_of_event(history, running.start_event, event)
    wanted = sites[-1]
    ordinal = int(np.count_nonzero(sites == wanted))
    for step in earlier[: -_MAX_TRIES - 1 : -1]:
        own = _site_of_event(history, step.start_event, step.end_event)
        same = np.flatnonzero(own == wanted)
        if len(same) >= ordinal:
            found = step.start_event + int(same[ordinal - 1])
            return _match(history, running, step, event, found, is_same_request=True)
    phase = _phase_at(running, event)
    for step in earlier[: -_MAX_TRIES - 1 : -1]:
        start = next((each.start_event for each in step.phases if phase and each.name == phase.name), None)
        if start is not None:
            return _match(history, running, step, event, start, is_same_request=False)
    return None


def whole_steps_before(history: DeviceHistory, index: int) -> list[Step]:
    """Return the complete steps before the one of an index; one that a lost head has cut isn't whole."""
    is_cut = find_head(history)[0] is Head.LOST
    return [
        step
        for step in history.steps.steps[: max(index, 0)]
        if step.name.startswith("step ") and step.is_complete and not (is_cut and step.start_event == 0)
    ]


def _match(
    history: DeviceHistory, running: Step, earlier: Step, event: int, found: int, *, is_same_request: bool
) -> StepMatch:
    before = _asked(history, earlier.start_event, found + 1)
    now = _asked(history, running.start_event, event + 1)
    return StepMatch(
        running=running,
        earlier=earlier,
        event=found,
        is_same_request=is_same_request,
        scale=now / before if before and now and is_same_request else 1.0,
    )


def _asked(history: DeviceHistory, start: int, stop: int) -> int:
    """Return the bytes asked for in events [start, stop), the failing request included."""
    events = history.tables.events
    action = events.action[start:stop]
    asks = (action == Action.ALLOC) | (action == Action.OOM)
    return int(events.size_bytes[start:stop][asks].sum())


def _site_of_event(history: DeviceHistory, first: int, last: int) -> Int64Column:
    """Return the site of every request in a range of events: −1 without a stack, −2 for other events."""
    events = history.tables.events
    stacks = events.stack[first : last + 1]
    action = events.action[first : last + 1]
    # One more than there are stacks: element −1 stands for no stack.
    numbers = np.full(history.snapshot.stacks.num_stacks + 1, -1, np.int64)
    occurs = np.zeros(len(numbers), bool)
    occurs[stacks] = True
    for stack in np.flatnonzero(occurs[:-1]).tolist():
        numbers[stack] = history.sites.of_stack(stack).number
    return np.where((action == Action.ALLOC) | (action == Action.OOM), numbers[stacks], -2)


def _phase_at(step: Step, event: int) -> Phase | None:
    return next((phase for phase in step.phases if phase.start_event <= event <= phase.end_event), None)
