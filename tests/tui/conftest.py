"""The same terminal on every machine, and faster waits."""

from __future__ import annotations

import pytest
from textual import _wait


@pytest.fixture(autouse=True)
def _look_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # Textual's pilot looks every 20 ms whether the app is idle, several times a key.
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 1 / 400)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", 1 / 2000)


@pytest.fixture(autouse=True)
def _same_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
