from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from snapscope.errors import EmptyFileError, InputError, MalformedError, NotASnapshotError, TruncatedError
from snapscope.load import read_snapshot
from tests.load import samples
from tests.load.samples import SNAPSHOT, dump, load_bytes


def as_json(value: Any) -> Any:
    """What becomes of a value that is written as JSON: tuples are lists."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(protocol: int) -> None:
    raw = load_bytes(dump(protocol=protocol))
    assert raw.value == SNAPSHOT
    assert (raw.source.encoding, raw.source.containers, raw.notices) == ("pickle", (), ())
    # Protocols 0 and 1 have no header; a dict of protocol 0 begins with MARK.
    assert raw.source.protocol == protocol


def test_pickle_of_the_cpp_writer() -> None:
    small = {key: value for key, value in SNAPSHOT.items() if key != "allocator_settings"}
    raw = load_bytes(samples.write_like_cpp(small))
    assert raw.value == small
    assert raw.source.protocol == 2


def test_shared_objects_stay_shared() -> None:
    value: Any = load_bytes(dump()).value
    trace = value["device_traces"][0]
    assert trace[0]["frames"] is trace[1]["frames"]
    assert trace[0]["frames"][0] is trace[3]["frames"][0]


def test_strings_of_python_2() -> None:
    # {'segments': [], 'conf': 'caf\xc3\xa9', 'broken': '\xff'} by cPickle of Python 2.7, protocol 2.
    content = b"\x80\x02}q\x01(U\x08segments]U\x04confU\x05caf\xc3\xa9U\x06brokenU\x01\xffu."
    assert load_bytes(content).value == {"segments": [], "conf": "café", "broken": "\udcff"}


def test_text_opcodes_of_python_2() -> None:
    content = (
        b"(dp0\nS'segments'\np1\n(lp2\nsS'on'\np3\nI01\nsS'off'\nI00\nsS'x'\nF0.5\nsS'n'\nL-5L\nsS'u'\nV\\u00e9\ns."
    )
    assert load_bytes(content).value == {
        "segments": [],
        "on": True,
        "off": False,
        "x": 0.5,
        "n": -5,
        "u": "é",
    }


def test_lone_surrogates_survive() -> None:
    value = {"segments": [], "name": "a\udc80b"}
    assert load_bytes(dump(value)).value == value


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(SNAPSHOT).encode(), id="compact"),
        pytest.param(json.dumps(SNAPSHOT, indent=2, ensure_ascii=False).encode(), id="pretty"),
        pytest.param(b"\xef\xbb\xbf" + orjson.dumps(SNAPSHOT), id="byte order mark"),
        pytest.param(b" \r\n\t" + orjson.dumps(SNAPSHOT) + b"\r\n", id="white space"),
        pytest.param(b"\xff\xfe" + json.dumps(SNAPSHOT).encode("utf-16-le"), id="PowerShell"),
    ],
)
def test_json(text: bytes) -> None:
    raw = load_bytes(text)
    assert raw.value == as_json(SNAPSHOT)
    assert (raw.source.encoding, raw.source.protocol) == ("json", None)


def test_json_integers_above_2_63() -> None:
    raw: Any = load_bytes(b'{"segments": [], "address": 18446744073709551615}').value
    assert raw["address"] == 2**64 - 1


@pytest.mark.parametrize("make", [dump, orjson.dumps])
@pytest.mark.parametrize("name", ["a.pickle", "a.json", "a.html", "no suffix"])
def test_suffix_says_nothing(tmp_path: Path, name: str, make: Any) -> None:
    path = tmp_path / name
    path.write_bytes(make(SNAPSHOT))
    assert read_snapshot(path).value in (SNAPSHOT, as_json(SNAPSHOT))


def viz_page(content: bytes) -> bytes:
    """Write a page as `_format_viz` of torch/cuda/_memory_viz.py does."""
    content += b"\x00" * (3 - len(content) % 3)
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(content).decode()}])
    return f"""
<!DOCTYPE html>
<html>
<head>
</head>
<body>
<script type="module">
import {{add_local_files}} from "https://example.org/MemoryViz.js"
const local_files = {files}
add_local_files(local_files, 'Active Memory Timeline')
</script>
</body>
""".encode()


@pytest.mark.parametrize("padding", range(3))
def test_html_page(padding: int) -> None:
    content = dump({**SNAPSHOT, "padding": "x" * padding})
    raw = load_bytes(viz_page(content))
    assert raw.value == {**SNAPSHOT, "padding": "x" * padding}
    assert raw.source.containers == ("html",)
    assert raw.source.protocol == 4
    assert raw.stream_bytes == len(content)
    assert raw.notices == ()


def test_html_page_with_several_files() -> None:
    page = viz_page(dump())
    raw = load_bytes(page + page)
    assert raw.value == SNAPSHOT
    assert [(notice.code, notice.message) for notice in raw.notices] == [
        ("unwrapped", "the page holds 2 files: only the first was read")
    ]


@pytest.mark.parametrize(
    ("page", "error", "message"),
    [
        (b"<html><body>404</body></html>", NotASnapshotError, "an HTML page without a snapshot"),
        (viz_page(dump())[:400], TruncatedError, "ends in the middle of the page's snapshot"),
        (b'<html>"base64": "AAA"', MalformedError, "no valid base64"),
        (b'<html>"base64": ""', EmptyFileError, "holds 0 bytes"),
        (viz_page(viz_page(dump())), NotASnapshotError, "an HTML page inside an HTML page"),
        (viz_page(dump()[:200]), TruncatedError, "ends in the middle of the pickle"),
    ],
)
def test_html_pages_that_are_none(page: bytes, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        load_bytes(page)


def test_bare_list_of_segments() -> None:
    assert load_bytes(dump(SNAPSHOT["segments"])).value == SNAPSHOT["segments"]
    assert load_bytes(dump([])).value == []
    assert load_bytes(b"[]").value == []


def test_stream_bytes_are_those_of_the_pickle() -> None:
    content = dump()
    for trailing in (b"", b"\0\0\0", b"junk"):
        assert load_bytes(content + trailing).stream_bytes == len(content)


def test_trailing_nuls_are_padding() -> None:
    assert load_bytes(dump() + b"\0" * 3).notices == ()


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("trailing", [b"x", b"\0\0x", dump(), b"\0" * 2_000_000 + b"x"])
def test_trailing_bytes_are_said(trailing: bytes, protocol: int) -> None:
    raw = load_bytes(dump(protocol=protocol) + trailing)
    assert raw.value == SNAPSHOT
    assert [(notice.code, notice.bytes) for notice in raw.notices] == [("trailing_bytes", len(trailing))]


# -------------------------------------------------------------------------------- where it comes from


def test_path_bytes_and_stream(tmp_path: Path) -> None:
    content = dump()
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with path.open("rb") as stream:
        sources = [read_snapshot(path), read_snapshot(str(path)), read_snapshot(stream)]
        assert not stream.closed
    sources += [read_snapshot(content), read_snapshot(BytesIO(content))]
    assert [raw.value for raw in sources] == [SNAPSHOT] * 5
    assert [raw.source.name for raw in sources] == [str(path)] * 3 + ["<bytes>", "<stream>"]
    assert {raw.source.size_bytes for raw in sources} == {len(content)}


def test_stream_is_read_from_where_it_stands() -> None:
    stream = BytesIO(b"skipped" + dump())
    stream.seek(7)
    calls: list[tuple[int, int | None]] = []
    assert read_snapshot(stream, progress=lambda *call: calls.append(call)).value == SNAPSHOT
    assert calls == [(len(dump()), len(dump()))]


READ_STDIN = "from snapscope.load import read_snapshot as r; s = r('-'); print(s.source.name, s.source.size_bytes)"


@pytest.mark.parametrize("through_pipe", [True, False])
def test_stdin(tmp_path: Path, through_pipe: bool) -> None:
    content = dump()
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    command = [sys.executable, "-c", READ_STDIN]
    if through_pipe:
        done = subprocess.run(command, input=content, capture_output=True, check=True)
    else:
        with path.open("rb") as stream:
            done = subprocess.run(command, stdin=stream, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["stdin", str(len(content))]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_named_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    content = dump(protocol=2)
    with subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r}, 'wb').write({content!r})"]):
        raw = read_snapshot(fifo)
    assert (raw.value, raw.source.size_bytes) == (SNAPSHOT, len(content))


class Trickle:
    """A pipe that gives a few bytes at a time, and its size to nobody."""

    def __init__(self, content: bytes, size: int) -> None:
        self._stream = BytesIO(content)
        self._size = size

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, self._size))


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("content", [dump(), dump(protocol=0), orjson.dumps(SNAPSHOT), viz_page(dump())])
def test_slow_pipe(content: bytes, size: int) -> None:
    calls: list[tuple[int, int | None]] = []
    pipe: Any = Trickle(content, size)
    raw = read_snapshot(pipe, progress=lambda *call: calls.append(call))
    assert raw.value in (SNAPSHOT, as_json(SNAPSHOT))
    assert calls == [(len(content), None)]


def test_progress_about_every_mib() -> None:
    content = dump({**SNAPSHOT, "more": ["x" * 1000 + str(number) for number in range(5000)]})
    calls: list[tuple[int, int | None]] = []
    read_snapshot(content, progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert {call[1] for call in calls} == {len(content)}
    assert done == sorted(done)
    assert done[-1] == len(content)
    assert len(content) // (4 << 20) <= len(calls) <= 1 + len(content) // (1 << 20)


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("content", [dump(), dump(protocol=2), orjson.dumps(SNAPSHOT), gzip.compress(dump())])
def test_progress_may_stop_the_reading(content: bytes) -> None:
    def stop(_read: int, _total: int | None) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        read_snapshot(content, progress=stop)
