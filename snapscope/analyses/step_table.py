"""One row per step of the run: what it began with, its peak, what it left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.analyses.timeline import category_curves
from snapscope.history import DeviceHistory
from snapscope.model import Int64Column
from snapscope.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase of a step: requested bytes at its start, highest, and at its end."""

    name: str
    start_event: int
    end_event: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step.

    Attributes:
        name: as in `Steps`.
        start_event, end_event: first and last event.
        is_complete: False of a step that the history ends in.
        start_bytes: requested bytes before its first event.
        peak_bytes, peak_event: the first highest after one of its events.
        end_bytes: after its last event.
        end_categories: the same by category.
        reserved_bytes: highest reserved.
        phases: the phases, in order.
    """

    name: str
    start_event: int
    end_event: int
    is_complete: bool
    start_bytes: int
    peak_bytes: int
    peak_event: int
    end_bytes: int
    end_categories: tuple[int, ...]
    reserved_bytes: int
    phases: tuple[PhaseRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """All steps of a device.

    Attributes:
        source: `annotated`, `inferred` or `none`.
        rows: one per step, covering the history.
    """

    source: str
    rows: tuple[StepRow, ...]


def tabulate_steps(history: DeviceHistory) -> StepTable:
    """Sum up every step of a device."""
    curves = category_curves(history)
    rows = tuple(_row(history, step, curves) for step in history.steps.steps)
    return StepTable(source=history.steps.source, rows=rows)


def _row(history: DeviceHistory, step: Step, curves: Int64Column) -> StepRow:
    requested, reserved = history.totals.requested_bytes, history.totals.reserved_bytes
    first, last = step.start_event, step.end_event
    inside = requested[first + 1 : last + 2]
    return StepRow(
        name=step.name,
        start_event=first,
        end_event=last,
        is_complete=step.is_complete,
        start_bytes=int(requested[first]),
        peak_bytes=int(inside.max()),
        peak_event=first + int(np.argmax(inside)),
        end_bytes=int(requested[last + 1]),
        end_categories=tuple(curves[:, last + 1].tolist()),
        reserved_bytes=int(reserved[first + 1 : last + 2].max()),
        phases=tuple(
            PhaseRow(
                name=phase.name,
                start_event=phase.start_event,
                end_event=phase.end_event,
                start_bytes=int(requested[phase.start_event]),
                # What a phase begins with counts: one that only frees peaks at its start.
                peak_bytes=int(requested[phase.start_event : phase.end_event + 2].max()),
                end_bytes=int(requested[phase.end_event + 1]),
            )
            for phase in step.phases
        ),
    )
