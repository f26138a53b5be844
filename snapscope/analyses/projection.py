"""What a failing step still needed, as far as the history shows it.

Nearly every training run that outgrows its card fails at a small request, while a few holes
sum to more than it. Whether the step would have fitted decides between capacity and
fragmentation, so it is projected from what the program did before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.analyses.step_match import StepMatch
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn, Int8Column, Int64Column

_MAX_SCALE: Final = 64.0
_MAX_STATES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Bytes that the failing step still needed at once, beyond what was live.

    Attributes:
        needed_bytes: the failing request and what was to come on top of it.
        basis: `earlier_step` (what it took from here on), or `optimizer_states` (the states of
            the parameters that have none yet: a lower bound).
        explanation: in words.
    """

    needed_bytes: int
    basis: str
    explanation: str

    @property
    def is_lower_bound(self) -> bool:
        """Whether the step needed at least that much, maybe more."""
        return self.basis == "optimizer_states"


def project(history: DeviceHistory, event: int, match: StepMatch | None) -> Projection | None:
    """Project what the step needed from the failing request at `event` on; None where nothing tells."""
    request = int(history.tables.events.size_bytes[event])
    if match is not None and match.is_same_request:
        return _from_earlier_step(history, match, request)
    return _from_optimizer_states(history, event, request)


def _from_earlier_step(history: DeviceHistory, match: StepMatch, request: int) -> Projection:
    """Take what an earlier step grew by from the same place on, in the running step's sizes.

    States that its optimizer made for the first time stay, so the running step needs none again.
    """
    first, last = match.event, match.earlier.end_event
    births = history.lifetimes.birth_event
    made = np.flatnonzero(
        (births >= first) & (births <= last) & (history.classification.category == Category.OPTIMIZER_STATE)
    )
    states = np.zeros(last - first + 1, np.int64)
    np.add.at(states, births[made] - first, history.blocks.block_bytes[made])
    curve = history.block_totals.allocated_bytes[first + 1 : last + 2] - np.cumsum(states)
    growth = int(curve.max()) - int(history.block_totals.allocated_bytes[first])
    scale = min(match.scale, _MAX_SCALE)
    needed = max(int(growth * scale), request)
    sized = "" if abs(scale - 1) < 0.01 else f", times {scale:.2f} for the sizes of this one"
    took = f"{match.earlier.name} grew by this much from the same place on{sized}"
    return Projection(
        needed_bytes=needed,
        basis="earlier_step",
        explanation=took if needed > request else f"no more than this request, as {match.earlier.name} shows",
    )


def _from_optimizer_states(history: DeviceHistory, event: int, request: int) -> Projection | None:
    """Count the states that the first optimizer step has yet to make: as many a gradient as the first got."""
    lifetimes, kinds = history.lifetimes, history.classification
    live = lifetimes.live_at(event)
    gradients = live[kinds.category[live] == Category.GRADIENT]
    states = live[(kinds.category[live] == Category.OPTIMIZER_STATE) & _is_moment(kinds.fine[live])]
    if not len(gradients) or not len(states):
        return None
    phase = history.steps.phases_at(np.array([event]))[0]
    if phase != "optimizer":
        return None
    per_gradient = _states_per_gradient(lifetimes.requested_bytes[states])
    if per_gradient is None:
        return None
    wanted = per_gradient * int(history.blocks.block_bytes[gradients].sum())
    have = int(history.blocks.block_bytes[states].sum())
    if wanted <= have:
        return None
    return Projection(
        needed_bytes=max(wanted - have, request),
        basis="optimizer_states",
        explanation=f"the optimizer makes {per_gradient} states for each gradient, and not all have theirs yet",
    )


def _is_moment(fine: Int8Column) -> BoolColumn:
    whole = np.array([label not in ("step", "master_weight") for label in FINE_LABELS])
    found: BoolColumn = whole[fine]
    return found


def _states_per_gradient(states: Int64Column) -> int | None:
    """Return how many states of its own size a parameter gets.

    States come parameter by parameter, so their sizes come in runs whose lengths are multiples
    of that number; the last run may be cut short.

    Args:
        states: requested bytes by birth.
    """
    cuts = np.flatnonzero(np.diff(states, prepend=-1))
    runs = np.diff(cuts)
    if not len(runs):
        return None
    common = int(np.gcd.reduce(runs))
    return common if common <= _MAX_STATES else None
