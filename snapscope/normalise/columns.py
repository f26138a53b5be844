"""Columns out of lists of dicts: the one place where a value of the file is checked.

Every function takes the whole list at once, because a Python-level call per event would
cost more than reading the file does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
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


def take(entries: Sequence[Entry], key: str, default: Any) -> tuple[Iterable[Any], int]:
    """Return an iterable of one key's values and how many entries have the key."""
    try:
        # itemgetter fails at the first entry without the key: only then look closer.
        for _ in map(itemgetter(key), entries):
            pass
    except KeyError:
        num_present = sum(key in entry for entry in entries)
        return (entry.get(key, default) for entry in entries), num_present
    return map(itemgetter(key), entries), len(entries)


def integers(entries: Sequence[Entry], key: str, default: int, what: str) -> tuple[Int64Column, int]:
    """Return a column of 64-bit integers and how many entries have the key.

    Raises:
        MalformedError: a value isn't an integer, or doesn't fit.
    """
    try:
        try:
            column = np.fromiter(map(itemgetter(key), entries), dtype=np.int64, count=len(entries))
            return column, len(entries)
        except KeyError:
            values, num_present = take(entries, key, default)
            return np.fromiter(values, dtype=np.int64, count=len(entries)), num_present
    except (TypeError, ValueError, OverflowError):
        raise MalformedError(_complaint(entries, key, what, _fits_int64)) from None


def sizes(entries: Sequence[Entry], key: str, default: int, what: str) -> tuple[Int64Column, int]:
    """Return a column of byte sizes and how many entries have the key.

    Raises:
        MalformedError: a value is no integer between 0 and `MAX_BYTES`.
    """
    column, num_present = integers(entries, key, default, what)
    if len(column) and (column.max() > MAX_BYTES or column.min() < min(0, default)):
        raise MalformedError(f"{what}: {key!r} holds an impossible size ({_first_bad_size(column)} bytes)")
    return column, num_present


def addresses(entries: Sequence[Entry], key: str, what: str) -> tuple[npt.NDArray[np.uint64], int]:
    """Return a column of 64-bit addresses (0 where absent) and how many entries have the key.

    Negative ones are taken as the signed reading of the same 64 bits.

    Raises:
        MalformedError: a value is no integer of 64 bits.
    """
    try:
        column = np.fromiter(map(itemgetter(key), entries), dtype=np.uint64, count=len(entries))
        return column, len(entries)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    values, num_present = take(entries, key, 0)
    try:
        exact = [_address(value) for value in values]
    except (TypeError, ValueError):
        raise MalformedError(_complaint(entries, key, what, _fits_address)) from None
    return np.array(exact, dtype=np.uint64), num_present


def _address(value: Any) -> int:
    if not isinstance(value, int) or not -_INT64_MAX - 1 <= value <= _ADDRESS_MASK:
        raise ValueError
    return value & _ADDRESS_MASK


def _fits_int64(value: Any) -> bool:
    return isinstance(value, int) and -_INT64_MAX <= value <= _INT64_MAX


def _fits_address(value: Any) -> bool:
    return isinstance(value, int) and -_INT64_MAX - 1 <= value <= _ADDRESS_MASK


def _first_bad_size(column: Int64Column) -> int:
    return int(column[np.flatnonzero((column > MAX_BYTES) | (column < 0))[0]])


def _complaint(entries: Sequence[Entry], key: str, what: str, fits: Callable[[Any], bool]) -> str:
    for position, entry in enumerate(entries):
        if key in entry and not fits(entry[key]):
            kind = type(entry[key]).__name__
            return f"{what} {position}: {key!r} is no 64-bit integer (a {kind})"
    return f"{what}: {key!r} is no 64-bit integer"
