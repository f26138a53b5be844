from __future__ import annotations

import re

import pytest

from snapscope.history import DeviceHistory
from snapscope.model import Notice
from snapscope.opening import load_snapshot
from snapscope.render.page import Page, cut_rows, device_line
from tests.conftest import fixture_path


@pytest.mark.parametrize(
    ("top", "shown", "rest"),
    [
        (0, 4, None),
        (1, 1, (90, 9)),
        (2, 2, (60, 7)),
        # One row left out takes as much room as the line that would say so.
        (3, 4, None),
        (4, 4, None),
        (9, 4, None),
    ],
)
def test_rows_are_cut_and_the_rest_is_summed(top: int, shown: int, rest: tuple[int, int] | None) -> None:
    rows = [(40, 1), (30, 2), (40, 3), (20, 4)]
    assert cut_rows(rows, top) == (shown, rest)
    left = rest or (0, 0)
    assert sum(size for size, _ in rows[:shown]) + left[0] == 130
    assert sum(number for _, number in rows[:shown]) + left[1] == 10


def test_no_rows_are_not_cut() -> None:
    assert cut_rows([], 0) == cut_rows([], 5) == (0, None)


def test_a_page_without_a_terminal_is_never_cut_or_wrapped() -> None:
    page = Page()
    page.line("word " * 300 + "end")
    page.table([("1 B", "name " * 150)], align="rf", header=("bytes", "name"))
    lines = page.text().splitlines()
    assert lines[0] == "word " * 300 + "end"
    assert lines[2] == "  1 B  " + ("name " * 150).rstrip()
    assert len(lines) == 3


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_page_on_a_terminal_folds_and_loses_nothing(width: int) -> None:
    page = Page(width=width)
    name = "".join(chr(97 + number % 26) for number in range(200))
    page.line(" ".join(["word"] * 50))
    page.table([("1.00 GiB", name), ("2 B", "short")], align="rf")
    lines = page.text().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count("word") for line in lines) == 50
    assert name in re.sub(r"\s|1\.00 GiB|2 B", "", "".join(lines))


def test_lines_end_in_no_blanks() -> None:
    page = Page()
    page.line("text   ")
    page.table([("a", "b"), ("long", "")], align="ll", header=("first", "second"))
    assert not [line for line in page.text().split("\n") if line != line.rstrip()]


def test_text_is_neither_markup_nor_emoji_nor_control_codes() -> None:
    page = Page(color=True)
    page.line("[bold]x[/bold] :smile: \x1b[31m", style="bold")
    page.title("[i]t[/i]")
    page.table([("[red]cell[/red]", "a\nb")], align="ll", header=("[u]head[/u]", "h"))
    page.notices([Notice(code="c", message="[blink]n[/blink]", count=2, bytes=1024)])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", page.text())
    for text in ("[bold]x[/bold] :smile: \\x1b[31m", "[i]t[/i]", "[red]cell[/red]  a\\nb", "[u]head[/u]", "[blink]n"):
        assert text in plain


def test_color_is_only_there_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for color in (False, True):
        page = Page(color=color)
        page.line("x", style="bold")
        assert ("\x1b[1m" in page.text()) == color


def test_notices_say_how_often_and_how_many_bytes() -> None:
    page = Page()
    page.notices([
        Notice(code="a", message="one"),
        Notice(code="b", message="three", count=3),
        Notice(code="c", message="some", count=1, bytes=2048),
        Notice(code="d", message="more", count=2000, bytes=512),
    ])  # fmt: skip
    assert page.text().splitlines() == [
        "",
        "notices",
        "  ! one",
        "  ! three (3)",
        "  ! some (1, 2.00 KiB)",
        "  ! more (2,000, 512 B)",
    ]


def test_many_notices_are_cut_and_counted() -> None:
    page = Page()
    page.notices([Notice(code=str(number), message=f"n{number}") for number in range(15)])
    lines = page.text().splitlines()
    assert lines[-1] == "  ! and 3 more kinds (all in --json)"
    assert len(lines) == 2 + 12 + 1


def test_no_notices_take_no_room() -> None:
    page = Page()
    page.notices([])
    assert page.text() == ""


def test_device_line_names_the_others() -> None:
    snapshot = load_snapshot(fixture_path("torch-2.14/two_gpu"))
    assert device_line(DeviceHistory(snapshot, 0)).endswith(
        "device 0 (also device 1: 1,437 events, 584.00 MiB: --device N)"
    )
    alone = load_snapshot(fixture_path("torch-2.14/oom_forward"))
    assert device_line(DeviceHistory(alone)).endswith("oom_forward.pickle.gz  device 0")


def test_a_long_table_is_the_same_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (f"{number:,} B", "漢字" * (number % 3), "e\u0301" * (number % 5), f"\x1b[{number}m\tx") for number in range(50)
    ]
    texts = []
    for limit in (50, 49):
        monkeypatch.setattr("snapscope.render.page.LONG_TABLE", limit)
        page = Page()
        page.line("head")
        page.table(rows, align="rlrf", header=("bytes", "name", "a long title", "site"))
        page.line("end")
        texts.append(page.text())
        assert page.text() == texts[-1]
    assert texts[0] == texts[1]


def test_a_long_table_is_written_piece_by_piece() -> None:
    page = Page()
    page.table([(str(number), "x") for number in range(20_000)], align="rf")
    page.line("end")
    pieces = list(page.pieces())
    assert len(pieces) > 10
    assert "".join(pieces).splitlines() == [*(f"{number:5}  x" for number in range(20_000)), "end"]
