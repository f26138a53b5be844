"""Phrases of the reports, and the drawing of the curve."""

from __future__ import annotations

import numpy as np
import pytest

from snapscope.analyses.moments import Moment
from snapscope.analyses.timeline import Timeline
from snapscope.classify.material import Category
from snapscope.render.ledger import when
from snapscope.render.lifetimes import death_text
from snapscope.render.timeline import draw
from snapscope.replay import NEVER, REQUESTED_BEFORE

TIME = 1_760_000_000_000_010


@pytest.mark.parametrize(
    ("event", "label", "time_us", "text"),
    [
        (41_207, "peak", TIME, "at the peak (event 41,207, 2025-10-09T08:53:20.000010 UTC)"),
        (41_207, "peak", None, "at the peak (event 41,207)"),
        (-1, "peak", None, "at the peak (before the first event)"),
        (-1, "peak", TIME, "at the peak (before the first event)"),
        (-1, "start", None, "before the first event"),
        (9, "end", None, "at the end (event 9)"),
        (9, "oom:2", None, "at oom:2 (event 9)"),
        (9, "event:9", None, "at event:9"),
        (9, "event:9", TIME, "at event:9 (2025-10-09T08:53:20.000010 UTC)"),
    ],
)
def test_moments_in_words(event: int, label: str, time_us: int | None, text: str) -> None:
    assert when(Moment(event=event, label=label, time_us=time_us)) == text


@pytest.mark.parametrize(
    ("requested", "completed", "text"),
    [
        (NEVER, NEVER, "alive"),
        (1200, 1300, "1,200"),
        (1200, NEVER, "1,200 pending"),
        (REQUESTED_BEFORE, NEVER, "pending"),
        (REQUESTED_BEFORE, 1300, "1,300"),
    ],
)
def test_deaths_in_words(requested: int, completed: int, text: str) -> None:
    assert death_text(requested, completed) == text


def curve(requested: list[int], reserved: list[int], *, capacity: int | None = None) -> Timeline:
    zeros = np.zeros(len(requested), np.int64)
    return Timeline(
        num_events=len(requested) - 1,
        is_sampled=False,
        is_selection=False,
        capacity_bytes=capacity,
        events=np.arange(len(requested), dtype=np.int64) - 1,
        time_us=zeros - 1,
        requested_bytes=np.array(requested, np.int64),
        allocated_bytes=np.array(requested, np.int64),
        pending_bytes=zeros,
        reserved_bytes=np.array(reserved, np.int64),
        category_bytes=np.stack([zeros] * len(Category)),
    )


def plot_of(lines: list[str]) -> list[str]:
    return [line.partition("┤")[2] for line in lines if "┤" in line]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_drawing_is_as_wide_as_asked(width: int) -> None:
    lines = draw(curve([0, 600, 1200, 300], [1200] * 4), width=width)
    assert all(len(line) == width for line in lines if "┤" in line or "┼" in line)
    assert len(plot_of(lines)) == 12


def test_the_drawing_fills_what_is_requested_and_dots_what_is_reserved() -> None:
    lines = draw(curve([0, 600, 1200, 300], [1200] * 4), width=53)  # 40 columns, 10 a state
    rows = plot_of(lines)
    assert rows[0] == "·" * 20 + "█" * 10 + "·" * 10
    assert rows[5] == " " * 20 + "█" * 10 + " " * 10
    assert rows[6] == " " * 10 + "█" * 20 + " " * 10
    assert rows[11] == " " * 10 + "█" * 30
    axis = next(line.partition("┼")[2] for line in lines if "┼" in line)
    assert axis.index("▲") == 20


def test_a_single_event_among_many_is_not_lost() -> None:
    requested = [100] * 10_000
    requested[5_000] = 1_200
    rows = plot_of(draw(curve(requested, [1_200] * 10_000), width=80))
    assert rows[0].count("█") == 1


def test_the_axis_reaches_up_to_the_capacity() -> None:
    rows = plot_of(draw(curve([600, 600], [600, 600], capacity=1200), width=60))
    assert not rows[0].strip()
    assert rows[6].count("█") == len(rows[6])


def test_nothing_at_all_can_be_drawn() -> None:
    assert draw(curve([0, 0], [0, 0]), width=40)
