"""JSON and CSV out of plain values: exact integers, safe text, stable keys."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from snapscope.analyses.ledger import Balance
from snapscope.analyses.moments import Moment
from snapscope.escaping import escape, escape_json
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, Notice

SCHEMA: Final = 1
"""Number of the JSON schema; keys are only ever added within one number."""

_OPTIONS: Final = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


def dump(document: Mapping[str, Any]) -> bytes:
    """Serialise one object, two spaces indented, with a newline at the end."""
    return escape_json(orjson.dumps(document, option=_OPTIONS))


def dump_rows(document: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Serialise an object with a long `rows` list piece by piece, in bounded memory."""
    head = escape_json(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
    yield head[:-2] + b',\n  "rows": ['
    separator = b"\n    "
    for row in rows:
        yield separator + escape_json(orjson.dumps(row))
        separator = b",\n    "
    yield b"\n  ]\n}\n"


def dump_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Serialise rows as CSV with a header; None is an empty cell, lists are joined by spaces."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
        if buffer.tell() > 1 << 16:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(value, limit=10_000) if isinstance(value, str) else value


def safe_text(text: str) -> str:
    """Return text that JSON can hold: lone surrogates, which UTF-8 can't, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def head_of(history: DeviceHistory) -> dict[str, Any]:
    """Return the keys that every document begins with."""
    return {
        "schema": SCHEMA,
        "file": safe_text(history.snapshot.source.name),
        "device": device_of(history.device),
        "notices": [notice_of(notice) for notice in history.notices],
    }


def device_of(device: int) -> int | str:
    """Return a device as JSON knows it."""
    return "host" if device == HOST_DEVICE else device


def notice_of(notice: Notice) -> dict[str, Any]:
    """Return a notice as an object."""
    return {
        "code": notice.code,
        "message": safe_text(notice.message),
        "count": notice.count,
        "bytes": notice.bytes,
    }


def moment_of(moment: Moment) -> dict[str, Any]:
    """Return a moment as an object."""
    return {"event": moment.event, "label": moment.label, "time_us": moment.time_us}


def balance_of(balance: Balance) -> dict[str, int | None]:
    """Return the ladder's rungs."""
    return {
        "requested_bytes": balance.requested_bytes,
        "rounding_bytes": balance.rounding_bytes,
        "allocated_bytes": balance.allocated_bytes,
        "pending_bytes": balance.pending_bytes,
        "pending_requested_bytes": balance.pending_requested_bytes,
        "cached_bytes": balance.cached_bytes,
        "cached_free_segments_bytes": balance.cached_free_segments_bytes,
        "cached_holes_bytes": balance.cached_holes_bytes,
        "cached_private_pool_bytes": balance.cached_private_pool_bytes,
        "reserved_bytes": balance.reserved_bytes,
        "outside_bytes": balance.outside_bytes,
        "outside_event": balance.outside_event,
        "device_free_bytes": balance.device_free_bytes,
        "capacity_bytes": balance.capacity_bytes,
    }
