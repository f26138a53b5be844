from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapscope.tui.curve import MIN_STATES, Ink, Window, cell_maxima, draw, highest_state, nice_step


def test_a_cell_shows_the_highest_of_its_states() -> None:
    values = np.array([1, 9, 2, 3, 0, 4], np.int64)
    assert cell_maxima(values, Window(first=0, num_states=6), 3).tolist() == [9, 3, 4]
    assert cell_maxima(values, Window(first=2, num_states=2), 4).tolist() == [2, 2, 3, 3]


def test_the_highest_state_of_a_cell_is_the_first_maximum() -> None:
    values = np.array([1, 9, 9, 3], np.int64)
    assert highest_state(values, Window(first=0, num_states=4), 0, 1) == 1
    assert highest_state(values, Window(first=0, num_states=4), 7, 8) == 3


@given(
    total=st.integers(1, 5000),
    first=st.integers(0, 5000),
    num_states=st.integers(1, 5000),
    num_cells=st.integers(1, 300),
    state=st.integers(0, 5000),
)
def test_every_state_of_a_window_has_a_cell(
    total: int, first: int, num_states: int, num_cells: int, state: int
) -> None:
    window = Window(first=first, num_states=num_states).fitted(total)
    assert window.first >= 0
    assert window.first + window.num_states <= total
    state = window.first + state % window.num_states
    cell = window.cell_of(state, num_cells)
    edges = window.edges(num_cells)
    assert edges[cell] <= state < max(edges[cell + 1], edges[cell] + 1)


@given(total=st.integers(1, 10_000), state=st.integers(0, 10_000), zooms=st.lists(st.booleans(), max_size=30))
def test_zooming_keeps_the_state_in_the_window(total: int, state: int, zooms: list[bool]) -> None:
    state %= total
    window = Window(first=0, num_states=total)
    for is_closer in zooms:
        window = window.zoomed(state, total, is_closer=is_closer)
        assert window.first <= state < window.first + window.num_states
        assert min(MIN_STATES, total) <= window.num_states <= total


def test_a_window_follows_a_state_outside() -> None:
    window = Window(first=100, num_states=50)
    assert window.around(120, 1000) == window
    assert window.around(99, 1000) == Window(first=94, num_states=50)
    assert window.around(150, 1000) == Window(first=106, num_states=50)
    assert window.around(0, 1000) == Window(first=0, num_states=50)
    assert window.around(999, 1000) == Window(first=950, num_states=50)


def test_the_area_has_eighths_of_a_row() -> None:
    fill = np.array([0, 1, 50, 100], np.int64)
    plot = draw(fill=fill, line=fill, focus=None, top_bytes=100, num_rows=2)
    # 16 eighths: nothing, at least one, one full row, two full rows.
    assert ["".join(row) for row in plot.characters] == ["   █", " ▁██"]


def test_the_line_lies_above_the_area_with_the_gap_between() -> None:
    fill, line = np.array([25], np.int64), np.array([100], np.int64)
    plot = draw(fill=fill, line=line, focus=None, top_bytes=100, num_rows=4)
    assert plot.characters[:, 0].tolist() == ["▔", " ", " ", "█"]
    assert plot.inks[:, 0].tolist() == [Ink.LINE_OVER_GAP, Ink.GAP, Ink.GAP, Ink.FILL]


def test_what_is_out_of_focus_is_shaded() -> None:
    fill, focus = np.array([100, 100], np.int64), np.array([50, 0], np.int64)
    plot = draw(fill=fill, line=fill, focus=focus, top_bytes=100, num_rows=2)
    assert ["".join(row) for row in plot.characters] == ["▒▒", "█▒"]


@pytest.mark.parametrize(
    ("num_states", "num_ticks", "step"), [(10, 5, 2), (1000, 4, 500), (1_000_000, 3, 500_000), (1, 9, 1)]
)
def test_ticks_are_round_numbers(num_states: int, num_ticks: int, step: int) -> None:
    assert nice_step(num_states, num_ticks) == step
