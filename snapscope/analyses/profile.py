"""What one side of a comparison is: live bytes at a moment by site, with all that is compared.

A profile is small and plain, so that it can be written as a baseline, sent between processes
and compared with one of another run, program version or rank. Sites of different files are
told to be the same by their frames' names, never by numbers or addresses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from snapscope.analyses.cached import split_cached
from snapscope.analyses.fragmentation import hole_sizes
from snapscope.analyses.ledger import sum_categories
from snapscope.analyses.moments import Moment, Peaks, find_peaks
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category, Confidence
from snapscope.history import DeviceHistory
from snapscope.model import Int64Column, Notice
from snapscope.replay import BEFORE
from snapscope.sites import FrameKind, Site

_MAX_LINES: Final = 5
_MAX_SIZES: Final = 48
_MAX_RIVALS: Final = 50
_MAX_FRAMES: Final = 100
_NOTEBOOK: Final = re.compile(r"(?:^|/)ipykernel_\d+/\d+\.py$|^<ipython-input-")
_RESUMED: Final = re.compile(r"^(?:torch_dynamo_resume_in_)?(.+?)(?:_at_\d+)?$", re.DOTALL)
_LINE: Final = re.compile(r":\d+\Z")
_NUMBERED: Final = re.compile(r"\d+")
# Comprehensions have frames of their own before Python 3.12 only (PEP 709).
_INLINED: Final = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>"))

Key = tuple[str, ...]
"""The frames of a site as `file function`, innermost first; empty where there is no Python frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEntry:
    """The live bytes of one site at the moment that are of one category.

    Attributes:
        key: what it is matched by.
        label: how to show it (untrusted text).
        lines: source lines that it stands for, most bytes first; at most 5.
        category: of all its bytes.
        confidence: of most of them.
        fine: the fine label of most of its bytes.
        bytes: requested bytes.
        count: allocations.
        sizes: (requested bytes of one, how many), most bytes first; at most 48 sizes.
    """

    key: Key
    label: str
    lines: tuple[int, ...]
    category: Category
    confidence: Confidence
    fine: str
    bytes: int
    count: int
    sizes: tuple[tuple[int, int], ...]

    @property
    def has_all_sizes(self) -> bool:
        """Whether `sizes` leaves none out."""
        return sum(size * count for size, count in self.sizes) == self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """One side of a comparison.

    Attributes:
        name: of the file (untrusted text).
        device: ordinal.
        event, label: the moment.
        phase: `step 2, backward`; None where unknown.
        requested_bytes, allocated_bytes, pending_bytes, reserved_bytes: at the moment.
        free_segments_bytes, holes_bytes, private_pool_bytes: the parts of what is cached.
        largest_hole_bytes: of ordinary pools.
        peak_bytes: the peaks by kind (`requested`, `allocated`, `active`, `reserved`).
        categories: requested bytes by category; they sum to `requested_bytes`.
        fine: requested bytes by category and fine label, without zeros; they sum too.
        sites: the sites, most bytes first; they sum too.
        num_steps: complete steps; None where none can be told.
        step_peaks: (name, requested bytes at its peak) of every complete step.
        settings: allocator settings by name.
        has_stacks: whether any live byte has a Python frame.
        has_history: whether the file has more than a final state; without, its peak isn't known.
        num_ooms: `oom` events.
        notices: oddities of the file.
    """

    name: str
    device: int
    event: int
    label: str
    phase: str | None
    requested_bytes: int
    allocated_bytes: int
    pending_bytes: int
    reserved_bytes: int
    free_segments_bytes: int
    holes_bytes: int
    private_pool_bytes: int
    largest_hole_bytes: int
    peak_bytes: dict[str, int]
    categories: dict[Category, int]
    fine: dict[tuple[Category, str], int]
    sites: tuple[SiteEntry, ...]
    num_steps: int | None
    step_peaks: tuple[tuple[str, int], ...]
    settings: dict[str, str] = field(default_factory=dict)
    has_stacks: bool
    has_history: bool
    num_ooms: int
    notices: tuple[Notice, ...] = ()


def profile(history: DeviceHistory, at: Moment) -> MemoryProfile:
    """Take the profile of a device at a moment; needs the exact block replay."""
    index = at.event + 1
    live = history.lifetimes.live_at(at.event)
    layout = history.layout_at(at.event)
    cached = split_cached(layout)
    sites = _entries(history, live)
    steps = [step for step in history.steps.steps if step.name.startswith("step ") and step.is_complete]
    return MemoryProfile(
        name=history.snapshot.source.name,
        device=history.device,
        event=at.event,
        label=at.label,
        phase=_phase(history, at.event),
        requested_bytes=int(history.totals.requested_bytes[index]),
        allocated_bytes=int(history.block_totals.allocated_bytes[index]),
        pending_bytes=int(history.block_totals.pending_bytes[index]),
        reserved_bytes=int(history.totals.reserved_bytes[index]),
        free_segments_bytes=cached.free_segments_bytes,
        holes_bytes=cached.holes_bytes,
        private_pool_bytes=cached.private_pool_bytes,
        largest_hole_bytes=int(hole_sizes(layout).max(initial=0)),
        peak_bytes=_peak_bytes(find_peaks(history)),
        categories={row.category: row.bytes for row in sum_categories(history, live)},
        fine=_fine(history, live),
        sites=sites,
        num_steps=len(steps) if history.steps.source != "none" else None,
        step_peaks=tuple(
            (step.name, int(history.totals.requested_bytes[step.start_event + 1 : step.end_event + 2].max()))
            for step in steps
        ),
        settings=_settings(history),
        has_stacks=any(entry.key for entry in sites),
        # One event only is what `enabled="state"` leaves.
        has_history=history.num_events > 1,
        num_ooms=len(history.tables.events.oom_events),
        notices=history.notices,
    )


def _fine(history: DeviceHistory, live: Int64Column) -> dict[tuple[Category, str], int]:
    kinds = history.classification
    codes = kinds.category[live].astype(np.int64) * len(FINE_LABELS) + kinds.fine[live]
    sums = np.zeros(len(Category) * len(FINE_LABELS), np.int64)
    np.add.at(sums, codes, history.lifetimes.requested_bytes[live])
    return {
        (Category(code // len(FINE_LABELS)), FINE_LABELS[code % len(FINE_LABELS)]): int(sums[code])
        for code in np.flatnonzero(sums).tolist()
    }


def _peak_bytes(peaks: Peaks) -> dict[str, int]:
    return {
        "requested": peaks.requested.bytes,
        "allocated": peaks.allocated.bytes,
        "active": peaks.active.bytes,
        "reserved": peaks.reserved.bytes,
    }


def _phase(history: DeviceHistory, event: int) -> str | None:
    if event < 0:
        return None
    steps = history.steps.steps
    index = int(history.steps.index_of(np.array([event]))[0])
    parts = [steps[index].name if index >= 0 else None, history.steps.phases_at(np.array([event]))[0]]
    return ", ".join(part for part in parts if part) or None


def _settings(history: DeviceHistory) -> dict[str, str]:
    settings = history.snapshot.settings
    return {str(name): _value(value) for name, value in sorted(settings.raw.items())} if settings.known else {}


def _value(value: object) -> str:
    """Return a setting as text; of a table only what isn't 0."""
    if isinstance(value, dict):
        return " ".join(f"{key}:{item}" for key, item in value.items() if item) or "off"
    return str(value)


def _entries(history: DeviceHistory, live: Int64Column) -> tuple[SiteEntry, ...]:
    """Group live allocations by key and category; those without a Python frame by their label instead."""
    if not len(live):
        return ()
    lifetimes, kinds = history.lifetimes, history.classification
    is_before = lifetimes.birth_event[live] == BEFORE
    stack_keys = lifetimes.alloc_stack[live].astype(np.int64) * 2 + is_before
    distinct, which = np.unique(stack_keys, return_inverse=True)
    groups: dict[tuple[Key, str], int] = {}
    of_stack = np.zeros(len(distinct), np.int64)
    sites: list[Site] = []
    for place, code in enumerate(distinct.tolist()):
        site = history.sites.of_stack(code >> 1, is_before=bool(code & 1))
        key = key_of(history, code >> 1)
        sites.append(site)
        of_stack[place] = groups.setdefault((key, "" if key else site.label), len(groups))
    names = list(groups)
    number = of_stack[which]
    split = number * len(Category) + kinds.category[live]
    order = np.argsort(split, kind="stable")
    cuts = np.flatnonzero(np.diff(split[order], prepend=-1))
    entries = []
    for members in np.split(order, cuts[1:]):
        key, _ = names[int(number[members[0]])]
        entries.append(_entry(history, live[members], key, [sites[place] for place in which[members].tolist()]))
    return tuple(sorted(_tell_apart(entries), key=lambda entry: (-entry.bytes, entry.label, entry.key)))


def _tell_apart(entries: list[SiteEntry]) -> list[SiteEntry]:
    """Add to labels that clash the frame that fewest rivals share, outer ones behind `<`, inner ones behind `>`."""
    clashes: dict[str, list[SiteEntry]] = {}
    for entry in entries:
        if entry.key:
            clashes.setdefault(entry.label, []).append(entry)
    out = []
    for entry in entries:
        rivals = [rival for rival in clashes.get(entry.label, [])[:_MAX_RIVALS] if rival.key != entry.key]
        label = entry.label + (_difference(entry, rivals) if entry.key and rivals else "")
        out.append(replace(entry, label=label))
    return out


def _difference(entry: SiteEntry, rivals: list[SiteEntry]) -> str:
    where, _, function = entry.label.rpartition(" ")
    own = f"{_LINE.sub('', where)} {function}"
    shown = entry.key.index(own) if own in entry.key else 0
    others = [set(rival.key) for rival in rivals]
    scored = [
        (sum(name in other for other in others), abs(place - shown), place)
        for place, name in enumerate(entry.key[:_MAX_FRAMES])
        if place != shown
    ]
    best = min(scored, default=None)
    if best is None or best[0] == len(others):
        return ""
    return f" {'>' if best[2] < shown else '<'} {entry.key[best[2]].rpartition('/')[2]}"


def _entry(history: DeviceHistory, rows: Int64Column, key: Key, sites: list[Site]) -> SiteEntry:
    kinds = history.classification
    sizes = history.lifetimes.requested_bytes[rows]
    by_label: Counter[tuple[str, int]] = Counter()
    for site, size in zip(sites, sizes.tolist(), strict=True):
        by_label[site.label, site.line] += size
    heaviest = sorted(by_label.items(), key=lambda item: (-item[1], item[0]))
    fine = int(_heaviest(kinds.fine[rows].astype(np.int64), sizes))
    values, counts = np.unique(sizes, return_counts=True)
    by_bytes = sorted(zip(values.tolist(), counts.tolist(), strict=True), key=lambda item: -item[0] * item[1])
    return SiteEntry(
        key=key,
        label=heaviest[0][0][0],
        lines=tuple(dict.fromkeys(line for (_, line), _ in heaviest if line))[:_MAX_LINES],
        category=Category(int(kinds.category[rows[0]])),
        confidence=Confidence(int(_heaviest(kinds.confidence[rows].astype(np.int64), sizes))),
        fine=FINE_LABELS[fine],
        bytes=int(sizes.sum()),
        count=len(rows),
        sizes=tuple(by_bytes[:_MAX_SIZES]),
    )


def sum_up(group: Sequence[SiteEntry]) -> SiteEntry:
    """Return several entries as one, named after the heaviest."""
    sizes: Counter[int] = Counter()
    for entry in group:
        sizes.update(dict(entry.sizes))
    return replace(
        max(group, key=lambda entry: entry.bytes),
        lines=tuple(dict.fromkeys(line for entry in group for line in entry.lines))[:_MAX_LINES],
        bytes=sum(entry.bytes for entry in group),
        count=sum(entry.count for entry in group),
        sizes=tuple(sorted(sizes.items(), key=lambda item: -item[0] * item[1])),
    )


def _heaviest(values: Int64Column, sizes: Int64Column) -> int:
    weights = np.zeros(int(values.max()) + 1, np.int64)
    np.add.at(weights, values, sizes)
    # Of nothing but empty tensors any will do.
    return int(weights.argmax()) if weights.any() else int(values[0])


def key_of(history: DeviceHistory, stack: int) -> Key:
    """Return the frames that identify a stack in any file: Python ones of the program and its libraries.

    The standard library's are left out (launchers, wrappers), and so are numbers that change from
    run to run: of compiled regions, generated files and notebook cells.
    """
    sites, stacks = history.sites, history.snapshot.stacks
    if stack < 0:
        return ()
    names: list[str] = []
    for frame in stacks.frames_of(stack).tolist():
        kind = sites.kind_of(frame)
        function = stacks.function_of(frame)
        if kind in (FrameKind.CPP, FrameKind.HIDDEN, FrameKind.STDLIB) or function in _INLINED:
            continue
        # Where all code is in a notebook, a cell's folder is the project's root, and cut off.
        is_cell = bool(_NOTEBOOK.search(stacks.file_of(frame).replace("\\", "/")))
        file = "<notebook>" if is_cell else sites.file_of(frame)
        name = _frame_name(file, function, is_generated=kind is FrameKind.GENERATED)
        if not names or names[-1] != name:
            names.append(name)
    return tuple(names)


def _frame_name(file: str, function: str, *, is_generated: bool) -> str:
    match = _RESUMED.match(function)
    function = match[1] if match else function
    if is_generated:
        return f"<generated> {_NUMBERED.sub('', function)}"
    return f"{file} {function}"
