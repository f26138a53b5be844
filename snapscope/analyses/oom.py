"""The out-of-memory error: what filled the card, and why the request failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.growth import Growth, grown_since
from snapscope.analyses.ledger import Balance, Ledger, balance, ledger
from snapscope.analyses.moments import Moment, find_moment, moment_at
from snapscope.analyses.pinning import LargestHole, PinRow, find_cells, largest_hole, pin_rows
from snapscope.analyses.pools import PendingRow, PoolRow, pending_rows, pool_rows
from snapscope.analyses.projection import project
from snapscope.analyses.releases import Release, Unwinding, find_retries, find_unwinding, release_before
from snapscope.analyses.remedies import Remedy, find_remedies
from snapscope.analyses.request import Request, read_request
from snapscope.analyses.step_match import StepMatch, match_earlier_step, whole_steps_before
from snapscope.analyses.verdict import Verdict, judge
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn
from snapscope.sites import CPP_BACKWARD_LABEL, NO_STACK_LABEL

_MAX_OOMS: Final = 20
_TRAINING: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One `oom` event, judged.

    Attributes:
        at: the event.
        number: 1 for the first in the history.
        request: what failed, and the free memory around it.
        verdict: why.
        site: whose request it was (untrusted text).
        stack: its stack, `NO_STACK` if unknown.
        step, phase: where the run was; None unknown.
        match: the place of an earlier step that corresponds; None if there is none.
        balance: reserved memory then.
    """

    at: Moment
    number: int
    request: Request
    verdict: Verdict
    site: str
    stack: int
    step: str | None
    phase: str | None
    match: StepMatch | None
    balance: Balance


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRelease:
    """The state before the allocator gave its cache back, within the call that failed.

    Attributes:
        release: what it gave back.
        at: the moment before.
        balance: reserved memory then.
    """

    release: Release
    at: Moment
    balance: Balance


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """All about one out-of-memory error of a device's history.

    Attributes:
        subject: the failure that the report is about; None where the history holds none.
        failures: every `oom` event, the last 20 if there are more; empty without any.
        num_ooms: how many there are.
        ledger: who held the memory then; without a failure, at the end.
        before_release: what the memory was like before the cache was given back; None where
            nothing was.
        pools: free lists of the allocator.
        pins: who pins the holes of the request's own segments.
        largest_hole: the largest free piece of the request's own segments, and what pins it.
        pending: what waits for another stream.
        growth: what grew since the same place of an earlier step; None where there is none.
        remedies: what would have helped.
        retries: releases after which the call was served after all.
        unwinding: without any `oom` event: the frees that the history ends with, which an exception
            may have caused.
    """

    subject: Failure | None
    failures: tuple[Failure, ...]
    num_ooms: int
    ledger: Ledger
    before_release: BeforeRelease | None
    pools: tuple[PoolRow, ...]
    pins: tuple[PinRow, ...]
    largest_hole: LargestHole | None
    pending: tuple[PendingRow, ...]
    growth: Growth | None
    remedies: tuple[Remedy, ...]
    retries: tuple[Release, ...]
    unwinding: Unwinding | None = None


def find_oom(
    history: DeviceHistory,
    *,
    number: int | None = None,
    capacity_bytes: int | None = None,
    selection: BoolColumn | None = None,
) -> OomReport:
    """Analyse why a device ran out of memory; needs the exact block replay.

    Args:
        history: the device.
        number: the `oom` event to report on, counted from 1; None = the last.
        capacity_bytes: the card's size, which no snapshot holds.
        selection: rows of the lifetime table that the ledger groups; the others are one row.

    Raises:
        UsageError: there is no `oom` event of that number.
    """
    events = history.tables.events.oom_events.tolist()
    failures = tuple(
        judge_failure(history, each, capacity_bytes=capacity_bytes)
        for each in range(max(len(events) - _MAX_OOMS, 0) + 1, len(events) + 1)
    )
    if number is not None:
        # Complains of a number that isn't there.
        find_moment(history, f"oom:{number}")
    retries = find_retries(history)
    if not failures:
        at = find_moment(history, "end")
        layout = history.layout_at(at.event)
        return OomReport(
            subject=None,
            failures=(),
            num_ooms=0,
            ledger=ledger(history, at, capacity_bytes=capacity_bytes, selection=selection),
            before_release=None,
            pools=pool_rows(history, layout),
            pins=pin_rows(history, layout, selection=selection),
            largest_hole=largest_hole(history, layout),
            pending=pending_rows(history, at.event),
            growth=None,
            remedies=(),
            retries=retries,
            unwinding=find_unwinding(history) if history.num_events else None,
        )
    subject = next((failure for failure in failures if failure.number == (number or len(events))), None)
    if subject is None:
        subject = judge_failure(history, number or len(events), capacity_bytes=capacity_bytes)
    event = subject.at.event
    before = _before_release(history, event, capacity_bytes)
    layout = history.layout_at(event)
    cells = find_cells(layout)
    match = subject.match
    return OomReport(
        subject=subject,
        failures=failures,
        num_ooms=len(events),
        ledger=ledger(history, subject.at, capacity_bytes=capacity_bytes, selection=selection),
        before_release=before,
        pools=pool_rows(history, layout),
        pins=pin_rows(history, layout, segments=subject.request.own_segments, cells=cells, selection=selection),
        largest_hole=largest_hole(history, layout, subject.request.own_segments),
        pending=pending_rows(history, event),
        growth=grown_since(history, event, match) if match is not None and match.is_same_request else None,
        remedies=find_remedies(history, layout, subject.request, subject.verdict, cells),
        retries=retries,
    )


def judge_failure(history: DeviceHistory, number: int, *, capacity_bytes: int | None = None) -> Failure:
    """Judge the n-th `oom` event of a history, counted from 1."""
    event = int(history.tables.events.oom_events[number - 1])
    at = moment_at(history, event, "oom" if number == len(history.tables.events.oom_events) else f"oom:{number}")
    layout = history.layout_at(event)
    state = balance(history, at, capacity_bytes=capacity_bytes)
    request = read_request(history, layout, event)
    match = match_earlier_step(history, event)
    stack = int(history.tables.events.stack[event])
    index = int(history.steps.index_of(np.array([event]))[0])
    step = history.steps.steps[index].name if index >= 0 else None
    phase = history.steps.phases_at(np.array([event]))[0]
    return Failure(
        at=at,
        number=number,
        request=request,
        verdict=judge(
            request,
            reserved_bytes=state.reserved_bytes,
            active_bytes=state.allocated_bytes + state.pending_bytes,
            projection=project(history, event, match),
            is_first_step=step is not None and phase in _TRAINING and not whole_steps_before(history, index),
        ),
        site=_site(history, stack, phase),
        stack=stack,
        step=step,
        phase=phase,
        match=match,
        balance=state,
    )


def _site(history: DeviceHistory, stack: int, phase: str | None) -> str:
    label = history.sites.of_stack(stack).label
    # Autograd's own threads have no Python frames.
    return CPP_BACKWARD_LABEL if label == NO_STACK_LABEL and phase == "backward" else label


def _before_release(history: DeviceHistory, event: int, capacity_bytes: int | None) -> BeforeRelease | None:
    release = release_before(history, event)
    if release is None:
        return None
    at = moment_at(history, release.start_event - 1, "before_release")
    return BeforeRelease(release=release, at=at, balance=balance(history, at, capacity_bytes=capacity_bytes))
