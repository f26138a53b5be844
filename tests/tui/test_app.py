"""Devices, pages, commands, sizes, colours, and leaving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snapscope.errors import ExitCode, InputError, NotASnapshotError, UsageError
from tests.conftest import fixture_path
from tests.tui.driver import OOM, TWO_GPU, opened

# -- devices, pages, commands --------------------------------------------------------------------


async def test_switch_the_device() -> None:
    async with opened(TWO_GPU) as driver:
        first = driver.state.history.device
        assert "others: 0 [d]" in driver.lines[0]
        await driver.press("t", "d")
        await driver.until(lambda: driver.state.history.device != first)
        assert driver.state.cursor == driver.state.opened.peaks.requested.event
        assert driver.state.shows_calls
        await driver.press("d")
        await driver.until(lambda: driver.state.history.device == first)


async def test_no_key_for_devices_where_there_is_one() -> None:
    async with opened(OOM, size=(160, 24)) as driver:
        assert "device" not in driver.lines[-1]
        await driver.press("d")
        assert driver.state.history.device == 0


@pytest.mark.parametrize("pane", ["timeline", "live", "detail"])
async def test_help_explains_the_focused_pane_and_lists_the_keys(pane: str) -> None:
    async with opened(TWO_GPU, size=(100, 90)) as driver:
        driver.view.query_one(f"#{pane}").focus()
        await driver.press("question_mark")
        assert driver.dialog == "PageScreen"
        names = {"timeline": "the timeline", "live": "the live tree", "detail": "the detail pane"}
        assert f"You are in: {names[pane]}" in driver.text
        for key in (*"prg/btfdcznyN?", "i !", "^c q"):
            assert f"│   {key} " in driver.text, key
        await driver.press("escape")
        assert not driver.dialog


@pytest.mark.parametrize("key", ["i", "exclamation_mark"])
async def test_coverage_and_notices(key: str) -> None:
    async with opened("torch-2.14/late_start", size=(100, 40)) as driver:
        assert "258.57 MiB" in driver.lines[0]
        await driver.press(key)
        for text in ("late_start.pickle.gz", "PyTorch 2.14", "starts late", "162 allocations", "to record more of it"):
            assert text in driver.text
        assert "none: the file agrees with itself" in driver.text
        await driver.press(key)
        assert not driver.dialog


async def test_the_command_that_gives_the_same() -> None:
    async with opened(TWO_GPU, size=(200, 30), capacity_bytes=1 << 30) as driver:
        await driver.press("d")
        await driver.until(lambda: driver.state.history.device == 0)
        await driver.press("slash")
        await driver.type("gpt.py:1.. [f_]")
        await driver.until(lambda: driver.state.focus is not None)
        await driver.press("b", "home", "c")
        path = fixture_path(TWO_GPU)
        command = (
            f"snapscope ledger {path} --at start --by file --device 0 --focus 'gpt.py:1.. [f_]' --capacity 1073741824"
        )
        assert driver.app.clipboard == command
        shown = "".join(line.partition("│")[2].partition("│")[0] for line in driver.lines)
        assert "".join(command.split()) in "".join(shown.split())


async def test_copy_a_row() -> None:
    async with opened(OOM) as driver:
        await driver.press("y")
        assert driver.app.clipboard == "296.12 MiB  8×  gpt.py:32 forward"


async def test_the_palette_offers_every_act() -> None:
    async with opened(TWO_GPU) as driver:
        commands = list(driver.app.get_system_commands(driver.app.screen))
        titles = [command.title for command in commands]
        for name in (
            "peak  (key p)",
            "filter  (key /)",
            "device  (key d)",
            "quit  (key q)",
            "info  (key i !)",
            "Theme",
        ):
            assert name in titles
        assert len(titles) == len(set(titles))
        await driver.press("ctrl+p")
        for key in ("z", "o", "o", "m"):
            await driver.pilot.press(key)
        await driver.pilot.pause(0.3)
        assert "zoom" in driver.text
        await driver.pilot.press("escape")
        before = driver.state.window
        next(command for command in commands if command.title == "zoom  (key +-)").callback()
        await driver.pilot.pause(0.1)
        await driver.settle()
        assert driver.state.window.num_states == before.num_states // 2


# -- sizes and colours ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(120, 40), (110, 14), (80, 24), (60, 18), (40, 10), (20, 4), (3, 2)])
async def test_any_size(size: tuple[int, int]) -> None:
    async with opened(OOM, size=size) as driver:
        for key in ("tab", "right", "t", "z", "escape", "question_mark", "escape", "g", "escape", "plus"):
            await driver.press(key)
        assert len(driver.lines) == size[1]
        assert max(len(line) for line in driver.lines) <= size[0]
        if size >= (40, 10):
            assert "requested" in driver.text
            assert "q quit" in driver.text


async def test_a_terminal_of_sixteen_colors_gets_a_theme_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM")
    async with opened(OOM) as driver:
        assert driver.app.theme == ("ansi-dark" if "ansi-dark" in driver.app.available_themes else "textual-dark")


async def test_resizing_keeps_all_in_place() -> None:
    async with opened(OOM) as driver:
        before = driver.text
        for width, height in ((130, 40), (60, 18), (30, 8), (80, 24)):
            await driver.pilot.resize_terminal(width, height)
            await driver.settle()
            assert driver.view.timeline.plot_width <= width
        assert driver.text == before


async def test_detail_stands_beside_the_tree_where_there_is_room() -> None:
    async with opened(OOM, size=(120, 40)) as driver:
        assert driver.view.detail.region.x > driver.view.live_tree.region.right - 1
        assert driver.view.detail.region.y == driver.view.live_tree.region.y


@pytest.mark.parametrize(
    ("theme", "no_color"),
    [("textual-light", False), ("textual-dark", True), ("ansi-light", False), ("ansi-dark", True)],
)
async def test_themes_and_no_color(theme: str, no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    async with opened(OOM, size=(160, 40), focus="forward") as driver:
        before = driver.text
        if theme not in driver.app.available_themes:
            pytest.skip("a later Textual has it")
        driver.app.theme = theme
        await driver.press("tab", "right", "f", "left", "f", "shift+tab")
        assert driver.text == before
        # What is selected, focused, cursor and out of focus shows without any colour.
        assert [line[0] for line in driver.lines].count(">") == 1
        assert [line[:2] for line in driver.lines].count("━▶") == 1
        assert "▲" in driver.text
        assert "▒" in driver.text


# -- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving(key: str) -> None:
    async with opened(OOM) as driver:
        await driver.pilot.press(key)
        await driver.pilot.pause()
        assert driver.app.return_value == ExitCode.OK


async def test_a_file_that_is_no_snapshot_ends_the_app(tmp_path: Path) -> None:
    path = tmp_path / "[red]README.md"
    path.write_text("# not a snapshot")
    async with opened(path, waits=False) as driver:
        await driver.until_error()
        assert isinstance(driver.app.error, NotASnapshotError)
        assert driver.app.return_value == ExitCode.INPUT


@pytest.mark.parametrize("request_", [{"at": "oom:7"}, {"focus": "("}, {"focus": "nowhere"}, {"device": 5}])
async def test_a_request_that_makes_no_sense_ends_the_app(request_: dict[str, Any]) -> None:
    async with opened(OOM, waits=False, **request_) as driver:
        await driver.until_error()
        assert isinstance(driver.app.error, UsageError)
        assert driver.app.return_value == ExitCode.USAGE


async def test_hostile_pickles_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened("cases/15_odd_files/hostile.pickle", waits=False) as driver:
        await driver.until_error()
        assert isinstance(driver.app.error, InputError)
    assert list(tmp_path.iterdir()) == []
