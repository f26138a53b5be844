"""What a recording's allocations really were: `NAME.truth.json[.gz]` → a category for each lifetime.

The files were written by the recorded process from live Python objects, never from stacks (fixtures/README.md
has their keys), so nothing that the classifier reads has gone into them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from snapscope.classify.material import CATEGORY_LABELS
from snapscope.lifetimes import LifetimeTable
from snapscope.model import Int8Column, Int64Column
from snapscope.replay import NEVER

UNKNOWN: Final = -1
"""Category of an allocation that the truth file says nothing about; it counts neither as right nor as wrong."""

_SUFFIXES: Final = (".pickle.gz", ".pickle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A snapshot file beside its truth file."""

    name: str
    snapshot: Path
    truth: Path


def find_recordings(folder: Path) -> list[Recording]:
    """Return the recordings below a folder that have a truth file, by name."""
    found = []
    for suffix in _SUFFIXES:
        for path in folder.rglob(f"*{suffix}"):
            stem = path.name.removesuffix(suffix)
            for truth in (path.with_name(f"{stem}.truth.json.gz"), path.with_name(f"{stem}.truth.json")):
                if truth.is_file():
                    name = path.relative_to(folder).with_name(stem).as_posix()
                    found.append(Recording(name=name, snapshot=path, truth=truth))
                    break
    return sorted(found, key=lambda recording: recording.name)


def read_truth_file(path: Path) -> dict[str, Any]:
    """Return what a truth file holds."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        truth: dict[str, Any] = json.load(lines)
    return truth


def categories_of(truth: dict[str, Any], lifetimes: LifetimeTable) -> Int8Column:
    """Return the true category of every lifetime, `UNKNOWN` where the file says none.

    Allocations of the history are found by birth event and address, older ones by address and size.
    """
    number = {label: place for place, label in enumerate(CATEGORY_LABELS)}
    born = {(event, addr): number[category] for event, addr, _, category, *_ in truth["events"]}
    old = {(addr, size): number[category] for addr, size, category, *_ in truth.get("preexisting", ())}
    out = np.full(len(lifetimes), UNKNOWN, np.int8)
    columns = (lifetimes.birth_event, lifetimes.addr, lifetimes.requested_bytes)
    for row, (birth, addr, size) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        out[row] = born.get((birth, addr), UNKNOWN) if birth >= 0 else old.get((addr, size), UNKNOWN)
    return out


def carry_over(
    categories: Int8Column, whole: LifetimeTable, part: LifetimeTable, *, num_lost: int = 0
) -> tuple[Int8Column, Int64Column]:
    """Give the lifetimes of a shortened history the categories that they had in the whole one.

    Args:
        categories: the truth, by row of `whole`.
        whole: lifetimes of the whole history.
        part: lifetimes of the same history without its first `num_lost` events, or without its last ones.
        num_lost: events missing at the beginning; what lived through them is older than the history now.

    Returns:
        The truth by row of `part`, and the row of `whole` that each is (−1: none).
    """
    done = whole.free_completed_event
    outlives = (whole.birth_event < num_lost) & ((done == NEVER) | (done >= num_lost))
    facts = (whole.birth_event, whole.addr, whole.requested_bytes, outlives)
    born: dict[tuple[int, int], int] = {}
    old: dict[tuple[int, int], int] = {}
    for row, (birth, addr, size, is_old) in enumerate(zip(*(column.tolist() for column in facts), strict=True)):
        if birth >= num_lost:
            born[birth - num_lost, addr] = row
        elif is_old:
            old[addr, size] = row
    rows = np.full(len(part), -1, np.int64)
    columns = (part.birth_event, part.addr, part.requested_bytes)
    for place, (birth, addr, size) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        rows[place] = born.get((birth, addr), -1) if birth >= 0 else old.get((addr, size), -1)
    known = rows >= 0
    out = np.full(len(part), UNKNOWN, np.int8)
    out[known] = categories[rows[known]]
    return out, rows
