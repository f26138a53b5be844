"""Unpickle plain values: no global is looked up, no code runs, no memory is taken on a claim."""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from snapscope.errors import HostileError, InputError, MalformedError
from snapscope.load.quoting import quote_text
from snapscope.load.scanner import OpcodeScanner, refuse_global, refuse_persistent_id
from snapscope.load.source import PeekReader

# All that the Unpickler raises for opcodes in a senseless order. TypeError: a list or dict as key.
_UNPICKLER_ERRORS: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    RecursionError,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpickled:
    """What a pickle held.

    Attributes:
        value: dicts, lists, tuples, strings, numbers, True, False, None.
        protocol: 0 to 5.
        stream_bytes: bytes of the pickle up to STOP.
        trailing_bytes: bytes after STOP, unless they are NULs; more than `MAX_TRAILING_BYTES` aren't counted.
        trailing_head: the first of them.
    """

    value: Any
    protocol: int
    stream_bytes: int
    trailing_bytes: int
    trailing_head: bytes


class _PlainUnpickler(pickle.Unpickler):
    """Refuses everything that names something outside the pickle."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise refuse_global(module, name)

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise refuse_persistent_id(quote_text(str(pid)))


class _CheckedFile:
    """The file that the Unpickler reads: what the scanner has checked, chunk by chunk.

    `peek` gives the Unpickler a whole chunk to work in; without it, it would ask for each opcode of a
    pickle without frames, and all frames are gone here.
    """

    def __init__(self, scanner: OpcodeScanner) -> None:
        self._scanner = scanner
        self._chunk = b""

    def peek(self, _size: int = 0, /) -> bytes:
        if not self._chunk:
            self._chunk = self._scanner.next_chunk()
        return self._chunk

    def read(self, size: int = -1, /) -> bytes:
        chunk = self.peek()
        if len(chunk) <= size:
            # Chunks end where opcodes do, and strings are whole: nobody needs the next one too.
            self._chunk = b""
            return chunk
        self._chunk = chunk[size:]
        return chunk[:size]

    def readline(self) -> bytes:
        return self.read(self.peek().find(b"\n") + 1)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Keep the garbage collector from running within the context.

    It would walk through millions of dicts again and again, in vain: plain values that a file makes
    hold no garbage. Halves the time of loading.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_pickle(stream: PeekReader) -> Unpickled:
    """Read one pickle of plain values from the stream, and the stream to its end unless that is far.

    Strings may hold lone surrogates: pickle writes and reads them. Strings of Python 2 are bytes;
    they are taken as UTF-8, what isn't as lone surrogates.

    Raises:
        TruncatedError: the stream ends before the pickle does.
        HostileError: it names a global, or asks for absurd memory.
        MalformedError: it is no valid pickle, or holds what no snapshot does.
    """
    scanner = OpcodeScanner(stream)
    file = _CheckedFile(scanner)
    try:
        with paused_gc():
            value = _PlainUnpickler(file, encoding="utf-8", errors="surrogateescape").load()
    except InputError:
        raise
    except MemoryError:
        raise HostileError(
            f"needs more memory than there is: {scanner.stream_bytes:,} bytes of pickle read so far"
        ) from None
    except _UNPICKLER_ERRORS as error:
        raise MalformedError(
            f"is no valid pickle: {quote_text(str(error) or type(error).__name__)} "
            f"(before byte {scanner.stream_bytes:,})"
        ) from None
    trailing_bytes, trailing_head = scanner.trailing_bytes()
    return Unpickled(
        value=value,
        protocol=scanner.protocol,
        stream_bytes=scanner.stream_bytes,
        trailing_bytes=trailing_bytes,
        trailing_head=trailing_head,
    )
