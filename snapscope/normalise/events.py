"""A device's trace: list of event dicts → `EventTable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import numpy as np

from snapscope.errors import MalformedError
from snapscope.load import EventColumns
from snapscope.model import (
    NO_TIME,
    UNKNOWN_BYTES,
    UNKNOWN_POOL,
    Action,
    AddressColumn,
    EventTable,
    Int8Column,
    Int32Column,
    Int64Column,
)
from snapscope.normalise.columns import (
    Entry,
    addresses,
    checked_sizes,
    integers,
    matrix,
    sizes,
    take,
)
from snapscope.normalise.interning import Interner, StackInterner, text_of
from snapscope.normalise.notices import NoticeLog

_KNOWN_ACTIONS: Final = {action.name.lower(): int(action) for action in Action if action is not Action.OTHER}
# The keys that most events have, and what stands for one that an event lacks.
DEFAULTS: Final[dict[str, Any]] = {
    "action": None,
    "addr": 0,
    "size": UNKNOWN_BYTES,
    "stream": 0,
    "frames": None,
    "time_us": NO_TIME,
    "compile_context": None,
    "user_metadata": None,
    "pool_id": None,
    "category": None,
}
TEXT_KEYS: Final = frozenset(("action", "compile_context", "user_metadata", "category"))
QUIET_KEYS: Final = frozenset(("device_free",))
_MAX_NAMES: Final = 20
# Bounds of free text: a file may share one long string among any number of entries.
_MAX_PAIRS: Final = 20
_MAX_PART: Final = 200
_MAX_LINES: Final = 200
_MAX_LINE_TEXT: Final = 500
_ADDRESS_MASK: Final = (1 << 64) - 1


class PoolInterner:
    """Numbers pool ids; number 0 is the default pool `(0, 0)`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {(0, 0): 0}
        self.num_bad = 0

    def number(self, pool_id: Any) -> int:
        """Return the number of a pool id, `UNKNOWN_POOL` for None or something else."""
        if pool_id is None:
            return UNKNOWN_POOL
        is_pair = isinstance(pool_id, (list, tuple)) and len(pool_id) == 2
        if not is_pair or not all(type(part) is int for part in pool_id):
            # An empty tuple has been seen where no pool applies.
            self.num_bad += not (isinstance(pool_id, (list, tuple)) and not pool_id)
            return UNKNOWN_POOL
        return self._numbers.setdefault((pool_id[0], pool_id[1]), len(self._numbers))

    def column(self, events: Sequence[Entry]) -> Int32Column:
        """Return the pool of every event."""
        try:
            # Lookups at C speed; a tuple of a wrong shape must not be numbered, so only
            # pools already known are found this way.
            return np.fromiter(
                map(self._numbers.__getitem__, map(itemgetter("pool_id"), events)),
                dtype=np.int32,
                count=len(events),
            )
        except (KeyError, TypeError):
            values = take(events, "pool_id", None)
            return np.fromiter(map(self.number, values), dtype=np.int32, count=len(events))

    def freeze(self) -> tuple[tuple[int, int], ...]:
        """Return the pool ids by number."""
        return tuple(self._numbers)


def normalise_trace(
    events: Sequence[Any] | EventColumns,
    *,
    what: str,
    stacks: StackInterner,
    pools: PoolInterner,
    notices: NoticeLog,
) -> EventTable:
    """Turn one device's trace into columns.

    Args:
        events: the list from the file, untrusted, or what the compiled reader made of it.
        what: how to call it in messages.
        stacks, pools: the snapshot's interners.
        notices: receives what was odd.

    Raises:
        MalformedError: an event is no dict, or holds impossible values.
    """
    if isinstance(events, EventColumns):
        # Imported here: it builds on this module.
        from snapscope.normalise.columnar import gather

        gathered = gather(events, what=what, stacks=stacks, pools=pools)
    else:
        gathered = _gather(events, what=what, stacks=stacks, pools=pools)
    return _finish(gathered, what=what, strings=stacks.strings, notices=notices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Columns of a trace before the checks.

    Attributes:
        columns: as in `EventTable`, but that `action` is a string number.
        unknown: keys that nobody knows, with counts.
        forward_rows, forward_texts: events with `forward_frames`, and their text.
        oom_free: returns the `device_free` of some events.
    """

    columns: dict[str, Any]
    unknown: Counter[str]
    forward_rows: list[int]
    forward_texts: list[int]
    oom_free: Callable[[list[int]], Int64Column]


def _gather(events: Sequence[Any], *, what: str, stacks: StackInterner, pools: PoolInterner) -> Gathered:
    if set(map(type, events)) - {dict}:
        raise MalformedError(f"{what}: an event is no dict")
    keys = _keys_of(events)
    try:
        columns = _columns(events, keys, what, stacks, pools)
        seldom = _seldom(events, keys, stacks)
        is_complete = not seldom.keys
    except KeyError:
        is_complete = False
    if not is_complete:
        # Some events lack a key that others have: oom events the address, events without a
        # context the frames. Only then each event is looked at.
        keys = frozenset(set().union(*events) & DEFAULTS.keys())
        events = [event if event.keys() >= keys else {**DEFAULTS, **event} for event in events]
        columns = _columns(events, keys, what, stacks, pools)
        seldom = _seldom(events, keys, stacks)
    entries = events
    return Gathered(
        columns=columns,
        unknown=seldom.unknown,
        forward_rows=seldom.rows,
        forward_texts=seldom.texts,
        oom_free=lambda rows: sizes([entries[i] for i in rows], "device_free", UNKNOWN_BYTES, f"{what}, oom event"),
    )


def _finish(gathered: Gathered, *, what: str, strings: Interner, notices: NoticeLog) -> EventTable:
    columns = gathered.columns
    columns["action"] = _actions(columns["action"], what, strings, notices)
    action, addr, size, time_us = (columns[name] for name in ("action", "addr", "size_bytes", "time_us"))
    num_events = len(action)
    for name, count in gathered.unknown.most_common(_MAX_NAMES):
        notices.add("unknown_key", f"unknown event key {name!r}, ignored", count=count)
    oom_events = np.flatnonzero(action == Action.OOM)
    oom_free = gathered.oom_free(oom_events.tolist())
    forward_events = np.array(gathered.forward_rows, np.int64)
    forward_text = np.array(gathered.forward_texts, np.int32)
    order = _check_order(time_us, what, notices)
    _check_events(action, addr, size, what, notices)
    columns["size_bytes"] = np.maximum(size, 0)
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


def _keys_of(events: Sequence[Entry]) -> frozenset[str]:
    """Return the common keys that occur in a few of the events."""
    some = (*events[:2], *events[len(events) // 2 :][:2], *events[-2:])
    return frozenset(key for event in some for key in event if key in DEFAULTS)


@dataclass(slots=True)
class _Seldom:
    """What only some events have.

    Attributes:
        keys: common keys found beside those that all were thought to have.
        unknown: keys that nobody knows, with counts.
        rows, texts: events with `forward_frames`, and their text.
    """

    keys: set[str]
    unknown: Counter[str]
    rows: list[int]
    texts: list[int]


def _seldom(events: Sequence[Entry], keys: frozenset[str], stacks: StackInterner) -> _Seldom:
    """Find keys beside `keys`, which all events have."""
    found = _Seldom(set(), Counter(), [], [])
    joined: dict[int, int] = {}
    if sum(map(len, events)) == len(events) * len(keys):
        return found
    for row, event in enumerate(events):
        if len(event) == len(keys):
            continue
        for key in event:
            if key in keys:
                continue
            if key in DEFAULTS:
                found.keys.add(key)
            elif key == "forward_frames":
                lines = event[key] if isinstance(event[key], list) else []
                found.rows.append(row)
                # Events may share one list, and its lines one long string.
                if id(lines) not in joined:
                    joined[id(lines)] = stacks.strings[join_lines(lines)]
                found.texts.append(joined[id(lines)])
            elif key not in QUIET_KEYS:
                found.unknown[text_of(key)[:60]] += 1
    return found


def join_lines(lines: list[Any]) -> str:
    """Return the text of a `forward_frames`, within bounds."""
    return "\n".join(text_of(line)[:_MAX_LINE_TEXT] for line in lines[:_MAX_LINES])


def _columns(
    events: Sequence[Entry], keys: frozenset[str], what: str, stacks: StackInterner, pools: PoolInterner
) -> dict[str, Any]:
    """Return the columns of events that all have `keys`; KeyError where one has not.

    Reading a key costs about 30 ns an event, so none is read twice, and keys that are
    absent everywhere are not read at all.
    """
    num_events = len(events)
    addr, size, stream, time_us = _numbers(events, keys, f"{what}, event", is_exact=stacks.by_identity)
    texts = _texts(events, sorted(keys & TEXT_KEYS), stacks.strings)
    absent = np.full(num_events, -1, np.int32)
    return {
        "action": texts.get("action", absent),
        "addr": addr,
        "size_bytes": size,
        "stream": stream,
        "pool": pools.column(events) if "pool_id" in keys else np.full(num_events, UNKNOWN_POOL, np.int32),
        "time_us": time_us,
        "stack": stacks.column(map(itemgetter("frames"), events), num_events) if "frames" in keys else absent,
        "compile_context": texts.get("compile_context", absent),
        "user_metadata": texts.get("user_metadata", absent),
        "category": texts.get("category", absent),
    }


def _numbers(
    events: Sequence[Entry], keys: frozenset[str], where: str, *, is_exact: bool
) -> tuple[AddressColumn, Int64Column, Int64Column, Int64Column]:
    """Return address, size, stream and time, in one pass where all are plain numbers."""
    names = [key for key in ("addr", "size", "stream", "time_us") if key in keys]
    # One pass takes numbers as they are; where JSON may have made floats of them, each is checked.
    one_pass = is_exact and names[:3] == ["addr", "size", "stream"]
    whole = matrix(events, names) if one_pass else None
    if whole is not None and (not whole.size or whole[0].min() >= 0):
        size = checked_sizes(whole[1], "size", UNKNOWN_BYTES, where)
        time_us = whole[3] if len(names) == 4 else np.full(len(events), NO_TIME, np.int64)
        return whole[0].astype(np.uint64), size, whole[2], time_us
    return (
        addresses(events, "addr", where),
        sizes(events, "size", UNKNOWN_BYTES, where),
        # Handles are opaque: a fork may write pointers of 64 bits or object ids.
        np.fromiter(map(stream_of, take(events, "stream", 0)), dtype=np.int64, count=len(events)),
        integers(events, "time_us", NO_TIME, where),
    )


def stream_of(value: Any) -> int:
    """Return a stream handle as a signed 64-bit number, whatever the file calls a stream."""
    if type(value) is int:
        return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
    return 0


def _texts(events: Sequence[Entry], keys: Sequence[str], strings: Interner) -> dict[str, Int32Column]:
    """Intern columns of strings; −1 where an event has none."""
    whole = matrix(events, keys, strings.__getitem__) if len(keys) > 1 else None
    if whole is None or not strings.has_only_text():
        strings.forget_other_types()
        rows = [
            np.fromiter(
                (-1 if value is None else strings[_metadata_text(value)] for value in take(events, key, None)),
                dtype=np.int64,
                count=len(events),
            )
            for key in keys
        ]
    else:
        rows = list(whole)
    return {key: row.astype(np.int32) for key, row in zip(keys, rows, strict=True)}


def _actions(numbers: Int32Column, what: str, strings: Interner, notices: NoticeLog) -> Int8Column:
    """Turn interned action names into codes; forks add actions that change no state we know of."""
    # By −1, for none, and numbers of strings: few, so counting is faster than sorting.
    counts = np.bincount(numbers + 1, minlength=1)
    names = np.flatnonzero(counts)
    by_number = ["", *strings] if len(numbers) else []
    codes = np.zeros(len(counts), np.int8)
    num_unknown = 0
    for name in names.tolist():
        text = by_number[name]
        codes[name] = _KNOWN_ACTIONS.get(text, int(Action.OTHER))
        if text not in _KNOWN_ACTIONS and num_unknown < _MAX_NAMES:
            num_unknown += 1
            message = f"{what}: unknown action {text[:60]!r}, ignored"
            notices.add("unknown_action", message, count=int(counts[name]))
    return codes[numbers + 1]


def _metadata_text(value: Any) -> str:
    """The viewer accepts a dict as `user_metadata`: write it as `key=value` pairs."""
    if type(value) is dict:
        parts = [(text_of(key), text_of(item)) for key, item in islice(value.items(), _MAX_PAIRS)]
        return ", ".join(f"{key[:_MAX_PART]}={item[:_MAX_PART]}" for key, item in parts)
    return text_of(value)


def _check_order(time_us: Int64Column, what: str, notices: NoticeLog) -> Int64Column | None:
    """Return the order that puts a rotated ring right, None where the order is fine.

    Changing `max_entries` of a live ring can leave it unrotated. List order rules within a
    device, so small steps back of the clock are only noted.
    """
    if len(time_us) < 2 or (time_us == NO_TIME).any():
        return None
    drops = np.flatnonzero(np.diff(time_us) < 0)
    if not len(drops):
        return None
    if len(drops) == 1 and time_us[-1] <= time_us[0]:
        notices.add("trace_rotated", f"{what}: the trace began in the middle of its ring; put in order by time")
        cut = int(drops[0]) + 1
        return np.concatenate((np.arange(cut, len(time_us)), np.arange(cut)))
    notices.add(
        "time_goes_back",
        f"{what}: the clock goes back between events; the order of the list is kept",
        count=len(drops),
    )
    return None


def _check_events(action: Int8Column, addr: AddressColumn, size: Int64Column, what: str, notices: NoticeLog) -> None:
    if float(np.maximum(size, 0).sum(dtype=np.float64)) > 2.0**62:
        raise MalformedError(f"{what}: the sizes add up to an absurd total")
    if (addr > np.uint64(_ADDRESS_MASK) - np.maximum(size, 0).astype(np.uint64)).any():
        raise MalformedError(f"{what}: an event ends beyond 64 bits of address")
    moves = action <= Action.SEGMENT_UNMAP
    missing_size = moves & (size < 0)
    notices.add("event_without_size", f"{what}: events without a size count as 0 bytes", count=int(missing_size.sum()))
    nowhere = moves & (addr == 0)
    notices.add("event_without_addr", f"{what}: events without an address", count=int(nowhere.sum()))
