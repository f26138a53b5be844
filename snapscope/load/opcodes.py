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
def common_opcodes(memo_limit: int, *, text: bool) -> re.Pattern[bytes]:
    """Return an expression for one or more opcodes that need no second look.

    Each alternative is one opcode with its argument, so that a match always ends where an opcode
    does. A tuple of small integers matches as a whole: a tuple opcode that is left over holds
    something else.

    Args:
        memo_limit: bound of memo indices, a power of two from `FREE_MEMO_INDEX` on.
        text: for protocols 0 and 1.
    """
    put = _long_put(memo_limit)
    binary = tuple(put if part is None else part for part in _BINARY)
    if text:
        digits = len(str(memo_limit)) - 1
        alternatives: tuple[bytes, ...] = (*_TEXT, rb"p[0-9]{1,%d}\n" % digits, *binary)
    else:
        alternatives = binary
    return re.compile(b"(?:" + b"|".join(alternatives) + b"){1,%d}" % _REPEAT, re.DOTALL)
