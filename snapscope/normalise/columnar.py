"""What the compiled reader made of a trace → the columns that `events` makes of a list of dicts.

The numbers of strings, stacks and pools come out as there, so each step here does what the one there
does, in its order: the Python path is the reference, and tests compare the two over every recording.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from snapscope.load import EventColumns
from snapscope.load.native_reader import COMMON_KEYS
from snapscope.model import UNKNOWN_BYTES, Int32Column, Int64Column
from snapscope.native import compiled
from snapscope.normalise.columns import checked_sizes
from snapscope.normalise.events import DEFAULTS, QUIET_KEYS, TEXT_KEYS, Gathered, PoolInterner, join_lines
from snapscope.normalise.interning import StackInterner

_BITS: Final = {key: 1 << bit for bit, key in enumerate(COMMON_KEYS)}
_NUMBERS: Final = ("addr", "size", "stream", "time_us")


class _KeyMissing(Exception):
    """An event lacks a key that the first look took for common to all."""


def gather(trace: EventColumns, *, what: str, stacks: StackInterner, pools: PoolInterner) -> Gathered:
    """Return the columns of a trace, numbered as the snapshot's interners number them.

    Raises:
        MalformedError: a size is impossible.
    """
    look = _Look(trace, what, stacks, pools)
    try:
        columns = look.columns(look.likely_keys(), is_padded=False)
        seldom = look.seldom(look.keys, is_padded=False)
        is_complete = not seldom.keys
    except _KeyMissing:
        is_complete = False
    if not is_complete:
        columns = look.columns(look.all_keys(), is_padded=True)
        seldom = look.seldom(look.keys, is_padded=True)
    return Gathered(
        columns=columns,
        unknown=seldom.unknown,
        forward_rows=seldom.rows,
        forward_texts=seldom.texts,
        oom_free=look.device_free,
    )


@dataclass(slots=True)
class _Seldom:
    keys: set[str] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)
    rows: list[int] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)


class _Look:
    """One trace on its way into the snapshot's numbering."""

    def __init__(self, trace: EventColumns, what: str, stacks: StackInterner, pools: PoolInterner) -> None:
        self._trace, self._what, self._stacks, self._pools = trace, what, stacks, pools
        self._share = trace.share
        self._held_by_all = int(np.bitwise_and.reduce(trace.mask)) if len(trace) else 0
        self._held_by_any = int(np.bitwise_or.reduce(trace.mask)) if len(trace) else 0
        self.keys: frozenset[str] = frozenset()

    def likely_keys(self) -> frozenset[str]:
        """Return the common keys of a few events."""
        mask, middle = self._trace.mask, len(self._trace) // 2
        some = (*mask[:2], *mask[middle:][:2], *mask[-2:])
        return _keys_of(int(np.bitwise_or.reduce(some)) if some else 0)

    def all_keys(self) -> frozenset[str]:
        """Return all common keys that any event has."""
        return _keys_of(self._held_by_any)

    def columns(self, keys: frozenset[str], *, is_padded: bool) -> dict[str, Any]:
        """Return the columns as `events._columns` does.

        Args:
            keys: the keys that are read.
            is_padded: whether events that lack one of them count as having it, without a value.
        """
        self.keys = keys
        column, num_events = self._trace.columns, len(self._trace)
        names: list[str] = [key for key in _NUMBERS if key in keys]
        in_one_pass = names[:3] == ["addr", "size", "stream"]
        if in_one_pass and not is_padded:
            self._require(names)
        time_us = column["time_us"]
        if in_one_pass and "time_us" not in keys:
            time_us = np.full(num_events, -1, np.int64)
        size = checked_sizes(column["size"], "size", UNKNOWN_BYTES, f"{self._what}, event")
        texts = self._texts(sorted(keys & TEXT_KEYS), is_padded=is_padded)
        absent = np.full(num_events, -1, np.int32)
        return {
            "action": texts.get("action", absent),
            "addr": column["addr"].view(np.uint64),
            "size_bytes": size,
            "stream": column["stream"],
            "pool": self._pool_numbers() if "pool_id" in keys else absent,
            "time_us": time_us,
            "stack": self._stack_numbers(is_padded=is_padded) if "frames" in keys else absent,
            "compile_context": texts.get("compile_context", absent),
            "user_metadata": texts.get("user_metadata", absent),
            "category": texts.get("category", absent),
        }

    def _require(self, keys: list[str]) -> None:
        if not all(self._held_by_all & _BITS[key] for key in keys):
            raise _KeyMissing

    def _first_without(self, keys: list[str]) -> int:
        """Return the first event that lacks one of the keys; the number of events if none does."""
        wanted = sum(_BITS[key] for key in keys)
        if self._held_by_all & wanted == wanted:
            return len(self._trace)
        return int(np.flatnonzero((self._trace.mask & wanted) != wanted)[0])

    def _texts(self, keys: list[str], *, is_padded: bool) -> dict[str, Int32Column]:
        strings, share = self._stacks.strings, self._share
        stop = len(self._trace)
        in_one_pass = len(keys) > 1
        if in_one_pass and not is_padded:
            stop = self._first_without(keys)
        has_none = False

        def number(old: int) -> int:
            return strings[share.strings[old]]

        def none() -> None:
            # As there, where None takes a number and becomes a placeholder afterwards.
            nonlocal has_none
            has_none = True
            if in_one_pass:
                strings[None]

        columns = [self._trace.columns[key][:stop] for key in keys]
        made = compiled().renumber(columns, share.string_numbers, number, none) if keys else []
        if stop < len(self._trace):
            raise _KeyMissing
        if has_none or not in_one_pass:
            strings.forget_other_types()
        return dict(zip(keys, made, strict=True))

    def _pool_numbers(self) -> Int32Column:
        share = self._share

        def number(old: int) -> int:
            return self._pools.number(share.pools[old])

        made: Int32Column
        (made,) = compiled().renumber([self._trace.columns["pool_id"]], share.pool_numbers, number)
        return made

    def _stack_numbers(self, *, is_padded: bool) -> Int32Column:
        share = self._share
        stop = len(self._trace) if is_padded else self._first_without(["frames"])

        def number(old: int) -> int:
            return self._stacks.number(share.stack(old))

        made: Int32Column
        (made,) = compiled().renumber([self._trace.columns["stack"][:stop]], share.stack_numbers, number)
        if stop < len(self._trace):
            raise _KeyMissing
        return made

    def seldom(self, keys: frozenset[str], *, is_padded: bool) -> _Seldom:
        """Find what only some events have, as `events._seldom` does."""
        trace, share, found = self._trace, self._share, _Seldom()
        whole = sum(_BITS[key] for key in keys)
        if not len(trace.extra_rows) and (is_padded or self._held_by_all == self._held_by_any == whole):
            return found
        num_extras = np.bincount(trace.extra_rows, minlength=len(trace))
        if is_padded:
            is_odd = num_extras > 0
        else:
            num_keys = sum((trace.mask >> bit & 1).astype(np.int64) for bit in range(len(COMMON_KEYS)))
            length = num_keys + num_extras
            if int(np.sum(length)) == len(trace) * len(keys):
                return found
            is_odd = length != len(keys)
            odd_masks = trace.mask[is_odd]
            if len(odd_masks):
                found.keys |= _keys_of(int(np.bitwise_or.reduce(odd_masks))) - keys
        joined: dict[int, int] = {}
        looked_at = np.flatnonzero(is_odd[trace.extra_rows])
        extras = (trace.extra_rows, trace.extra_keys, trace.extra_values)
        for row, key, value in zip(*(part[looked_at].tolist() for part in extras), strict=True):
            name = share.strings[key]
            if name == "forward_frames":
                found.rows.append(row)
                if value not in joined:
                    joined[value] = self._stacks.strings[join_lines(share.forward_frames(value))]
                found.texts.append(joined[value])
            elif name not in QUIET_KEYS:
                found.unknown[name[:60]] += 1
        return found

    def device_free(self, rows: list[int]) -> Int64Column:
        """Return what `oom` events say the driver called free."""
        trace, share = self._trace, self._share
        free = np.full(len(trace), UNKNOWN_BYTES, np.int64)
        is_free = np.array([name in QUIET_KEYS for name in share.strings], bool)[trace.extra_keys]
        free[trace.extra_rows[is_free]] = trace.extra_values[is_free]
        return checked_sizes(free[rows], "device_free", UNKNOWN_BYTES, f"{self._what}, oom event")


def _keys_of(mask: int) -> frozenset[str]:
    return frozenset(key for key in DEFAULTS if mask & _BITS[key])
