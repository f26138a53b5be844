"""Columns out of lists of dicts: the one place where a value of the file is checked.

Every function takes the whole list at once, because a Python-level call per event would
cost more than reading the file does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import index, itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from snapscope.errors import MalformedError
from snapscope.model import Int64Column

Entry = dict[str, Any]

MAX_BYTES: Final = 1 << 60
"""PyTorch refuses larger requests (`kMaxAllocSize`), so no size in a snapshot exceeds it."""

_ADDRESS_MASK: Final = (1 << 64) - 1
_INT64_MAX: Final = (1 << 63) - 1


def take(entries: Sequence[Entry], key: str, default: Any) -> Iterable[Any]:
    """Return an iterable of one key's values, with a default where it is absent."""
    return (entry.get(key, default) for entry in entries)


def matrix(
    entries: Sequence[Entry], keys: Sequence[str], convert: Callable[[Any], int] | None = None
) -> Int64Column | None:
    """Return several keys' values as columns of one array, in a single pass.

    Args:
        entries: the dicts.
        keys: at least two keys.
        convert: turns each value into a number; None where they are numbers already.

    Returns:
        An array of shape (keys, entries), or None where a value is no 64-bit integer: then
        look at one key at a time.

    Raises:
        KeyError: an entry lacks a key.
    """
    values: Iterable[Any] = chain.from_iterable(map(itemgetter(*keys), entries))
    if convert is not None:
        values = map(convert, values)
    try:
        flat = np.fromiter(values, dtype=np.int64, count=len(entries) * len(keys))
    except (TypeError, ValueError, OverflowError):
        return None
    return np.ascontiguousarray(flat.reshape(-1, len(keys)).T)


def integers(entries: Sequence[Entry], key: str, default: int, what: str) -> Int64Column:
    """Return a column of 64-bit integers.

    Raises:
        MalformedError: a value isn't an integer, or doesn't fit.
    """
    try:
        # index() refuses floats, which NumPy would cut off: a JSON reader makes one of an
        # integer beyond 64 bits.
        return np.fromiter(map(index, take(entries, key, default)), dtype=np.int64, count=len(entries))
    except (TypeError, ValueError, OverflowError):
        raise MalformedError(_complaint(entries, key, what, _fits_int64)) from None


def sizes(entries: Sequence[Entry], key: str, default: int, what: str) -> Int64Column:
    """Return a column of byte sizes.

    Raises:
        MalformedError: a value is no integer between 0 and `MAX_BYTES`.
    """
    return checked_sizes(integers(entries, key, default, what), key, default, what)


def checked_sizes(column: Int64Column, key: str, default: int, what: str) -> Int64Column:
    """Return the column if all of it are possible sizes.

    Raises:
        MalformedError: a value lies outside 0 to `MAX_BYTES`.
    """
    if len(column) and (column.max() > MAX_BYTES or column.min() < min(0, default)):
        bad = column[np.flatnonzero((column > MAX_BYTES) | (column < min(0, default)))[0]]
        raise MalformedError(f"{what}: {key!r} holds an impossible size ({int(bad)} bytes)")
    return column


def addresses(entries: Sequence[Entry], key: str, what: str) -> npt.NDArray[np.uint64]:
    """Return a column of 64-bit addresses (0 where absent).

    Negative ones are taken as the signed reading of the same 64 bits.

    Raises:
        MalformedError: a value is no integer of 64 bits.
    """
    try:
        return np.array([_address(value) for value in take(entries, key, 0)], dtype=np.uint64)
    except (TypeError, ValueError):
        raise MalformedError(_complaint(entries, key, what, _fits_address)) from None


def _address(value: Any) -> int:
    if not isinstance(value, int) or not -_INT64_MAX - 1 <= value <= _ADDRESS_MASK:
        raise ValueError
    return value & _ADDRESS_MASK


def _fits_int64(value: Any) -> bool:
    return isinstance(value, int) and -_INT64_MAX <= value <= _INT64_MAX


def _fits_address(value: Any) -> bool:
    return isinstance(value, int) and -_INT64_MAX - 1 <= value <= _ADDRESS_MASK


def _complaint(entries: Sequence[Entry], key: str, what: str, fits: Callable[[Any], bool]) -> str:
    for position, entry in enumerate(entries):
        if key in entry and not fits(entry[key]):
            kind = type(entry[key]).__name__
            return f"{what} {position}: {key!r} is no 64-bit integer (a {kind})"
    return f"{what}: {key!r} is no 64-bit integer"
