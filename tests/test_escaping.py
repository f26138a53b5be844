from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapscope.escaping import escape


def test_escape() -> None:
    assert escape("\x1b[31m\n\u202e\ud800 é [red]") == r"\x1b[31m\n\u202e\ud800 é [red]"
    assert escape("x" * 600) == "x" * 499 + "…"


@given(st.text(alphabet=st.characters(), max_size=50))
def test_nothing_unprintable_is_left(text: str) -> None:
    assert escape(text).isprintable()
    escape(text).encode()
