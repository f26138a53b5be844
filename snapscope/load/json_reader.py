"""Read a snapshot that somebody wrote with `json.dump`."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, Final

import orjson

from snapscope.errors import HostileError, MalformedError, TruncatedError
from snapscope.load.quoting import quote_text
from snapscope.load.source import Readable, read_all

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a JSON text held.

    Attributes:
        value: dicts, lists, strings, numbers, True, False, None.
        stream_bytes: bytes of the text.
    """

    value: Any
    stream_bytes: int


def read_json(stream: Readable) -> Parsed:
    """Read a JSON text from the stream up to its end.

    The text has to be in memory as a whole, unlike a pickle. Integers go up to 2⁶⁴ − 1; of a key that
    comes twice the last one counts, as everywhere.

    Raises:
        TruncatedError: the text ends before its value does.
        MalformedError: it is no valid JSON, no UTF-8, or too large.
    """
    text = _as_utf8(read_all(stream, "JSON"))
    size = len(text)
    try:
        return Parsed(value=orjson.loads(text), stream_bytes=size)
    except orjson.JSONDecodeError as error:
        wrong_bytes = _find_wrong_bytes(text)
        if "unexpected end" in (wrong_bytes.reason if wrong_bytes else error.msg):
            raise TruncatedError(
                f"ends in the middle of the JSON (at byte {size:,}): the dump was cut off, or the copy was"
            ) from None
        if wrong_bytes:
            raise MalformedError(f"is no valid JSON: no UTF-8 at byte {wrong_bytes.start:,}") from None
        raise MalformedError(f"is no valid JSON: {quote_text(error.msg)} (at character {error.pos:,})") from None
    except MemoryError:
        raise HostileError(f"needs more memory than there is: {size:,} bytes of JSON") from None


def _as_utf8(text: bytearray) -> bytearray:
    """Return the text without a byte order mark."""
    if text.startswith(_UTF16):
        # What `>` of an older PowerShell writes.
        try:
            return bytearray(text.decode("utf-16").encode())
        except UnicodeDecodeError as error:
            raise MalformedError(f"is no valid UTF-16: {error.reason}") from None
    if text.startswith(codecs.BOM_UTF8):
        del text[: len(codecs.BOM_UTF8)]
    return text


def _find_wrong_bytes(text: bytearray) -> UnicodeDecodeError | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error
    return None
