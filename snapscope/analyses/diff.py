"""Why two peaks differ: rows that sum to the difference, to the byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from snapscope.analyses.profile import Key, MemoryProfile, SiteEntry, sum_up
from snapscope.analyses.site_match import match_sites
from snapscope.analyses.unnamed import name_by_sizes
from snapscope.classify.material import Category

# What tells labels of one file apart, which may take another form in the other file.
_BESIDE: Final = re.compile(r" [<>] .*", re.DOTALL)
_NOISE_BYTES: Final = 64 << 10
_NOISE_SHARE: Final = 10_000


class Change(str, Enum):
    """What became of a site."""

    GROWN = "grown"
    SHRUNK = "shrunk"
    NEW = "new"
    GONE = "gone"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One site on both sides.

    Attributes:
        before, after: the site there; None where it isn't.
        change: `same` also where the difference is below the noise floor.
    """

    before: SiteEntry | None
    after: SiteEntry | None
    change: Change

    @property
    def before_bytes(self) -> int:
        """Requested bytes before."""
        return self.before.bytes if self.before is not None else 0

    @property
    def after_bytes(self) -> int:
        """Requested bytes after."""
        return self.after.bytes if self.after is not None else 0

    @property
    def delta_bytes(self) -> int:
        """What it grew by; negative if it shrank."""
        return self.after_bytes - self.before_bytes

    @property
    def shown(self) -> SiteEntry:
        """The side that names the row: the later one where there is one."""
        entry = self.after or self.before
        assert entry is not None
        return entry

    @property
    def moved(self) -> tuple[str, str] | None:
        """Where the site was and is, if it is shown otherwise now; None else."""
        if self.before is None or self.after is None or not self.after.key or self.before.label == self.after.label:
            return None
        if not self.before.key or _BESIDE.sub("", self.before.label) == _BESIDE.sub("", self.after.label):
            return None
        # Another line of the same site may weigh most now: that is no move.
        if self.before.key == self.after.key and set(self.before.lines) & set(self.after.lines):
            return None
        return self.before.label, self.after.label

    @property
    def size_changes(self) -> tuple[tuple[int, int, int], ...]:
        """(requested bytes of one block, how many before, how many after) where these differ, most bytes first.

        Without sizes of which one side can't say how many it has, for it lists only those that weigh most.
        """
        old = dict(self.before.sizes) if self.before is not None else {}
        new = dict(self.after.sizes) if self.after is not None else {}
        known = {*old, *new}
        if self.before is not None and not self.before.has_all_sizes:
            known &= {*old}
        if self.after is not None and not self.after.has_all_sizes:
            known &= {*new}
        changed = [(size, old.get(size, 0), new.get(size, 0)) for size in known]
        return tuple(
            sorted((row for row in changed if row[1] != row[2]), key=lambda row: (-row[0] * abs(row[2] - row[1]), row))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FineChange:
    """Live bytes of one fine label of a category on both sides."""

    category: Category
    label: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The peak within one step on both sides; None where there is no such step."""

    name: str
    before_bytes: int | None
    after_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """One allocator setting on both sides; None where it isn't known."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two profiles compared.

    Attributes:
        before, after: the sides.
        rows: all sites, most bytes of change first; their deltas sum to `delta_bytes`.
        fine: all fine labels that either side has, by category; they sum too.
        steps: complete steps that either side has, in order.
        settings: those that differ.
        noise_bytes: up to here a site counts as the same.
    """

    before: MemoryProfile
    after: MemoryProfile
    rows: tuple[DiffRow, ...]
    fine: tuple[FineChange, ...]
    steps: tuple[StepChange, ...]
    settings: tuple[SettingChange, ...]
    noise_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Requested bytes after, less those before."""
        return self.after.requested_bytes - self.before.requested_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs above the noise floor."""
        return all(row.change is Change.SAME for row in self.rows)

    def delta_of(self, category: Category) -> int:
        """Return the difference of one category."""
        return self.after.categories[category] - self.before.categories[category]


def compare(before: MemoryProfile, after: MemoryProfile) -> Diff:
    """Compare two profiles site by site."""
    before, after = name_by_sizes(before, after)
    noise = max(_NOISE_BYTES, max(before.requested_bytes, after.requested_bytes) // _NOISE_SHARE)
    old_sites, new_sites = _whole_where_same(before.sites, after.sites, noise)
    rows = [
        DiffRow(before=old, after=new, change=_change(old, new, noise))
        for old, new in match_sites(old_sites, new_sites)
    ]
    names = sorted(before.settings.keys() | after.settings.keys())
    return Diff(
        before=before,
        after=after,
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.delta_bytes), -row.after_bytes, row.shown.label))),
        fine=tuple(
            FineChange(category=category, label=label, before_bytes=old_bytes, after_bytes=new_bytes)
            for category, label in sorted(before.fine.keys() | after.fine.keys())
            for old_bytes, new_bytes in ((before.fine.get((category, label), 0), after.fine.get((category, label), 0)),)
        ),
        steps=_steps(before, after),
        settings=tuple(
            SettingChange(name=name, before=before.settings.get(name), after=after.settings.get(name))
            for name in names
            if before.settings.get(name) != after.settings.get(name)
        ),
        noise_bytes=noise,
    )


def _whole_where_same(
    before: Sequence[SiteEntry], after: Sequence[SiteEntry], noise: int
) -> tuple[list[SiteEntry], list[SiteEntry]]:
    """Return the sites of both sides; one that holds as much as before is one entry whatever its categories.

    What a block is called may vary from run to run though nothing has changed.
    """
    sums: Counter[Key] = Counter()
    for entries, sign in ((before, -1), (after, 1)):
        for entry in entries:
            sums[entry.key] += sign * entry.bytes
    common = {entry.key for entry in before if entry.key} & {entry.key for entry in after}
    same = {key for key in common if abs(sums[key]) <= noise}
    return _as_whole(before, same), _as_whole(after, same)


def _as_whole(entries: Sequence[SiteEntry], keys: set[Key]) -> list[SiteEntry]:
    groups: dict[Key, list[SiteEntry]] = {}
    for entry in entries:
        if entry.key in keys:
            groups.setdefault(entry.key, []).append(entry)
    return [
        *(entry for entry in entries if entry.key not in keys),
        *(sum_up(group) if len(group) > 1 else group[0] for group in groups.values()),
    ]


def _steps(before: MemoryProfile, after: MemoryProfile) -> tuple[StepChange, ...]:
    old, new = dict(before.step_peaks), dict(after.step_peaks)
    # Those of the longer run in its order, then what only the other has.
    longer, shorter = (old, new) if len(old) > len(new) else (new, old)
    return tuple(
        StepChange(name=name, before_bytes=old.get(name), after_bytes=new.get(name))
        for name in dict.fromkeys((*longer, *shorter))
    )


def _change(old: SiteEntry | None, new: SiteEntry | None, noise: int) -> Change:
    delta = (new.bytes if new is not None else 0) - (old.bytes if old is not None else 0)
    if abs(delta) <= noise:
        return Change.SAME
    if old is None:
        return Change.NEW
    if new is None:
        return Change.GONE
    return Change.GROWN if delta > 0 else Change.SHRUNK
