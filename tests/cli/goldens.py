"""Compare with the files in tests/golden; `UPDATE_GOLDEN=1 pytest tests/cli` rewrites them."""

from __future__ import annotations

import difflib
import json
import os
from typing import Final

import pytest

from tests.conftest import ROOT

GOLDEN: Final = ROOT / "tests" / "golden"
IS_UPDATE: Final = os.environ.get("UPDATE_GOLDEN") == "1"


def check_golden(name: str, content: bytes) -> None:
    """Fail unless the golden file holds this content; write it if UPDATE_GOLDEN is set."""
    path = GOLDEN / name
    if IS_UPDATE:
        path.write_bytes(content)
        return
    if not path.is_file():
        pytest.fail(f"no golden file {name}: UPDATE_GOLDEN=1 writes it")
    expected = path.read_bytes()
    if content != expected:
        diff = difflib.unified_diff(
            expected.decode().splitlines(), content.decode().splitlines(), name, "now", lineterm="", n=2
        )
        pytest.fail("\n".join([*list(diff)[:60], "(UPDATE_GOLDEN=1 rewrites it)"]), pytrace=False)


def check_frozen(name: str, document: dict[str, dict[str, str]]) -> None:
    """Fail unless a part of the public interface is as the golden file says.

    A value lists what may stand there, such as `integer or null`. UPDATE_GOLDEN=1 adds what is new.
    What is gone or has changed it leaves alone and fails: that breaks programs of other people, and
    takes an edit of the file by hand and a changelog line.
    """
    path = GOLDEN / name
    frozen: dict[str, dict[str, str]] = json.loads(path.read_bytes()) if path.is_file() else {}
    now = {(group, key): value for group, keys in document.items() for key, value in keys.items()}
    before = {(group, key): value for group, keys in frozen.items() for key, value in keys.items()}
    broken = [f"gone: {group} {key}" for group, key in before if (group, key) not in now]
    broken += [
        f"changed: {group} {key}: {value} is now {now[place]}"
        for place, value in before.items()
        if place in now and not set(value.split(" or ")) <= set(now[place].split(" or "))
        for group, key in (place,)
    ]
    if broken:
        pytest.fail("\n".join([f"{name}: this is a public interface", *broken]), pytrace=False)
    if IS_UPDATE:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return
    new = [" ".join(place) for place, value in now.items() if before.get(place) != value]
    assert not new, f"{name}: UPDATE_GOLDEN=1 adds {', '.join(new)}"
