from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest

from snapscope.model import HOST_DEVICE, Notice
from snapscope.render.jsonable import device_of, dump, dump_csv, dump_rows, notice_of, safe_text


def test_numbers_stay_exact() -> None:
    document = {"a": (1 << 64) - 1, "b": -(1 << 63), "c": [0, (1 << 53) + 1], "d": None}
    assert json.loads(dump(document)) == document
    assert json.loads(dump({"column": np.array([1, (1 << 63) - 1], np.int64)})) == {"column": [1, (1 << 63) - 1]}


@pytest.mark.parametrize("num_rows", [0, 1, 2, 1000])
def test_rows_written_piece_by_piece_are_the_same_object(num_rows: int) -> None:
    rows = [{"number": number, "text": f'"{number}"', "none": None} for number in range(num_rows)]
    content = b"".join(dump_rows({"schema": 1, "notices": []}, iter(rows)))
    assert json.loads(content) == {"schema": 1, "notices": [], "rows": rows}
    assert content.endswith(b"\n")


def test_csv_cells() -> None:
    rows: list[dict[str, Any]] = [
        {"a": None, "b": True, "c": [1, 2], "d": 'x,"y"\n\x1b'},
        {"b": False, "c": [], "d": "", "e": "left out"},
    ]
    content = b"".join(dump_csv(("a", "b", "c", "d"), rows)).decode()
    assert list(csv.reader(io.StringIO(content))) == [
        ["a", "b", "c", "d"],
        ["", "true", "1 2", 'x,"y"\\n\\x1b'],
        ["", "false", "", ""],
    ]


def test_long_csv_comes_in_pieces_and_whole() -> None:
    pieces = list(dump_csv(("n",), ({"n": number} for number in range(50_000))))
    assert len(pieces) > 1
    assert b"".join(pieces).split() == [b"n", *(str(number).encode() for number in range(50_000))]


def test_text_that_json_cannot_hold_is_escaped() -> None:
    assert safe_text("a\ud800b") == "a\\ud800b"
    assert safe_text("\x1b[31m ü 漢\n") == "\x1b[31m ü 漢\n"


def test_device_and_notice() -> None:
    assert device_of(HOST_DEVICE) == "host"
    assert device_of(3) == 3
    assert notice_of(Notice(code="c", message="m\udfff", count=2, bytes=3)) == {
        "code": "c",
        "message": "m\\udfff",
        "count": 2,
        "bytes": 3,
    }
