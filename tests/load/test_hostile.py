"""Pickles that ask for code to run, or for more memory or time than their bytes are worth."""

from __future__ import annotations

import gc
import io
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from snapscope.errors import HostileError, InputError, MalformedError, NotASnapshotError, TruncatedError
from snapscope.load import paused_gc, read_snapshot
from snapscope.load.scanner import MAX_OTHER_TUPLES
from tests.load.samples import SNAPSHOT, dump, framed, header, load_bytes, load_pickle, long_get, long_put, text


@contextmanager
def bounded(*, mib: float = 12, seconds: float = 5) -> Iterator[None]:
    """Fail if the block takes more memory, or far more time, than it should."""
    tracemalloc.start()
    start = time.monotonic()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mib * (1 << 20), f"{peak / (1 << 20):.1f} MiB"
    assert time.monotonic() - start < seconds


# --------------------------------------------------------------------------------------------- code


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("within", [lambda call: call, lambda call: {"segments": [], "x": [call]}])
def test_a_call_is_refused_by_name(protocol: int, within: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = pickle.dumps(within(Call(os.mkdir, str(made))), protocol)
    name = f"{os.mkdir.__module__}.mkdir"
    with pytest.raises(HostileError, match=f"^<bytes>: refused: this pickle asks for {name}, and a snapshot"):
        load_bytes(content)
    assert not made.exists()


def test_hostile_case_of_the_fixtures(fixtures_dir: Path) -> None:
    path = fixtures_dir / "cases" / "15_odd_files" / "hostile.pickle"
    with pytest.raises(HostileError, match=r"posix\.mkdir"):
        read_snapshot(path)
    assert not Path("/tmp/asks_pickle_was_executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", r"asks for os\.system"),
        (b"(S'true'\nios\nsystem\n.", r"asks for os\.system"),
        (header(2) + b"cos\nsystem\n.", r"asks for os\.system"),
        (header(4) + b"\x8c\x02os\x8c\x06system\x93.", r"asks for os\.system"),
        # Nested names, and a module that would have to be imported first.
        (header(4) + text("antigravity") + text("a.b") + b"\x93.", r"asks for antigravity\.a\.b"),
        # The names by way of the memo, in a frame, in three chunks' distance.
        (
            header(4)
            + framed(text("os") + b"\x94" + text("system") + b"\x94" + b"K\x05" * 2_000_000 + b"h\x00h\x01\x93."),
            r"asks for os\.system",
        ),
        (header(4) + text("o\x1b[2Js\n") + text("\ud800") + b"\x93.", r"asks for o\\x1b\[2Js\\n\.\\ud800,"),
        (header(2) + b"Pid of a tensor\n.", r"outside itself \(id of a tensor\)"),
        (header(2) + b"NQ.", r"outside itself \(opcode BINPERSID at byte 3\)"),
        (header(2) + b"N)R.", "asks to run code .opcode REDUCE at byte 4"),
        (header(2) + b"NNb.", "asks to run code .opcode BUILD at byte 4"),
        (header(2) + b"N)\x81.", "asks to run code .opcode NEWOBJ at byte 4"),
        (header(4) + b"N)}\x92.", "asks to run code .opcode NEWOBJ_EX at byte 5"),
        (header(2) + b"(No.", "asks to run code .opcode OBJ at byte 4"),
        (header(2) + b"\x82\x01.", "asks to run code .opcode EXT1 at byte 2"),
        (header(2) + b"\x83\x01\0.", "asks to run code .opcode EXT2"),
        (header(2) + b"\x84\x01\0\0\0.", "asks to run code .opcode EXT4"),
    ],
)  # fmt: skip
def test_everything_that_names_or_calls(content: bytes, message: str) -> None:
    with pytest.raises(HostileError, match=message):
        load_bytes(content)


def test_global_that_is_cut_off() -> None:
    for end in range(3, 10):
        with pytest.raises((TruncatedError, NotASnapshotError)):
            load_bytes(b"(cos\nsystem\n)R."[:end])


def test_name_without_end() -> None:
    with pytest.raises(MalformedError, match="a name without end at byte 2"):
        load_bytes(header(2) + b"c" + b"x" * 10_000)


def test_nothing_is_imported() -> None:
    assert "this" not in sys.modules
    with pytest.raises(HostileError, match=r"this\.s"):
        load_bytes(header(4) + text("this") + text("s") + b"\x93.")
    assert "this" not in sys.modules


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(b"N" + long_put(200_000_000), id="LONG_BINPUT"),
        pytest.param(b"N" + long_put(2**32 - 1), id="LONG_BINPUT highest"),
        pytest.param(b"N" + long_put(100_000), id="LONG_BINPUT above what is free"),
        pytest.param(b"Np200000000\n", id="PUT"),
        pytest.param(b"Np99999999999999999999\n", id="PUT of 20 digits"),
        pytest.param(b"K\x01" * 5000 + long_put(99_999), id="LONG_BINPUT after others"),
    ],
)
@pytest.mark.parametrize("start", [header(2), header(4), b"("])
def test_memo_index(opcodes: bytes, start: bytes) -> None:
    with bounded(mib=4), pytest.raises(HostileError, match="room to remember"):
        load_bytes(start + opcodes + b".")


@pytest.mark.parametrize(
    ("opcodes", "error"),
    [
        (b"\x96" + struct.pack("<Q", 1 << 40), MalformedError),  # BYTEARRAY8
        (b"\x8e" + struct.pack("<Q", 1 << 40), MalformedError),  # BINBYTES8
        (b"B" + struct.pack("<I", 1 << 31), MalformedError),  # BINBYTES
        (b"\x8d" + struct.pack("<Q", 1 << 40), MalformedError),  # BINUNICODE8
        (b"\x8d" + struct.pack("<Q", (1 << 64) - 1), MalformedError),
        (b"X" + struct.pack("<I", (1 << 32) - 1), MalformedError),  # BINUNICODE
        (b"X" + struct.pack("<I", 60 << 20), TruncatedError),
        (b"T" + struct.pack("<i", -1), MalformedError),  # BINSTRING
        (b"\x8b" + struct.pack("<i", 1 << 30), MalformedError),  # LONG4
        (b"\x8b" + struct.pack("<i", -1), MalformedError),
        (b"\x95" + struct.pack("<Q", 1 << 62) + b"N", TruncatedError),  # FRAME
        (b"\x95" + struct.pack("<Q", (1 << 64) - 1) + b"N", TruncatedError),
    ],
)
def test_claimed_length(opcodes: bytes, error: type[InputError]) -> None:
    with bounded(mib=4), pytest.raises(error):
        load_bytes(header(4) + opcodes)


def test_frames_are_no_second_layout() -> None:
    # The C Unpickler drops what is left of a frame when an opcode straddles its end. It would take the
    # bytes of this string for opcodes, with a LONG_BINPUT of 1.9·10⁸ among them.
    hidden = b"N" + long_put(0x0B6B4200) + b"."
    content = header(4) + b"\x95" + struct.pack("<Q", 3) + b"NX\x07" + b"\0\0\0" + hidden + b"."
    with bounded(mib=4), pytest.raises(MalformedError, match="an opcode leaves its frame"):
        load_bytes(content)
    # The same where another frame follows: what was checked is what is read.
    content = header(4) + framed(b"NX") + framed(struct.pack("<I", len(hidden)) + hidden + b".")
    with bounded(mib=4):
        assert load_pickle(content).value == hidden.decode()


def test_many_small_frames() -> None:
    with bounded(seconds=10), pytest.raises(MalformedError, match="too many small frames"):
        load_bytes(header(4) + (b"N" + framed(b"")) * 100_000 + b".")
    # One after the other they cost nothing.
    assert load_pickle(header(4) + framed(b"]") + framed(b"Na") * 100_000 + framed(b".")).value == [None] * 100_000


def test_memory_of_a_whole_process() -> None:
    # tracemalloc sees what Python allocates; this sees everything.
    pytest.importorskip("resource")
    program = """
import resource, sys
from snapscope.load import read_snapshot
from snapscope.errors import HostileError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_snapshot(bytes.fromhex(sys.argv[1]))
except HostileError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    content = header(4) + b"N" + long_put(200_000_000) + b"."
    done = subprocess.run([sys.executable, "-c", program, content.hex()], capture_output=True, check=True, text=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 16 << 20


def test_a_large_file_is_read_in_chunks() -> None:
    # 26 MB that set one key over and over: nothing stays but the chunk at hand.
    content = header(4) + b"}" + (text("k") + b"J\1\2\3\4s") * 2_000_000 + b"."
    with bounded(mib=8, seconds=60):
        assert load_pickle(content).value == {"k": 0x04030201}


# --------------------------------------------------------------------------------------------- time


def test_a_chain_of_tuples_as_key() -> None:
    # hash() recurses in C: half a million levels overflow the stack of the process.
    with bounded(), pytest.raises(MalformedError, match="more than 1,000 nested tuples"):
        load_bytes(header(4) + b"})" + b"\x85" * 500_000 + b"Ns.")
    deep = header(4) + b"})" + b"\x85" * MAX_OTHER_TUPLES + b"Ns."
    with bounded():
        assert len(load_pickle(deep).value) == 1


def test_tuples_of_the_one_before_twice_over() -> None:
    # Sixty levels are hashed in 2⁶⁰ steps, unless a tuple can stand in one place only.
    opcodes = b"K\x01\x85\x94"
    for level in range(60):
        opcodes += bytes([ord("h"), level]) * 2 + b"\x86\x94"
    with bounded():
        values = load_pickle(header(4) + b"](" + opcodes + b"}h\x3cNse.").value
    assert values[1:3] == [((1,), (1,)), ("<a shared tuple, left out>",) * 2]
    assert values[-1] == {"<a shared tuple, left out>": None}


@pytest.mark.parametrize("put", [b"\x94", b"q\x00", long_put(0), b"p0\n"])
def test_a_tuple_that_holds_more_is_not_shared(put: bytes) -> None:
    opcodes = b"](" + text("a") + text("b") + b"\x86" + put + b"h\x00e."
    assert load_pickle(header(4) + opcodes).value == [("a", "b"), "<a shared tuple, left out>"]


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(b"\x94\x94", id="twice"),
        pytest.param(b"\x94q\x01", id="twice, by number"),
        pytest.param(b"\x94" + framed(b"\x94"), id="in the next frame"),
        pytest.param(framed(b"\x94") + framed(b"\x94"), id="in frames"),
    ],
)
def test_no_way_around(opcodes: bytes) -> None:
    content = header(4) + b"](" + text("a") + text("b") + b"\x86" + opcodes + b"h\x00h\x01e."
    left_out = "<a shared tuple, left out>"
    assert load_pickle(content).value == [("a", "b"), left_out, left_out]


@pytest.mark.parametrize("nothing", [b"(e", b"(u", b"(" + framed(b"e"), framed(b"(") + framed(b"u"), b"\x94(e"])
def test_no_way_back_to_the_top(nothing: bytes) -> None:
    # APPENDS of nothing leaves the tuple on top, to be remembered after all.
    content = header(4) + b"](" + text("a") + text("b") + b"\x86" + nothing + b"\x94h\x00e."
    with pytest.raises(MalformedError, match="a tuple taken for a list"):
        load_bytes(content)
    # The C++ writer writes empty lists and dicts so.
    assert load_pickle(header(2) + b"](]q\0(e}q\1(ue.").value == [[], {}]


def test_a_large_tuple_as_key_of_many() -> None:
    # A million hashes of a million integers.
    tuple_of_many = b"(" + b"K\x01" * 100_000 + b"t\x94"
    keys = (b"h\x00" + b"Ns") * 100_000
    with bounded(mib=60):
        load_pickle(header(4) + b"}" + tuple_of_many + b"Ns" + keys + b".")


def test_integers_with_one_hash() -> None:
    # Multiples of 2⁶¹ − 1 hash to 0. Those of 64 bits are too few to make a dict slow.
    prime = 2**61 - 1
    large = b"".join(b"\x8a\x10" + (prime * (1 << 60) * n).to_bytes(16, "little") + b"N" for n in range(1, 9))
    with pytest.raises(MalformedError, match="an integer of more than 64 bits"):
        load_bytes(header(4) + b"}(" + large + b"u.")
    small = b"".join(b"\x8a\x09" + (prime * n).to_bytes(9, "little") + b"N" for n in range(8))
    assert len(load_pickle(header(4) + b"}(" + small + b"u.").value) == 8


@pytest.mark.parametrize("opcode", [b"I", b"L"])
@pytest.mark.parametrize("digits", [21, 1000, 3_000_000])
def test_huge_numbers_in_text(opcode: bytes, digits: int) -> None:
    end = b"L\n" if opcode == b"L" else b"\n"
    with bounded(), pytest.raises(MalformedError, match=r"no number of at most 20 digits|a line without end"):
        load_bytes(b"(" + opcode + b"9" * digits + end + b"l.")


@pytest.mark.parametrize("opcode", [b"I", b"L", b"F", b"g", b"p"])
def test_numbers_without_end(opcode: bytes) -> None:
    with bounded(), pytest.raises(MalformedError, match="a line without end at byte 2"):
        load_bytes(header(2) + opcode + b"9" * 3_000_000)


@pytest.mark.parametrize("opcode", [b"V", b"S"])
def test_strings_without_end(opcode: bytes) -> None:
    with bounded(seconds=10), pytest.raises(TruncatedError):
        load_bytes(header(2) + opcode + b"9" * 3_000_000)
    with bounded(mib=300, seconds=20), pytest.raises(MalformedError, match="a line without end at byte 2"):
        load_bytes(header(2) + opcode + b"9" * (65 << 20))


def test_deep_nesting() -> None:
    depth = 300_000
    content = header(4) + b"}" + text("segments") + b"]" * depth + b"a" * (depth - 1) + b"s."
    with bounded(mib=100, seconds=20), pytest.raises(NotASnapshotError):
        load_bytes(content)
    with pytest.raises(MalformedError, match="depth"):
        load_bytes(b'{"segments": ' + b"[" * depth + b"]" * depth + b"}")


def test_values_that_hold_themselves() -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    cycle["list"] = [cycle]
    with pytest.raises(NotASnapshotError, match="found keys self, list"):
        load_bytes(dump(cycle))
    # A tuple that holds itself takes POP and GET, which no snapshot has.
    knot: tuple[list[Any]] = ([],)
    knot[0].append(knot)
    with pytest.raises(MalformedError, match="no snapshot has the opcode POP"):
        load_bytes(dump(knot))


def test_shared_lists_of_shared_lists() -> None:
    # 10¹⁸ items on paper; the search for a snapshot sees each list once.
    nested: list[Any] = []
    for _ in range(18):
        nested = [nested] * 10
    with bounded(), pytest.raises(NotASnapshotError):
        load_bytes(dump({"a": nested}))


# ------------------------------------------------------------------------------ the garbage collector


@pytest.mark.parametrize("content", [dump(), dump()[:50], dump(Call(os.mkdir, "x")), b""])
@pytest.mark.parametrize("enabled", [True, False])
def test_gc_is_left_as_it_was(content: bytes, enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(InputError):
            load_bytes(content)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_gc_is_off_meanwhile() -> None:
    seen: list[bool] = []
    read_snapshot(io.BytesIO(dump()), progress=lambda *_: seen.append(gc.isenabled()))
    assert seen == [False]
    with paused_gc(), paused_gc():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_long_get_of_nothing() -> None:
    with bounded(mib=2), pytest.raises(MalformedError, match="Memo value not found"):
        load_bytes(header(4) + long_get(2**31) + b".")
    assert load_bytes(dump()).value == SNAPSHOT


@pytest.mark.parametrize("head", [b'{"segments": [', b"<!DOCTYPE html><html>"], ids=["JSON", "HTML"])
def test_text_that_never_ends_is_refused(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.load.source.MAX_TEXT_BYTES", 3 << 20)
    stream = Endless(head, b" " * 1000)
    with pytest.raises(MalformedError, match=r"^endless: holds more than 3\.00 MiB of (JSON|HTML)"):
        read_snapshot(stream)
    assert stream.num_given < 5 << 20


def test_a_pickle_that_is_followed_by_anything_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapscope.load.scanner.MAX_TRAILING_BYTES", 3 << 20)
    monkeypatch.setattr("snapscope.load.MAX_TRAILING_BYTES", 3 << 20)
    stream = Endless(dump(), b"\x1bjunk")
    (notice,) = read_snapshot(stream).notices
    assert notice.code == "trailing_bytes"
    assert notice.message.startswith("more than 3,145,728 bytes after the end of the pickle were left alone: ")
    assert r"they begin with \x1bjunk" in notice.message
    assert stream.num_given < 6 << 20


class Endless(io.BytesIO):
    """A pipe that never ends: some bytes, then others over and over."""

    name = "endless"

    def __init__(self, head: bytes, tail: bytes) -> None:
        super().__init__()
        self._head = head
        self._tail = tail
        self.num_given = 0

    def seekable(self) -> bool:
        return False

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        chunk, self._head = self._head[:size], self._head[size:]
        chunk = chunk or (self._tail * (size // len(self._tail) + 1))[:size]
        self.num_given += len(chunk)
        return chunk
