"""Rows of the live tree: what holds the bytes at the cursor, and what is inside each row.

Made in a worker thread; what is inside a row is worked out when it is opened. The rows of
one level sum to their parent's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from snapscope.analyses.ledger import Balance, By, CategoryRow, LedgerRow, balance, group_live, sum_categories
from snapscope.analyses.moments import Moment, moment_at
from snapscope.classify.material import Category, Confidence
from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.model import Int64Column
from snapscope.replay import BEFORE, NEVER
from snapscope.tui.calltree import CallNode, build_call_tree, heaviest_path
from snapscope.tui.kinds import main_category
from snapscope.tui.state import ViewState
from snapscope.units import format_address, format_bytes, format_count

_FIRST_ALLOCATIONS: Final = 20
_MORE_ALLOCATIONS: Final = 1000
_SHOWN_CALLERS: Final = 3
_LABEL_LIMIT: Final = 300

RowPath = tuple[str, ...]


class RowKind(Enum):
    """What a row stands for."""

    GROUP = "group"
    CALL = "call"
    CALLER = "caller"
    ALLOCATION = "allocation"
    MORE = "more"
    LEFT_OUT = "left_out"
    BALANCE = "balance"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row.

    Attributes:
        key: unique among its siblings, and equal at other moments for the same thing.
        kind: what it stands for.
        label: its name, safe to show.
        bytes: requested bytes (of balance rows: what they are named after); None for callers.
        self_bytes: for calls: what the frame itself allocated.
        count: allocations.
        lifetimes: rows of the lifetime table behind it.
        stack: a stack that stands for it.
        lifetime: for allocations: the row of the lifetime table.
        lines: for sites: source lines, most bytes first.
        by: what a group is one of.
        node: for calls: the node.
        category: of most of its bytes; None for balance rows and what the filter left out.
        confidence: how sure that is.
        sign: for balance rows: `+` or `=`.
        meaning: for balance rows: what the word means.
    """

    key: str
    kind: RowKind
    label: str
    bytes: int | None = None
    self_bytes: int | None = None
    count: int | None = None
    lifetimes: Int64Column | None = None
    stack: int | None = None
    lifetime: int | None = None
    lines: tuple[int, ...] = ()
    by: By | None = None
    node: CallNode | None = None
    category: Category | None = None
    confidence: Confidence = Confidence.NONE
    sign: str = ""
    meaning: str = ""

    @property
    def has_children(self) -> bool:
        """Whether it can be opened."""
        if self.kind is RowKind.BALANCE:
            return self.lifetimes is not None and len(self.lifetimes) > 0
        return self.kind not in (RowKind.ALLOCATION, RowKind.CALLER, RowKind.NOTE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveRows:
    """What is live at one moment, grouped.

    Attributes:
        state: what it was made for.
        at: the moment.
        balance: reserved memory then.
        categories: what is live by category; sums to the requested bytes.
        rows: the top level.
        num_allocations: how many are live.
        first_path: the row to select at first; the rows above it are open.
        inside: what is inside the rows that were open, by path.
    """

    state: ViewState
    at: Moment
    balance: Balance
    categories: tuple[CategoryRow, ...]
    rows: tuple[Row, ...]
    num_allocations: int
    first_path: RowPath
    inside: Mapping[RowPath, tuple[Row, ...]] = field(default_factory=dict)

    def children(self, row: Row) -> tuple[Row, ...]:
        """Return what is inside a row, most bytes first."""
        history = self.state.history
        if row.kind is RowKind.CALL and row.node is not None:
            calls = [_call_row(history, node) for node in row.node.sorted_callees()]
            return (*calls, *_allocations(history, row.node.own_lifetimes()))
        lifetimes = row.lifetimes if row.lifetimes is not None else np.empty(0, np.int64)
        if row.kind is RowKind.MORE:
            return _allocations(history, lifetimes, num_shown=_MORE_ALLOCATIONS)
        if row.kind is RowKind.LEFT_OUT:
            return _groups_within(history, self.at, self.state.by, lifetimes)
        if row.kind is RowKind.GROUP and row.by is not By.SITE:
            return _groups_within(history, self.at, By.SITE, lifetimes)
        if row.kind is RowKind.GROUP:
            return (*_callers(history, row), *_allocations(history, lifetimes))
        return _allocations(history, lifetimes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsRequest:
    """What the live tree needs.

    Attributes:
        state: what to show.
        open_paths: the rows whose inside is shown.
        before: the rows there are already; used again if they are of the same state.
    """

    state: ViewState
    open_paths: frozenset[RowPath] = frozenset()
    before: LiveRows | None = None


def work_out_rows(request: RowsRequest) -> LiveRows:
    """Group what is live, and look into the rows that are open."""
    before = request.before
    live = before if before is not None and before.state is request.state else make_live_rows(request.state)
    ancestors = (live.first_path[:depth] for depth in range(1, len(live.first_path)))
    open_paths = request.open_paths.union(ancestors)
    inside: dict[RowPath, tuple[Row, ...]] = {}
    todo: list[tuple[RowPath, tuple[Row, ...]]] = [((), live.rows)]
    while todo:
        parent, rows = todo.pop()
        for row in rows:
            path = (*parent, row.key)
            if path in open_paths and row.has_children:
                inside[path] = live.inside[path] if path in live.inside else live.children(row)
                todo.append((path, inside[path]))
    return replace(live, inside=inside)


def make_live_rows(state: ViewState) -> LiveRows:
    """Group what is live at the cursor, as the state says."""
    history = state.history
    at = moment_at(history, state.cursor)
    sums = balance(history, at, capacity_bytes=state.request.capacity_bytes)
    live = history.lifetimes.live_at(at.event)
    first: RowPath = ()
    if state.shows_calls:
        selection = state.focus.selection if state.focus else None
        kept = live if selection is None else live[selection[live]]
        rows, first = _call_rows(history, kept)
        left_out = live[:0] if selection is None else live[~selection[live]]
        if len(left_out):
            rows = (*rows, _left_out_row(history, left_out))
    else:
        rows = _top_groups(state, at)
    if not len(live):
        rows = (Row(key="note", kind=RowKind.NOTE, label="nothing is live at this moment"),)
    elif all(row.kind is RowKind.LEFT_OUT for row in rows):
        rows = (Row(key="note", kind=RowKind.NOTE, label="nothing live matches the filter: esc clears it"), *rows)
    if not first and rows:
        first = (rows[0].key,)
    tail = _balance_rows(state, at, sums, num_live=len(live))
    return LiveRows(
        state=state,
        at=at,
        balance=sums,
        categories=sum_categories(history, live),
        rows=(*rows, *tail),
        num_allocations=len(live),
        first_path=first or (tail[0].key,),
    )


def _top_groups(state: ViewState, at: Moment) -> tuple[Row, ...]:
    history, focus = state.history, state.focus
    found = group_live(history, at, by=state.by, selection=focus.selection if focus else None)
    rows = []
    for row in found:
        is_left_out = focus is not None and not focus.selection[row.lifetimes[0]]
        rows.append(_left_out_row(history, row.lifetimes) if is_left_out else _group_row(history, row, state.by))
    return tuple(rows)


def _left_out_row(history: DeviceHistory, lifetimes: Int64Column) -> Row:
    return Row(
        key="left out",
        kind=RowKind.LEFT_OUT,
        label="(left out by the filter)",
        bytes=int(history.lifetimes.requested_bytes[lifetimes].sum()),
        count=len(lifetimes),
        lifetimes=lifetimes,
    )


def _group_row(history: DeviceHistory, row: LedgerRow, by: By) -> Row:
    key = f"{by.value}:{row.key}"
    if by is By.SITE and row.stack is not None:
        # Labels depend on what else is live; the number doesn't.
        key = f"site#{history.sites.of_stack(row.stack).number}"
    return Row(
        key=key,
        kind=RowKind.GROUP,
        label=escape(row.key, limit=_LABEL_LIMIT),
        bytes=row.bytes,
        count=row.num_allocations,
        lifetimes=row.lifetimes,
        stack=row.stack,
        lines=row.lines if by is By.SITE else (),
        by=by,
        category=row.category,
        confidence=row.confidence if row.confidence is not None else Confidence.NONE,
    )


def _groups_within(history: DeviceHistory, at: Moment, by: By, lifetimes: Int64Column) -> tuple[Row, ...]:
    if not len(lifetimes):
        return ()
    chosen = np.zeros(len(history.lifetimes), bool)
    chosen[lifetimes] = True
    found = group_live(history, at, by=by, selection=chosen)
    return tuple(_group_row(history, row, by) for row in found if chosen[row.lifetimes[0]])


def _callers(history: DeviceHistory, row: Row) -> list[Row]:
    """Return the frames that called a site, innermost first; all of a site's stacks share them."""
    if row.stack is None:
        return []
    shown = history.sites.of_stack(row.stack).label
    callers = history.sites.callers(row.stack)
    if callers and callers[0] == shown:
        callers = callers[1:]
    rows = [
        Row(
            key=f"caller:{depth}",
            kind=RowKind.CALLER,
            label=f"< {escape(caller, limit=_LABEL_LIMIT)}",
            stack=row.stack,
            lifetimes=row.lifetimes,
        )
        for depth, caller in enumerate(callers[:_SHOWN_CALLERS])
    ]
    if len(callers) > _SHOWN_CALLERS:
        rest = len(callers) - _SHOWN_CALLERS
        label = f"< {rest} more, outermost {escape(callers[-1], limit=_LABEL_LIMIT)}"
        rows.append(Row(key="caller:rest", kind=RowKind.CALLER, label=label, stack=row.stack, lifetimes=row.lifetimes))
    return rows


def _allocations(
    history: DeviceHistory, lifetimes: Int64Column, *, num_shown: int = _FIRST_ALLOCATIONS
) -> tuple[Row, ...]:
    """Return the largest allocations, and one row for the rest."""
    sizes = history.lifetimes.requested_bytes[lifetimes]
    order = lifetimes[np.lexsort((lifetimes, -sizes))]
    if len(order) <= num_shown + 1:
        num_shown = len(order)
    rows = [allocation_row(history, lifetime) for lifetime in order[:num_shown].tolist()]
    rest = order[num_shown:]
    if len(rest):
        found = main_category(history, rest)
        rows.append(
            Row(
                key="more",
                kind=RowKind.MORE,
                label=f"{format_count(len(rest))} smaller ones",
                bytes=int(history.lifetimes.requested_bytes[rest].sum()),
                count=len(rest),
                lifetimes=rest,
                category=found.category,
                confidence=found.confidence,
            )
        )
    return tuple(rows)


def allocation_row(history: DeviceHistory, lifetime: int) -> Row:
    """Make the row of one allocation."""
    table = history.lifetimes
    stack = int(table.alloc_stack[lifetime])
    return Row(
        key=f"a{lifetime}",
        kind=RowKind.ALLOCATION,
        label=f"{format_address(int(table.addr[lifetime]))} {_life(history, lifetime)}",
        bytes=int(table.requested_bytes[lifetime]),
        count=1,
        stack=stack if stack >= 0 else None,
        lifetime=lifetime,
        category=Category(int(history.classification.category[lifetime])),
        confidence=Confidence(int(history.classification.confidence[lifetime])),
    )


def _life(history: DeviceHistory, lifetime: int) -> str:
    table = history.lifetimes
    born, asked = int(table.birth_event[lifetime]), int(table.free_requested_event[lifetime])
    birth = "before the history" if born == BEFORE else f"from event {format_count(born)}"
    if asked == NEVER:
        return f"{birth}, alive at the end"
    return f"{birth} to {format_count(asked)}" if asked >= 0 else f"{birth}, free pending"


def _call_rows(history: DeviceHistory, live: Int64Column) -> tuple[tuple[Row, ...], RowPath]:
    root = build_call_tree(history, live)
    path = heaviest_path(root)
    rows = tuple(_call_row(history, node) for node in root.sorted_callees())
    return rows, tuple(f"call:{node.label}" for node in path)


def _call_row(history: DeviceHistory, node: CallNode) -> Row:
    found = main_category(history, node.lifetimes())
    return Row(
        key=f"call:{node.label}",
        kind=RowKind.CALL,
        label=escape(node.label, limit=_LABEL_LIMIT),
        bytes=node.total_bytes,
        self_bytes=node.self_bytes,
        count=node.num_allocations,
        stack=node.stack,
        node=node,
        category=found.category,
        confidence=found.confidence,
    )


def _balance_rows(state: ViewState, at: Moment, sums: Balance, *, num_live: int) -> tuple[Row, ...]:
    """Return the rungs from requested to reserved, and on to the card where that is known."""
    pending = state.history.lifetimes.pending_at(at.event)
    rungs: list[tuple[str, str, int | None, str]] = [
        ("=", "requested", sums.requested_bytes, "What the code asked for, of all live allocations."),
        ("+", "rounding", sums.rounding_bytes, "Block size minus requested bytes: blocks are multiples of 512 B, and "
         "large ones may keep up to 1 MiB more than asked for."),
        ("=", "allocated", sums.allocated_bytes, "torch.cuda.memory_allocated(): requested plus rounding."),
        ("+", "pending free", sums.pending_bytes, "Freed by the code, but still waited for by another stream or a "
         "capture: not allocated any more, not yet reusable."),
        ("+", "cached: free segments", sums.cached_free_segments_bytes, "Segments without a block in use: "
         "torch.cuda.empty_cache() returns them to the driver."),
        ("+", "cached: holes", sums.cached_holes_bytes, "Free pieces of segments that live blocks keep from being "
         "released."),
        ("+", "cached: private pools", sums.cached_private_pool_bytes, "Idle bytes of private pools (CUDA graphs, "
         "MemPool): free, but for nobody else."),
        ("=", "reserved", sums.reserved_bytes, "torch.cuda.memory_reserved(): all segments, held from the driver."),
    ]  # fmt: skip
    if sums.outside_bytes is not None:
        rungs.append(("+", "outside PyTorch", sums.outside_bytes, "What the driver counts as used beyond reserved: the "
                      "CUDA context, NCCL, other processes."))  # fmt: skip
    if sums.device_free_bytes is not None:
        rungs.append(("+", "device free", sums.device_free_bytes, "What the driver still had, as the oom event tells."))
    if sums.capacity_bytes is not None:
        rungs.append(("=", "capacity", sums.capacity_bytes, "The card's size, as given with --capacity."))
    rows = []
    for sign, name, size, meaning in rungs:
        members = pending if name == "pending free" else None
        count = num_live if name == "requested" else len(pending) if members is not None and len(pending) else None
        rows.append(
            Row(key=f"balance:{name}", kind=RowKind.BALANCE, label=f"{sign} {name}", bytes=size, count=count,
                lifetimes=members, sign=sign, meaning=meaning)
        )  # fmt: skip
    return tuple(rows)


def copy_text(row: Row) -> str:
    """Return a row as one line of text, to copy."""
    parts = [format_bytes(row.bytes)] if row.bytes is not None else []
    if row.count is not None:
        parts.append(f"{format_count(row.count)}×")
    return "  ".join([*parts, row.label])
