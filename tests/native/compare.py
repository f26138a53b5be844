"""Tell whether two results are the same to the last bit: tables, notices, facts, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from snapscope.errors import InputError
from snapscope.history import DeviceHistory
from snapscope.load import Input, read_snapshot
from snapscope.load.native_reader import EventColumns
from snapscope.model import Snapshot
from snapscope.native import VARIABLE
from snapscope.normalise import normalise


def outcome(source: Input, reader: str) -> tuple[Snapshot | InputError, bool]:
    """Return what one of the readers makes of an input, and whether it was the compiled one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, reader)
        try:
            raw = read_snapshot(source, as_columns=True)
        except InputError as error:
            return error, False
        is_native = is_columnar(raw.value)
        try:
            return normalise(raw), is_native
        except InputError as error:
            return error, is_native


def is_columnar(value: Any) -> bool:
    """Tell whether a value was read by the compiled reader and has events."""
    traces = value.get("device_traces") if isinstance(value, dict) else None
    return isinstance(traces, (list, tuple)) and any(isinstance(trace, EventColumns) for trace in traces)


def check_same(source: Input) -> bool:
    """Fail unless both readers make the same of an input; tell whether the compiled one read it."""
    expected, _ = outcome(source, "python")
    got, is_native = outcome(source, "native")
    assert not list(differences(expected, got))
    return is_native


def check_same_blocks(source: Input) -> None:
    """Fail unless both block walks come to the same sizes, exactness and notices."""
    snapshot, _ = outcome(source, "python")
    if isinstance(snapshot, InputError):
        return
    for device in snapshot.devices:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, "python")
            expected = DeviceHistory(snapshot, device.device).blocks
            patch.setenv(VARIABLE, "native")
            got = DeviceHistory(snapshot, device.device).blocks
        assert not list(differences(expected, got))


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two values differ."""
    if type(one) is not type(other):
        yield f"{where}: {type(one).__name__} and {type(other).__name__}"
    elif dataclasses.is_dataclass(one):
        for part in dataclasses.fields(one):
            yield from differences(getattr(one, part.name), getattr(other, part.name), f"{where}.{part.name}")
    elif isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape or not np.array_equal(one, other):
            yield f"{where}: {one!r} and {other!r}"
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield f"{where}: keys {list(one)[:20]} and {list(other)[:20]}"
        else:
            for key in one:
                yield from differences(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)) and any(dataclasses.is_dataclass(item) for item in (*one, *other)):
        if len(one) != len(other):
            yield f"{where}: {one} and {other}"
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from differences(left, right, f"{where}[{index}]")
    elif isinstance(one, Exception):
        if str(one) != str(other):
            yield f"{where}: {one} and {other}"
    elif one != other and not (one != one and other != other):
        yield f"{where}: {str(one)[:300]} and {str(other)[:300]}"
