"""Why two peaks differ: rows that sum to the difference, to the byte."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from snapscope.analyses.profile import MemoryProfile, SiteEntry
from snapscope.analyses.site_match import match_sites
from snapscope.classify.material import Category

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
        # Another line of the same site may weigh most now: that is no move.
        if self.before.key == self.after.key and set(self.before.lines) & set(self.after.lines):
            return None
        return self.before.label, self.after.label

    @property
    def size_changes(self) -> tuple[tuple[int, int, int], ...]:
        """(requested bytes of one block, how many before, how many after) where these differ."""
        old = dict(self.before.sizes) if self.before is not None else {}
        new = dict(self.after.sizes) if self.after is not None else {}
        changed = [(size, old.get(size, 0), new.get(size, 0)) for size in {**old, **new}]
        return tuple(sorted((row for row in changed if row[1] != row[2]), key=lambda row: -row[0] * max(row[1:])))


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
        settings: those that differ.
        noise_bytes: up to here a site counts as the same.
    """

    before: MemoryProfile
    after: MemoryProfile
    rows: tuple[DiffRow, ...]
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
    noise = max(_NOISE_BYTES, max(before.requested_bytes, after.requested_bytes) // _NOISE_SHARE)
    rows = [
        DiffRow(before=old, after=new, change=_change(old, new, noise))
        for old, new in match_sites(before.sites, after.sites)
    ]
    names = sorted(before.settings.keys() | after.settings.keys())
    return Diff(
        before=before,
        after=after,
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.delta_bytes), -row.after_bytes, row.shown.label))),
        settings=tuple(
            SettingChange(name=name, before=before.settings.get(name), after=after.settings.get(name))
            for name in names
            if before.settings.get(name) != after.settings.get(name)
        ),
        noise_bytes=noise,
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
