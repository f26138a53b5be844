"""snapscope: a memory snapshot analyzer for PyTorch.

    >>> import snapscope
    >>> snapshot = snapscope.load_snapshot("snap.pickle")
    >>> history = snapscope.DeviceHistory(snapshot)
    >>> int(history.totals.requested_bytes.max())

Public names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snapscope.errors import (
    EmptyFileError,
    HostileError,
    InputError,
    MalformedError,
    NotASnapshotError,
    SnapscopeError,
    TruncatedError,
    UsageError,
)

if TYPE_CHECKING:
    from snapscope.history import DeviceHistory as DeviceHistory
    from snapscope.model import Snapshot as Snapshot
    from snapscope.opening import load_snapshot as load_snapshot

__version__ = "0.1.0"

_LAZY = {
    "DeviceHistory": "snapscope.history",
    "Snapshot": "snapscope.model",
    "load_snapshot": "snapscope.opening",
}

__all__ = [
    "DeviceHistory",
    "EmptyFileError",
    "HostileError",
    "InputError",
    "MalformedError",
    "NotASnapshotError",
    "SnapscopeError",
    "Snapshot",
    "TruncatedError",
    "UsageError",
    "__version__",
    "load_snapshot",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'snapscope' has no attribute {name!r}")
    return getattr(import_module(module), name)
