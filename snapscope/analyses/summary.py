"""The summary: what the file is, what it covers, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snapscope.analyses.coverage import Coverage, find_coverage
from snapscope.analyses.ledger import Balance, By, Ledger, balance, ledger
from snapscope.analyses.moments import Moment, Peaks, find_moment, find_peaks, moment_at
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn
from snapscope.replay.rounding import segment_bytes_for

_MAX_OOMS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OomFacts:
    """What is known of an oom event without judging it.

    Attributes:
        at: the event.
        number: 1 for the first in the history.
        requested_bytes: the request, rounded to a block size.
        segment_bytes: what the driver was asked for: the size in PyTorch's message.
        device_free_bytes: what the driver had free; None unknown.
        site: whose request it was.
        balance: reserved memory then.
    """

    at: Moment
    number: int
    requested_bytes: int
    segment_bytes: int
    device_free_bytes: int | None
    site: str
    balance: Balance


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
        ooms: every oom event.
    """

    coverage: Coverage
    peaks: Peaks
    ladder: Balance
    end: Balance
    ledger: Ledger
    oom_ledger: Ledger | None
    ooms: tuple[OomFacts, ...]


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
    return Summary(
        coverage=find_coverage(history),
        peaks=find_peaks(history),
        ladder=at_peak.balance,
        end=balance(history, moment_at(history, history.num_events - 1, "end"), capacity_bytes=capacity_bytes),
        ledger=at_peak,
        oom_ledger=_oom_ledger(history, capacity_bytes, selection),
        ooms=_ooms(history, capacity_bytes),
    )


def _oom_ledger(history: DeviceHistory, capacity_bytes: int | None, selection: BoolColumn | None) -> Ledger | None:
    if not len(history.tables.events.oom_events):
        return None
    return ledger(history, find_moment(history, "oom"), capacity_bytes=capacity_bytes, selection=selection)


def _ooms(history: DeviceHistory, capacity_bytes: int | None) -> tuple[OomFacts, ...]:
    events = history.tables.events
    out = []
    # Hundreds of events can follow one another where a program retries in a loop.
    for number, event in enumerate(
        events.oom_events.tolist()[-_MAX_OOMS:], max(len(events.oom_events) - _MAX_OOMS, 0) + 1
    ):
        at = moment_at(history, event, f"oom:{number}")
        state = balance(history, at, capacity_bytes=capacity_bytes)
        out.append(
            OomFacts(
                at=at,
                number=number,
                requested_bytes=int(events.size_bytes[event]),
                segment_bytes=segment_bytes_for(int(events.size_bytes[event]), history.snapshot.settings),
                device_free_bytes=state.device_free_bytes,
                site=history.sites.of_stack(int(events.stack[event])).label,
                balance=state,
            )
        )
    return tuple(out)
