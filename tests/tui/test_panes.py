"""The tree, the detail pane, and the filter."""

from __future__ import annotations

import pytest

from snapscope.analyses.ledger import By
from tests.tui.driver import OOM, TRAINING, opened

# -- the tree ------------------------------------------------------------------------------------


async def test_open_close_and_enter() -> None:
    async with opened(OOM) as driver:
        tree = driver.view.live_tree
        await driver.press("tab")
        assert tree.has_focus
        closed = tree.num_lines
        await driver.press("right")
        assert tree.num_lines == closed + 4 + 8  # callers and allocations of the site
        assert "▾" in driver.selected_line
        await driver.press("l")
        assert driver.selected_line.split()[1] == "<"
        await driver.press("h")
        assert "gpt.py:32 forward" in driver.selected_line
        await driver.press("left")
        assert tree.num_lines == closed
        await driver.press("enter", "enter")
        assert tree.num_lines == closed


async def test_rows_move_while_the_curve_has_the_focus() -> None:
    async with opened(OOM) as driver:
        assert driver.view.timeline.has_focus
        await driver.press("down", "j", "up")
        assert "gpt.py:52 forward" in driver.selected_line
        await driver.press("enter")
        assert "▾" in driver.selected_line
        await driver.press("k")
        assert "gpt.py:32 forward" in driver.selected_line


async def test_ends_and_pages_of_the_tree() -> None:
    async with opened(OOM) as driver:
        await driver.press("tab", "end")
        assert "device free" in driver.selected_line
        await driver.press("home")
        assert "gpt.py:32 forward" in driver.selected_line
        await driver.press("pagedown", "pageup")
        assert "gpt.py:32 forward" in driver.selected_line
        await driver.press("pagedown")
        assert "gpt.py:32 forward" not in driver.selected_line


async def test_next_site_skips_what_is_open() -> None:
    async with opened(OOM) as driver:
        await driver.press("enter", "n")
        assert "gpt.py:52 forward" in driver.selected_line
        await driver.press("N")
        assert "gpt.py:32 forward" in driver.selected_line


async def test_selection_and_open_rows_stay_when_the_moment_changes() -> None:
    async with opened(TRAINING) as driver:
        await driver.press("down", "enter")
        row = driver.view.live_tree.selected_row
        assert row is not None
        name = row.label.split(" ")[0]
        await driver.press("full_stop")
        assert name in driver.selected_line
        assert "▾" in driver.selected_line


async def test_untouched_the_heaviest_row_is_selected_at_every_moment() -> None:
    async with opened(TRAINING) as driver:
        for key in ("home", "p", "end", "shift+left"):
            await driver.press(key)
            groups = driver.groups
            if groups:
                assert driver.view.live_tree.selected_row is groups[0]


async def test_a_selected_allocation_that_died_leaves_its_site_selected() -> None:
    async with opened(TRAINING) as driver:
        history = driver.state.history
        await driver.press("enter", "down")
        row = driver.view.live_tree.selected_row
        assert row is not None
        assert row.lifetime is not None
        freed = int(history.lifetimes.free_requested_event[row.lifetime])
        assert freed > 703
        await driver.press("g")
        await driver.type(str(freed))
        selected = driver.view.live_tree.selected_row
        assert selected is not None
        assert selected.lifetime is None


async def test_by_goes_round() -> None:
    async with opened(TRAINING) as driver:
        choices = list(By)
        place = choices.index(By.SITE)
        for by in (*choices[place + 1 :], *choices[: place + 1]):
            await driver.press("b")
            assert driver.state.by is by
            assert driver.lines[10].split() == ["bytes", "share", "count", by.value]


async def test_call_tree_opens_on_the_heaviest_path() -> None:
    async with opened(TRAINING) as driver:
        await driver.press("t")
        assert driver.lines[10].split() == ["total", "share", "self", "call"]
        assert "gpt.py:52 forward" in driver.selected_line
        assert "by site" in driver.lines[-1]
        await driver.press("t")
        assert not driver.state.shows_calls


# -- detail --------------------------------------------------------------------------------------


async def test_detail_of_an_allocation() -> None:
    async with opened(OOM, size=(120, 40)) as driver:
        await driver.press("enter", *["down"] * 5)
        row, history = driver.view.live_tree.selected_row, driver.state.history
        assert row is not None
        assert row.lifetime is not None
        detail = driver.view.detail.text.plain
        lifetimes = history.lifetimes
        assert f"{int(lifetimes.addr[row.lifetime]):#x}  48.00 MiB requested, 48.00 MiB allocated" in detail
        assert f"born at event {int(lifetimes.birth_event[row.lifetime])} (" in detail
        assert "alive at the end" in detail
        assert "stream 0, default pool, in a large segment of 48.00 MiB at 0x" in detail
        assert "▪ gpt.py:52 forward\n" in detail
        assert "frames of torch [f]" in detail


async def test_all_frames() -> None:
    async with opened(OOM, size=(120, 40)) as driver:
        before = driver.view.detail.text.plain
        await driver.press("f")
        after = driver.view.detail.text.plain
        assert "[f]" in before
        assert "[f]" not in after
        assert "libc-start" in after
        assert after.count("\n") > before.count("\n")
        await driver.press("f")
        assert driver.view.detail.text.plain == before


async def test_detail_explains_the_balance() -> None:
    async with opened(OOM) as driver:
        tree = driver.view.live_tree
        tree.focus()
        await driver.press("end")
        for word in (
            "What the driver still had",
            "torch.cuda.memory_reserved()",
            "empty_cache()",
            "multiples of 512 B",
        ):
            for _ in range(9):
                if word in " ".join(driver.view.detail.text.plain.split()):
                    break
                await driver.press("up")
            else:
                pytest.fail(f"{word} is nowhere")


async def test_enter_on_an_allocation_gives_the_detail_the_screen() -> None:
    async with opened(OOM) as driver:
        await driver.press("tab", "right", *["down"] * 5, "enter")
        assert driver.view.detail.has_focus
        assert "▪ train.py:33 train" in driver.text
        assert not driver.view.live_tree.display
        assert "all panes" in driver.lines[-1]
        await driver.press("j", "k", "escape")
        assert driver.view.live_tree.display


async def test_tab_moves_the_mark_of_the_focus() -> None:
    async with opened(OOM) as driver:
        marked = []
        for _ in range(4):
            marked.append([place for place, line in enumerate(driver.lines) if line.startswith("━▶")])
            await driver.press("tab")
        assert [len(places) for places in marked] == [1, 1, 1, 1]
        assert marked[0] == marked[3] == [2]
        assert len({places[0] for places in marked}) == 3
        await driver.press("shift+tab")
        assert driver.view.timeline.has_focus


async def test_maximise_each_pane() -> None:
    async with opened(OOM) as driver:
        view = driver.view
        panes = (view.curve, view.live_tree, view.detail)
        for pane in panes:
            (view.timeline if pane is view.curve else pane).focus()
            await driver.press("z")
            assert pane.region.height == 24 - 3
            assert [other.display for other in panes].count(True) == 1
            await driver.press("z")
        assert view.curve.display
        assert view.detail.display


# -- filter --------------------------------------------------------------------------------------


async def test_filter() -> None:
    async with opened(OOM) as driver:
        await driver.press("slash")
        await driver.type(r"gpt\.py:38")
        await driver.settle()
        state = driver.state
        assert state.focus is not None
        assert "gpt.py:38 forward" in driver.selected_line
        assert "(left out by the filter)" in driver.text
        assert "in focus" in driver.lines[2]
        assert "▒" in driver.text
        await driver.press("escape")
        await driver.until(lambda: driver.state.focus is None)
        assert "(left out" not in driver.text


async def test_filter_without_a_match_at_the_cursor() -> None:
    async with opened(TRAINING, at="event:50", focus="gpt.py:52") as driver:
        assert "nothing live matches the filter: esc clears it" in driver.selected_line
        assert "(left out by the filter)" in driver.text


async def test_filter_without_any_match() -> None:
    async with opened(OOM) as driver:
        await driver.press("slash")
        await driver.type("no such frame")
        await driver.until(lambda: "no allocation has" in driver.text)
        assert driver.state.focus is None


async def test_filter_says_what_is_wrong() -> None:
    async with opened(OOM) as driver:
        await driver.press("slash")
        await driver.type("(")
        assert "no regular expression" in driver.text
        await driver.press("escape")
        assert driver.state.focus is None
