"""Selecting allocations by the frames of their stacks: `--focus` and `--ignore`."""

from __future__ import annotations

import re
import warnings

import numpy as np

from snapscope.errors import UsageError
from snapscope.history import DeviceHistory
from snapscope.model import BoolColumn

LEFT_OUT_KEY = "(left out by --focus/--ignore)"


def select(history: DeviceHistory, *, focus: str | None = None, ignore: str | None = None) -> BoolColumn | None:
    """Return which rows of the lifetime table are selected; None = all.

    Args:
        history: the device.
        focus: keep allocations with a frame that matches this regular expression
            (`file:line function`).
        ignore: drop those with a frame that matches this one.

    Raises:
        UsageError: an expression doesn't compile.
    """
    if focus is None and ignore is None:
        return None
    stacks = history.lifetimes.alloc_stack
    has_stack = stacks >= 0
    chosen = np.ones(len(stacks), bool)
    for text, keeps in ((focus, True), (ignore, False)):
        if text is not None:
            hits = np.zeros(len(stacks), bool)
            hits[has_stack] = history.sites.matching(compile_pattern(text))[stacks[has_stack]]
            chosen &= hits if keeps else ~hits
    if focus is not None and not chosen.any():
        raise UsageError(f"no allocation has a frame that matches {focus!r} (file:line function)")
    return chosen


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression that a person typed.

    Raises:
        UsageError: it is none, or one that Python can't hold.
    """
    try:
        with warnings.catch_warnings():
            # They tell of later Pythons, to who writes programs.
            warnings.simplefilter("ignore")
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"{text!r} is no regular expression: {reason}") from None
