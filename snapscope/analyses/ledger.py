"""The ledger: who holds the bytes at one moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from snapscope.analyses.cached import split_cached
from snapscope.analyses.moments import Moment
from snapscope.analyses.selection import LEFT_OUT_KEY
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.labels import annotated_rows
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.model import EMPTY_STACK, NO_STACK, UNKNOWN_BYTES, UNKNOWN_POOL, BoolColumn, Int64Column
from snapscope.replay import BEFORE
from snapscope.sites import BEFORE_LABEL

_MAX_LINES: Final = 5
_WEAK_PART: Final = 10
_TENSOR_PATH: Final = re.compile(r"((?:\w+\.)*\w+)\.(?:weight|bias|\w*weight\w*|\w*bias\w*)(?:\.grad)?\Z")
_KEY_BEFORE: Final = -2
_KEY_BACKWARD: Final = -10
_MAX_RIVALS: Final = 50
_MAX_PATH: Final = 200
_MAX_FRAMES: Final = 100
_NamedFrame = tuple[tuple[str, str], str, int]


class By(str, Enum):
    """What the rows of a ledger group by."""

    CATEGORY = "category"
    FINE = "fine"
    SITE = "site"
    FILE = "file"
    MODULE = "module"
    STREAM = "stream"
    POOL = "pool"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One row: requested bytes of live allocations.

    Attributes:
        key: what the row is, unique within the ledger (untrusted text).
        bytes: requested bytes.
        num_allocations: how many allocations.
        lifetimes: their rows in the lifetime table.
        lines: source lines they come from, most bytes first (for sites; at most 5).
        stack: a stack that stands for the row; None where it has none.
        category: the category of most of its bytes.
        confidence: the lowest confidence that decided a tenth of its bytes or more.
    """

    key: str
    bytes: int
    num_allocations: int
    lifetimes: Int64Column
    lines: tuple[int, ...] = ()
    stack: int | None = None
    category: Category | None = None
    confidence: Confidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """Live bytes of one of the five categories.

    Attributes:
        category: which.
        bytes: requested bytes of live allocations.
        num_allocations: how many.
        confidence_bytes: the same bytes by how sure they are, `Confidence` as index.
    """

    category: Category
    bytes: int
    num_allocations: int
    confidence_bytes: tuple[int, ...]

    @property
    def confidence(self) -> Confidence:
        """The lowest confidence that decided a tenth of the bytes or more."""
        return _overall(self.confidence_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Where reserved memory is at one moment; see `cli.md` for each definition.

    `requested + rounding = allocated`, `allocated + pending + cached = reserved`; what is
    outside PyTorch is known only where an oom event tells what the driver had free and the
    card's size is given.

    Attributes:
        outside_event: the `oom` event that `outside_bytes` was measured at: the moment's own, else
            the nearest one, for what is outside changes little.
    """

    requested_bytes: int
    rounding_bytes: int
    allocated_bytes: int
    pending_bytes: int
    pending_requested_bytes: int
    cached_bytes: int
    cached_free_segments_bytes: int
    cached_holes_bytes: int
    cached_private_pool_bytes: int
    reserved_bytes: int
    capacity_bytes: int | None = None
    device_free_bytes: int | None = None
    outside_bytes: int | None = None
    outside_event: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Rows of live allocations at a moment; they sum to `balance.requested_bytes`.

    So do the five `categories`, whatever the rows group by.
    """

    at: Moment
    by: By
    balance: Balance
    categories: tuple[CategoryRow, ...]
    rows: tuple[LedgerRow, ...]


def ledger(
    history: DeviceHistory,
    at: Moment,
    *,
    by: By = By.SITE,
    capacity_bytes: int | None = None,
    selection: BoolColumn | None = None,
) -> Ledger:
    """Group what is live after `at`, and balance the rest of the reserved memory.

    Args:
        history: the device.
        at: when.
        by: what to group by.
        capacity_bytes: the card's size, which no snapshot holds.
        selection: rows of the lifetime table to group; the others become one row.
    """
    return Ledger(
        at=at,
        by=by,
        balance=balance(history, at, capacity_bytes=capacity_bytes),
        categories=sum_categories(history, history.lifetimes.live_at(at.event)),
        rows=group_live(history, at, by=by, selection=selection),
    )


def balance(history: DeviceHistory, at: Moment, *, capacity_bytes: int | None = None) -> Balance:
    """Balance reserved memory after `at`: the ladder's rungs. Needs the exact block replay."""
    index = at.event + 1
    requested = int(history.totals.requested_bytes[index])
    allocated = int(history.block_totals.allocated_bytes[index])
    pending = int(history.block_totals.pending_bytes[index])
    reserved = int(history.totals.reserved_bytes[index])
    cached = split_cached(history.layout_at(at.event))
    outside_event, outside = _outside(history, at.event, capacity_bytes)
    return Balance(
        requested_bytes=requested,
        rounding_bytes=allocated - requested,
        allocated_bytes=allocated,
        pending_bytes=pending,
        pending_requested_bytes=int(history.totals.pending_requested_bytes[index]),
        cached_bytes=reserved - allocated - pending,
        cached_free_segments_bytes=cached.free_segments_bytes,
        # What contradicts the segments (see the notices) must not break the sum.
        cached_holes_bytes=reserved - allocated - pending - cached.free_segments_bytes - cached.private_pool_bytes,
        cached_private_pool_bytes=cached.private_pool_bytes,
        reserved_bytes=reserved,
        capacity_bytes=capacity_bytes,
        device_free_bytes=device_free_at(history, at.event),
        outside_bytes=outside,
        outside_event=outside_event,
    )


def group_live(
    history: DeviceHistory, at: Moment, *, by: By = By.SITE, selection: BoolColumn | None = None
) -> tuple[LedgerRow, ...]:
    """Group the live allocations after `at`, most bytes first; needs no block replay.

    What `selection` leaves out is the last row, so that the rows still sum.
    """
    return group_rows(history, history.lifetimes.live_at(at.event), by, selection)


def group_rows(
    history: DeviceHistory, rows: Int64Column, by: By = By.SITE, selection: BoolColumn | None = None
) -> tuple[LedgerRow, ...]:
    """Group any allocations, most bytes first; what `selection` leaves out is the last row."""
    if selection is None:
        return _categorise(history, _group_rows(history, rows, by))
    grouped = _categorise(history, _group_rows(history, rows[selection[rows]], by))
    left_out = rows[~selection[rows]]
    if not len(left_out):
        return grouped
    num_bytes = int(history.lifetimes.requested_bytes[left_out].sum())
    rest = LedgerRow(key=LEFT_OUT_KEY, bytes=num_bytes, num_allocations=len(left_out), lifetimes=left_out)
    return (*grouped, rest)


def _group_rows(history: DeviceHistory, rows: Int64Column, by: By) -> tuple[LedgerRow, ...]:
    if not len(rows):
        return ()
    if by is By.CATEGORY:
        return _group(
            history, rows, history.classification.category[rows].astype(np.int64), lambda number: Category(number).label
        )
    if by is By.FINE:
        return _group_by_fine(history, rows)
    if by is By.MODULE:
        return _group_by_module(history, rows)
    if by is By.STEP:
        return _group_by_step(history, rows)
    if by is By.STREAM:
        streams = history.lifetimes.stream[rows]
        return _group(history, rows, streams, lambda stream: f"stream {stream_name(stream)}")
    if by is By.POOL:
        return _group(history, rows, history.lifetimes.pool[rows].astype(np.int64), lambda p: pool_name(history, p))
    return _group_by_site(history, rows, by)


def sum_categories(history: DeviceHistory, rows: Int64Column) -> tuple[CategoryRow, ...]:
    """Sum the requested bytes of some allocations by category, all five, in their usual order."""
    sizes = history.lifetimes.requested_bytes[rows]
    category = history.classification.category[rows]
    sure = np.zeros((len(Category), len(Confidence)), np.int64)
    np.add.at(sure, (category, history.classification.confidence[rows]), sizes)
    counts = np.bincount(category, minlength=len(Category))
    return tuple(
        CategoryRow(
            category=each,
            bytes=int(sure[each].sum()),
            num_allocations=int(counts[each]),
            confidence_bytes=tuple(sure[each].tolist()),
        )
        for each in Category
    )


def _categorise(history: DeviceHistory, rows: tuple[LedgerRow, ...]) -> tuple[LedgerRow, ...]:
    """Give every row the category of most of its bytes, and how sure that is."""
    if not rows:
        return ()
    members = np.concatenate([row.lifetimes for row in rows])
    owner = np.repeat(np.arange(len(rows)), [len(row.lifetimes) for row in rows])
    kinds = history.classification
    sure = np.zeros((len(rows), len(Category), len(Confidence)), np.int64)
    np.add.at(
        sure, (owner, kinds.category[members], kinds.confidence[members]), history.lifetimes.requested_bytes[members]
    )
    most = sure.sum(axis=2).argmax(axis=1)
    levels = sure[np.arange(len(rows)), most].tolist()
    return tuple(
        replace(row, category=Category(category), confidence=_overall(tuple(level)))
        for row, category, level in zip(rows, most.tolist(), levels, strict=True)
    )


def _overall(confidence_bytes: tuple[int, ...]) -> Confidence:
    total = sum(confidence_bytes)
    weak = (level for level in Confidence if confidence_bytes[level] * _WEAK_PART >= total > 0)
    return next(weak, Confidence.NONE)


def _group_by_module(history: DeviceHistory, rows: Int64Column) -> tuple[LedgerRow, ...]:
    """Group by module: its name where the program annotated the tensor, else its forward's place.

    A stack holds no instance names (`layers.3.attn`), only which `forward` called which.
    """
    named = name_modules(history)
    lifetimes = history.lifetimes
    labels: dict[str, int] = {}
    stacks: dict[tuple[int, bool], str] = {}
    keys = np.empty(len(rows), np.int64)
    births = lifetimes.birth_event[rows].tolist()
    for place, (row, stack, birth) in enumerate(
        zip(rows.tolist(), lifetimes.alloc_stack[rows].tolist(), births, strict=True)
    ):
        label = named.get(row)
        if label is None:
            known = (stack, birth == BEFORE)
            if known not in stacks:
                stacks[known] = (
                    history.sites.module_of(stack) or history.sites.of_stack(stack, is_before=known[1]).label
                )
            label = stacks[known]
        keys[place] = labels.setdefault(label, len(labels))
    by_number = list(labels)
    return _group(history, rows, keys, lambda key: by_number[key])


def name_modules(history: DeviceHistory) -> dict[int, str]:
    """Return the module path of every allocation that `_annotate_tensor` named like a parameter.

    The text is free; what looks like `…blocks.0.attn.qkv.weight` is taken for a dotted path
    whose last part is the tensor.
    """
    events, strings = history.tables.events, history.snapshot.stacks.strings
    named: dict[int, str] = {}
    for event, row in annotated_rows(events, history.lifetimes):
        match = _TENSOR_PATH.search(strings[int(events.user_metadata[event])][-_MAX_PATH:])
        if match is not None:
            named[row] = match[1]
    return named


def _group_by_step(history: DeviceHistory, rows: Int64Column) -> tuple[LedgerRow, ...]:
    """Group by the step in which an allocation was born."""
    births = history.lifetimes.birth_event[rows]
    steps = history.steps.steps
    keys = np.where(births == BEFORE, -2, history.steps.index_of(births))

    def name(key: int) -> str:
        if key == _KEY_BEFORE:
            return BEFORE_LABEL
        return f"{steps[key].name} ({key})" if steps and steps[key].name == "between" else (
            steps[key].name if key >= 0 else "(no steps known)")  # fmt: skip

    return _group(history, rows, keys, name)


def _group_by_fine(history: DeviceHistory, rows: Int64Column) -> tuple[LedgerRow, ...]:
    """Group by category and fine label: `optimizer_state/exp_avg`."""
    kinds = history.classification
    keys = kinds.category[rows].astype(np.int64) * len(FINE_LABELS) + kinds.fine[rows]
    return _group(
        history, rows, keys,
        lambda key: f"{Category(key // len(FINE_LABELS)).label}/{FINE_LABELS[key % len(FINE_LABELS)]}",
    )  # fmt: skip


def pool_name(history: DeviceHistory, pool: int) -> str:
    """Name a pool for people: `default pool`, `private pool (1, 0)`."""
    if pool == UNKNOWN_POOL:
        return "pool not recorded"
    first, second = history.snapshot.pools[pool]
    return "default pool" if pool == 0 else f"private pool ({first}, {second})"


def stream_name(stream: int) -> str:
    """Name a raw stream handle: small ones as numbers, pointers in hexadecimal."""
    return f"{stream:#x}" if stream > 9 else str(stream)


def device_free_at(history: DeviceHistory, event: int) -> int | None:
    """Return what the driver called free, which is known only at `oom` events."""
    events = history.tables.events
    at = np.flatnonzero(events.oom_events == event)
    free = int(events.oom_device_free_bytes[at[0]]) if len(at) else UNKNOWN_BYTES
    return free if free >= 0 else None


def _outside(history: DeviceHistory, event: int, capacity_bytes: int | None) -> tuple[int | None, int | None]:
    """Return the nearest `oom` event that tells what is outside PyTorch, and these bytes."""
    events = history.tables.events
    known = np.flatnonzero(events.oom_device_free_bytes >= 0)
    if capacity_bytes is None or not len(known):
        return None, None
    nearest = known[np.argmin(np.abs(events.oom_events[known] - event))]
    at = int(events.oom_events[nearest])
    held = int(history.totals.reserved_bytes[at + 1]) + int(events.oom_device_free_bytes[nearest])
    return (at, capacity_bytes - held) if capacity_bytes >= held else (None, None)


def _group(
    history: DeviceHistory, rows: Int64Column, keys: Int64Column, name: Callable[[int], str]
) -> tuple[LedgerRow, ...]:
    """Group rows by an integer key."""
    distinct, group = np.unique(keys, return_inverse=True)
    found = _rows(history, rows, group, [name(int(key)) for key in distinct])
    # Lines of files that have nothing in common say nothing.
    return tuple(replace(row, lines=()) for row in found)


def _group_by_site(history: DeviceHistory, rows: Int64Column, by: By) -> tuple[LedgerRow, ...]:
    """Group rows by site or file; sites are worked out per distinct stack, not per row."""
    lifetimes = history.lifetimes
    # The label of an allocation without a stack depends on whether it predates the history.
    is_before = lifetimes.birth_event[rows] == BEFORE
    stack_keys = lifetimes.alloc_stack[rows].astype(np.int64) * 2 + is_before
    stack_keys[_is_born_in_backward(history, rows)] = _KEY_BACKWARD
    distinct, which = np.unique(stack_keys, return_inverse=True)
    found = [
        history.sites.cpp_backward
        if key == _KEY_BACKWARD
        else history.sites.of_stack(int(key) >> 1, is_before=bool(key & 1))
        for key in distinct.tolist()
    ]
    names: dict[int | str, int] = {}
    labels: list[str] = []
    group_of = np.empty(len(distinct), np.int64)
    for place, site in enumerate(found):
        identity = site.number if by is By.SITE else (site.file or site.label)
        if identity not in names:
            names[identity] = len(labels)
            labels.append(site.label if by is By.SITE else (site.file or site.label))
        group_of[place] = names[identity]
    result = _rows(history, rows, group_of[which], labels)
    return _tell_apart(history, result) if by is By.SITE else result


def _is_born_in_backward(history: DeviceHistory, rows: Int64Column) -> BoolColumn:
    """Tell which allocations autograd's own threads made, by the phase: with Python stacks alone theirs are empty."""
    lifetimes = history.lifetimes
    births = lifetimes.birth_event[rows]
    is_backward: BoolColumn = (lifetimes.alloc_stack[rows] == EMPTY_STACK) & (births != BEFORE)
    candidates = np.flatnonzero(is_backward)
    phases = history.steps.phases_at(births[candidates])
    is_backward[candidates] = [phase == "backward" for phase in phases]
    return is_backward


def _rows(history: DeviceHistory, rows: Int64Column, group: Int64Column, keys: list[str]) -> tuple[LedgerRow, ...]:
    lifetimes, sites = history.lifetimes, history.sites
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order], prepend=-1))
    out = []
    for members in np.split(rows[order], cuts[1:]):
        sizes = lifetimes.requested_bytes[members]
        stacks, which = np.unique(lifetimes.alloc_stack[members], return_inverse=True)
        weight = np.zeros(len(stacks), np.int64)
        np.add.at(weight, which, sizes)
        by_weight = stacks[np.argsort(-weight, kind="stable")].tolist()
        lines = dict.fromkeys(sites.of_stack(stack).line for stack in by_weight[:200])
        out.append(
            LedgerRow(
                key="",
                bytes=int(sizes.sum()),
                num_allocations=len(members),
                lifetimes=members,
                lines=tuple(line for line in lines if line)[:_MAX_LINES],
                stack=by_weight[0] if by_weight[0] >= 0 else None,
            )
        )
    group_numbers = group[order][cuts]
    named = [replace(row, key=keys[number]) for row, number in zip(out, group_numbers.tolist(), strict=True)]
    # Equal sizes are ordered by name, so that two runs print the same.
    return tuple(sorted(named, key=lambda row: (-row.bytes, row.key)))


def _tell_apart(history: DeviceHistory, rows: tuple[LedgerRow, ...]) -> tuple[LedgerRow, ...]:
    """Name each site by the line of its most bytes, and make equal names differ."""
    labelled = []
    for row in rows:
        site = history.sites.of_stack(row.stack) if row.stack is not None else None
        labelled.append(replace(row, key=site.label) if site is not None and site.file else row)
    clashes: dict[str, list[LedgerRow]] = {}
    for row in labelled:
        if row.stack is not None:
            clashes.setdefault(row.key, []).append(row)
    frames: dict[int, list[_NamedFrame]] = {}
    out: list[LedgerRow] = []
    taken: dict[str, int] = {}
    for row in labelled:
        rivals = clashes.get(row.key, [])
        key = row.key + _difference(history, row, rivals, frames) if len(rivals) > 1 else row.key
        unique = key
        while unique in taken:
            taken[key] += 1
            unique = f"{key} #{taken[key]}"
        taken.setdefault(unique, 1)
        out.append(replace(row, key=unique))
    return tuple(out)


def _difference(
    history: DeviceHistory, row: LedgerRow, rivals: list[LedgerRow], frames: dict[int, list[_NamedFrame]]
) -> str:
    """Say in which frame a site differs from others of the same name.

    ` > linear.py:134 forward` is called from the shown line, ` < train.py:51 train` calls it.
    Sites that differ only in how deep a recursion went are told apart by a number.
    """
    some = [rival for rival in rivals[:_MAX_RIVALS] if rival is not row]
    for each in (row, *some):
        if each.stack is not None and each.stack not in frames:
            frames[each.stack] = _named_frames(history, each.stack, each.key)
    own = frames[row.stack if row.stack is not None else NO_STACK]
    others = [{name for name, _, _ in frames[rival.stack]} for rival in some if rival.stack is not None]
    # The frame that fewest rivals share says most; of equals, the one nearest to the line.
    scored = [(sum(name in other for other in others), distance, label) for name, label, distance in own]
    best = min(((shared, abs(distance), distance, label) for shared, distance, label in scored), default=None)
    if best is None or best[0] == len(others):
        return ""
    return f" {'>' if best[2] < 0 else '<'} {best[3].rpartition('/')[2]}"


def _named_frames(history: DeviceHistory, stack: int, key: str) -> list[_NamedFrame]:
    """Return (identity, label, distance from the shown frame) of the other frames of a row's stack."""
    sites, stacks = history.sites, history.snapshot.stacks
    frames = sites.visible_frames(stack).tolist()
    labels = [sites.frame_label(frame) for frame in frames]
    shown = labels.index(key) if key in labels else 0
    # Deep recursion says nothing new, and every rival is compared with every other.
    first = max(shown - _MAX_FRAMES // 2, 0)
    frames, labels, shown = frames[first : first + _MAX_FRAMES], labels[first : first + _MAX_FRAMES], shown - first
    return [
        ((sites.file_of(frame), stacks.function_of(frame)), label, place - shown)
        for place, (frame, label) in enumerate(zip(frames, labels, strict=True))
        if place != shown
    ]
