"""The compiled reader and the Python path make the same of every file, damaged or not."""

from __future__ import annotations

import gzip
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope import native
from snapscope.load import read_snapshot
from tests.conftest import FIXTURES, fixture_path, recordings
from tests.load.samples import dump, write_like_cpp
from tests.load.test_damage import SMALL, Damage, damages
from tests.native.compare import check_same
from tests.native.samples import SAMPLES

pytestmark = pytest.mark.skipif(native.core() is None, reason="the compiled reader isn't there, or isn't wanted")

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


def test_the_bytes_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    content = dump(SAMPLES["plain"])
    for reader in ("native", "python"):
        monkeypatch.setenv(native.VARIABLE, reader)
        assert read_snapshot(content + b"\0", as_columns=True).stream_bytes == len(content)


def test_a_reader_that_is_called_by_threads() -> None:
    """It lets go of the interpreter while it reads."""
    content = dump(SAMPLES["oom"])
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: read_snapshot(content, as_columns=True), range(40)))
    assert {len(raw.value["device_traces"][0]) for raw in made if isinstance(raw.value, dict)} == {5}


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
