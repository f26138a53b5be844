from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from snapscope.demo import DEMO_NAME, demo_path
from tests.conftest import FIXTURES, ROOT, fixture_path, read_truth, recordings, truth_path

MANIFEST: dict[str, Any] = json.loads((FIXTURES / "MANIFEST.json").read_text(encoding="utf-8"))
NOT_LISTED = {"MANIFEST.json", "README.md"}


def stored_files() -> list[Path]:
    return [p for p in sorted(FIXTURES.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]


def listed_files() -> list[dict[str, Any]]:
    rows = [row[key] for row in MANIFEST["recordings"] for key in ("snapshot", "truth", "answer") if key in row]
    return [*rows, *(file for case in MANIFEST["cases"] for file in case["files"]), MANIFEST["expected"]]


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


@pytest.mark.parametrize("row", listed_files(), ids=lambda row: str(row["path"]))
def test_file_is_as_the_manifest_says(row: dict[str, Any]) -> None:
    path = FIXTURES / row["path"]
    stored, content = path.read_bytes(), unpacked(path)
    if path.suffix == ".gz":
        assert (len(stored), hashlib.sha256(stored).hexdigest()) == (
            row["stored_bytes"],
            row["stored_sha256"],
        )
    assert (len(content), hashlib.sha256(content).hexdigest()) == (row["bytes"], row["sha256"])


def test_manifest_lists_every_file() -> None:
    stored = {p.relative_to(FIXTURES).as_posix() for p in stored_files()} - NOT_LISTED
    assert {row["path"] for row in listed_files()} == {name for name in stored if not name.startswith("record/")}


def test_every_recording_says_what_it_is() -> None:
    for row in MANIFEST["recordings"]:
        assert row["scenario"], row["name"]
        assert re.fullmatch(r"\d+\.\d+\.\d+\+cu\d+", row["torch"])
        assert truth_path(row["name"]).exists() == ("truth" in row)
        if "truth" in row:
            assert row["torch"] == read_truth(row["name"])["torch"]
        if "answer" in row:
            answer = json.loads((FIXTURES / row["answer"]["path"]).read_bytes())
            assert row["torch"] == answer["torch"]


def test_a_recording_without_truth_has_an_answer_or_is_of_a_series() -> None:
    without = [row for row in MANIFEST["recordings"] if "truth" not in row]
    assert len(without) == 16
    for row in without:
        assert ("answer" in row) == row["name"].startswith("runs/oom/"), row["name"]
        assert row["name"].startswith(("runs/oom/", "runs/series/"))


def test_gzip_files_carry_no_name_and_no_time() -> None:
    for path in FIXTURES.rglob("*.gz"):
        header = path.read_bytes()[:8]
        assert header[3] == 0, path
        assert header[4:8] == bytes(4), path


def test_fixtures_stay_small() -> None:
    assert sum(path.stat().st_size for path in stored_files()) < 15_000_000


def test_no_file_holds_a_local_path() -> None:
    # The checkout's own path, and the home directories of every system.
    local = re.compile(rb"(?:/root|/home/[\w.-]+|/Users/[\w.-]+|[A-Z]:\\\\?Users)[/\\]")
    checkout = str(ROOT).encode()
    for path in stored_files():
        content = unpacked(path)
        found = local.search(content)
        assert found is None, (path, found)
        if len(ROOT.parts) > 2:
            assert checkout not in content, path


def test_recordings_are_found_by_short_names() -> None:
    assert fixture_path("torch-2.14/oom_forward") == fixture_path("allocator/torch-2.14/oom_forward")
    assert len(recordings()) == 29
    assert "runs/oom/cap_backward" in recordings("runs")
    assert len(recordings("runs/series")) == 9
    with pytest.raises(FileNotFoundError, match="no fixture"):
        fixture_path("nothing")


def test_demo_is_the_recording_it_says_it_is() -> None:
    with demo_path() as path:
        assert path.name == DEMO_NAME
        assert path.read_bytes() == fixture_path("torch-2.14/oom_optimizer_step").read_bytes()
