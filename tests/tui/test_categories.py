"""Categories, steps and evidence on the screen; the line that ran out of memory; the palette's room."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from snapscope.analyses.ledger import By
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.material import Category, Confidence
from snapscope.classify.user_rules import read_rules
from snapscope.tui.kinds import letter_of, place_in_run
from snapscope.tui.rows import RowKind, make_live_rows
from snapscope.units import format_bytes
from tests.builders import MIB
from tests.tui.driver import OOM, TRAINING, TWO_GPU, Driver, opened, write_snapshot
from tests.tui.test_rows import events_of, state_of
from tests.tui.test_states import made

LETTERS: Final = "PGOAT"


def table_of(driver: Driver) -> list[str]:
    """The lines of the categories' table, without the curve."""
    region = driver.view.categories.region
    return [line[region.x + 1 :] for line in driver.lines[region.y : region.bottom]]


# -- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OOM, TRAINING, "torch-2.14/late_start", "cases/15_odd_files/no_traces.pickle"])
def test_categories_sum_to_the_requested_bytes(name: str) -> None:
    state = state_of(name)
    for event in events_of(state):
        live = make_live_rows(state.at_event(event))
        assert sum(row.bytes for row in live.categories) == live.balance.requested_bytes
        assert sum(row.num_allocations for row in live.categories) == live.num_allocations
        assert [row.category for row in live.categories] == list(Category)


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40)])
async def test_the_table_stands_beside_the_curve_and_follows_the_cursor(size: tuple[int, int]) -> None:
    async with opened(TRAINING, size=size) as driver:
        for key in ("p", "home", "end", "left", "full_stop"):
            await driver.press(key)
            live = driver.view.live_tree.live
            assert live is not None
            lines = [line for line in table_of(driver) if line[:2].strip() and not line.startswith("  ")]
            assert [line[0] for line in lines] == [*LETTERS, "="]
            for line, row in zip(lines[:5], live.categories, strict=True):
                assert f" {format_bytes(row.bytes)} " in line
                is_doubted = bool(row.bytes) and row.confidence < Confidence.HIGH
                assert line.endswith(("med", "medium", "low", "none")) == is_doubted
            assert f" {format_bytes(live.balance.requested_bytes)}" in lines[5]
            assert driver.view.live_tree.region.height >= 9


@pytest.mark.parametrize("size", [(80, 20), (60, 30), (60, 18), (40, 15)])
async def test_one_line_where_there_is_less_room(size: tuple[int, int]) -> None:
    async with opened(TRAINING, size=size) as driver:
        region = driver.view.categories.region
        assert (region.height, region.width) == (1, size[0])
        found = [word for word in driver.lines[region.y].split() if word[0] in LETTERS]
        assert [word[0] for word in found] == list(LETTERS)


async def test_no_table_where_there_is_no_room() -> None:
    async with opened(TRAINING, size=(80, 12)) as driver:
        assert not driver.view.categories.display
        assert driver.view.live_tree.region.height >= 4


async def test_without_a_history_the_categories_are_in_one_line() -> None:
    async with opened("cases/15_odd_files/no_traces.pickle") as driver:
        assert driver.view.categories.region.height == 1
        assert "P" in driver.lines[driver.view.categories.region.y]


async def test_a_click_groups_by_category() -> None:
    async with opened(TRAINING) as driver:
        await driver.press("t")
        await driver.pilot.click("#categories", offset=(3, 2))
        await driver.settle()
        assert driver.state.by is By.CATEGORY
        assert not driver.state.shows_calls
        assert {row.label for row in driver.groups} <= {category.label for category in Category}


# -- rows of the tree ----------------------------------------------------------------------------


@pytest.mark.parametrize("shows_calls", [False, True])
async def test_rows_have_the_letter_of_most_of_their_bytes(shows_calls: bool) -> None:
    async with opened(TRAINING) as driver:
        await driver.press(*["t"] * shows_calls, "enter")
        live = driver.view.live_tree.live
        assert live is not None
        kinds = driver.state.history.classification
        assert any(row.category is not None for row in live.rows)
        for row in live.rows:
            lifetimes = row.node.lifetimes() if row.node is not None else row.lifetimes
            if row.kind is RowKind.BALANCE:
                assert row.category is None
            elif lifetimes is not None:
                sizes = driver.state.history.lifetimes.requested_bytes[lifetimes]
                sums = np.bincount(kinds.category[lifetimes], weights=sizes, minlength=5)
                assert row.category is not None
                assert sums[row.category] == sums.max()
                assert letter_of(row.category, row.confidence)[0] in LETTERS


async def test_a_guess_is_marked() -> None:
    async with opened("torch-2.14/late_start", at="start") as driver:
        row = driver.view.live_tree.selected_row
        assert row is not None
        assert row.category is not None
        mark = letter_of(row.category, row.confidence)
        assert f" {mark} " in driver.selected_line
        assert letter_of(Category.ACTIVATION, Confidence.LOW) == "A?"
        assert letter_of(Category.ACTIVATION, Confidence.MEDIUM) == "A"


# -- detail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_detail_of_an_allocation_says_what_decided_its_category(size: tuple[int, int]) -> None:
    async with opened(TRAINING, size=size) as driver:
        await driver.press("enter", "down", "down")
        row, history = driver.view.live_tree.selected_row, driver.state.history
        assert row is not None
        assert row.lifetime is not None
        assert row.category is not None
        detail = driver.view.detail.text.plain
        assert f"{row.category.label[0].upper()} {row.category.label}/" in detail
        assert f"confidence {row.confidence.label}: " in detail
        assert WORDS[Evidence(int(history.classification.evidence[row.lifetime]))].text in detail
        born = int(history.lifetimes.birth_event[row.lifetime])
        assert f" in {place_in_run(history, born)}" in detail


async def test_detail_of_a_site_names_its_categories() -> None:
    async with opened(TRAINING) as driver:
        row = driver.view.live_tree.selected_row
        assert row is not None
        assert row.category is not None
        assert f"{row.category.label[0].upper()} {row.category.label}" in driver.view.detail.text.plain


# -- steps ---------------------------------------------------------------------------------------


async def test_the_title_names_step_and_phase() -> None:
    async with opened(TRAINING, size=(120, 40)) as driver:
        for event in (0, 200, 703, 1600):
            await driver.press("g")
            await driver.type(str(event))
            step = place_in_run(driver.state.history, event)
            assert step
            assert f"event {event:,}  {step}" in driver.lines[2]
        await driver.press("home")
        assert place_in_run(driver.state.history, -1) == ""


async def test_inferred_steps_say_so() -> None:
    async with opened("torch-2.14/oom_optimizer_step") as driver:
        assert driver.state.history.steps.source == "inferred"
        step = place_in_run(driver.state.history, driver.state.cursor)
        assert f"{step}?" in driver.lines[2] or f"{step} (inferred)" in driver.lines[2]
        await driver.pilot.resize_terminal(120, 40)
        await driver.settle()
        assert f"{step} (inferred)" in driver.lines[2]


# -- what asked too much -------------------------------------------------------------------------


async def test_the_head_names_the_line_that_ran_out_of_memory() -> None:
    async with opened(OOM) as driver:
        assert "asked 48.00 MiB  in gpt.py:52 forward" in driver.lines[1]


async def test_a_failed_request_without_a_stack_names_no_line(tmp_path: Path) -> None:
    raw = made()
    raw["device_traces"][0][-1].pop("frames")
    async with opened(write_snapshot(tmp_path, raw)) as driver:
        assert f"asked {format_bytes(8 * MIB)}" in driver.lines[1]
        assert " in " not in driver.lines[1]


# -- the palette ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [2, 3, 5, 7])
async def test_no_palette_where_there_is_no_room_for_its_list(num_rows: int) -> None:
    async with opened(OOM, size=(80, num_rows)) as driver:
        await driver.press("ctrl+p", "pageup")
        assert not driver.dialog
        assert driver.app.is_running


async def test_the_palette_closes_where_its_room_is_taken_away() -> None:
    async with opened(OOM, size=(80, 24)) as driver:
        await driver.pilot.press("ctrl+p")
        assert driver.dialog == "CommandPalette"
        await driver.pilot.resize_terminal(80, 3)
        await driver.until(lambda: not driver.dialog)
        await driver.pilot.press("pageup")
        await driver.settle()
        assert not driver.dialog


# -- the user's own rules ------------------------------------------------------------------------


async def test_rules_decide_on_every_device_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "my rules.toml"
    path.write_text('[[rule]]\nfile = "."\ncategory = "optimizer_state"\nfine = "kept"\n', encoding="utf-8")
    async with opened(TWO_GPU, size=(160, 40), rules_path=str(path), rules=read_rules(str(path))) as driver:
        for device in (1, 0):
            await driver.until(lambda device=device: driver.state.history.device == device)  # type: ignore[misc]
            assert (driver.state.history.classification.evidence == Evidence.USER_RULE).any()
            await driver.press("d")
        await driver.until(lambda: driver.state.history.device == 1)
        await driver.press("p", "enter", "down", "down")
        assert WORDS[Evidence.USER_RULE].text in driver.view.detail.text.plain
        await driver.press("c")
        assert driver.app.clipboard.endswith(f"--rules '{path}'")
