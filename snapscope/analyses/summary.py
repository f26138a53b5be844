"""The summary: what the file is, what it covers, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snapscope.analyses.coverage import Coverage, find_coverage
from snapscope.analyses.ledger import Balance, By, Ledger, balance, ledger
from snapscope.analyses.moments import Peaks, find_moment, find_peaks, moment_at
from snapscope.analyses.oom import Failure, judge_failure
from snapscope.analyses.pools import PoolRow, pool_rows
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn

_MAX_OOMS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one device's part of a snapshot says at first glance.

    Attributes:
        coverage: what the file can tell.
        peaks: the four peaks.
        ladder: reserved memory at the peak of requested bytes.
        end: reserved memory after the last event.
        ledger: who holds the bytes at that peak.
        oom_ledger: who held them at the last OOM; None without one.
        failures: every oom event, judged; the last ten if there are more.
        pools: free lists of the allocator at the moment that the summary shows.
    """

    coverage: Coverage
    peaks: Peaks
    ladder: Balance
    end: Balance
    ledger: Ledger
    oom_ledger: Ledger | None
    failures: tuple[Failure, ...]
    pools: tuple[PoolRow, ...]


def summarise(
    history: DeviceHistory, *, capacity_bytes: int | None = None, selection: BoolColumn | None = None
) -> Summary:
    """Summarise one device; needs the exact block replay.

    Args:
        history: the device.
        capacity_bytes: the card's size, which no snapshot holds.
        selection: rows of the lifetime table that the ledger groups; the others are one row.
    """
    peak = find_moment(history, "peak")
    at_peak = ledger(history, peak, by=By.SITE, capacity_bytes=capacity_bytes, selection=selection)
    end = balance(history, moment_at(history, history.num_events - 1, "end"), capacity_bytes=capacity_bytes)
    failures = _failures(history, capacity_bytes)
    at_oom = ledger(history, failures[-1].at, capacity_bytes=capacity_bytes, selection=selection) if failures else None
    shown = (at_oom or at_peak).at
    return Summary(
        coverage=find_coverage(history),
        peaks=find_peaks(history),
        ladder=at_peak.balance,
        end=end,
        ledger=at_peak,
        oom_ledger=at_oom,
        failures=failures,
        pools=pool_rows(history, history.layout_at(shown.event)),
    )


def _failures(history: DeviceHistory, capacity_bytes: int | None) -> tuple[Failure, ...]:
    # Hundreds of events can follow one another where a program retries in a loop.
    number = len(history.tables.events.oom_events)
    first = max(number - _MAX_OOMS, 0) + 1
    return tuple(judge_failure(history, n, capacity_bytes=capacity_bytes) for n in range(first, number + 1))
