"""Gates: limits that the user sets, which fail a build when memory passes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from snapscope.analyses.diff import Diff, DiffRow
from snapscope.analyses.profile import MemoryProfile
from snapscope.analyses.selection import compile_pattern
from snapscope.classify.material import CATEGORY_LABELS, Category
from snapscope.errors import UsageError
from snapscope.units import count_of, format_bytes, format_delta, parse_size

_PERCENT: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%\Z")
_NO_HISTORY: Final = "the file has no history, only a final state"
_SITE: Final = "site:"
_BALANCE: Final = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "holes": "holes_bytes"}

WHAT: Final = ("peak", *CATEGORY_LABELS, *_BALANCE, f"{_SITE}REGEX")
"""What a limit of `diff` may be about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit as the user wrote it.

    Attributes:
        text: that.
        what: one of `WHAT`; `peak` where the text names nothing.
        num_bytes: an absolute limit; None for a relative one.
        millionths: a relative limit, in millionths of the value before; None for an absolute one.
    """

    text: str
    what: str
    num_bytes: int | None
    millionths: int | None

    def bytes_of(self, whole: int) -> int:
        """Return the limit in bytes, of a value that is the whole of a relative one."""
        return self.num_bytes if self.num_bytes is not None else whole * (self.millionths or 0) // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGate:
    """A gate that failed, or that can't be judged.

    Attributes:
        gate: the option with its value.
        what: what it is about.
        limit_bytes: the limit; None where it isn't one of bytes.
        value_bytes: what was found; None where it can't be told.
        reason: one line.
    """

    gate: str
    what: str
    limit_bytes: int | None
    value_bytes: int | None
    reason: str


def parse_limit(text: str) -> Limit:
    """Parse `5%`, `200MiB`, `gradient=1MiB` or `site:REGEX=1MiB`.

    Raises:
        UsageError: the text is no limit.
    """
    name, equals, value = text.rpartition("=")
    what = name.strip() if equals else "peak"
    if what.startswith(_SITE):
        compile_pattern(what.removeprefix(_SITE))
    elif what not in WHAT:
        raise UsageError(f"{text!r} is no limit: before the = stands one of {', '.join(WHAT)}")
    match = _PERCENT.match(value.strip())
    if match is None:
        return Limit(text=text, what=what, num_bytes=parse_size(value), millionths=None)
    whole, _, fraction = match[1].partition(".")
    return Limit(text=text, what=what, num_bytes=None, millionths=int(whole) * 10_000 + int(fraction.ljust(4, "0")[:4]))


def parse_check_limit(text: str, *, is_category: bool = False) -> Limit:
    """Parse `2GiB` or `10%`, or `CATEGORY=2GiB`.

    Raises:
        UsageError: the text is no such limit.
    """
    limit = parse_limit(text)
    if is_category and limit.what not in CATEGORY_LABELS:
        raise UsageError(f"{text!r} is no limit of a category: write one of {', '.join(CATEGORY_LABELS)}, = and a size")
    if not is_category and limit.what != "peak":
        raise UsageError(f"{text!r} is no limit: write a size, or a share such as 10%")
    return limit


def failed_limits(diff: Diff, *, above: Iterable[Limit] = (), below: Iterable[Limit] = ()) -> tuple[FailedGate, ...]:
    """Return the limits that a difference passes.

    Args:
        diff: the difference.
        above: fail if the value grew by more.
        below: fail if it shrank by more.
    """
    out = []
    for option, limits, sign in (("--fail-above", above, 1), ("--fail-below", below, -1)):
        for limit in limits:
            why_not = _why_not(diff, limit)
            if why_not is not None:
                out.append(
                    FailedGate(
                        gate=f"{option} {limit.text}", what=limit.what, limit_bytes=limit.num_bytes, value_bytes=None,
                        reason=f"cannot tell: {why_not}",
                    )
                )  # fmt: skip
                continue
            before, after = _values(diff, limit.what)
            allowed = limit.bytes_of(before)
            delta = after - before
            if delta * sign > allowed:
                way = "grew" if delta > 0 else "shrank"
                out.append(
                    FailedGate(
                        gate=f"{option} {limit.text}",
                        what=limit.what,
                        limit_bytes=allowed,
                        value_bytes=delta,
                        reason=f"{limit.what} {way} by {format_bytes(abs(delta))} (from {format_bytes(before)} to "
                        f"{format_bytes(after)}), more than {limit.text.rpartition('=')[2]}",
                    )
                )
    return tuple(out)


def _why_not(diff: Diff, limit: Limit) -> str | None:
    """Return why a limit can't be judged; None if it can."""
    for side in (diff.before, diff.after):
        if side.label.startswith("peak") and not side.has_history:
            return f"{side.name} has no history, so its peak isn't known (--at end compares the final states)"
        if limit.what.startswith(_SITE) and side.requested_bytes and not side.has_stacks:
            return f"{side.name} has no stacks, so its sites aren't known"
    return None


def rows_of(diff: Diff, what: str) -> list[DiffRow]:
    """Return the rows that a limit is about; of what no site has, such as reserved bytes, none."""
    if what == "peak":
        return list(diff.rows)
    if what in CATEGORY_LABELS:
        return [row for row in diff.rows if row.shown.category.label == what]
    if what.startswith(_SITE):
        pattern = compile_pattern(what.removeprefix(_SITE))
        return [row for row in diff.rows if pattern.search(row.shown.label)]
    return []


def _values(diff: Diff, what: str) -> tuple[int, int]:
    """Return a value before and after."""
    if what == "peak":
        return diff.before.requested_bytes, diff.after.requested_bytes
    if what in _BALANCE:
        return getattr(diff.before, _BALANCE[what]), getattr(diff.after, _BALANCE[what])
    if what in CATEGORY_LABELS:
        category = Category(CATEGORY_LABELS.index(what))
        return diff.before.categories[category], diff.after.categories[category]
    rows = rows_of(diff, what)
    return sum(row.before_bytes for row in rows), sum(row.after_bytes for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What is known of growth over steps: bytes per step, or why that can't be told."""

    per_step_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """The limits of `check`; None or empty = not asked for."""

    max_peak_bytes: int | None = None
    max_reserved_bytes: int | None = None
    max_growth_bytes: int | None = None
    max_fragmentation: Limit | None = None
    max_categories: tuple[Limit, ...] = ()
    no_oom: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return self == CheckLimits()


def failed_checks(profile: MemoryProfile, limits: CheckLimits, *, growth: Growth | None) -> tuple[FailedGate, ...]:
    """Return the checks that one profile, taken at its peak, fails.

    Args:
        profile: the file or baseline.
        limits: what to check.
        growth: needed for `max_growth_bytes`.
    """
    out: list[FailedGate] = []

    def check(option: str, what: str, limit: int, value: int, limit_text: str | None = None) -> None:
        if value > limit:
            text = limit_text or format_bytes(limit)
            out.append(
                FailedGate(
                    gate=f"{option} {text}",
                    what=what,
                    limit_bytes=limit,
                    value_bytes=value,
                    reason=f"{what} is {format_bytes(value)}, {format_delta(value - limit)} over {text}",
                )
            )
        elif not profile.has_history:
            # What is there at the end may pass; what was there before isn't known.
            out.append(
                FailedGate(
                    gate=f"{option} {limit_text or format_bytes(limit)}", what=what, limit_bytes=limit,
                    value_bytes=None, reason=f"cannot tell: {_NO_HISTORY}",
                )
            )  # fmt: skip

    if limits.max_peak_bytes is not None:
        check("--max-peak", "peak", limits.max_peak_bytes, profile.peak_bytes["requested"])
    if limits.max_reserved_bytes is not None:
        check("--max-reserved", "reserved peak", limits.max_reserved_bytes, profile.peak_bytes["reserved"])
    for limit in limits.max_categories:
        value = profile.categories[Category(CATEGORY_LABELS.index(limit.what))]
        check("--max", limit.what, limit.bytes_of(profile.requested_bytes), value, limit.text.rpartition("=")[2])
    if limits.max_fragmentation is not None:
        limit = limits.max_fragmentation
        text = limit.text if limit.millionths is None else f"{limit.text} of what is reserved"
        check("--max-fragmentation", "holes at the peak", limit.bytes_of(profile.reserved_bytes),
              profile.holes_bytes, text)  # fmt: skip
    if limits.max_growth_bytes is not None:
        out += _check_growth(limits.max_growth_bytes, growth)
    if limits.no_oom and (profile.num_ooms or not profile.has_history):
        reason = f"the history holds {count_of(profile.num_ooms, 'oom event')}"
        if not profile.num_ooms:
            reason = f"cannot tell: {_NO_HISTORY}"
        out.append(FailedGate(gate="--no-oom", what="out of memory", limit_bytes=None, value_bytes=None, reason=reason))
    return tuple(out)


def _check_growth(limit: int, growth: Growth | None) -> list[FailedGate]:
    gate = f"--max-growth {format_bytes(limit)}"
    if growth is None or growth.per_step_bytes is None:
        why = growth.reason if growth is not None else "growth isn't known"
        return [FailedGate(gate=gate, what="growth per step", limit_bytes=limit, value_bytes=None,
                           reason=f"cannot tell: {why}")]  # fmt: skip
    if growth.per_step_bytes <= limit:
        return []
    return [
        FailedGate(
            gate=gate, what="growth per step", limit_bytes=limit, value_bytes=growth.per_step_bytes,
            reason=f"live bytes grow by {format_bytes(growth.per_step_bytes)} a step, more than {format_bytes(limit)}",
        )
    ]  # fmt: skip
