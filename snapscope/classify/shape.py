"""Backward passes by their shape alone: what forward saved dies in reverse order of birth.

For histories without stacks. Each backward begins with the gradient of a loss, a block as tiny as
the loss, made where more of what the backward frees lives than at any other time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from snapscope.classify.material import Material
from snapscope.model import Action, BoolColumn, Int64Column

TINY_BYTES: Final = 8
SEED_NEIGHBOURS: Final = 4
_MAX_TRIES: Final = 20_000
_STRIDE: Final = 8
_MAX_OTHERS: Final = 6
_OTHERS_SHARE: Final = 0.1
_BRIEF_EVENTS: Final = 16
_MIN_CHAIN: Final = 4
_SURE_CHAIN: Final = 6
_MAX_GAP_EVENTS: Final = 24
_MAX_GAP_SHARE: Final = 0.5
_HELD_SHARE: Final = 0.25
_MIN_WEIGHTS: Final = 2
_SHARED_SIZES: Final = 0.34
_LASTING_EVENTS: Final = 32
_LASTING_SHIFT: Final = 6
_WEIGHT_BYTES: Final = 1 << 12
_TRAILING_EVENTS: Final = 16
_NEVER: Final = 1 << 62
# Of a history without any order, the search is given up.
_MAX_ROWS: Final = 8192
_MAX_SEARCHED: Final = 2_000_000


class _Lives:
    """Births and deaths of what was born and freed within the history, in order of birth."""

    def __init__(self, material: Material) -> None:
        table = material.lifetimes
        rows = np.flatnonzero((table.birth_event >= 0) & (table.free_requested_event >= 0))
        rows = rows[np.argsort(table.birth_event[rows], kind="stable")]
        self.birth: Int64Column = table.birth_event[rows].astype(np.int64)
        self.death: Int64Column = table.free_requested_event[rows].astype(np.int64)
        self.num_searched = 0

    def across(self, before: int, event: int) -> tuple[Int64Column, Int64Column]:
        """Return births and deaths of what was born in between and lives past an event, youngest first."""
        first, stop = np.searchsorted(self.birth, [before + 1, event]).tolist()
        own = slice(max(first, stop - _MAX_ROWS), stop)
        births, deaths = self.birth[own], self.death[own]
        lives = deaths > event
        self.num_searched += int(np.count_nonzero(lives))
        return births[lives][::-1], deaths[lives][::-1]

    def within(self, first: int, last: int) -> tuple[Int64Column, Int64Column]:
        """Return births and deaths of what was born and died in between, youngest first."""
        own = slice(*np.searchsorted(self.birth, [first, last]).tolist())
        births, deaths = self.birth[own], self.death[own]
        dies = deaths <= last
        self.num_searched += int(np.count_nonzero(dies))
        return births[dies][::-1], deaths[dies][::-1]


def backwards_by_shape(material: Material) -> list[tuple[int, int, int]]:
    """Return (first birth of what it frees, first event, last event) of every backward that shows, in order."""
    lives = _Lives(material)
    weights = _Weights(material)
    seeds = _seeds(material)
    tries = np.flatnonzero(material.tables.events.action == Action.ALLOC)[::_STRIDE][:_MAX_TRIES]
    found: list[tuple[int, int, int]] = []
    before = -1
    for event in tries.tolist():
        if event <= before:
            continue
        span = _span(lives, weights, seeds, before, event)
        if span is not None:
            found.append(span)
            before = span[2]
        elif lives.num_searched > _MAX_SEARCHED * (len(found) + 1):
            break
    # One alone, of which nothing is left that could be a gradient, may be any computation.
    return found if len(found) > 1 or any(weights.leaves_gradients(*span[1:]) for span in found) else []


def _span(lives: _Lives, weights: _Weights, seeds: Int64Column, before: int, event: int) -> tuple[int, int, int] | None:
    """Return (first birth of what it frees, first, last event) of the backward that frees what lives at an event."""
    chain = _chain(lives, before, event)
    if chain is None:
        return None
    # What lived at that event may be the first layers' share, and not all of it was saved: the rest lies within
    # what surely was, which are neither the youngest nor the oldest.
    sure = len(chain.births) - 1 - max(1, int(_HELD_SHARE * len(chain.births)))
    births, deaths = lives.within(int(chain.births[sure]) + 1, int(chain.deaths[sure]))
    run = _longest_rise(deaths)
    chain = _Chain(
        births=np.append(births[run], chain.births[sure:]), deaths=np.append(deaths[run], chain.deaths[sure:])
    )
    start = chain.start(seeds)
    chain = chain.trimmed(start)
    end = int(chain.deaths[-1])
    if start >= end or not weights.get_gradients(start, end, is_sure=len(chain.deaths) >= _SURE_CHAIN):
        return None
    return int(chain.births[-1]), start, weights.trailing(start, end)


@dataclass(frozen=True, slots=True)
class _Chain:
    """What one backward frees, youngest first: births fall, deaths rise."""

    births: Int64Column
    deaths: Int64Column

    def start(self, seeds: Int64Column) -> int:
        """Return where the backward begins: at the loss's gradient, or else after the youngest birth that counts.

        That gradient is made while all but a few of them live, those of single operators.
        """
        near = seeds[slice(*np.searchsorted(seeds, [self.births[-1], self.deaths[-1]]).tolist())]
        if len(near):
            born = np.searchsorted(self.births[::-1], near)
            dead = np.searchsorted(self.deaths, near)
            most = len(near) - 1 - int(np.argmax((born - dead)[::-1]))
            others = len(self.births) - int(born[most] - dead[most])
            if others <= max(_MAX_OTHERS, _OTHERS_SHARE * len(self.births)):
                return int(near[most])
        lasting = np.flatnonzero(self.deaths - self.births > _BRIEF_EVENTS)
        return int(self.births[lasting[0] if len(lasting) else 0]) + 1

    def trimmed(self, event: int) -> _Chain:
        """Return it without its oldest where they die long after the rest: a variable holds them."""
        gaps = np.diff(self.deaths, prepend=event)
        late = np.flatnonzero(gaps > np.maximum(_MAX_GAP_EVENTS, _MAX_GAP_SHARE * (self.deaths - gaps - event)))
        late = late[late >= max(_MIN_CHAIN, (1 - _HELD_SHARE) * len(gaps))]
        length = int(late[0]) if len(late) else len(gaps)
        return _Chain(births=self.births[:length], deaths=self.deaths[:length])


def _seeds(material: Material) -> Int64Column:
    """Return allocs that may be a loss's gradient: tiny, not long after another of the same size."""
    events = material.tables.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    sizes = events.size_bytes[allocs]
    tiny = np.flatnonzero(sizes <= TINY_BYTES)
    found: BoolColumn = np.zeros(len(tiny), bool)
    for size in np.unique(sizes[tiny]).tolist():
        own = np.flatnonzero(sizes[tiny] == size)
        found[own[1:]] = np.diff(tiny[own]) <= SEED_NEIGHBOURS
    return allocs[tiny[found]].astype(np.int64)


def _chain(lives: _Lives, before: int, event: int) -> _Chain | None:
    """Return what a backward near an event frees of what lives then, or None.

    The longest run of deaths that goes against the order of births is what backward frees; what a
    variable holds breaks the order, or comes long after the rest.
    """
    births, deaths = lives.across(before, event)
    if len(births) < _MIN_CHAIN:
        return None
    run = _longest_rise(deaths)
    if len(run) < _MIN_CHAIN or 2 * len(run) < len(births):
        return None
    return _Chain(births=births[run], deaths=deaths[run]).trimmed(event)


def _longest_rise(values: Int64Column) -> list[int]:
    """Return the places of a longest subsequence that never falls."""
    tails: list[int] = []
    members: list[int] = []
    previous = [-1] * len(values)
    for place, value in enumerate(values.tolist()):
        at = bisect_right(tails, value)
        if at == len(tails):
            tails.append(value)
            members.append(place)
        else:
            tails[at] = value
            members[at] = place
        previous[place] = members[at - 1] if at else -1
    run: list[int] = []
    place = members[-1] if members else -1
    while place >= 0:
        run.append(place)
        place = previous[place]
    return run[::-1]


class _Weights:
    """What may be parameters: older than the first backward's forward and kept, or older than the history."""

    def __init__(self, material: Material) -> None:
        table = material.lifetimes
        self._born = table.birth_event
        self._died = np.where(table.free_requested_event < 0, _NEVER, table.free_requested_event)
        self._size = table.requested_bytes
        events = material.tables.events
        # In a long history what lives through one iteration alone isn't worth the search.
        least = max(_LASTING_EVENTS, len(material.tables.events) >> _LASTING_SHIFT)
        lasts = (self._size >= _WEIGHT_BYTES) & (self._died - self._born >= least)
        self._old = np.flatnonzero(lasts)
        self._allocs = np.flatnonzero(events.action == Action.ALLOC)
        self._alloc_size = events.size_bytes[self._allocs]
        order = np.argsort(table.birth_event, kind="stable")
        self._by_birth = order[table.birth_event[order] >= 0]

    def _sizes_before(self, start: int, end: int) -> Int64Column:
        old = self._old[(self._born[self._old] < start) & (self._died[self._old] > end)]
        return np.unique(self._size[old])

    def get_gradients(self, start: int, end: int, *, is_sure: bool) -> bool:
        """Tell whether blocks of old blocks' sizes are made in between, as gradients are."""
        old = self._sizes_before(start, end)
        own = slice(*np.searchsorted(self._allocs, [start, end + _TRAILING_EVENTS]).tolist())
        shared = len(np.intersect1d(self._alloc_size[own], old))
        return is_sure if not len(old) else len(old) >= _MIN_WEIGHTS and shared >= _SHARED_SIZES * len(old)

    def leaves_gradients(self, start: int, end: int) -> bool:
        """Tell whether blocks of old blocks' sizes are made in between and outlive it."""
        own = slice(*np.searchsorted(self._born[self._by_birth], [start, end + 1]).tolist())
        rows = self._by_birth[own]
        made = self._size[rows[self._died[rows] > end + _TRAILING_EVENTS]]
        return bool(np.isin(made, self._sizes_before(start, end)).any())

    def trailing(self, start: int, end: int) -> int:
        """Return the end of a backward, moved over the last gradients, which it makes when all is freed."""
        old = self._sizes_before(start, end)
        own = slice(*np.searchsorted(self._born[self._by_birth], [start, end + _TRAILING_EVENTS]).tolist())
        rows = self._by_birth[own]
        keeps = self._died[rows] > end + _TRAILING_EVENTS
        made = set(self._size[rows[keeps & (self._born[rows] <= end)]].tolist())
        for row in rows[keeps & (self._born[rows] > end)].tolist():
            size = int(self._size[row])
            if size not in made and size in old:
                made.add(size)
                end = int(self._born[row])
        return end
