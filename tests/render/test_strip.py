"""A segment drawn as one line of letters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.render.strip import FREE, IDLE, PENDING, segment_strip
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
LETTERS: Final = {"P": Category.PARAMETER, "G": Category.GRADIENT, "O": Category.OPTIMIZER_STATE,
                  "A": Category.ACTIVATION, "T": Category.TEMPORARY}  # fmt: skip


def strip(pieces: list[tuple[int, str]], width: int, *, unit: int = MIB, **fields: Any) -> str:
    """Draw a segment of (units, letter) pieces: `.` is free, `=` waits."""
    blocks = [
        b.block(size * unit, state={".": INACTIVE, "=": b.PENDING}.get(letter, b.ALLOCATED)) for size, letter in pieces
    ]
    history = history_of(b.snapshot(segments=[b.segment(A, blocks, **fields)]))
    return segment_strip(history.layout_at(-1), 0, categories(history, pieces, unit), width)


def categories(history: DeviceHistory, pieces: list[tuple[int, str]], unit: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return the wanted category of every row of the lifetime table."""
    ends = np.cumsum([0, *(size * unit for size, _ in pieces)]).tolist()
    by_addr = {A + low: letter for low, (_, letter) in zip(ends, pieces, strict=False)}
    return np.array(
        [LETTERS.get(by_addr[addr], Category.TEMPORARY) for addr in history.lifetimes.addr.tolist()], np.int8
    )


@pytest.mark.parametrize(
    ("pieces", "width", "expected"),
    [
        ([(4, "P"), (4, "."), (2, "G"), (2, "=")], 6, "PP··G="),
        ([(1, "P"), (1, "G"), (1, "O"), (1, "A"), (1, "T")], 5, "PGOAT"),
        # Narrower than its pieces: most bytes win.
        ([(3, "P"), (1, "."), (1, "A"), (3, ".")], 2, "P·"),
        ([(8, "P"), (1, "."), (8, "P")], 4, "PPPP"),
        # Wider: a piece takes several letters.
        ([(1, "A"), (1, ".")], 8, "AAAA····"),
        ([(1, ".")], 3, "···"),
        ([(1, "T")], 1, "T"),
    ],
)
def test_letters(pieces: list[tuple[int, str]], width: int, expected: str) -> None:
    assert strip(pieces, width) == expected


def test_free_memory_of_a_private_pool_is_idle() -> None:
    assert strip([(2, "A"), (2, ".")], 4, pool=(1, 0)) == "AAxx"


def test_more_letters_than_bytes() -> None:
    """A letter without a byte of its own is drawn, as something."""
    assert len(strip([(2, "P"), (1, ".")], 40, unit=1)) == 40


PIECES: Final = st.lists(st.tuples(st.integers(1, 20), st.sampled_from("PGOAT=..")), min_size=1, max_size=12)


@settings(max_examples=80)
@given(pieces=PIECES, width=st.integers(1, 50))
def test_every_letter_has_most_of_its_share(pieces: list[tuple[int, str]], width: int) -> None:
    """Counted byte by byte, in units of 512."""
    bytes_of = [letter for size, letter in pieces for _ in range(size)]
    drawn = strip(pieces, width, unit=512)
    assert len(drawn) == width
    total = len(bytes_of) * 512
    for place, letter in enumerate(drawn):
        low, high = place * total // width, (place + 1) * total // width
        share = dict.fromkeys(bytes_of, 0)
        for unit, each in enumerate(bytes_of):
            share[each] += max(min(high, (unit + 1) * 512) - max(low, unit * 512), 0)
        kind = {FREE: ".", PENDING: "=", IDLE: "x"}.get(letter, letter)
        # Borders are rounded to bytes.
        assert share.get(kind, 0) >= max(share.values()) - 2
