"""Which sites of two profiles are the same, though lines, paths or names have changed.

In order: the same frames; the same but for folders; the same functions in other files; the same
frames once those that only one side knows are left out (a renamed function, an inserted wrapper);
then what is left pairs off where its blocks are the same and its frames alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

from snapscope.analyses.profile import Key, SiteEntry

Pair = tuple[SiteEntry | None, SiteEntry | None]

_MIN_ALIKE: Final = 0.6
_MIN_ALIKE_INSIDE: Final = 0.4
_MIN_ALIKE_OF_SAME_BLOCKS: Final = 0.3
_MIN_SAME_BLOCKS: Final = 0.5
_MAX_RIVALS: Final = 24
_MAX_FRAMES: Final = 100


def match_sites(before: Sequence[SiteEntry], after: Sequence[SiteEntry]) -> list[Pair]:
    """Pair the sites of two profiles; every site is in one pair, alone where it has no partner."""
    pairs: list[Pair] = []
    left, right = list(before), list(after)
    vocabulary = _names(left) & _names(right)
    for key, fits in (
        (lambda entry: (entry.key, entry.category), _always),
        (lambda entry: entry.key or None, _may_change_category),
        (lambda entry: _bare(entry.key) or None, _may_change_category),
        (lambda entry: tuple(name.rpartition(" ")[2] for name in entry.key) or None, _is_in_same_library),
        (lambda entry: tuple(name for name in _bare(entry.key) if name in vocabulary) or None, _is_alike),
        (lambda entry: (entry.category, entry.sizes), _has_same_blocks),
    ):
        found, left, right = _match(left, right, key, fits)
        pairs += found
    return [*pairs, *((entry, None) for entry in left), *((None, entry) for entry in right)]


def _match(
    before: list[SiteEntry],
    after: list[SiteEntry],
    key: Callable[[SiteEntry], Hashable | None],
    fits: Callable[[SiteEntry, SiteEntry], bool],
) -> tuple[list[Pair], list[SiteEntry], list[SiteEntry]]:
    """Pair entries of equal key that fit, the most alike first; return them and what is left."""
    groups: dict[Hashable, tuple[list[SiteEntry], list[SiteEntry]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((before, after)):
        for entry in entries:
            name = key(entry)
            if name is not None:
                groups[name][side].append(entry)
    pairs: list[Pair] = []
    taken: set[int] = set()
    for olds, news in groups.values():
        is_clear = len(olds) == len(news) == 1
        scored = sorted(
            (
                ((() if is_clear else _unlikeness(old, new)), place_old, place_new)
                for place_old, old in enumerate(olds[:_MAX_RIVALS])
                for place_new, new in enumerate(news[:_MAX_RIVALS])
                if fits(old, new)
            ),
        )
        for _, place_old, place_new in scored:
            old, new = olds[place_old], news[place_new]
            if id(old) not in taken and id(new) not in taken:
                taken |= {id(old), id(new)}
                pairs.append((old, new))
    return pairs, [e for e in before if id(e) not in taken], [e for e in after if id(e) not in taken]


def _names(entries: Iterable[SiteEntry]) -> set[str]:
    return {name for entry in entries for name in _bare(entry.key)}


def _bare(key: Key) -> Key:
    """Return a key without folders."""
    return tuple(name.rpartition("/")[2] for name in key)


def _always(old: SiteEntry, new: SiteEntry) -> bool:
    del old, new
    return True


def _may_change_category(old: SiteEntry, new: SiteEntry) -> bool:
    """Tell whether two entries are of one category, or what they hold may have got another one."""
    return old.category is new.category or old.count == new.count or _same_blocks(old, new) >= _MIN_SAME_BLOCKS


def _is_alike(old: SiteEntry, new: SiteEntry) -> bool:
    """Tell whether two sites that share all frames known to both sides are the same.

    They must share most frames; and the innermost, or what they allocate: the same blocks, or as many
    (of other sizes) for the same purpose.
    """
    is_innermost_same = _bare(old.key)[:1] == _bare(new.key)[:1]
    if not _may_change_category(old, new):
        return False
    if _alikeness(_bare(old.key), _bare(new.key)) < (_MIN_ALIKE_INSIDE if is_innermost_same else _MIN_ALIKE):
        return False
    is_as_many = old.category is new.category and old.count == new.count
    return is_innermost_same or is_as_many or _same_blocks(old, new) >= _MIN_SAME_BLOCKS


def _has_same_blocks(old: SiteEntry, new: SiteEntry) -> bool:
    if not (old.key and new.key):
        return False
    return _alikeness(_bare(old.key), _bare(new.key)) >= _MIN_ALIKE_OF_SAME_BLOCKS


def _is_in_same_library(old: SiteEntry, new: SiteEntry) -> bool:
    """Tell whether what allocates is PyTorch's own code on both sides, or on neither."""
    return old.key[0].startswith("torch/") == new.key[0].startswith("torch/") and _may_change_category(old, new)


def _unlikeness(old: SiteEntry, new: SiteEntry) -> tuple[bool, float, bool, float]:
    """Return what sorts the most alike first: category, then blocks, their number, and frames."""
    return (
        old.category is not new.category, -_same_blocks(old, new), old.count != new.count,
        -_alikeness(old.key, new.key),
    )  # fmt: skip


def _alikeness(old: Key, new: Key) -> float:
    """Return how alike two lists of frames are, from 0 to 1; of long ones by their innermost frames."""
    if old == new:
        return 1.0
    return SequenceMatcher(None, old[:_MAX_FRAMES], new[:_MAX_FRAMES], autojunk=False).ratio()


def _same_blocks(old: SiteEntry, new: SiteEntry) -> float:
    """Return which share of the larger side's bytes lies in blocks of sizes and counts that both have."""
    sizes = dict(new.sizes)
    common = sum(size * min(count, sizes.get(size, 0)) for size, count in old.sizes)
    return common / max(old.bytes, new.bytes, 1)
