"""What a pickle of a snapshot may be made of, as a regular expression for the common opcodes.

A snapshot holds dicts, lists, strings, numbers, True, False, None and pairs of small integers.
Numbers of opcodes are pickle's own (`pickletools`); the pickles differ by who wrote them:

- protocols 4 and 5 (Python 3.8 on): strings by SHORT_BINUNICODE, memo entries by MEMOIZE;
- protocol 2 (PyTorch's C++ writer) and 3: BINUNICODE, BINPUT, LONG_BINPUT;
- protocols 0 and 1: numbers and memo indices as lines of text.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from functools import cache
from typing import Final

MAX_DIGITS: Final = 20
"""Digits of a number written as text: 2⁶⁴ has 20; long ones cost quadratic time."""

FREE_MEMO_INDEX: Final = 1 << 16
"""A memo index below this is always fine: the Unpickler's memo then takes 1 MiB at most."""

MARGIN: Final = 256
"""More bytes than any of the expression's tuples takes, so that none is cut at the end of a buffer."""

_REPEAT: Final = 2000
"""Opcodes a match: an unbounded repeat keeps its state for every turn, and takes gigabytes."""

_INLINE_STRING_BYTES: Final = 127

_MAX_RECORDS: Final = 4
_MIN_REPEATS: Final = 8

# Opcodes of a record: constants, memo reads, MEMOIZE, small integers, a float.
_FIXED_LENGTHS: Final = {
    **dict.fromkeys(b"\x94(}])\x88\x89Naesu", 1),
    **dict.fromkeys(b"hKq", 2),
    ord("M"): 3,
    **dict.fromkeys(b"jJr", 5),
    ord("G"): 9,
}
# Stands in a record for LONG_BINPUT, whose bound grows as the file is read.
_PLACE_OF_PUT: Final = b"<LONG_BINPUT>"

_POOL_ID: Final = re.compile(rb"K.K.\x86", re.DOTALL)

# An order that tries the common first: the branches are tried one by one.
_LENGTHS: Final = (3, *(n for n in range(_INLINE_STRING_BYTES + 1) if n != 3))


def _any_bytes(count: int) -> bytes:
    return b"." * count if count <= 8 else b".{%d}" % count


def _string(opcode: bytes, length_format: str) -> bytes:
    lengths = (re.escape(struct.pack(length_format, n)) + _any_bytes(n) for n in _LENGTHS)
    return re.escape(opcode) + b"(?:" + b"|".join(lengths) + b")"


def _up_to(top: int) -> bytes:
    return b"[\\x00-\\x%02x]" % top


def _long_put(memo_limit: int) -> bytes:
    """Return LONG_BINPUT with an index below `memo_limit`, a power of two from 2¹⁶ on."""
    if memo_limit >= 1 << 24:
        return b"r..." + _up_to(min((memo_limit >> 24) - 1, 255))
    return b"r.." + _up_to((memo_limit >> 16) - 1) + rb"\x00"


_SMALL_INT: Final = rb"(?:K.|M..|J....)"
_LONG: Final = rb"\x8a(?:\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8}|\x09.{8}\x00|\x04.{4}|\x03...|\x02..|\x01.|\x00)"
# MEMOIZE MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE NEWTRUE NEWFALSE NONE APPEND APPENDS SETITEM SETITEMS
# LIST DICT
_PLAIN: Final = rb"[\x94(}\])\x88\x89Naesuld]"

_BINARY: Final = (
    rb"j....(?:j....j....j....j....|)",  # LONG_BINGET; frames of a stack come in rows
    rb"h.",  # BINGET
    _PLAIN,
    _LONG,
    # Pool ids: small integers, alone or as a tuple. In a run of integers only the last may be the
    # tuple's, so an integer before them is never taken along.
    rb"J....(?:" + _SMALL_INT + rb"\x86|\x85|)",
    rb"K.(?:" + _SMALL_INT + rb"\x86|K.K.\x87|\x85|)",
    None,  # the place of LONG_BINPUT, which depends on how much was read
    rb"q.",  # BINPUT
    rb"M..(?:" + _SMALL_INT + rb"\x86|\x85|)",
    _string(b"\x8c", "<B"),
    _string(b"X", "<I"),
    rb"G.{8}",
)

_INT_LINE: Final = rb"I-?[0-9]{1,10}\n"
_TEXT: Final = (
    rb"g[0-9]{1,10}\n",
    rb"s",
    rb"\((?:" + _INT_LINE + _INT_LINE + rb"t|" + _SMALL_INT + _SMALL_INT + rb"t|)",
    rb"I-?[0-9]{1,20}\n",
    rb"L-?[0-9]{1,20}L?\n",
    rb"V[^\n]{0,1000}\n",
    rb"F[-+.0-9a-z]{1,40}\n",
)


@cache
def common_opcodes(memo_limit: int, *, text: bool, records: tuple[bytes, ...] = ()) -> re.Pattern[bytes]:
    """Return an expression for one or more opcodes that need no second look.

    Each alternative is one opcode with its argument, so that a match always ends where an opcode
    does. A tuple of small integers matches as a whole: a tuple opcode that is left over holds
    something else.

    Args:
        memo_limit: bound of memo indices, a power of two from `FREE_MEMO_INDEX` on.
        text: for protocols 0 and 1.
        records: rows of opcodes that come often, from `learn_records`.
    """
    put = _long_put(memo_limit)
    records = tuple(record.replace(_PLACE_OF_PUT, put) for record in records)
    alternatives = b"|".join((*records, *_alternatives(memo_limit, text=text)))
    return re.compile(b"(?:" + alternatives + b"){1,%d}" % _REPEAT, re.DOTALL)


def _alternatives(memo_limit: int, *, text: bool) -> tuple[bytes, ...]:
    put = _long_put(memo_limit)
    binary = tuple(put if part is None else part for part in _BINARY)
    if not text:
        return binary
    return (*_TEXT, rb"p[0-9]{1,%d}\n" % (len(str(memo_limit)) - 1), *binary)


def learn_records(sample: bytes) -> tuple[bytes, ...]:
    """Return expressions for the commonest records of a file: an event up to its frames.

    A million events have a handful of shapes, and one alternative for a whole event spares the
    expression engine most of its turns. Such a row is made of opcodes that are harmless one by
    one, each with an argument of fixed length, so it lets nothing through that they don't.

    Args:
        sample: opcodes of the file, from the start of one on.
    """
    shapes: Counter[bytes] = Counter()
    row: list[bytes] | None = None
    other = re.compile(b"|".join(_alternatives(FREE_MEMO_INDEX, text=False)), re.DOTALL)
    position = 0
    while position < len(sample):
        length = _fixed_length(sample, position)
        if length is None:
            row = None
            found = other.match(sample, position)
            if found is None:
                break
            position = found.end()
            continue
        opcode = sample[position : position + 1]
        if opcode == b"}":
            row = []
        if _POOL_ID.match(sample, position):
            length = 5
        if row is not None:
            head = {b"\x8a": 2, b"\x8c": 2, b"X": 5}.get(opcode, 1)
            plain = re.escape(sample[position : position + head]) + b"." * (length - head)
            special = {b"K": _POOL_ID.pattern, b"r": _PLACE_OF_PUT}.get(opcode) if length == 5 else None
            row.append(special or plain)
            if opcode in b"]u":
                shapes[b"".join(row)] += 1
                row = None
        position += length
    return tuple(shape for shape, count in shapes.most_common(_MAX_RECORDS) if count >= _MIN_REPEATS)


def _fixed_length(sample: bytes, position: int) -> int | None:
    """Return the length of the opcode at a position if it is one of the plainest."""
    opcode = sample[position]
    if opcode in _FIXED_LENGTHS:
        return _FIXED_LENGTHS[opcode]
    if opcode in b"\x8a\x8c" and position + 1 < len(sample):
        # A LONG1 of up to 8 bytes, a SHORT_BINUNICODE of up to 127.
        longest = 8 if opcode == 0x8A else _INLINE_STRING_BYTES
        return 2 + sample[position + 1] if sample[position + 1] <= longest else None
    if opcode == ord("X") and position + 4 < len(sample):
        num_bytes = int.from_bytes(sample[position + 1 : position + 5], "little")
        return 5 + num_bytes if num_bytes <= _INLINE_STRING_BYTES else None
    return None
