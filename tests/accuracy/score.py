"""How much of a recording the classifier gets right, in bytes.

Two weights: the bytes that live at the peak (the first maximum of requested bytes), and bytes × events, each
allocation weighted by its size and by how long it lived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from snapscope.classify.decide import Classification
from snapscope.classify.material import CATEGORY_LABELS
from snapscope.history import DeviceHistory
from snapscope.model import EMPTY_STACK, Action, Int8Column, Int64Column
from snapscope.replay import REQUESTED_BEFORE
from tests.accuracy.truth import UNKNOWN

FloatColumn = npt.NDArray[np.float64]


@dataclass(slots=True)
class Share:
    """How much was right, of how much, at the peak and over bytes × events."""

    right_at_peak: float = 0
    total_at_peak: float = 0
    right_over_time: float = 0
    total_over_time: float = 0

    @property
    def at_peak(self) -> float:
        """Share right of the bytes at the peak; 1 of nothing."""
        return self.right_at_peak / self.total_at_peak if self.total_at_peak else 1.0

    @property
    def over_time(self) -> float:
        """Share right of bytes × events; 1 of nothing."""
        return self.right_over_time / self.total_over_time if self.total_over_time else 1.0

    def add(self, other: Share) -> None:
        self.right_at_peak += other.right_at_peak
        self.total_at_peak += other.total_at_peak
        self.right_over_time += other.right_over_time
        self.total_over_time += other.total_over_time


@dataclass(slots=True, kw_only=True)
class Score:
    """What one recording scored, or several together.

    Attributes:
        share: of everything whose truth is known.
        confusion: bytes at the peak by (true category, decided category).
        by_evidence, by_confidence: the share of what each code decided.
        levels: the levels of confidence that each kind of evidence came with.
        losses: the share (nothing of it right) by (true category, decided category, evidence).
        unknown_bytes: bytes at the peak without truth; they are in nothing above.
        has_stacks: whether any allocation of the history has frames.
    """

    share: Share = field(default_factory=Share)
    confusion: FloatColumn = field(default_factory=lambda: np.zeros((len(CATEGORY_LABELS),) * 2))
    by_evidence: dict[int, Share] = field(default_factory=dict)
    by_confidence: dict[int, Share] = field(default_factory=dict)
    levels: dict[int, set[int]] = field(default_factory=dict)
    losses: dict[tuple[int, int, int], Share] = field(default_factory=dict)
    unknown_bytes: float = 0
    has_stacks: bool = False


def peak_event(history: DeviceHistory) -> int:
    """Return the event after which the most was requested, the first of several; −1 before all."""
    return int(np.argmax(history.totals.requested_bytes)) - 1


def ages(history: DeviceHistory) -> Int64Column:
    """Return over how many events each allocation of a device lived."""
    lifetimes, num_events = history.lifetimes, history.num_events
    asked = lifetimes.free_requested_event
    death = np.where(asked == REQUESTED_BEFORE, 0, np.where(asked < 0, num_events, asked))
    lived: Int64Column = np.maximum(death - np.maximum(lifetimes.birth_event, 0), 0).astype(np.int64)
    return lived


def score(history: DeviceHistory, truth: Int8Column, decided: Classification | None = None) -> Score:
    """Compare the classification of a device with the truth.

    Args:
        history: the device.
        truth: true category of every lifetime, `UNKNOWN` where there is none.
        decided: what to score; the classifier's own decision if not given.
    """
    decided = decided if decided is not None else history.classification
    size = history.lifetimes.requested_bytes.astype(np.float64)
    at_peak = np.zeros(len(size))
    live = history.lifetimes.live_at(peak_event(history))
    at_peak[live] = size[live]
    over_time = size * ages(history)
    is_known = truth != UNKNOWN
    is_right = (decided.category == truth) & is_known
    events = history.tables.events
    result = Score(
        unknown_bytes=float(at_peak[~is_known].sum()),
        has_stacks=bool((events.stack[events.action == Action.ALLOC] > EMPTY_STACK).any()),
    )
    result.share = _share(at_peak, over_time, is_known, is_right)
    np.add.at(result.confusion, (truth[is_known], decided.category[is_known]), at_peak[is_known])
    for column, shares in ((decided.evidence, result.by_evidence), (decided.confidence, result.by_confidence)):
        for code in np.unique(column[is_known]).tolist():
            shares[code] = _share(at_peak, over_time, is_known & (column == code), is_right)
    for code in result.by_evidence:
        result.levels[code] = set(np.unique(decided.confidence[decided.evidence == code]).tolist())
    wrong = np.stack((truth, decided.category, decided.evidence), axis=1)[is_known & ~is_right]
    for true, said, evidence in np.unique(wrong, axis=0).tolist():
        rows = (truth == true) & (decided.category == said) & (decided.evidence == evidence)
        result.losses[true, said, evidence] = _share(at_peak, over_time, rows, is_right)
    return result


def _share(
    at_peak: FloatColumn, over_time: FloatColumn, rows: npt.NDArray[np.bool_], is_right: npt.NDArray[np.bool_]
) -> Share:
    right = rows & is_right
    return Share(
        right_at_peak=float(at_peak[right].sum()),
        total_at_peak=float(at_peak[rows].sum()),
        right_over_time=float(over_time[right].sum()),
        total_over_time=float(over_time[rows].sum()),
    )


def add_up(scores: Iterable[Score]) -> Score:
    """Add the bytes of several recordings up."""
    total = Score()
    for one in scores:
        total.share.add(one.share)
        total.confusion += one.confusion
        total.unknown_bytes += one.unknown_bytes
        for shares, more in ((total.by_evidence, one.by_evidence), (total.by_confidence, one.by_confidence)):
            for code, share in more.items():
                shares.setdefault(code, Share()).add(share)
        for code, levels in one.levels.items():
            total.levels.setdefault(code, set()).update(levels)
        for key, share in one.losses.items():
            total.losses.setdefault(key, Share()).add(share)
    return total
