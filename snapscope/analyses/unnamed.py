"""Give bytes without a stack to the sites that the other file knows for blocks of the same sizes.

A recording that began late, or without stacks, differs from a full one of the same program in what
it can name, not in what it holds. What has no stack on one side, and would else be compared with sites
of the other side as if one had gone and another come, is taken for those sites as far as there are
blocks of the same sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from snapscope.analyses.profile import MemoryProfile, SiteEntry, sum_up
from snapscope.analyses.site_match import match_sites
from snapscope.classify.material import Category
from snapscope.model import Notice
from snapscope.sites import BEFORE_LABEL

_MIN_SHARE: Final = 0.5
OTHER_SITES_LABEL: Final = "(without a site in both files)"


def name_by_sizes(before: MemoryProfile, after: MemoryProfile) -> tuple[MemoryProfile, MemoryProfile]:
    """Return both profiles with sites for what has none, where the other profile tells.

    Against a file without any stacks the sites that are left are compared by category.
    """
    gone, come = _lonely(before, after)
    after = _take(after, gone, before)
    before = _take(before, come, after)
    if before.has_stacks != after.has_stacks:
        gone, come = _lonely(before, after)
        before, after = _merged(before, gone), _merged(after, come)
    return before, after


def _lonely(before: MemoryProfile, after: MemoryProfile) -> tuple[list[SiteEntry], list[SiteEntry]]:
    """Return the sites of both sides that the other one doesn't have."""
    pairs = match_sites(_named(before), _named(after))
    return [old for old, new in pairs if old and not new], [new for old, new in pairs if new and not old]


def _named(profile: MemoryProfile) -> list[SiteEntry]:
    return [entry for entry in profile.sites if entry.key]


@dataclass(slots=True)
class _Pool:
    """The blocks of one entry without a stack, and those given away."""

    entry: SiteEntry
    sizes: Counter[int]
    given: Counter[int]


def _take(profile: MemoryProfile, lonely: Sequence[SiteEntry], other: MemoryProfile) -> MemoryProfile:
    """Return a profile in which entries of the other side own blocks that had no stack.

    What has no stack on either side comes first. A block may change its category, if nothing of its own
    needs it, where that was a guess: before the history, or in a file without any stacks.
    """
    pools = [_Pool(entry, Counter(dict(entry.sizes)), Counter()) for entry in profile.sites if not entry.key]
    wanted = [*(entry for entry in other.sites if not entry.key), *sorted(lonely, key=lambda entry: -entry.bytes)]
    missing = [Counter(dict(entry.sizes)) for entry in wanted]
    owned: list[list[tuple[_Pool, Counter[int]]]] = [[] for _ in wanted]
    for fits in (_is_same, _is_of_category, _may_be if profile.has_stacks else _always):
        for entry, lacking, parts in zip(wanted, missing, owned, strict=True):
            for pool in pools:
                found = lacking & pool.sizes if fits(entry, pool.entry) else None
                if found:
                    pool.sizes -= found
                    lacking -= found
                    parts.append((pool, found))
    made: list[SiteEntry] = []
    moves: Counter[tuple[Category, str]] = Counter()
    for entry, parts in zip(wanted, owned, strict=True):
        if entry.key and sum(_bytes(found) for _, found in parts) < _MIN_SHARE * entry.bytes:
            continue
        kept: Counter[int] = Counter()
        for pool, found in parts:
            if _is_same(entry, pool.entry):
                continue
            kept += found
            pool.given += found
            if entry.category is not pool.entry.category:
                moves[entry.category, entry.fine] += _bytes(found)
                moves[pool.entry.category, pool.entry.fine] -= _bytes(found)
        if kept:
            made.append(replace(entry, bytes=_bytes(kept), count=kept.total(), sizes=_sorted(kept)))
    if not made:
        return profile
    rest = [_without(pool.entry, pool.given) for pool in pools]
    return replace(
        profile,
        sites=_sum_up([*_named(profile), *(entry for entry in rest if entry.count or entry.bytes), *made]),
        categories={
            category: size + sum(moved for (into, _), moved in moves.items() if into is category)
            for category, size in profile.categories.items()
        },
        fine=_moved(profile.fine, moves),
        notices=(*profile.notices, *_notices(profile.name, [entry for entry in made if entry.key])),
    )


def _is_same(entry: SiteEntry, own: SiteEntry) -> bool:
    return not entry.key and entry.label == own.label and entry.category is own.category


def _is_of_category(entry: SiteEntry, own: SiteEntry) -> bool:
    return entry.category is own.category


def _may_be(entry: SiteEntry, own: SiteEntry) -> bool:
    return bool(entry.key) and own.label == BEFORE_LABEL


def _always(entry: SiteEntry, own: SiteEntry) -> bool:
    del entry, own
    return True


def _notices(name: str, named: Sequence[SiteEntry]) -> Iterator[Notice]:
    if named:
        yield Notice(
            code="named_by_size",
            message=f"{name}: blocks without a stack are taken for sites of the other file by their sizes",
            count=sum(entry.count for entry in named),
            bytes=sum(entry.bytes for entry in named),
        )


def _merged(profile: MemoryProfile, lonely: Sequence[SiteEntry]) -> MemoryProfile:
    """Return a profile whose lonely sites, and what has no stack, are one entry for each category."""
    names = {(), *(entry.key for entry in lonely)}
    kept = [entry for entry in profile.sites if entry.key not in names]
    hidden = [
        replace(entry, key=(), label=OTHER_SITES_LABEL, lines=()) for entry in profile.sites if entry.key in names
    ]
    return replace(profile, sites=_sum_up([*kept, *hidden]))


def _sum_up(entries: Sequence[SiteEntry]) -> tuple[SiteEntry, ...]:
    """Return entries, those of one label and category without a stack as one, most bytes first."""
    groups: dict[tuple[object, ...], list[SiteEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.key, entry.label, entry.category), []).append(entry)
    summed = []
    for group in groups.values():
        summed.append(sum_up(group))
    return tuple(sorted(summed, key=lambda entry: (-entry.bytes, entry.label, entry.key)))


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _without(entry: SiteEntry, given: Counter[int]) -> SiteEntry:
    left = Counter(dict(entry.sizes)) - given
    return replace(entry, bytes=entry.bytes - _bytes(given), count=entry.count - given.total(), sizes=_sorted(left))


def _sorted(sizes: Counter[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(sizes.items(), key=lambda item: -item[0] * item[1]))


def _moved(
    fine: dict[tuple[Category, str], int], moves: Counter[tuple[Category, str]]
) -> dict[tuple[Category, str], int]:
    """Return fine labels after moves; a label that hasn't enough borrows from others of its category."""
    out = Counter(fine)
    out.update(moves)
    for category in Category:
        debt = 0
        for key in [key for key in out if key[0] is category]:
            debt -= min(out[key], 0)
            out[key] = max(out[key], 0)
        for key in sorted((key for key in out if key[0] is category), key=lambda key: -out[key]):
            paid = min(debt, out[key])
            out[key] -= paid
            debt -= paid
    return {key: size for key, size in sorted(out.items()) if size}
