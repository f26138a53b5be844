"""What every test may ask for: recordings, and where they lie."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

ROOT: Final = Path(__file__).resolve().parents[1]
FIXTURES: Final = ROOT / "fixtures"

# A slow machine is no bug. On CI the examples are always the same, so that a red build is the change's.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def fixture_path(name: str) -> Path:
    """Return the path of a file in fixtures/.

    `name` is a path below fixtures/; a recording may leave out `allocator/` and `.pickle.gz`:
    `torch-2.14/oom_forward`, `runs/oom/cap_backward`, `cases/15_odd_files/hostile.pickle`.
    """
    for candidate in (name, f"{name}.pickle.gz", f"allocator/{name}.pickle.gz"):
        path = FIXTURES / candidate
        if path.is_file():
            return path
    raise FileNotFoundError(f"no fixture {name!r}")


def truth_path(name: str) -> Path:
    """Return where the truth about a recording lies, if it has one."""
    snapshot = fixture_path(name)
    return snapshot.with_name(snapshot.name.removesuffix(".pickle.gz") + ".truth.json.gz")


def read_truth(name: str) -> Any:
    """Return what `NAME.truth.json.gz` holds about a recording (see fixtures/README.md)."""
    with gzip.open(truth_path(name), "rt", encoding="utf-8") as lines:
        return json.load(lines)


def recordings(folder: str = "allocator") -> list[str]:
    """Return the names of all recordings below a folder of fixtures/, to parametrise a test with."""
    return sorted(
        path.relative_to(FIXTURES).as_posix().removesuffix(".pickle.gz")
        for path in (FIXTURES / folder).rglob("*.pickle.gz")
    )


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The folder fixtures/."""
    return FIXTURES


@pytest.fixture(scope="session")
def shared() -> Path:
    """A folder of more recordings, named by SNAPSCOPE_SHARED; without it the test is skipped."""
    name = os.environ.get("SNAPSCOPE_SHARED")
    if not name:
        pytest.skip("SNAPSCOPE_SHARED is not set")
    path = Path(name)
    if not path.is_dir():
        pytest.skip(f"SNAPSCOPE_SHARED is no folder: {name}")
    return path


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: content may hold a time, and workers must agree on all names."""
    return f"{argname}{len(val)}B" if isinstance(val, bytes) else None
