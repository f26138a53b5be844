from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapscope.errors import UsageError
from snapscope.units import (
    GIB,
    MIB,
    count_of,
    format_address,
    format_bytes,
    format_delta,
    format_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (int(57.9 * GIB), "57.90 GiB"),
        (-3 * MIB, "-3.00 MiB"),
        (1 << 40, "1.00 TiB"),
    ],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.integers(0, 1 << 60))
def test_no_number_prints_as_1024(num_bytes: int) -> None:
    number, unit = format_bytes(num_bytes).split()
    assert float(number) < 1024 or unit == "TiB"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * GIB),
        ("200MiB", 200 * MIB),
        ("1.5g", 3 * GIB // 2),
        ("512", 512),
        ("0.1 KiB", 102),
        (" 2 MB ", 2 * MIB),
    ],
)
def test_parse_size(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "10 apples", "1,5GiB", "٣GiB"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="no size"):
        parse_size(text)


def test_sizes_end_where_sums_would_overflow() -> None:
    assert parse_size("1073741824 GiB") == parse_size("1048576 TiB") == 1 << 60
    for text in ("1048577T", "1048576.000001TiB", "999999999999999999g"):
        with pytest.raises(UsageError, match="at most 1,048,576 TiB"):
            parse_size(text)


def test_small_ones() -> None:
    assert format_delta(MIB) == "+1.00 MiB"
    assert format_delta(0) == "0 B"
    assert format_share(1, 3) == "33.3%"
    assert format_share(1, 0) == "-"
    assert format_address(0xFFFF7F0000000000) == "0xffff7f0000000000"
    assert (count_of(1, "block"), count_of(2000, "block")) == ("1 block", "2,000 blocks")
