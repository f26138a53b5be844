"""Tell a snapshot from other values, and find one that is wrapped in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from snapscope.errors import NotASnapshotError
from snapscope.load.quoting import quote_text

RawValue: TypeAlias = dict[str, Any] | list[Any]
"""A snapshot as PyTorch makes it: a dict with `segments`, or the bare list of segments."""

MAX_DEPTH: Final = 3
_MAX_NODES: Final = 10_000
_MAX_ITEMS: Final = 1_000
_NUM_CHECKED_ITEMS: Final = 16
_NUM_SHOWN_KEYS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A snapshot within a value.

    Attributes:
        value: the snapshot.
        path: how to get to it, in words: `key 'snapshot'`, `item 0`; empty if the value is the snapshot.
        num_snapshots: how many there are; the others are left alone.
    """

    value: RawValue
    path: tuple[str, ...]
    num_snapshots: int


def find_snapshot(value: Any) -> Found:
    """Return the snapshot that `value` is or holds, at most `MAX_DEPTH` containers deep.

    The nearest to the surface counts, in the file's order. The search visits a bounded number of
    containers, and each once: a hostile value may hold itself.

    Raises:
        NotASnapshotError: there is none; the message says what there is instead.
    """
    if isinstance(value, (list, tuple)) and not value:
        # memory_snapshot() of a process that hasn't allocated yet.
        return Found(value=[], path=(), num_snapshots=1)
    first: tuple[RawValue, tuple[str, ...]] | None = None
    num_snapshots = 0
    seen = {id(value)}
    queue: deque[tuple[Any, tuple[str, ...]]] = deque([(value, ())])
    while queue:
        node, path = queue.popleft()
        snapshot = _as_snapshot(node)
        if snapshot is not None:
            num_snapshots += 1
            first = first or (snapshot, path)
            continue
        if len(path) == MAX_DEPTH:
            continue
        for step, child in _children(node):
            if len(seen) == _MAX_NODES:
                break
            if isinstance(child, (dict, list, tuple)) and child and id(child) not in seen:
                seen.add(id(child))
                queue.append((child, (*path, step)))
    if first is None:
        raise NotASnapshotError(describe_other(value))
    return Found(value=first[0], path=first[1], num_snapshots=num_snapshots)


def describe_other(value: Any) -> str:
    """Say what a value is that is no snapshot, and what to do where that is known."""
    if isinstance(value, dict):
        if "traceEvents" in value:
            return (
                "is a profiler trace (traceEvents), which holds no memory snapshot: "
                "dump one with torch.cuda.memory._dump_snapshot"
            )
        if "allocated_bytes.all.current" in value:
            return (
                "holds the counters of torch.cuda.memory_stats(), not a snapshot: "
                "dump one with torch.cuda.memory._dump_snapshot"
            )
        if "snapscope_baseline" in value:
            return "is a baseline of snapscope, not a snapshot: only diff and check take one, and not from stdin"
        if not value:
            return "no snapshot: found an empty dict"
        shown = [_key_text(key) for key in islice(value, _NUM_SHOWN_KEYS)]
        left_out = f" and {len(value) - len(shown):,} more" if len(value) > len(shown) else ""
        return f"no snapshot: found keys {', '.join(shown)}{left_out}"
    if isinstance(value, (list, tuple)):
        kinds = sorted({type(item).__name__ for item in value[:_MAX_ITEMS]})
        return f"no snapshot: found a {type(value).__name__} of {len(value):,} {' and '.join(kinds)}"
    return f"no snapshot: found {'nothing' if value is None else 'a single ' + type(value).__name__}"


def _as_snapshot(node: Any) -> RawValue | None:
    if isinstance(node, dict):
        segments, traces = node.get("segments"), node.get("device_traces")
        if isinstance(segments, (list, tuple)):
            # Other programs write `segments` too: speech recognition, say.
            return node if not segments or any(map(_is_segment, segments[:_NUM_CHECKED_ITEMS])) else None
        return node if isinstance(traces, (list, tuple)) else None
    if isinstance(node, (list, tuple)) and node and all(map(_is_segment, node[:_NUM_CHECKED_ITEMS])):
        return list(node)
    return None


def _is_segment(item: Any) -> bool:
    return isinstance(item, dict) and (
        isinstance(item.get("blocks"), (list, tuple)) or type(item.get("total_size")) is int
    )


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, child in islice(node.items(), _MAX_ITEMS):
            yield f"key {_key_text(key, quote=True)}", child
    elif isinstance(node, (list, tuple)):
        for index, child in enumerate(node[:_MAX_ITEMS]):
            yield f"item {index}", child


def _key_text(key: Any, *, quote: bool = False) -> str:
    if isinstance(key, str):
        text = quote_text(key, limit=40)
        return f"'{text}'" if quote else text
    # A tuple as key may be nested beyond what repr can do.
    return str(key) if isinstance(key, (int, float)) else type(key).__name__
