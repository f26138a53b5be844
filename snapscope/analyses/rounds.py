"""Rounds of a loop that makes no steps: the same lines allocate over and over.

Only where nothing names steps and neither an optimizer nor a model's forward shows them. A
round begins where one line, the first of the loop, allocates again; the last one is
unfinished, for nothing shows where it ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.model import Int32Column, Int64Column
from snapscope.replay import BEFORE, NEVER
from snapscope.sites import FrameKind

MIN_ROUNDS: Final = 4
_MAX_STACKS: Final = 20_000
_MAX_LEVELS: Final = 10
_MAX_HEADS: Final = 10
_MAX_LINES: Final = 50
_MOST: Final = 0.9
_MODULE_CALL: Final = ("_call_impl", "_wrapped_call_impl")


def find_rounds(history: DeviceHistory) -> Int64Column:
    """Return the event at which each round begins, ascending; empty where none can be told."""
    none = np.zeros(0, np.int64)
    table = history.lifetimes
    own = np.flatnonzero((table.birth_event != BEFORE) & (table.alloc_stack >= 0))
    if len(own) < MIN_ROUNDS:
        return none
    stacks, first, which, counts = np.unique(
        table.alloc_stack[own], return_index=True, return_inverse=True, return_counts=True
    )
    if len(stacks) > _MAX_STACKS:
        return none
    is_parameter = np.bincount(which, history.classification.category[own] == Category.PARAMETER) > 0
    repeats = (counts >= MIN_ROUNDS) & ~is_parameter
    repeats &= np.array([bool(history.sites.of_stack(stack).file) for stack in stacks.tolist()], bool)
    if not repeats.any():
        return none
    births, deaths = table.birth_event[own], table.free_requested_event[own]
    # Lines that run as often as others, or a whole number of times as often, make one loop.
    levels, support = np.unique(counts[repeats]), []
    for level in levels[-_MAX_LEVELS:].tolist():
        support.append((int(np.count_nonzero(counts[repeats] % level == 0)), level))
    for _, level in sorted(support, reverse=True):
        body = np.flatnonzero(repeats & (counts % level == 0))
        heads = body[counts[body] == level]
        heads = heads[np.argsort(births[first[heads]], kind="stable")][:_MAX_HEADS]
        for head in heads.tolist():
            begins = births[which == head]
            if _is_loop(begins, which, births, deaths, counts, body) and not _is_within_model(history, stacks[body]):
                return np.sort(begins)
    return none


def _is_loop(
    begins: Int64Column,
    which: Int64Column,
    births: Int64Column,
    deaths: Int64Column,
    counts: Int64Column,
    body: Int64Column,
) -> bool:
    """Tell whether lines take turns, and one of them makes what no later round but the next still has."""
    taking_turns, is_work = 0, False
    for line in body[:_MAX_LINES].tolist():
        own = which == line
        in_round = np.searchsorted(begins, births[own], side="right") - 1
        times = np.bincount(np.maximum(in_round, 0), minlength=len(begins))
        if (in_round < 0).any() or (times[:-1] != counts[line] // len(begins)).any():
            continue
        taking_turns += 1
        dies = deaths[own]
        end = np.searchsorted(begins, np.where(dies == NEVER, births[own], dies), side="right") - 1
        is_brief = (dies != NEVER) & (end - in_round <= 1) & (in_round < len(begins) - 2)
        is_work |= int(np.count_nonzero(is_brief)) >= _MOST * int(np.count_nonzero(in_round < len(begins) - 2))
    return taking_turns >= 2 and is_work


def _is_within_model(history: DeviceHistory, stacks: Int32Column) -> bool:
    """Tell whether what repeats are a model's layers: all of it lies within one module's call."""
    shared: list[int] | None = None
    table = history.snapshot.stacks
    for stack in stacks.tolist():
        frames = [
            frame for frame in table.frames_of(stack).tolist()[::-1] if history.sites.kind_of(frame) < FrameKind.CPP
        ]
        if shared is None:
            shared = frames
            continue
        pairs = zip(shared, frames, strict=False)
        same = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(shared), len(frames)))
        shared = shared[:same]
    return any(table.function_of(frame) in _MODULE_CALL for frame in shared or ())
