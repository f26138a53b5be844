"""Whole screens at 80×24 as text; `UPDATE_GOLDEN=1 pytest tests/tui` rewrites them."""

from __future__ import annotations

import pytest

from tests.cli.goldens import check_golden
from tests.conftest import fixture_path
from tests.tui.driver import opened

SCREENS = {
    "oom": ("torch-2.14/oom_forward", []),
    "peak": ("torch-2.14/multi_stream", []),
    "open_row": ("torch-2.14/multi_stream", ["tab", "down", "right", "down", "down"]),
    "calls": ("torch-2.14/fragmentation", ["t"]),
    "zoom": ("torch-2.14/multi_stream", ["plus", "plus", "plus", "plus", "plus", "plus", "right"]),
    "late": ("torch-2.14/late_start", []),
    "no_history": ("cases/15_odd_files/no_traces.pickle", []),
    "help": ("torch-2.14/two_gpu", ["question_mark"]),
    "notices": ("torch-2.14/late_start", ["i"]),
}


@pytest.mark.parametrize("name", SCREENS)
async def test_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture, keys = SCREENS[name]
    path = fixture_path(fixture)
    # Where the checkout lies must not show.
    monkeypatch.chdir(path.parent)
    async with opened(path.name) as driver:
        await driver.press(*keys)
        check_golden(f"tui_{name}.txt", (driver.text + "\n").encode())
