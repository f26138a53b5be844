"""The compiled part, where it was built: `core` returns its module, None without it.

`SNAPSCOPE_READER=python` leaves it alone; without the compiled part there is only the Python path.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Final

__all__ = ["VARIABLE", "compiled", "core", "reader_name"]

VARIABLE: Final = "SNAPSCOPE_READER"
"""Environment variable that chooses: `native` (the default, where it was built) or `python`."""


def core() -> ModuleType | None:
    """Return the compiled module; None if it isn't there, or isn't wanted."""
    return _import() if _is_wanted() else None


def compiled() -> ModuleType:
    """Return the compiled module, for what only it can have made."""
    module = _import()
    assert module is not None
    return module


def reader_name() -> str:
    """Return which reader is in use, `native` or `python`, without loading it."""
    return "native" if _is_wanted() and find_spec("snapscope.native._core") is not None else "python"


def _is_wanted() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() != "python"


@cache
def _import() -> ModuleType | None:
    try:
        from snapscope.native import _core
    except ImportError:  # built without a compiler, or for another Python
        return None
    return _core
