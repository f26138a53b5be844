"""Opening, the cursor of the curve, zoom, and the mouse."""

from __future__ import annotations

import numpy as np
import pytest
from textual import events
from textual.geometry import Offset

from tests.tui.driver import OOM, TRAINING, opened

# -- opening -------------------------------------------------------------------------------------


async def test_opens_on_the_failed_request() -> None:
    async with opened(OOM) as driver:
        event = int(driver.state.history.tables.events.oom_events[-1])
        assert driver.state.cursor == event
        assert "OOM: capacity  asked 48.00 MiB  in gpt.py:52 forward  device free 20.00 MiB" in driver.lines[1]
        assert f"event {event}" in driver.lines[2]


async def test_opens_on_the_peak_where_nothing_failed() -> None:
    async with opened(TRAINING) as driver:
        peak = driver.state.opened.peaks.requested
        assert driver.state.cursor == peak.event == 703
        assert (
            driver.lines[0].split() == "snapscope multi_stream.pickle.gz device 0 1,611 events history complete".split()
        )
        assert driver.lines[1].startswith(" peak 578.65 MiB requested  at event 703")


async def test_opens_where_it_was_asked_to() -> None:
    async with opened(OOM, at="event:100", focus="train", device=0) as driver:
        assert driver.state.cursor == 100
        assert driver.state.focus is not None
        assert "filter /train/" in driver.text


async def test_a_tired_person_finds_the_line_within_ten_keys() -> None:
    async with opened(OOM) as driver:
        history = driver.state.history
        await driver.press("p")
        assert driver.state.cursor == int(np.argmax(history.totals.requested_bytes)) - 1
        row = driver.view.live_tree.selected_row
        assert row is not None
        assert row.bytes == max(other.bytes or 0 for other in driver.groups)
        assert "gpt.py:32 forward" in driver.selected_line
        assert "296.12 MiB" in driver.selected_line
        # Its callers stand below, without another key.
        assert "gpt.py:32 forward < gpt.py:64 forward < gpt.py:96 forward" in " ".join(driver.text.split())


# -- the cursor ----------------------------------------------------------------------------------


async def test_single_events() -> None:
    async with opened(TRAINING) as driver:
        await driver.press("full_stop", "full_stop", "comma")
        assert driver.state.cursor == 704
        await driver.press("home", "comma")
        assert driver.state.cursor == -1
        assert "the start" in driver.lines[2]
        await driver.press("end", "full_stop")
        assert driver.state.cursor == 1610


async def test_cells() -> None:
    async with opened(TRAINING) as driver:
        width = driver.view.timeline.plot_width
        start = driver.state.window.cell_of(704, width)
        for keys, moved in (
            (["right"], 1),
            (["l", "l"], 3),
            (["h"], 2),
            (["shift+right"], 12),
            (["less_than_sign"], 2),
        ):
            await driver.press(*keys)
            assert driver.state.window.cell_of(driver.state.cursor + 1, width) == start + moved
        await driver.press("greater_than_sign", "shift+left")
        assert driver.state.window.cell_of(driver.state.cursor + 1, width) == start + moved
        # The cursor stands on the value that the cell shows.
        totals = driver.state.history.totals.requested_bytes
        edges = driver.state.window.edges(width)
        cell = start + moved
        assert totals[driver.state.cursor + 1] == totals[edges[cell] : edges[cell + 1]].max()


async def test_cells_end_at_both_ends() -> None:
    async with opened(TRAINING) as driver:
        for key, last in (("shift+left", -1), ("shift+right", 1610)):
            for _ in range(10):
                await driver.press(key)
            assert driver.state.cursor == last


async def test_peaks_and_ooms() -> None:
    async with opened("torch-2.14/fragmentation") as driver:
        history = driver.state.history
        await driver.press("r")
        assert history.totals.reserved_bytes[driver.state.cursor + 1] == history.totals.reserved_bytes.max()
        await driver.press("p")
        assert history.totals.requested_bytes[driver.state.cursor + 1] == history.totals.requested_bytes.max()
        await driver.press("o")
        assert driver.state.cursor == history.tables.events.oom_events[0]
        await driver.press("o")
        assert driver.state.cursor == history.tables.events.oom_events[0]


async def test_no_key_for_an_oom_where_there_is_none() -> None:
    async with opened(TRAINING) as driver:
        assert "OOM" not in driver.lines[-1]
        await driver.press("o")
        assert driver.state.cursor == 703


@pytest.mark.parametrize(
    ("typed", "event"),
    [("100", 100), ("1,000", 1000), ("event:100", 100), ("start", -1), ("end", 1610), ("peak", 703), ("", 3)],
)
async def test_go_to(typed: str, event: int) -> None:
    async with opened(TRAINING, at="event:3") as driver:
        await driver.press("g")
        await driver.type(typed)
        assert driver.state.cursor == event


async def test_go_to_a_time() -> None:
    async with opened(TRAINING) as driver:
        times = driver.state.history.tables.events.time_us
        await driver.press("g")
        await driver.type(f"time:{int(times[50])}")
        assert times[driver.state.cursor] == times[50]


async def test_go_to_says_what_is_wrong() -> None:
    async with opened(TRAINING) as driver:
        await driver.press("g")
        await driver.type("oom")
        assert driver.dialog == "PromptScreen"
        assert "no oom event" in driver.text
        await driver.press("x")
        assert "no oom event" not in driver.text
        await driver.press("escape")
        assert not driver.dialog
        assert driver.state.cursor == 703


async def test_zoom() -> None:
    async with opened(TRAINING, size=(100, 24)) as driver:
        await driver.press("plus", "equals_sign", "plus", "plus", "plus", "plus")
        window = driver.state.window
        assert window.num_states == 1612 // 64
        assert window.first <= 704 < window.first + window.num_states
        # Cells are finer than events now.
        await driver.press("right")
        assert driver.state.cursor == 704
        await driver.press("minus")
        assert driver.state.window.num_states == 50
        for _ in range(3):
            await driver.press("shift+right")
        assert driver.state.cursor == 734
        assert driver.state.window.first + driver.state.window.num_states > 735
        await driver.press("0")
        assert (driver.state.window.first, driver.state.window.num_states) == (0, 1612)
        assert driver.state.cursor == 734


# -- the mouse -----------------------------------------------------------------------------------


async def test_click_moves_the_cursor() -> None:
    async with opened(TRAINING) as driver:
        await driver.pilot.click("#timeline", offset=(12 + 5, 3))
        await driver.settle()
        window, width = driver.state.window, driver.view.timeline.plot_width
        assert window.cell_of(driver.state.cursor + 1, width) == 5


async def test_wheel_zooms_around_the_mouse() -> None:
    async with opened(TRAINING) as driver:
        timeline = driver.view.timeline
        at = Offset(timeline.region.x + 12, timeline.region.y + 3)
        for kind, num_states in ((events.MouseScrollUp, 806), (events.MouseScrollDown, 1612)):
            timeline.post_message(
                kind(timeline, 12, 3, 0, 0, 0, False, False, False, at.x, at.y)  # at the first cell
            )
            await driver.settle()
            assert (driver.state.window.first, driver.state.window.num_states) == (0, num_states)


async def test_drag_moves_the_cursor() -> None:
    async with opened(TRAINING) as driver:
        await driver.pilot.mouse_down("#timeline", offset=(20, 3))
        await driver.pilot.hover("#timeline", offset=(30, 3))
        await driver.pilot.mouse_up("#timeline", offset=(30, 3))
        await driver.settle()
        window, width = driver.state.window, driver.view.timeline.plot_width
        assert window.cell_of(driver.state.cursor + 1, width) == 30 - 12


async def test_click_selects_a_row_and_opens_it() -> None:
    async with opened(OOM) as driver:
        tree = driver.view.live_tree
        await driver.pilot.click("#live", offset=(30, 3))
        await driver.settle()
        assert "gpt.py:52 forward" in driver.selected_line
        num_lines = tree.num_lines
        await driver.pilot.click("#live", offset=(30, 3))
        await driver.settle()
        assert tree.num_lines > num_lines


async def test_click_on_the_bottom_line_presses_the_key() -> None:
    async with opened(TRAINING, at="event:3") as driver:
        x = driver.lines[-1].index("p peak")
        await driver.pilot.click("#keys", offset=(x, 0))
        await driver.settle()
        assert driver.state.cursor == 703
