"""When the allocator gave its cache back: before it gave up, or before it could serve after all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.lifetimes import NEVER
from snapscope.model import NO_STACK, NO_TIME, Action

_SAME_CALL_US: Final = 2_000
_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_FREED: Final = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_LARGE_SHARE: Final = 10
_TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Consecutive events by which one call of the allocator gave memory back to the driver.

    Attributes:
        start_event: the first of them; the state before the release is that after the event
            before it.
        end_event: the last.
        num_segments: how many segments or mapped pieces went back.
        released_bytes: their sizes.
        site: whose request it was; None where unknown.
    """

    start_event: int
    end_event: int
    num_segments: int
    released_bytes: int
    site: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwinding:
    """What was freed at the very end, as the unwinding of an exception does.

    Attributes:
        event: the last before these frees.
        freed_bytes: requested bytes of activations and temporary results that they gave back.
        live_bytes: requested bytes live before them.
    """

    event: int
    freed_bytes: int
    live_bytes: int


def release_before(history: DeviceHistory, event: int) -> Release | None:
    """Return the release that ends right before an event and belongs to the same call; None if none.

    An allocator that is about to give up waits for pending frees (`free_completed`) and frees
    every cached segment, all within the call that fails: these events have its stack, or its
    time where there are no stacks.
    """
    events = history.tables.events
    start = event
    while start > 0 and _is_of_call(history, start - 1, event):
        start -= 1
    actions = events.action[start:event]
    given = np.isin(actions, _GIVEN_BACK)
    if not given.any():
        return None
    stack = int(events.stack[event])
    return Release(
        start_event=start,
        end_event=event - 1,
        num_segments=int(given.sum()),
        released_bytes=int(events.size_bytes[start:event][given].sum()),
        site=history.sites.of_stack(stack).label if stack > 0 else None,
    )


def find_retries(history: DeviceHistory) -> tuple[Release, ...]:
    """Return the releases after which the same call was served: out of memory, but for a retry.

    Garbage collection (`garbage_collection_threshold`) and the release that `max_split_size_mb`
    causes leave the same events.
    """
    action = history.tables.events.action
    after = np.flatnonzero(np.isin(action[:-1], _GIVEN_BACK) & np.isin(action[1:], _TAKEN)) + 1
    found = (release_before(history, event) for event in after.tolist())
    return tuple(release for release in found if release is not None)


def find_unwinding(history: DeviceHistory) -> Unwinding | None:
    """Return the frees that the history ends with, if they gave much back amid a step; None else.

    A dump in an except block is made after the exception has let go of what the stack held:
    activations and temporary results. A step that ends as it should frees much too.
    """
    action = history.tables.events.action
    others = np.flatnonzero(~np.isin(action, (*_FREED, *_GIVEN_BACK, Action.SNAPSHOT)))
    last = int(others[-1]) if len(others) else -1
    index = int(history.steps.index_of(np.array([last]))[0])
    if index < 0 or (history.steps.steps[index].is_complete and not _is_forward_alone(history, index, last)):
        return None
    lifetimes, category = history.lifetimes, history.classification.category
    live = lifetimes.live_at(last)
    is_held = np.isin(category[live], (Category.ACTIVATION, Category.TEMPORARY))
    freed = live[is_held & (lifetimes.free_requested_event[live] != NEVER)]
    freed_bytes = int(lifetimes.requested_bytes[freed].sum())
    live_bytes = int(history.totals.requested_bytes[last + 1])
    if not freed_bytes or freed_bytes * _LARGE_SHARE < live_bytes:
        return None
    return Unwinding(event=last, freed_bytes=freed_bytes, live_bytes=live_bytes)


def _is_forward_alone(history: DeviceHistory, index: int, event: int) -> bool:
    """Tell whether an event lies in a forward behind the last step, which no backward followed."""
    phase = history.steps.phases_at(np.array([event]))[0]
    return history.steps.steps[index].name == "rest" and phase in ("forward", "eval", "generate")


def _is_of_call(history: DeviceHistory, place: int, event: int) -> bool:
    events = history.tables.events
    action = events.action[place]
    if action == Action.FREE_COMPLETED:
        # An ordinary free completes right after it was asked for.
        is_own = place and events.action[place - 1] == Action.FREE_REQUESTED
        if is_own and events.addr[place - 1] == events.addr[place]:
            return False
    elif action not in _GIVEN_BACK:
        return False
    stacks = int(events.stack[place]), int(events.stack[event])
    if NO_STACK not in stacks and action != Action.FREE_COMPLETED:
        return stacks[0] == stacks[1]
    times = int(events.time_us[place]), int(events.time_us[event])
    return NO_TIME in times or times[1] - times[0] <= _SAME_CALL_US
