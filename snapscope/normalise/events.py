"""A device's trace: list of event dicts → `EventTable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np

from snapscope.errors import MalformedError
from snapscope.model import (
    NO_TIME,
    UNKNOWN_BYTES,
    UNKNOWN_POOL,
    Action,
    EventTable,
    Int8Column,
    Int32Column,
    Int64Column,
)
from snapscope.normalise.columns import Entry, addresses, integers, sizes, take
from snapscope.normalise.interning import Interner, StackInterner, text_of
from snapscope.normalise.notices import NoticeLog

_KNOWN_ACTIONS: Final = {action.name.lower(): int(action) for action in Action if action is not Action.OTHER}
_EXPECTED_KEYS: Final = frozenset(
    (
        "action addr size stream frames time_us compile_context user_metadata pool_id device_free "
        "forward_frames category"
    ).split()
)
_ADDRESS_MASK: Final = (1 << 64) - 1


class _ActionCodes(dict[Any, int]):
    """Codes by name; names that PyTorch doesn't use are counted."""

    def __init__(self) -> None:
        super().__init__(_KNOWN_ACTIONS)
        self.unknown: Counter[str] = Counter()

    def __missing__(self, key: Any) -> int:
        self.unknown[text_of(key)[:60]] += 1
        return int(Action.OTHER)


class PoolInterner:
    """Numbers pool ids; number 0 is the default pool `(0, 0)`."""

    def __init__(self) -> None:
        self._numbers: Interner = Interner({(0, 0): 0})
        self.num_bad = 0

    def number(self, pool_id: Any) -> int:
        """Return the number of a pool id, `UNKNOWN_POOL` for None or something else."""
        if type(pool_id) is tuple and pool_id in self._numbers:
            return self._numbers[pool_id]
        if pool_id is None:
            return UNKNOWN_POOL
        is_pair = isinstance(pool_id, (list, tuple)) and len(pool_id) == 2
        if not is_pair or not all(type(part) is int for part in pool_id):
            # An empty tuple has been seen where no pool applies.
            self.num_bad += not (isinstance(pool_id, (list, tuple)) and not pool_id)
            return UNKNOWN_POOL
        return self._numbers[tuple(pool_id)]

    def column(self, events: Sequence[Entry]) -> tuple[Int32Column, int]:
        """Return the pool of every event, and how many have the key."""
        try:
            # dict lookups at C speed; a bare tuple of a wrong shape must not be numbered,
            # so only pools already known are taken this way.
            column = np.fromiter(
                map(dict.__getitem__, _repeat(self._numbers), map(itemgetter("pool_id"), events)),
                dtype=np.int32,
                count=len(events),
            )
            return column, len(events)
        except (KeyError, TypeError):
            values, num_present = take(events, "pool_id", None)
            return np.fromiter(map(self.number, values), dtype=np.int32, count=len(events)), num_present

    def freeze(self) -> tuple[tuple[int, int], ...]:
        """Return the pool ids by number."""
        return tuple(self._numbers)


def _repeat(value: Any) -> Any:
    while True:
        yield value


def normalise_trace(
    events: Sequence[Any],
    *,
    what: str,
    stacks: StackInterner,
    pools: PoolInterner,
    notices: NoticeLog,
) -> EventTable:
    """Turn one device's trace into columns.

    Args:
        events: the list from the file, untrusted.
        what: how to call it in messages.
        stacks, pools: the snapshot's interners.
        notices: receives what was odd.

    Raises:
        MalformedError: an event is no dict, or holds impossible values.
    """
    num_events = len(events)
    if set(map(type, events)) - {dict}:
        raise MalformedError(f"{what}: an event is no dict")
    num_keys = 0
    addr, present = addresses(events, "addr", f"{what}, event")
    num_keys += present
    size, present = sizes(events, "size", UNKNOWN_BYTES, f"{what}, event")
    num_keys += present
    stream, present = _streams(events, what)
    num_keys += present
    time_us, present = integers(events, "time_us", NO_TIME, f"{what}, event")
    num_keys += present
    pool, present = pools.column(events)
    num_keys += present
    action, present = _actions(events, what, notices)
    num_keys += present
    stack, present = _stacks(events, stacks)
    num_keys += present
    compile_context, present = _texts(events, "compile_context", stacks.strings)
    num_keys += present
    user_metadata, present = _texts(events, "user_metadata", stacks.strings)
    num_keys += present

    oom_events = np.flatnonzero(action == Action.OOM)
    ooms = [events[i] for i in oom_events]
    oom_free, present = sizes(ooms, "device_free", UNKNOWN_BYTES, f"{what}, oom event")
    num_keys += present
    if sum(map(len, events)) != num_keys:
        _note_other_keys(events, notices)

    order = _check_order(time_us, what, notices)
    forward_events, forward_text = _forward_frames(events, stacks)
    _check_events(action, addr, size, events, what, notices)
    columns: dict[str, Any] = {
        "action": action,
        "addr": addr,
        "size_bytes": np.maximum(size, 0),
        "stream": stream,
        "pool": pool,
        "time_us": time_us,
        "stack": stack,
        "compile_context": compile_context,
        "user_metadata": user_metadata,
    }
    if order is not None:
        columns = {name: column[order] for name, column in columns.items()}
        place = np.empty(num_events, np.int64)
        place[order] = np.arange(num_events)
        oom_events, forward_events = place[oom_events], place[forward_events]
        sort = np.argsort(oom_events)
        oom_events, oom_free = oom_events[sort], oom_free[sort]
    return EventTable(
        **columns,
        oom_events=oom_events.astype(np.int64),
        oom_device_free_bytes=oom_free,
        forward_events=forward_events.astype(np.int64),
        forward_text=forward_text,
    )


def _actions(events: Sequence[Entry], what: str, notices: NoticeLog) -> tuple[Int8Column, int]:
    codes = _ActionCodes()
    try:
        values, present = take(events, "action", None)
        column = np.fromiter(map(codes.__getitem__, values), dtype=np.int8, count=len(events))
    except TypeError:
        raise MalformedError(f"{what}: an event's 'action' is no string") from None
    # Forks add actions of their own; they change no state that we know of.
    for name, count in sorted(codes.unknown.items())[:20]:
        notices.add("unknown_action", f"{what}: unknown action {name!r}, ignored", count=count)
    return column, present


def _streams(events: Sequence[Entry], what: str) -> tuple[Int64Column, int]:
    try:
        return integers(events, "stream", 0, f"{what}, event")
    except MalformedError:
        # Handles are opaque: a fork may write 64-bit pointers or object ids.
        values, present = take(events, "stream", 0)
        return np.fromiter(map(stream_of, values), dtype=np.int64, count=len(events)), present


def stream_of(value: Any) -> int:
    """Return a stream handle as a signed 64-bit number, whatever the file calls a stream."""
    if type(value) is int:
        return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
    return 0


def _stacks(events: Sequence[Entry], stacks: StackInterner) -> tuple[Int32Column, int]:
    try:
        return stacks.column(map(itemgetter("frames"), events), len(events)), len(events)
    except KeyError:
        values, present = take(events, "frames", None)
        return stacks.column(values, len(events)), present


def _texts(events: Sequence[Entry], key: str, strings: Interner) -> tuple[Int32Column, int]:
    """Intern a column of strings; -1 where the key is absent."""
    lookup: Callable[[Any], int] = strings.__getitem__
    try:
        column = np.fromiter(map(lookup, map(itemgetter(key), events)), dtype=np.int32, count=len(events))
        # A None or a number would have been interned as it is: only strings may stay.
        if not any(type(text) is not str for text in strings):
            return column, len(events)
    except (KeyError, TypeError):
        pass
    for text in [text for text in strings if type(text) is not str]:
        raise MalformedError(f"event {key!r} is no string (a {type(text).__name__})")
    if not any(key in event for event in events):
        return np.full(len(events), -1, np.int32), 0
    values, present = take(events, key, None)
    numbers = (-1 if value is None else lookup(_metadata_text(value)) for value in values)
    return np.fromiter(numbers, dtype=np.int32, count=len(events)), present


def _metadata_text(value: Any) -> str:
    """The viewer accepts a dict as `user_metadata`: write it as `key=value` pairs."""
    if type(value) is dict:
        return ", ".join(f"{text_of(key)}={text_of(item)}" for key, item in list(value.items())[:20])
    return text_of(value)


def _forward_frames(events: Sequence[Entry], stacks: StackInterner) -> tuple[Int64Column, Int32Column]:
    rows = [i for i, event in enumerate(events) if "forward_frames" in event] if _has_forward(events) else []
    texts = []
    for row in rows:
        lines = events[row]["forward_frames"]
        lines = lines if isinstance(lines, list) else []
        texts.append(stacks.strings["\n".join(text_of(line) for line in lines[:200])])
    return np.array(rows, np.int64), np.array(texts, np.int32)


def _has_forward(events: Sequence[Entry]) -> bool:
    # Anomaly mode records them on every event of a backward, so a long run without any
    # at both ends and in the middle isn't proof, but a full look costs only 30 ns each.
    return any(map(dict.__contains__, events, _repeat("forward_frames")))


def _note_other_keys(events: Sequence[Entry], notices: NoticeLog) -> None:
    unknown: Counter[str] = Counter()
    for event in events:
        unknown.update(text_of(key)[:60] for key in event if key not in _EXPECTED_KEYS)
    for name, count in sorted(unknown.items())[:20]:
        notices.add("unknown_key", f"unknown event key {name!r}, ignored", count=count)


def _check_order(time_us: Int64Column, what: str, notices: NoticeLog) -> Int64Column | None:
    """Return the order that puts a rotated ring right, None where the order is fine.

    Changing `max_entries` of a live ring can leave it unrotated. List order rules within a
    device, so small steps back of the clock are only noted.
    """
    if len(time_us) < 2 or time_us[0] == NO_TIME:
        return None
    drops = np.flatnonzero(np.diff(time_us) < 0)
    if not len(drops):
        return None
    if len(drops) == 1 and time_us[-1] <= time_us[0]:
        notices.add("trace_rotated", f"{what}: the trace began in the middle of its ring; put in order by time")
        cut = int(drops[0]) + 1
        return np.concatenate((np.arange(cut, len(time_us)), np.arange(cut)))
    notices.add(
        "time_goes_back", f"{what}: the clock goes back between events; the order of the list is kept", count=len(drops)
    )
    return None


def _check_events(
    action: Int8Column, addr: Any, size: Int64Column, events: Sequence[Entry], what: str, notices: NoticeLog
) -> None:
    if float(np.maximum(size, 0).sum(dtype=np.float64)) > 2.0**62:
        raise MalformedError(f"{what}: the sizes add up to an absurd total")
    if (addr > np.uint64(_ADDRESS_MASK) - np.maximum(size, 0).astype(np.uint64)).any():
        raise MalformedError(f"{what}: an event ends beyond 64 bits of address")
    moves = action <= Action.SEGMENT_UNMAP
    missing_size = moves & (size < 0)
    notices.add("event_without_size", f"{what}: events without a size count as 0 bytes", count=int(missing_size.sum()))
    suspects = np.flatnonzero(moves & (addr == 0))
    without = sum("addr" not in events[i] for i in suspects)
    notices.add("event_without_addr", f"{what}: events without an address", count=without)
