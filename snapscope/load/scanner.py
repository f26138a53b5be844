"""Check a pickle's opcodes before the Unpickler sees them.

`pickle.Unpickler` without globals runs no code, but it still obeys: a memo index of 2·10⁸ in nine
bytes takes 3 GB, a claimed length is allocated before it is read, a chain of tuples used as a key
overflows the C stack in `hash`, and sixty tuples, each holding the one before twice, are hashed for
years. So every opcode passes here first, in one pass and in chunks; only what a snapshot is made of
gets through, and what gets through costs the Unpickler memory and time in proportion to its bytes.

Two things are changed on the way, neither of which a snapshot notices:

- FRAME opcodes are left out. They only say how much to read ahead, and the C Unpickler drops bytes when
  an opcode straddles the end of one: it would see other opcodes than were checked.
- A tuple of anything but small integers isn't remembered in the memo (its entry becomes a string), so
  it can stand in one place only, and hashing it costs no more than its bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from enum import Enum
from typing import Final

from snapscope.errors import HostileError, InputError, MalformedError, NotASnapshotError, TruncatedError
from snapscope.load.opcodes import FREE_MEMO_INDEX, MARGIN, MAX_DIGITS, common_opcodes, learn_records
from snapscope.load.quoting import quote_text
from snapscope.load.source import PeekReader

CHUNK_BYTES: Final = 1 << 20

MAX_STRING_BYTES: Final = 64 << 20
"""Longest string; the longest met (an original FX trace) has some thousand bytes."""

MAX_TRAILING_BYTES: Final = 64 << 20
"""Bytes after STOP that are read, at most: they say nothing, and a pipe may have no end."""

MAX_OTHER_TUPLES: Final = 1000
"""Tuples of anything but small integers; they may nest, and `hash` recurses."""

_MAX_NUMBER_LINE: Final = 64
_SAMPLE_BYTES: Final = 1 << 18
_MAX_NAME_BYTES: Final = 2000
_MAX_PROTOCOL: Final = 5
_FRAME: Final = 0x95
_FRAME_HEADER: Final = 9
_FREE_FRAMES: Final = 64
_MIN_FRAME_BYTES: Final = 4096
_PROTO: Final = 0x80
_STOP: Final = ord(".")
_PUT: Final = ord("p")
_LONG_BINPUT: Final = ord("r")
_PERSID: Final = ord("P")
_BINPERSID: Final = ord("Q")
_STACK_GLOBAL: Final = 0x93
_SHARED_TUPLE: Final = b"<a shared tuple, left out>"
_POP: Final = b"0"
_MARK: Final = ord("(")
_LEFT_OUT: Final = b"X" + len(_SHARED_TUPLE).to_bytes(4, "little") + _SHARED_TUPLE

# Bytes of the argument of the opcodes that are harmless wherever they stand.
_FIXED: Final = {
    **dict.fromkeys(b"\x94(}])\x88\x89Naesuld", 0),
    **dict.fromkeys(b"Khq", 1),
    ord("M"): 2,
    **dict.fromkeys(b"Jj", 4),
    ord("G"): 8,
}
# Bytes of the length that precedes the argument.
_STRINGS: Final = {0x8C: 1, ord("X"): 4, 0x8D: 8, ord("U"): 1, ord("T"): 4}
_LONGS: Final = {0x8A: 1, 0x8B: 4}
_LINES: Final = b"ILFVSgp"
_INTEGER: Final = re.compile(rb"-?[0-9]{1,%d}L?" % MAX_DIGITS)
_INDEX: Final = re.compile(rb"[0-9]{1,%d}" % MAX_DIGITS)
_FLOAT: Final = re.compile(rb"[-+.0-9a-z]{1,40}")
_NUMBER_LINES: Final = {
    **dict.fromkeys(b"IL", _INTEGER),
    **dict.fromkeys(b"gp", _INDEX),
    ord("F"): _FLOAT,
}
_TUPLES: Final = b"t\x85\x86\x87"
_PUTS: Final = b"\x94qrp"
_REFERENCES: Final = b"ciPQ"
_CALLS: Final = b"Rob\x81\x92\x82\x83\x84"
_BYTES: Final = b"BC\x8e\x96\x97\x98"

_MORE: Final = -1
"""Returned in place of an offset when the opcode isn't all there yet."""


def refuse_global(module: str, name: str) -> HostileError:
    """Make the error for a pickle that names a global."""
    named = quote_text(f"{module}.{name}", limit=200)
    return HostileError(f"refused: this pickle asks for {named}, and a snapshot asks for nothing")


def refuse_persistent_id(what: str) -> HostileError:
    """Make the error for a pickle with a persistent id."""
    return HostileError(f"refused: this pickle refers to something outside itself ({what})")


class _Top(Enum):
    """What is on top of the Unpickler's stack."""

    UNKNOWN = 0
    OTHER_TUPLE = 1
    MARK_AFTER_IT = 2


class OpcodeScanner:
    """Reads a pickle, and gives it on in checked chunks that end where an opcode does.

    Attributes:
        protocol: what the pickle says, or 0 or 1 by its looks.
        finished: whether STOP was met.
    """

    def __init__(self, stream: PeekReader) -> None:
        first = stream.peek(1)
        self._is_text = first != bytes([_PROTO])
        self.protocol = 1 if first in (b"}", b"]", b")") else 0
        self.finished = False
        self._stream = stream
        # Not scanned yet: opcodes without frames up to `_unframed_at`, with frames from there.
        self._buffer = b""
        self._unframed_at = 0
        # What the current frame still holds; None outside all frames.
        self._frame_left: int | None = None
        # A frame header of which the rest has not been read.
        self._cut_header = b""
        # Where the buffer begins in the stream without frames, and where frame headers were in it.
        self._offset = 0
        self._frames: list[int] = []
        self._at_end = False
        self._wanted = CHUNK_BYTES
        self._records: tuple[bytes, ...] | None = None
        self._num_reopened = 0
        self._num_other_tuples = 0
        self._top = _Top.UNKNOWN
        self._asked_global = False

    @property
    def stream_bytes(self) -> int:
        """Bytes of the pickle given on so far; up to STOP once it is finished."""
        return self._position(0)

    def next_chunk(self) -> bytes:
        """Return the next checked opcodes; `b""` after STOP.

        Raises:
            TruncatedError: the stream ends before STOP.
            HostileError, MalformedError, NotASnapshotError: an opcode no snapshot has.
        """
        if self._asked_global:
            # The Unpickler refuses a global as soon as it meets one, and so comes back for no more.
            raise HostileError("refused: this pickle asks for a global, and a snapshot asks for nothing")
        while not self.finished:
            chunk = self._scan()
            if chunk:
                return chunk
            if not self._fill():
                raise TruncatedError(
                    f"ends in the middle of the pickle (at byte {self._end():,}): the dump was cut off, or the copy was"
                )
        return b""

    def trailing_bytes(self) -> tuple[int, bytes]:
        """Read on and return how many bytes follow STOP, and the first of them; 0 if they are NULs only.

        No more than `MAX_TRAILING_BYTES` are read: a number beyond means that there may be any number.
        """
        count = 0
        is_padding = True
        rest = self._buffer + self._cut_header or self._stream.read(CHUNK_BYTES)
        head = rest[:16]
        # To the end, if it isn't far: a compressed stream has its checksum there.
        while rest:
            count += len(rest)
            if count > MAX_TRAILING_BYTES:
                return MAX_TRAILING_BYTES + 1, head
            is_padding = is_padding and not rest.strip(b"\0")
            rest = self._stream.read(CHUNK_BYTES)
        return (0, b"") if is_padding else (count, head)

    # ---------------------------------------------------------------- the buffer

    def _fill(self) -> bool:
        """Read on until the buffer has grown by `_wanted` bytes; return whether it has grown."""
        if self._at_end:
            return False
        parts = []
        missing = self._wanted
        while missing > 0:
            part = self._stream.read(min(missing, CHUNK_BYTES))
            if not part:
                self._at_end = True
                break
            parts.append(part)
            missing -= len(part)
        self._wanted = CHUNK_BYTES
        self._append(b"".join((self._cut_header, *parts)))
        # At the end the held-back margin is scanned, even if nothing was read.
        return True

    def _append(self, raw: bytes) -> None:
        """Add raw bytes to the buffer, without the headers of frames that follow one another."""
        was_framed = self._frame_left is not None
        parts = [self._buffer]
        length = len(self._buffer)
        position = 0
        while self._frame_left is not None and position < len(raw):
            if self._frame_left:
                part = raw[position : position + self._frame_left]
                parts.append(part)
                length += len(part)
                position += len(part)
                self._frame_left -= len(part)
            elif raw[position] != _FRAME:
                self._frame_left = None
            elif len(raw) - position < _FRAME_HEADER:
                break
            else:
                self._enter_frame(raw, position, self._offset + length)
                position += _FRAME_HEADER
        if self._frame_left is not None:
            self._unframed_at = length
            self._cut_header = raw[position:]
        else:
            if was_framed:
                self._unframed_at = length
            parts.append(raw[position:])
            self._cut_header = b""
        self._buffer = b"".join(parts)

    def _enter_frame(self, raw: bytes, position: int, offset: int) -> None:
        self._frame_left = int.from_bytes(raw[position + 1 : position + _FRAME_HEADER], "little")
        self._frames.append(offset)

    def _advance(self, position: int) -> None:
        self._buffer = self._buffer[position:]
        self._unframed_at = max(0, self._unframed_at - position)
        self._offset += position

    def _position(self, position: int) -> int:
        """Return where in the stream a position in the buffer is, frame headers counted."""
        offset = self._offset + position
        return offset + _FRAME_HEADER * bisect_right(self._frames, offset)

    def _end(self) -> int:
        return self._position(len(self._buffer)) + len(self._cut_header)

    # ---------------------------------------------------------------- the opcodes

    def _scan(self) -> bytes:
        """Return the checked part of the buffer, perhaps nothing, and keep what needs more bytes."""
        buffer = self._buffer
        # A tuple of integers that ends beyond the buffer would be taken for something else.
        safe_end = len(buffer) - (0 if self._at_end else MARGIN)
        if self._records is None and self._offset >= CHUNK_BYTES and len(buffer) >= _SAMPLE_BYTES:
            # The first chunk holds segments and frames; from the second on come events.
            self._records = () if self._is_text else learn_records(buffer[:_SAMPLE_BYTES])
        match = common_opcodes(self._memo_limit(), text=self._is_text, records=self._records or ()).match
        pieces: list[bytes] = []
        start = position = 0
        while position < len(buffer) and not self.finished and not self._asked_global:
            opcode = buffer[position]
            if opcode == _FRAME:
                if len(buffer) - position < _FRAME_HEADER:
                    break
                pieces.append(buffer[start:position])
                self._open_frame(position)
                return b"".join(pieces)
            if self._top is _Top.UNKNOWN:
                found = match(buffer, position, self._limit(position))
                if found is not None:
                    if found.end() > safe_end:
                        break
                    position = found.end()
                    continue
            end = self._step(position)
            if end == _MORE:
                break
            if end > self._limit(position):
                raise MalformedError(f"is no valid pickle: an opcode leaves its frame at {self._at(position)}")
            if self._top is _Top.OTHER_TUPLE and opcode in _PUTS:
                pieces += (buffer[start:position], _LEFT_OUT, buffer[position:end], _POP)
                start = end
            self._top = self._next_top(position)
            position = end
        pieces.append(buffer[start:position])
        if self.finished and (self._frame_left or position < self._unframed_at):
            raise MalformedError(f"is no valid pickle: it stops before its frame does at {self._at(position)}")
        self._advance(position)
        return b"".join(pieces)

    def _next_top(self, position: int) -> _Top:
        """Return what is known of the Unpickler's stack after the opcode at `position`.

        As long as a tuple of other things is on top, it could be remembered. With POP and DUP refused,
        only two opcodes bring it back to the top once something stands above: APPENDS and SETITEMS
        of nothing, right after their MARK.
        """
        opcode = self._buffer[position]
        if opcode in _TUPLES:
            return _Top.OTHER_TUPLE
        if self._top is _Top.OTHER_TUPLE:
            if opcode in _PUTS:
                return _Top.OTHER_TUPLE
            if opcode == _MARK:
                return _Top.MARK_AFTER_IT
        elif self._top is _Top.MARK_AFTER_IT and opcode in b"eu":
            raise MalformedError(f"is no valid pickle: a tuple taken for a list at {self._at(position)}")
        return _Top.UNKNOWN

    def _open_frame(self, position: int) -> None:
        """Enter a frame that doesn't follow another one directly."""
        if position < self._unframed_at:
            raise MalformedError(f"is no valid pickle: a frame inside a frame at {self._at(position)}")
        # Frames follow one another, but for strings of 64 KiB and more: else this would copy the
        # buffer once for every few bytes.
        self._num_reopened += 1
        if self._num_reopened > _FREE_FRAMES + (self._offset + position) // _MIN_FRAME_BYTES:
            raise MalformedError(f"is no valid pickle: too many small frames at {self._at(position)}")
        self._enter_frame(self._buffer, position, self._offset + position)
        self._advance(position + _FRAME_HEADER)
        self._offset -= _FRAME_HEADER  # it counts no headers
        rest, self._buffer = self._buffer, b""
        self._append(rest)

    def _limit(self, position: int) -> int:
        """Return up to where an opcode that begins at `position` may reach."""
        return self._unframed_at if position < self._unframed_at else len(self._buffer)

    def _memo_limit(self) -> int:
        """Return the power of two up to which memo indices are fine from the buffer's start on."""
        return 1 << min(max(self._offset, FREE_MEMO_INDEX).bit_length() - 1, 32)

    def _at(self, position: int) -> str:
        return f"byte {self._position(position):,}"

    def _step(self, position: int) -> int:
        """Check one opcode and return where it ends, or `_MORE`."""
        opcode = self._buffer[position]
        if opcode in _FIXED:
            return self._argument_end(position + 1, _FIXED[opcode])
        if opcode in _STRINGS:
            return self._string_end(position, _STRINGS[opcode])
        if opcode in _LINES:
            return self._line_end(position)
        if opcode in _TUPLES:
            self._num_other_tuples += 1
            if self._num_other_tuples > MAX_OTHER_TUPLES:
                raise MalformedError(f"holds more than {MAX_OTHER_TUPLES:,} nested tuples: no snapshot does")
            return position + 1
        if opcode == _LONG_BINPUT:
            end = self._argument_end(position + 1, 4)
            if end != _MORE:
                self._check_memo_index(int.from_bytes(self._buffer[position + 1 : end], "little"), position)
            return end
        if opcode in _LONGS:
            return self._long_end(position, _LONGS[opcode])
        if opcode == _STOP:
            self.finished = True
            return position + 1
        if opcode == _PROTO:
            return self._protocol_end(position)
        if opcode == _STACK_GLOBAL:
            # The name is on the Unpickler's stack: let it tell.
            self._asked_global = True
            return position + 1
        if opcode in _REFERENCES:
            return self._refuse_reference(position)
        raise self._refusal(position)

    def _argument_end(self, position: int, length: int) -> int:
        return position + length if position + length <= len(self._buffer) else _MORE

    def _string_end(self, position: int, length_bytes: int) -> int:
        start = position + 1 + length_bytes
        if start > len(self._buffer):
            return _MORE
        length = int.from_bytes(self._buffer[position + 1 : start], "little")
        if length > MAX_STRING_BYTES:
            raise MalformedError(f"is no valid pickle: a string of {length:,} bytes at {self._at(position)}")
        self._wanted = max(CHUNK_BYTES, start + length - len(self._buffer))
        return self._argument_end(start, length)

    def _line_end(self, position: int) -> int:
        opcode = self._buffer[position]
        number = _NUMBER_LINES.get(opcode)
        longest = _MAX_NUMBER_LINE if number else MAX_STRING_BYTES
        newline = self._buffer.find(b"\n", position, position + longest)
        if newline < 0:
            length = len(self._buffer) - position
            if length >= longest:
                raise MalformedError(f"is no valid pickle: a line without end at {self._at(position)}")
            # Twice as much each time, so that a long line isn't searched over and over.
            self._wanted = max(CHUNK_BYTES, length)
            return _MORE
        if number is not None and not number.fullmatch(self._buffer, position + 1, newline):
            raise MalformedError(
                f"is no valid pickle: no number of at most {MAX_DIGITS} digits at {self._at(position)}"
            )
        if opcode == _PUT:
            self._check_memo_index(int(self._buffer[position + 1 : newline]), position)
        return newline + 1

    def _long_end(self, position: int, length_bytes: int) -> int:
        start = position + 1 + length_bytes
        if start > len(self._buffer):
            return _MORE
        length = int.from_bytes(self._buffer[position + 1 : start], "little")
        if length > 8 and (length > 9 or self._buffer[start + 8 : start + 9] not in (b"", b"\0")):
            # Also keeps integers, as keys, from having one hash in common.
            raise MalformedError(f"holds an integer of more than 64 bits at {self._at(position)}: no snapshot does")
        return self._argument_end(start, length)

    def _protocol_end(self, position: int) -> int:
        if self._offset + position:
            raise MalformedError(f"is no valid pickle: a second header at {self._at(position)}")
        if len(self._buffer) < 2:
            return _MORE
        self.protocol = self._buffer[1]
        if self.protocol > _MAX_PROTOCOL:
            raise NotASnapshotError(f"pickle protocol {self.protocol} is newer than any known (0 to 5)")
        return 2

    def _check_memo_index(self, index: int, position: int) -> None:
        if index > max(FREE_MEMO_INDEX, self._offset + position):
            raise HostileError(
                f"refused: this pickle asks for room to remember {index:,} objects "
                f"at {self._at(position)}, far more than it can hold"
            )

    def _refuse_reference(self, position: int) -> int:
        """Refuse an opcode with the name of something outside the pickle."""
        opcode = self._buffer[position]
        if opcode == _BINPERSID:
            raise refuse_persistent_id(f"opcode BINPERSID at {self._at(position)}")
        num_lines = 1 if opcode == _PERSID else 2
        lines = self._buffer[position + 1 : position + 1 + _MAX_NAME_BYTES].split(b"\n", num_lines)
        if len(lines) <= num_lines:
            if len(self._buffer) - position > _MAX_NAME_BYTES:
                raise MalformedError(f"is no valid pickle: a name without end at {self._at(position)}")
            return _MORE
        names = [line.decode("utf-8", "backslashreplace") for line in lines]
        raise refuse_persistent_id(quote_text(names[0])) if num_lines == 1 else refuse_global(*names[:2])

    def _refusal(self, position: int) -> InputError:
        """Return the error for an opcode that no snapshot has."""
        import pickletools  # large, and needed for this message only

        opcode = self._buffer[position]
        at = self._at(position)
        name = next((known.name for known in pickletools.opcodes if ord(known.code) == opcode), None)
        if name is None:
            return MalformedError(f"is no valid pickle: byte {opcode:#04x} at {at} is no opcode")
        if opcode in _CALLS:
            return HostileError(f"refused: this pickle asks to run code (opcode {name} at {at})")
        if opcode in _BYTES:
            return MalformedError(f"holds bytes (opcode {name} at {at}): no snapshot does")
        return MalformedError(f"is a pickle of something else: no snapshot has the opcode {name} (at {at})")
