"""The compiled reader and the Python path make the same of every file, damaged or not."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope import native
from snapscope.load import read_snapshot
from tests import builders as b
from tests.conftest import FIXTURES, fixture_path, recordings
from tests.load.samples import dump, write_like_cpp
from tests.load.test_damage import SMALL, Damage, damages
from tests.native.compare import check_same

pytestmark = pytest.mark.skipif(native.core() is None, reason="the compiled reader isn't there, or isn't wanted")

A = 0x7F0000000000
F, G = b.frame("f", "m.py", 1), b.frame("g", "m.py", 2)


def events() -> list[dict[str, Any]]:
    return [
        b.alloc(A, 700, frames=[F, G], time_us=1 << 50, compile_context="N/A", user_metadata=""),
        b.alloc(A + 1024, 700, frames=[G], time_us=1 << 50, compile_context="0/0", user_metadata="m"),
        b.free_requested(A, 700, frames=[F], time_us=1 << 50, compile_context="N/A", user_metadata=""),
        b.free_completed(A, 700, frames=[], time_us=1 << 50, compile_context="N/A", user_metadata=""),
    ]


def wrapped(trace: list[Any], **extra: Any) -> dict[str, Any]:
    blocks = [b.block(1024, requested=700), b.block(1024, state=b.INACTIVE)]
    return b.snapshot(traces=[trace], segments=[b.segment(A, blocks)], **extra)


def changed(*changes: tuple[int, str, Any]) -> dict[str, Any]:
    trace = events()
    for row, key, value in changes:
        if value is None:
            trace[row].pop(key, None)
        else:
            trace[row][key] = value
    return wrapped(trace)


SAMPLES: dict[str, Any] = {
    "plain": wrapped(events()),
    "an event lacks the address": changed((1, "addr", None)),
    "an event lacks the frames": changed((2, "frames", None)),
    "an event lacks the metadata": changed((2, "user_metadata", None)),
    "an event lacks all text": changed((1, "compile_context", None), (1, "user_metadata", None)),
    "one event has a pool": changed((1, "pool_id", (0, 3))),
    "an empty pool": changed((1, "pool_id", ()), (2, "pool_id", (0, 3))),
    "unknown keys": changed((0, "new", 1), (1, "newer", [1, {"a": 2}]), (1, "new", "x")),
    "a key for another": changed((2, "new", 1), (2, "user_metadata", None)),
    "forward frames": changed((0, "forward_frames", ["a", "b"]), (2, "forward_frames", [])),
    "oom": wrapped([*events(), {"action": "oom", "device_free": 5, "size": 512, "stream": 0, "frames": [F]}]),
    "unknown action": changed((1, "action", "fork_action")),
    "metadata is a dict": changed((1, "user_metadata", {"a": 1})),
    "an absurd size": changed((1, "size", 1 << 61)),
    "a size that is none": changed((1, "size", "x")),
    "a negative address": changed((1, "addr", -5)),
    "a pointer of 64 bits": changed((1, "addr", (1 << 64) - 4096), (2, "stream", (1 << 64) - 1)),
    "frames with more keys": changed((1, "frames", [{**F, "fx_node_op": "call", "new": 1}, G])),
    "frames that are none": changed((1, "frames", [F, "x"])),
    "a rotated ring": changed((0, "time_us", 5), (1, "time_us", 6), (2, "time_us", 3), (3, "time_us", 4)),
    "two devices": b.snapshot(traces=[events(), [], events()]),
    "host traces": wrapped(events(), host_traces=events(), host_segments=[]),
    "host traces in a list": wrapped(events(), host_traces=[events()], host_segments=[]),
    "host traces in lists": wrapped(events(), host_traces=[events(), events()], host_segments=[]),
    "no events": wrapped([]),
    "a wrapper": {"rank": 0, "snapshot": wrapped(events())},
    "a list of it": [wrapped(events())],
    "segments only": wrapped([])["segments"],
    "an event as a segment": {**wrapped(events()), "segments": events()},
    "one list twice": (lambda trace: b.snapshot(traces=[trace, trace]))(events()),
    "one event twice": (lambda trace: wrapped([*trace, trace[0]]))(events()),
    "something else": {"action": "alloc"},
    "unknown top-level key": {**wrapped(events()), "new": {"x": [1, 2, {"y": None}]}},
}
NATIVE = {
    *("plain", "an event lacks the address", "an event lacks the frames", "an event lacks the metadata"),
    *("an event lacks all text", "one event has a pool", "an empty pool", "unknown keys", "a key for another"),
    *("forward frames", "oom", "unknown action", "an absurd size", "frames with more keys", "a rotated ring"),
    *("two devices", "host traces", "host traces in a list", "unknown top-level key"),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, protocol: int) -> None:
    assert check_same(dump(SAMPLES[name], protocol)) == (name in NATIVE)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"a pointer of 64 bits"}))
def test_as_the_cpp_writer_has_it(name: str) -> None:
    check_same(write_like_cpp(SAMPLES[name]))


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_recording(name: str) -> None:
    assert check_same(fixture_path(name))


@pytest.mark.parametrize("path", sorted((FIXTURES / "cases").rglob("*.*")), ids=lambda path: path.name)
def test_case(path: Path) -> None:
    check_same(path)


def test_shared_recordings(shared: Path) -> None:
    paths = [path for path in sorted(shared.rglob("*.*")) if path.suffix in (".pickle", ".json")]
    assert paths
    for path in paths:
        check_same(path)


def test_a_stream_is_set_back_before_the_python_path_reads_it() -> None:
    stream = io.BytesIO(b"before" + dump(SAMPLES["metadata is a dict"]))
    stream.seek(6)
    value: Any = read_snapshot(stream, as_columns=True).value
    assert value["device_traces"][0][1]["user_metadata"] == {"a": 1}


def test_compressed() -> None:
    assert check_same(gzip.compress(dump(SAMPLES["plain"])))
    assert not check_same(gzip.compress(dump(SAMPLES["plain"]))[:-3])


@pytest.mark.parametrize("rest", [b"\0\0", b"more", b"\0" * (2 << 20), b"\0" * (2 << 20) + b"x"])
def test_what_follows(rest: bytes) -> None:
    assert check_same(dump(SAMPLES["plain"]) + rest) == (not rest.strip(b"\0"))


@pytest.mark.parametrize(
    "content",
    [
        *(pytest.param(dump(SMALL, protocol), id=f"protocol {protocol}") for protocol in (2, 4, 5)),
        pytest.param(dump(SAMPLES["oom"]), id="oom"),
        pytest.param(dump(SAMPLES["forward frames"]), id="forward frames"),
        pytest.param(write_like_cpp(SAMPLES["unknown keys"]), id="C++"),
    ],
)
@given(some=st.lists(damages(), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_damaged_file(content: bytes, some: list[Damage]) -> None:
    for damage in some:
        content = damage(content)
    check_same(content)


@pytest.mark.parametrize("name", ["plain", "one event has a pool"])
def test_every_single_byte(name: str) -> None:
    content = dump(SAMPLES[name])
    for position in range(len(content)):
        for value in (0x00, 0x4B, 0x94, content[position] ^ 1):
            damaged = bytearray(content)
            damaged[position] = value
            check_same(bytes(damaged))


def test_pieces_of_any_length() -> None:
    """Where a piece ends makes no difference."""
    content = dump(SAMPLES["oom"])
    core = native.compiled()
    for step in (1, 2, 3, 7, 64):
        reader, rest, status = core.Reader(), b"", core.MORE
        for start in range(0, len(content), step):
            piece = rest + content[start : start + step]
            status, used = reader.feed(piece)
            rest = piece[used:]
        assert status == core.DONE
        assert reader.position == len(content)
        assert reader.take_value().keys() == pickle.loads(content).keys()
