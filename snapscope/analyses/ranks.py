"""Ranks of one job side by side: which holds more than the others, where, and which failed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from snapscope.analyses.diff import Diff, compare
from snapscope.analyses.moments import Moment
from snapscope.analyses.oom import Failure, judge_failure
from snapscope.analyses.profile import MemoryProfile, SiteEntry, profile
from snapscope.analyses.rank_names import RankId, sort_key
from snapscope.analyses.verdict import Cause
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, NO_TIME

LIMIT_PERCENT: Final = 5
"""A rank that differs from the median by more than this is called unbalanced."""

_NOISE_BYTES: Final = 64 << 10
_NOISE_SHARE: Final = 10_000
_MIN_ROOM_PERCENT: Final = 1
_MIN_STRAY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankFile:
    """What one rank's file tells, small enough to be sent between processes.

    Attributes:
        file: its path (untrusted text).
        profile: who holds the memory at the moment compared.
        first_oom_us: time of the first `oom` event, in epoch microseconds; None without one, or without times.
        failure: the last `oom` event, judged; None without one.
        other_devices: (device, reserved bytes) of other GPUs that the process also has memory on.
    """

    file: str
    profile: MemoryProfile
    first_oom_us: int | None = None
    failure: Failure | None = None
    other_devices: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rank:
    """One rank among the others.

    Attributes:
        rank: number or name, unlike any other's.
        source: what its file tells.
        over_median: its bytes as a multiple of the median; None where that is 0.
        group: index of its group of ranks that look identical.
    """

    rank: RankId
    source: RankFile
    over_median: float | None
    group: int

    @property
    def requested_bytes(self) -> int:
        """What is compared: requested bytes at the moment."""
        return self.source.profile.requested_bytes

    @property
    def room_bytes(self) -> int | None:
        """What PyTorch could have had of its card at most, when it ran out of memory; None if unknown."""
        failure = self.source.failure
        if failure is None or failure.request.device_free_bytes is None:
            return None
        return failure.balance.reserved_bytes + failure.request.device_free_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortage:
    """A rank that failed with less room than another one is known to have had.

    Attributes:
        rank: it.
        room_bytes: reserved and device free when it failed.
        other: the rank with the most room known.
        other_bytes: what that one had reserved at most, or its room when it failed.
    """

    rank: Rank
    room_bytes: int
    other: Rank
    other_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankReport:
    """The ranks compared.

    Attributes:
        ranks: by number.
        groups: ranks that look identical together, in the order of their first.
        median_bytes: of the requested bytes, rounded down.
        max_over_median: of the highest; None where the median is 0.
        median_rank: the rank that is nearest to the median.
        outliers: ranks that differ from the median by more than 5 %: those above, the highest first,
            then those below, the lowest first. Never one that is like the median rank.
        first_oom: the rank that ran out of memory first; None if none did, or if the times don't tell.
        ooms: ranks that ran out of memory, the first first.
        compared: the rank that `diff` tells about: the first outlier, else the highest.
        diff: from the median rank to it; None where they are the same one, or look identical.
        shortages: ranks that failed with less room than others had.
    """

    ranks: tuple[Rank, ...]
    groups: tuple[tuple[Rank, ...], ...]
    median_bytes: int
    max_over_median: float | None
    median_rank: Rank
    outliers: tuple[Rank, ...]
    first_oom: Rank | None
    ooms: tuple[Rank, ...]
    compared: Rank
    diff: Diff | None
    shortages: tuple[Shortage, ...]

    @property
    def is_unbalanced(self) -> bool:
        """Whether any rank differs from the median by more than 5 %."""
        return bool(self.outliers)

    def delta_of(self, rank: Rank, category: Category) -> int:
        """Return what a rank has more than the median rank of one category."""
        return rank.source.profile.categories[category] - self.median_rank.source.profile.categories[category]


def read_rank(history: DeviceHistory, at: Moment, *, capacity_bytes: int | None = None) -> RankFile:
    """Take from a history what is compared between ranks; needs the exact block replay."""
    events = history.tables.events
    number = len(events.oom_events)
    first_us = int(events.time_us[events.oom_events[0]]) if number else NO_TIME
    return RankFile(
        file=history.snapshot.source.name,
        profile=profile(history, at),
        first_oom_us=None if first_us == NO_TIME else first_us,
        failure=judge_failure(history, number, capacity_bytes=capacity_bytes) if number else None,
        other_devices=tuple(
            (tables.device, tables.reserved_bytes)
            for tables in history.snapshot.devices
            if tables.device not in (history.device, HOST_DEVICE) and tables.reserved_bytes >= _MIN_STRAY_BYTES
        ),
    )


def compare_ranks(named: Sequence[tuple[RankId, RankFile]]) -> RankReport:
    """Compare ranks, each at its own moment.

    Args:
        named: at least one rank with what its file tells; no two have the same name.
    """
    ordered = sorted(named, key=lambda item: sort_key(item[0]))
    sizes = sorted(source.profile.requested_bytes for _, source in ordered)
    # Twice the median is an integer.
    double = sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]
    groups = _group([source for _, source in ordered])
    ranks = tuple(
        Rank(
            rank=rank,
            source=source,
            over_median=2 * source.profile.requested_bytes / double if double else None,
            group=group,
        )
        for (rank, source), group in zip(ordered, groups, strict=True)
    )
    members = tuple(tuple(rank for rank in ranks if rank.group == group) for group in range(max(groups) + 1))
    # Of ranks equally near, one of those that most others look like, and rather a low than a high one.
    median_rank = min(
        ranks,
        key=lambda rank: (
            abs(2 * rank.requested_bytes - double),
            rank.requested_bytes,
            -len(members[rank.group]),
        ),
    )
    outliers = _outliers(ranks, median_rank, double)
    compared = outliers[0] if outliers else max(ranks, key=lambda rank: rank.requested_bytes)
    is_same = compared.group == median_rank.group
    ooms = _in_time([rank for rank in ranks if rank.source.failure is not None or rank.source.profile.num_ooms])
    return RankReport(
        ranks=ranks,
        groups=members,
        median_bytes=double // 2,
        max_over_median=2 * sizes[-1] / double if double else None,
        median_rank=median_rank,
        outliers=outliers,
        first_oom=ooms[0] if len(ooms) == 1 or (ooms and ooms[0].source.first_oom_us is not None) else None,
        ooms=ooms,
        compared=compared,
        diff=None if is_same else compare(median_rank.source.profile, compared.source.profile),
        shortages=tuple(_shortages(ranks)),
    )


def _outliers(ranks: Sequence[Rank], median_rank: Rank, double: int) -> tuple[Rank, ...]:
    """Return the ranks that differ by more than the limit, from the median and from the rank that stands for it.

    Of two ranks the median lies halfway, and both differ from it: the lower one stands for it.
    """
    nearest = median_rank.requested_bytes
    far = [
        rank
        for rank in ranks
        if abs(2 * rank.requested_bytes - double) * 100 > LIMIT_PERCENT * double
        and abs(rank.requested_bytes - nearest) * 100 > LIMIT_PERCENT * nearest
    ]
    above = sorted((r for r in far if r.requested_bytes > nearest), key=lambda rank: -rank.requested_bytes)
    below = sorted((r for r in far if r.requested_bytes < nearest), key=lambda rank: rank.requested_bytes)
    return (*above, *below)


def _in_time(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Sort failed ranks by the time of their first failure, those without a time last."""
    return tuple(sorted(ranks, key=lambda rank: (rank.source.first_oom_us is None, rank.source.first_oom_us or 0)))


def _group(sources: Sequence[RankFile]) -> list[int]:
    """Number the groups of ranks that look identical, in order of appearance."""
    contents: list[tuple[RankFile, dict[tuple[object, ...], SiteEntry]]] = []
    groups: list[int] = []
    for source in sources:
        content = _content(source.profile)
        found = next((n for n, (other, theirs) in enumerate(contents) if _alike(source, other, content, theirs)), None)
        if found is None:
            found = len(contents)
            contents.append((source, content))
        groups.append(found)
    return groups


def _content(side: MemoryProfile) -> dict[tuple[object, ...], SiteEntry]:
    return {(entry.key, entry.category, None if entry.key else entry.label): entry for entry in side.sites}


def _alike(
    one: RankFile,
    other: RankFile,
    left: dict[tuple[object, ...], SiteEntry],
    right: dict[tuple[object, ...], SiteEntry],
) -> bool:
    """Tell whether two ranks hold the same at the same sites, up to what nobody would look for."""
    a, b = one.profile, other.profile
    noise = max(_NOISE_BYTES, max(a.requested_bytes, b.requested_bytes) // _NOISE_SHARE)
    if abs(a.requested_bytes - b.requested_bytes) > noise or _cause(one) != _cause(other):
        return False
    if any(abs(a.categories[category] - b.categories[category]) > noise for category in Category):
        return False
    for key in left.keys() | right.keys():
        mine, theirs = left.get(key), right.get(key)
        if abs((mine.bytes if mine else 0) - (theirs.bytes if theirs else 0)) > noise:
            return False
    return True


def _cause(source: RankFile) -> tuple[bool, Cause | None]:
    return bool(source.profile.num_ooms), source.failure.verdict.cause if source.failure is not None else None


def _shortages(ranks: Sequence[Rank]) -> list[Shortage]:
    known = [(max(rank.source.profile.peak_bytes.get("reserved", 0), rank.room_bytes or 0), rank) for rank in ranks]
    found = []
    for rank in ranks:
        room = rank.room_bytes
        if room is None:
            continue
        most, other = max(known, key=lambda item: item[0])
        if (most - room) * 100 > _MIN_ROOM_PERCENT * room:
            found.append(Shortage(rank=rank, room_bytes=room, other=other, other_bytes=most))
    return found
