"""Every test of the command line runs at the root of the repository, in a terminal's default surroundings."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    # Paths in reports are those that were given: relative ones are the same everywhere.
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
