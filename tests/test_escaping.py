from __future__ import annotations

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from snapscope.escaping import escape, escape_json


def test_escape() -> None:
    assert escape("\x1b[31m\n\u202e\ud800 é [red]") == r"\x1b[31m\n\u202e\ud800 é [red]"
    assert escape("x" * 600) == "x" * 499 + "…"


@given(st.text(alphabet=st.characters(), max_size=50))
def test_nothing_unprintable_is_left(text: str) -> None:
    assert escape(text).isprintable()
    escape(text).encode()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=50))
def test_json_holds_the_same_text_and_nothing_unprintable(text: str) -> None:
    content = escape_json(orjson.dumps({text: [text]}))
    assert content.decode().isprintable()
    assert json.loads(content) == {text: [text]}


def test_json_keeps_what_can_be_printed() -> None:
    assert escape_json('["é 漢字", "\\\\\x9b\x7f", "\u202e\U000e0001"]\n'.encode()) == (
        '["é 漢字", "\\\\\\u009b\\u007f", "\\u202e\\udb40\\udc01"]\n'.encode()
    )
