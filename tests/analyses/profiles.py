"""Profiles and differences of recordings, and profiles by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snapscope.analyses.diff import Diff, compare
from snapscope.analyses.moments import find_moment
from snapscope.analyses.profile import Key, MemoryProfile, SiteEntry, profile
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests.conftest import fixture_path


def profile_of(history: DeviceHistory, at: str = "peak") -> MemoryProfile:
    return profile(history, find_moment(history, at))


def profile_of_file(path: Any, at: str = "peak", device: int | None = None) -> MemoryProfile:
    return profile_of(DeviceHistory(load_snapshot(path), device), at)


def profile_of_fixture(name: str, at: str = "peak", device: int | None = None) -> MemoryProfile:
    return profile_of_file(fixture_path(name), at, device)


def site(
    name: str,
    *sizes: tuple[int, int],
    stack: Sequence[str] = (),
    category: Category = Category.ACTIVATION,
    fine: str = "saved_tensor",
    line: int = 1,
) -> SiteEntry:
    """Make a site `file.py:line function` of blocks (size, count); a `(name)` has no stack."""
    file, _, function = name.partition(" ")
    key: Key = () if name.startswith("(") else tuple(stack) or (name,)
    return SiteEntry(
        key=key,
        label=f"{file}:{line} {function}" if key else name,
        lines=(line,) if key else (),
        category=category,
        confidence=Confidence.HIGH,
        fine=fine,
        bytes=sum(size * count for size, count in sizes),
        count=sum(count for _, count in sizes),
        sizes=tuple(sizes),
    )


def made(*sites: SiteEntry, **fields: Any) -> MemoryProfile:
    """Make a profile of these sites; every other number is that of an allocator that wastes nothing."""
    total = sum(entry.bytes for entry in sites)
    fine: dict[tuple[Category, str], int] = {}
    for entry in sites:
        fine[entry.category, entry.fine] = fine.get((entry.category, entry.fine), 0) + entry.bytes
    values: dict[str, Any] = {
        "name": "made",
        "device": 0,
        "event": 9,
        "label": "peak",
        "phase": "step 1, backward",
        "requested_bytes": total,
        "allocated_bytes": total,
        "pending_bytes": 0,
        "reserved_bytes": total,
        "free_segments_bytes": 0,
        "holes_bytes": 0,
        "private_pool_bytes": 0,
        "largest_hole_bytes": 0,
        "peak_bytes": dict.fromkeys(("requested", "allocated", "active", "reserved"), total),
        "categories": {
            category: sum(entry.bytes for entry in sites if entry.category is category) for category in Category
        },
        "fine": fine,
        "sites": sites,
        "num_steps": None,
        "step_peaks": (),
        "settings": {},
        "has_stacks": any(entry.key for entry in sites),
        "has_history": True,
        "num_ooms": 0,
    }
    return MemoryProfile(**{**values, **fields})


def check_sums(diff: Diff) -> Diff:
    """Fail unless every part of a difference sums to the whole, to the byte; return the difference."""
    sides = ((diff.before, "before_bytes"), (diff.after, "after_bytes"))
    for side, field in sides:
        for rows in (diff.rows, diff.fine):
            assert sum(getattr(row, field) for row in rows) == side.requested_bytes
            assert all(getattr(row, field) >= 0 for row in rows)
        assert sum(side.categories.values()) == side.requested_bytes
        for category, size in side.categories.items():
            assert sum(getattr(row, field) for row in diff.fine if row.category is category) == size
    assert sum(row.delta_bytes for row in diff.rows) == diff.delta_bytes
    assert sum(diff.delta_of(category) for category in Category) == diff.delta_bytes
    for row in diff.rows:
        for entry in (row.before, row.after):
            if entry is not None and entry.has_all_sizes:
                assert sum(count for _, count in entry.sizes) == entry.count
    return diff


def compared(before: MemoryProfile, after: MemoryProfile) -> Diff:
    return check_sums(compare(before, after))
