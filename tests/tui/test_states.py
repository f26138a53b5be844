"""The states that are designed: loading, no history, nothing live, a lost head; and hostile text."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.analyses.coverage import Head
from snapscope.analyses.ledger import By
from snapscope.tui.loading import Progress, Stage
from snapscope.tui.screens.loading import LoadingScreen
from tests.builders import INACTIVE, MIB, alloc, block, frame, free, oom, segment, segment_alloc, snapshot
from tests.tui.driver import opened, write_snapshot

HOSTILE: Final = "[red]x[/] \x1b[31mred\x1b[0m\n\x07\u202e\ud800[/]"


def made(*, name: str = "f", file: str = "train.py", **extra: Any) -> dict[str, Any]:
    """Make a snapshot of three events: a segment, a block of 1 MiB, a request that failed."""
    frames = [frame(name, file, 7)]
    return snapshot(
        traces=[
            [
                segment_alloc(0x1000, 2 * MIB, frames=frames),
                alloc(0x1000, MIB, frames=frames, time_us=1_000_000, **extra),
                oom(8 * MIB, 3 * MIB, frames=frames, time_us=1_500_000),
            ]
        ],
        segments=[
            segment(0x1000, [block(MIB, frames=frames), block(MIB, state=INACTIVE)], frames=frames, kind="large")
        ],
    )


# -- loading ------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
async def test_leaving_while_it_loads(tmp_path: Path) -> None:
    pipe = tmp_path / "[b]never.pickle"
    os.mkfifo(pipe)
    try:
        async with opened(pipe, waits=False) as driver:
            await driver.pilot.pause(0.05)
            assert "never.pickle" in "".join(driver.text.split())
            assert "▸ reading" in driver.text
            assert "q quits at once" in driver.text
            await driver.pilot.press("p", "tab", "question_mark", "q")
            await driver.pilot.pause()
            assert driver.app.return_value == 0
            assert driver.app.error is None
    finally:
        # Lets the thread go, which waits for somebody to write.
        threading.Thread(target=lambda: pipe.open("wb").close(), daemon=True).start()


async def test_progress_is_shown_by_bytes_and_stage() -> None:
    async with opened("torch-2.14/oom_forward") as driver:
        screen = LoadingScreen("a.pickle")
        await driver.app.push_screen(screen)
        seen = []
        for progress in (
            Progress(stage=Stage.READING, bytes_read=3 * MIB, total_bytes=6 * MIB),
            Progress(stage=Stage.READING, bytes_read=4 * MIB),
            Progress(stage=Stage.NORMALISING, bytes_read=6 * MIB),
            Progress(stage=Stage.REPLAYING),
            Progress(stage=Stage.CLASSIFYING),
        ):
            screen.show_progress(progress)
            await driver.pilot.pause()
            seen.append(driver.text)
        assert "▸ reading  3.00 MiB of 6.00 MiB" in seen[0]
        assert "▸ reading  4.00 MiB\n" in seen[1]
        assert "✓ reading" in seen[2]
        assert "▸ normalising" in seen[2]
        assert "▸ replaying blocks" in seen[3]
        assert "▸ classifying" in seen[4]
        shares = [int(text.partition("%")[0].split()[-1]) for text in seen]
        assert shares[0] > shares[1] == 0
        assert shares[0] < shares[2] < shares[3] < shares[4] < 100


# -- files that hold less -----------------------------------------------------------------------


async def test_a_file_without_events_shows_its_final_state(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, {**made(), "device_traces": [[]]})
    async with opened(path) as driver:
        assert driver.state.opened.coverage.head is Head.NO_HISTORY
        assert driver.lines[0].endswith("no history")
        assert driver.lines[1].startswith(" final state  requested 1.00 MiB  allocated 1.00 MiB  reserved 2.00 MiB")
        assert "no history in this file: it holds the final state only" in driver.text
        assert "torch.cuda.memory._record_memory_history(" in driver.text
        assert "requested 1.00 MiB in 1 allocation at the end" in driver.text
        assert "1.00 MiB 100.0%" in driver.selected_line
        # What moves through a history does nothing, and isn't offered.
        for key in ("p", "right", "plus", "home", "full_stop", "g", "0", "r", "o"):
            await driver.press(key)
        assert driver.state.cursor == -1
        assert not any(name in driver.lines[-1] for name in ("move", "peak", "zoom", "go"))


async def test_an_empty_file(tmp_path: Path) -> None:
    async with opened(write_snapshot(tmp_path, snapshot())) as driver:
        assert "nothing is live at this moment" in driver.selected_line
        assert "no history" in driver.lines[0]
        await driver.press("t", "b", "i", "escape", "enter", "escape")


async def test_nothing_live_at_the_cursor() -> None:
    async with opened("torch-2.14/multi_stream", at="start") as driver:
        assert "nothing is live at this moment" in driver.selected_line
        assert "requested 0 B in 0 allocations at the start" in driver.text
        assert "the start" in driver.lines[2]


async def test_a_history_that_starts_late_says_so() -> None:
    async with opened("torch-2.14/late_start") as driver:
        assert "258.57 MiB" in driver.lines[0]
        assert "258.57 MiB" in driver.selected_line
        assert "(before the history)" in driver.selected_line
        assert "162 from before the history" in " ".join(driver.text.split())


async def test_a_lost_head_says_so() -> None:
    async with opened("torch-2.14/ring_overflow") as driver:
        assert "head lost" in driver.lines[0]


async def test_estimated_sizes_are_marked(tmp_path: Path) -> None:
    events = [alloc(0x9000, 700, frames=[frame("g", "lost.py", 3)]), *free(0x9000, 700), alloc(0x1000, MIB)]
    path = write_snapshot(tmp_path, {**made(), "device_traces": [events]})
    async with opened(path, at="event:0", size=(120, 40)) as driver:
        await driver.press("enter", "down", "down")
        row = driver.view.live_tree.selected_row
        assert row is not None
        if row.lifetime is not None and not driver.state.history.blocks.is_exact[row.lifetime]:
            assert "(estimated)" in driver.view.detail.text.plain


async def test_the_verdict_page_says_why_the_request_failed(tmp_path: Path) -> None:
    raw = made()
    async with opened(write_snapshot(tmp_path, raw)) as driver:
        await driver.press("v")
        assert "CAPACITY: asked for" in driver.text
        await driver.press("escape")
        assert "CAPACITY: asked for" not in driver.text


async def test_several_ooms_are_visited_in_turn(tmp_path: Path) -> None:
    raw = made()
    raw["device_traces"][0] += [*free(0x1000, MIB), alloc(0x1000, MIB), oom(4 * MIB, 0)]
    async with opened(write_snapshot(tmp_path, raw)) as driver:
        assert driver.state.cursor == 6
        assert "OOM: capacity  asked 4.00 MiB" in driver.lines[1]
        await driver.press("o")
        assert driver.state.cursor == 2
        await driver.press("o")
        assert driver.state.cursor == 6


async def test_pools_and_pending_frees() -> None:
    async with opened("runs/oom/pend_in_capture") as driver:
        for _ in range(len(By)):
            if driver.state.by is By.POOL:
                break
            await driver.press("b")
        assert "pool" in driver.selected_line
        await driver.press("tab", "end")
        for _ in range(12):
            if "pending free" in driver.selected_line:
                break
            await driver.press("up")
        assert "pending free" in driver.selected_line


# -- hostile text -------------------------------------------------------------------------------


async def test_text_of_the_file_is_shown_as_it_is(tmp_path: Path) -> None:
    raw = made(name=HOSTILE, file=HOSTILE, user_metadata=HOSTILE, compile_context=HOSTILE)
    path = write_snapshot(tmp_path, raw, name="[red]x[b]\x1b\n.pickle")
    escaped = r"[red]x[/] \x1b[31mred\x1b[0m\n\x07\u202e\ud800"
    async with opened(path, size=(200, 50)) as driver:
        assert r"[red]x[b]\x1b\n.pickle" in driver.lines[0]
        assert escaped in driver.selected_line
        for keys in (
            ["b"],
            ["t"],
            ["t"],
            ["enter"],
            ["down"],
            ["f"],
            ["z"],
            ["z"],
            ["i"],
            ["escape"],
            ["c"],
            ["escape"],
            ["y"],
        ):
            await driver.press(*keys)
            assert driver.text.replace("\n", "").isprintable()
        detail = driver.view.detail.text.plain
        assert escaped in detail
        await driver.press("home", "ctrl+p", "escape", "slash")
        await driver.type("[red]")
        await driver.until(lambda: driver.state.focus is not None)
        assert "filter /[red]/" in driver.text
        svg = driver.app.export_screenshot()
        assert "\x1b" not in svg


async def test_hostile_text_in_an_allocation(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, made(user_metadata=HOSTILE, compile_context=HOSTILE))
    async with opened(path, size=(160, 50)) as driver:
        await driver.press("enter", "down")
        detail = driver.view.detail.text.plain
        assert r"user_metadata [red]x[/] \x1b[31m" in detail
        assert r"compile_context [red]x[/] \x1b[31m" in detail


async def test_very_long_and_wide_text(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, made(name="漢字" * 5000, file="é" * 70_000 + ".py"))
    async with opened(path) as driver:
        await driver.press("enter", "f", "t", "z")
        assert all(len(line) <= 80 for line in driver.lines)
