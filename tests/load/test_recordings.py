"""Every recording reads as plain unpickling would have it."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from snapscope.errors import EmptyFileError, HostileError, InputError, TruncatedError
from snapscope.load import read_snapshot
from tests.conftest import FIXTURES, fixture_path, recordings

ODD_FILES = {
    "empty.pickle": (EmptyFileError, "0 bytes: the dump failed while being written"),
    "truncated.pickle": (TruncatedError, r"ends in the middle of the pickle \(at byte 1,777\)"),
    "hostile.pickle": (HostileError, r"asks for posix\.mkdir"),
}


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_recording(name: str) -> None:
    path = fixture_path(name)
    raw = read_snapshot(path)
    with gzip.open(path) as stream:
        assert raw.value == pickle.load(stream)
    assert raw.source.size_bytes == path.stat().st_size
    assert raw.source.containers == ("gzip",)
    assert raw.notices == ()


@pytest.mark.parametrize(
    "path", sorted((FIXTURES / "cases").rglob("*.*")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_case(path: Path) -> None:
    check_case(path)


def check_case(path: Path) -> None:
    if path.name == "expected.json":
        with pytest.raises(InputError, match="no snapshot: found keys"):
            read_snapshot(path)
    elif path.name in ODD_FILES:
        error, message = ODD_FILES[path.name]
        with pytest.raises(error, match=message):
            read_snapshot(path)
    else:
        raw = read_snapshot(path)
        content = path.read_bytes()
        expected = json.loads(content) if path.name == "a.json" else pickle.loads(content)
        assert raw.value == expected
        assert raw.stream_bytes == raw.source.size_bytes == len(content)
        assert raw.notices == ()


def test_hostile_case_ran_nothing() -> None:
    assert not Path("/tmp/asks_pickle_was_executed").exists()


def test_shared_recordings(shared: Path) -> None:
    paths = [path for path in sorted(shared.rglob("*.pickle")) if "cases" not in path.parts]
    assert paths
    for path in paths:
        raw = read_snapshot(path)
        with path.open("rb") as stream:
            assert raw.value == pickle.load(stream), path
        assert raw.notices == ()


def test_shared_cases(shared: Path) -> None:
    paths = [path for path in sorted((shared / "cases").rglob("*.*")) if path.is_file()]
    assert paths
    for path in paths:
        check_case(path)


def test_shared_json(shared: Path) -> None:
    for path in sorted(shared.rglob("*.json")):
        if path.name.endswith(("-json.json", "a.json")):
            assert read_snapshot(path).source.encoding == "json"
        elif path.name.endswith((".truth.json", ".answer.json", ".diff.json")):
            with pytest.raises(InputError, match="no snapshot: found"):
                read_snapshot(path)
