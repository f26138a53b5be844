"""Moments: which event a person means by `peak`, `oom:2` or `time:…`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np

from snapscope.errors import UsageError
from snapscope.history import DeviceHistory
from snapscope.model import NO_TIME, Int64Column

FORMS: Final = (
    "peak, peak-allocated, peak-active, peak-reserved, oom, oom:N, start, end, event:N, step:N or time:T (µs or ISO)"
)
_STEP: Final = re.compile(r"step:([0-9]{1,9}|init|rest)\Z")
_NUMBERED: Final = re.compile(r"(event|oom):(-?[0-9]{1,15})\Z")
_BARE_NUMBER: Final = re.compile(r"-?[0-9]{1,15}\Z")
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?(Z|([+-])([0-9]{2}):([0-9]{2}))?)?\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of the history: the state after an event.

    Attributes:
        event: index of the event; −1 = before the first.
        label: what was asked for, e.g. `peak`.
        time_us: Unix epoch microseconds, None where the file has no times.
    """

    event: int
    label: str
    time_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A highest value and the event after which it was first reached (−1: before the first)."""

    event: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The four peaks of a device; they need not coincide."""

    requested: Peak
    allocated: Peak
    active: Peak
    reserved: Peak


def find_peaks(history: DeviceHistory) -> Peaks:
    """Find the first maximum of each kind of bytes; needs the exact block replay."""
    blocks = history.block_totals
    return Peaks(
        requested=_peak(history.totals.requested_bytes),
        allocated=_peak(blocks.allocated_bytes),
        active=_peak(blocks.allocated_bytes + blocks.pending_bytes),
        reserved=_peak(history.totals.reserved_bytes),
    )


def find_moment(history: DeviceHistory, at: str = "peak") -> Moment:
    """Resolve `--at`.

    Args:
        history: the device.
        at: one of `FORMS`.

    Raises:
        UsageError: the text means nothing, or the file has no such event.
    """
    text = at.strip()
    num_events = history.num_events
    if text == "peak":
        return moment_at(history, _peak(history.totals.requested_bytes).event, text)
    if text == "peak-reserved":
        return moment_at(history, _peak(history.totals.reserved_bytes).event, text)
    if text in ("peak-allocated", "peak-active"):
        peaks = find_peaks(history)
        return moment_at(history, (peaks.allocated if text == "peak-allocated" else peaks.active).event, text)
    if text == "start":
        return moment_at(history, -1, text)
    if text == "end":
        return moment_at(history, num_events - 1, text)
    if text == "oom":
        return moment_at(history, _oom(history, None), text)
    if match := _NUMBERED.match(text):
        number = int(match[2])
        if match[1] == "oom":
            return moment_at(history, _oom(history, number), text)
        if number >= 0 and not num_events:
            raise UsageError(f"no event {number}: {history.tables.label} has no history, only a final state")
        if not -1 <= number < num_events:
            raise UsageError(
                f"no event {number}: {history.tables.label} has events 0 to {num_events - 1}, and -1 = start"
            )
        return moment_at(history, number, text)
    if match := _STEP.match(text):
        return moment_at(history, _step_peak(history, match[1]), text)
    if text.startswith("time:"):
        return moment_at(history, _event_at_time(history, text[5:]), text)
    if _BARE_NUMBER.match(text):
        raise UsageError(f"--at {at!r} is no moment: for the event of that number write event:{text}")
    raise UsageError(f"--at {at!r} is no moment: use {FORMS}")


def moment_at(history: DeviceHistory, event: int, label: str | None = None) -> Moment:
    """Make a moment of an event index."""
    time_us = int(history.tables.events.time_us[event]) if event >= 0 else NO_TIME
    return Moment(event=event, label=label or f"event:{event}", time_us=None if time_us == NO_TIME else time_us)


def _peak(totals: Int64Column) -> Peak:
    # argmax returns the first of several equal maxima, so the answer is stable.
    index = int(np.argmax(totals))
    return Peak(event=index - 1, bytes=int(totals[index]))


def _step_peak(history: DeviceHistory, wanted: str) -> int:
    """Return the event of the peak within a step."""
    steps = {step.name: step for step in history.steps.steps}
    step = steps.get(f"step {int(wanted)}" if wanted.isdigit() else wanted)
    if step is None:
        known = [name.removeprefix("step ") for name in steps if name.startswith("step ")]
        which = f"there are {known[0]} to {known[-1]}" if known else "no steps can be told in this history"
        raise UsageError(f"no step:{wanted}: {which}")
    inside = history.totals.requested_bytes[step.start_event + 1 : step.end_event + 2]
    return step.start_event + int(np.argmax(inside))


def _oom(history: DeviceHistory, number: int | None) -> int:
    ooms = history.tables.events.oom_events
    if not len(ooms):
        others = [tables.label for tables in history.snapshot.devices if len(tables.events.oom_events)]
        instead = f"{', '.join(others)} has one: use --device" if others else "use --at peak or --at end"
        raise UsageError(f"no oom event in the history of {history.tables.label}: {instead}")
    if number is None:
        return int(ooms[-1])
    if not 1 <= number <= len(ooms):
        raise UsageError(f"no oom:{number}: {history.tables.label} has oom:1 to oom:{len(ooms)}")
    return int(ooms[number - 1])


def _event_at_time(history: DeviceHistory, text: str) -> int:
    """Return the last event at or before a time."""
    times = history.tables.events.time_us
    if not len(times):
        raise UsageError(f"no time to look for: {history.tables.label} has no history, only a final state")
    if times[0] == NO_TIME:
        raise UsageError("the events of this file have no times (PyTorch before 2.2): use --at event:N")
    wanted = _parse_time(text.strip())
    if not int(times[0]) <= wanted <= int(times[-1]):
        first, last = (format_time(int(times[i])) for i in (0, -1))
        raise UsageError(f"{text} lies outside the history, which runs from {first} to {last} (UTC)")
    return int(np.searchsorted(times, wanted, side="right")) - 1


def _parse_time(text: str) -> int:
    """Return microseconds since 1970.

    `datetime.fromisoformat` takes other forms in every version of Python.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    match = _TIME.match(text)
    try:
        if match is None:
            raise ValueError
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        micros = int((match[7] or "").ljust(6, "0"))
        offset = timedelta(hours=int(match[10] or 0), minutes=int(match[11] or 0))
        if offset >= timedelta(days=1) or int(match[11] or 0) > 59:
            raise ValueError
        moment = datetime(year, month, day, hour, minute, second, micros)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time: give microseconds since 1970, or ISO 8601 in UTC such as 2025-10-09T08:53:20.000030"
        ) from None
    delta = moment - datetime(1970, 1, 1) - (-offset if match[9] == "-" else offset)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def format_time(time_us: int) -> str:
    """Format microseconds since 1970 as ISO 8601 in UTC; as a bare number beyond year 9999."""
    if not 0 <= time_us < 253_402_300_800_000_000:
        return str(time_us)
    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") + f".{micros:06d}"
