"""Every kind of file that is no snapshot gets one clear line."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import traceback
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from snapscope.errors import (
    EmptyFileError,
    ExitCode,
    HostileError,
    InputError,
    MalformedError,
    NotASnapshotError,
    TruncatedError,
)
from snapscope.load import read_snapshot
from tests.load.samples import SNAPSHOT, dump, header, load_bytes

LFS_POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""

# torch.save(..., _use_new_zipfile_serialization=False) begins with its magic number as a pickle.
OLD_TORCH_SAVE = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)


def zip_of(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            # A fixed date: the test's name is made of these bytes, and workers must agree on it.
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), dump())
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", EmptyFileError, "0 bytes: the dump failed while being written"),
        (LFS_POINTER, NotASnapshotError, "a Git LFS pointer, not the file itself: run git lfs pull"),
        (
            zip_of("archive/data.pkl", "archive/version"),
            NotASnapshotError,
            "a torch.save archive: dump with torch.cuda.memory._dump_snapshot(path), "
            "or pickle.dump(snapshot, file)",
        ),
        (
            zip_of("snapshot.pickle"),
            NotASnapshotError,
            "a zip archive: dump with torch.cuda.memory._dump_snapshot(path), or pickle.dump(snapshot, file)",
        ),
        (
            OLD_TORCH_SAVE,
            NotASnapshotError,
            "a torch.save file of the old format: dump with torch.cuda.memory._dump_snapshot(path), "
            "or pickle.dump(snapshot, file)",
        ),
        (
            b'{"schemaVersion": 1, "traceEvents": []}',
            NotASnapshotError,
            "is a profiler trace (traceEvents), which holds no memory snapshot: "
            "dump one with torch.cuda.memory._dump_snapshot",
        ),
        (
            dump({"allocated_bytes.all.current": 1, "num_ooms": 0}),
            NotASnapshotError,
            "holds the counters of torch.cuda.memory_stats(), not a snapshot: "
            "dump one with torch.cuda.memory._dump_snapshot",
        ),
        (
            b"\x89PNG\r\n\x1a\n",
            NotASnapshotError,
            r"neither a pickle nor JSON nor a page of trace_plot: it starts with \x89PNG\r\n\x1a\n",
        ),
        (
            b"step 1 loss 0.5",
            NotASnapshotError,
            "neither a pickle nor JSON nor a page of trace_plot: it starts with step 1 loss 0.5",
        ),
        (header(6) + b"N.", NotASnapshotError, "pickle protocol 6 is newer than any known (0 to 5)"),
        (dump({"a": 1, "b": 2, "c": 3}), NotASnapshotError, "no snapshot: found keys a, b, c"),
        (
            dump({"a\x1b[2J\n": 1, 3: 2, (1, 2): 3, "\ud800": 4}),
            NotASnapshotError,
            r"no snapshot: found keys a\x1b[2J\n, 3, tuple, \ud800",
        ),
        (
            dump({f"key{number}": number for number in range(100)}),
            NotASnapshotError,
            "no snapshot: found keys key0, key1, key2, key3, key4, key5, key6, key7 and 92 more",
        ),
        (
            dump({"k" * 1000: 1}),
            NotASnapshotError,
            f"no snapshot: found keys {'k' * 40}…",
        ),
        (dump({}), NotASnapshotError, "no snapshot: found an empty dict"),
        (dump([1, "a", None]), NotASnapshotError, "no snapshot: found a list of 3 NoneType and int and str"),
        (dump(None), NotASnapshotError, "no snapshot: found nothing"),
        (dump(7), NotASnapshotError, "no snapshot: found a single int"),
        (b'"text"', NotASnapshotError, 'neither a pickle nor JSON nor a page of trace_plot: it starts with "text"'),
        (
            b'{"text": "hi", "segments": [{"id": 0, "start": 0.0, "text": "hi"}], "language": "en"}',
            NotASnapshotError,
            "no snapshot: found keys text, segments, language",
        ),
        (b'{"segments": ["\xff"]}', MalformedError, "is no valid JSON: no UTF-8 at byte 15"),
        (
            b'{"segments": []} x',
            MalformedError,
            "is no valid JSON: unexpected content after document (at character 17)",
        ),
        (b"\xff\xfe{\x00x\xd8", MalformedError, "is no valid UTF-16: unexpected end of data"),
    ],
)  # fmt: skip
def test_one_line_for_each(content: bytes, error: type[InputError], message: str) -> None:
    with pytest.raises(error) as caught:
        load_bytes(content)
    assert str(caught.value) == f"<bytes>: {message}"
    assert type(caught.value) is error
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b"0x10"])
def test_numbers_that_json_lacks(number: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^<bytes>: is no valid JSON: .* \(at character 1[3-6]\)$"):
        load_bytes(b'{"segments": [' + number + b"]}")


def test_no_chained_traceback() -> None:
    for content in (dump()[:100], dump({1: 2}), b"{", header() + b"K\x01K\x02s.", b"\x1f\x8bjunk"):
        with pytest.raises(InputError) as caught:
            load_bytes(content)
        lines = "".join(traceback.format_exception(caught.value))
        assert "direct cause" not in lines
        assert "During handling" not in lines
        assert "\n" not in str(caught.value)


def test_name_is_said_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b]0;b\nc.pickle"
    try:
        path.write_bytes(b"")
    except OSError:
        pytest.skip("no such names here")
    with pytest.raises(EmptyFileError) as caught:
        read_snapshot(path)
    assert str(caught.value) == (rf"{tmp_path}/a\x1b]0;b\nc.pickle: 0 bytes: the dump failed while being written")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.pickle: no such file$"):
        read_snapshot(tmp_path / "nowhere.pickle")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory: name the snapshot files inside it$"):
        read_snapshot(tmp_path)


def test_not_a_path() -> None:
    with pytest.raises(InputError, match=r"^a\\x00b: can't be opened: not a path$"):
        read_snapshot("a\0b")


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")
def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.pickle"
    path.write_bytes(dump())
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything

        def denied(*_: Any, **__: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(InputError, match=r"secret\.pickle: can't be opened: permission denied$"):
        read_snapshot(path)


def test_device_that_fails() -> None:
    class Broken(io.RawIOBase):
        def read(self, _size: int = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    broken: Any = Broken()
    with pytest.raises(InputError, match="<stream>: can't be read: input/output error"):
        read_snapshot(broken)


# ------------------------------------------------------------------------------------------ cut off


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_cut_anywhere(protocol: int) -> None:
    content = dump(protocol=protocol)
    for end in range(8, len(content), 7):
        with pytest.raises(TruncatedError, match=rf"^<bytes>: ends in the middle of the pickle \(at byte {end:,}\)"):
            load_bytes(content[:end])


def test_json_cut_anywhere() -> None:
    for content in (orjson.dumps(SNAPSHOT), json.dumps(SNAPSHOT).encode()):
        for end in range(1, len(content), 5):
            with pytest.raises(TruncatedError, match=r"ends in the middle of the JSON \(at byte"):
                load_bytes(content[:end])


# --------------------------------------------------------------------------- opcodes out of place


@pytest.mark.parametrize(
    ("opcodes", "message"),
    [
        (b"K\x01K\x02s.", "is no valid pickle"),  # SETITEM without a dict
        (b".", "is no valid pickle"),
        (b"e.", "is no valid pickle: could not find MARK"),
        (b"h\x05.", "is no valid pickle: Memo value not found at index 5"),
        (b"}]Ns.", "is no valid pickle: unhashable type: 'list'"),
        (b"}(Nu.", "is no valid pickle: odd number of items"),
        (b"X\x02\0\0\0\xff\xfe.", "is no valid pickle: 'utf-8' codec can't decode byte 0xff"),
        (b"I12x\n.", "no number of at most 20 digits at byte 2"),
        (b"Iabc\n.", "no number of at most 20 digits"),
        (b"p-1\n.", "no number of at most 20 digits"),
        (b"F1.5.5\n.", "is no valid pickle: could not convert string to float"),
        (b"Snot quoted\n.", "is no valid pickle: the STRING opcode argument must be quoted"),
        (b"\xff.", "byte 0xff at byte 2 is no opcode"),
        (b"C\x01a.", r"holds bytes \(opcode SHORT_BINBYTES at byte 2\)"),
        (b"\x96" + b"\xff" * 7 + b"\x7f", r"holds bytes \(opcode BYTEARRAY8 at byte 2\)"),
        (b"\x8f\x94.", r"no snapshot has the opcode EMPTY_SET \(at byte 2\)"),
        (b"N2.", r"no snapshot has the opcode DUP \(at byte 3\)"),
        (b"\x80\x04N.", "a second header at byte 2"),
        (b"\x95\x02\0\0\0\0\0\0\0J\0\0\0\0.", "an opcode leaves its frame at byte 11"),
        (b"\x95\x20\0\0\0\0\0\0\0N\x95\x02\0\0\0\0\0\0\0N.", "a frame inside a frame at byte 12"),
        (b"\x95\x09\0\0\0\0\0\0\0N." + b"\0" * 7, "it stops before its frame does at byte 13"),
    ],
)
def test_senseless_opcodes(opcodes: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        load_bytes(header() + opcodes)


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("snapscope.load.pickle_reader._PlainUnpickler.load", fail)
    with pytest.raises(HostileError, match="needs more memory than there is"):
        load_bytes(dump())
    monkeypatch.setattr("snapscope.load.json_reader.orjson.loads", fail)
    with pytest.raises(HostileError, match="needs more memory than there is: 16 bytes of JSON"):
        load_bytes(b'{"segments": []}')
