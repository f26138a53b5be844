"""The call tree of what is live: the user's frames from the outermost to the innermost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from snapscope.history import DeviceHistory
from snapscope.model import Int64Column
from snapscope.replay import BEFORE


@dataclass(slots=True, kw_only=True)
class CallNode:
    """A frame reached by one path of callers.

    Attributes:
        label: `file:line function`, or a bracketed label (untrusted text).
        stack: a stack through it; None where it has none.
        self_bytes: requested bytes allocated in the frame itself.
        total_bytes: of the frame and all that it called.
        num_allocations: how many allocations those are.
        own: rows of the lifetime table allocated in the frame itself, most bytes first.
        callees: frames it called, by label.
    """

    label: str
    stack: int | None
    self_bytes: int = 0
    total_bytes: int = 0
    num_allocations: int = 0
    own: list[Int64Column] = field(default_factory=list)
    callees: dict[str, CallNode] = field(default_factory=dict)

    def sorted_callees(self) -> list[CallNode]:
        """Return the callees, most bytes first; equal ones by name."""
        return sorted(self.callees.values(), key=lambda node: (-node.total_bytes, node.label))

    def own_lifetimes(self) -> Int64Column:
        """Return rows of the lifetime table of what the frame itself allocated."""
        return np.concatenate(self.own) if self.own else np.empty(0, np.int64)

    def lifetimes(self) -> Int64Column:
        """Return rows of the lifetime table of the frame and all that it called."""
        found: list[Int64Column] = []
        todo = [self]
        while todo:
            node = todo.pop()
            found += node.own
            todo += node.callees.values()
        return np.concatenate(found) if found else np.empty(0, np.int64)


def build_call_tree(history: DeviceHistory, lifetimes: Int64Column) -> CallNode:
    """Build the tree of some allocations; the root stands for all of them.

    A site that no frame of the user's code names (a library's, C++ backward, no stack) is a
    leaf of its own, so that the tree has the same names as the ledger.
    """
    root = CallNode(label="", stack=None)
    for stack, is_before, rows in _by_stack(history, lifetimes):
        num_bytes = int(history.lifetimes.requested_bytes[rows].sum())
        node = root
        for depth, label in enumerate((None, *_path(history, stack, is_before=is_before))):
            if depth and label is not None:
                known = node.callees.get(label)
                if known is None:
                    known = node.callees[label] = CallNode(label=label, stack=stack if stack >= 0 else None)
                node = known
            node.total_bytes += num_bytes
            node.num_allocations += len(rows)
        node.self_bytes += num_bytes
        node.own.append(rows)
    return root


def heaviest_path(root: CallNode) -> list[CallNode]:
    """Return the path from below the root along the most bytes, to where they are allocated or part ways."""
    path: list[CallNode] = []
    node = root
    while node.callees:
        heaviest = node.sorted_callees()[0]
        if path and (node.self_bytes * 2 >= node.total_bytes or heaviest.total_bytes * 3 < node.total_bytes):
            break
        path.append(heaviest)
        node = heaviest
    return path


def _by_stack(history: DeviceHistory, lifetimes: Int64Column) -> Iterator[tuple[int, bool, Int64Column]]:
    if not len(lifetimes):
        return
    table = history.lifetimes
    keys = table.alloc_stack[lifetimes].astype(np.int64) * 2 + (table.birth_event[lifetimes] == BEFORE)
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order]))
    for rows in np.split(lifetimes[order], cuts + 1):
        yield int(table.alloc_stack[rows[0]]), bool(table.birth_event[rows[0]] == BEFORE), rows


def _path(history: DeviceHistory, stack: int, *, is_before: bool) -> list[str]:
    site = history.sites.of_stack(stack, is_before=is_before)
    callers = history.sites.callers(stack)[::-1] if stack >= 0 else []
    return callers if site.label in callers else [*callers, site.label]
