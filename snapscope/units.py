"""Numbers of bytes, to and from text: the only place that formats or parses them.

Units are binary (1 GiB = 1024³ B) with two decimals, as PyTorch prints them
(`format_size` of c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import re
from typing import Final

from snapscope.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

MAX_SIZE: Final = 1 << 60
"""The largest size that can be asked for: sums of it still fit into 64 bits."""

_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kb": KIB,
    "kib": KIB,
    "m": MIB,
    "mb": MIB,
    "mib": MIB,
    "g": GIB,
    "gb": GIB,
    "gib": GIB,
    "t": TIB,
    "tb": TIB,
    "tib": TIB,
}
_SIZE: Final = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,12})?)\s*([a-zA-Z]*)\s*\Z")


def format_bytes(num_bytes: int) -> str:
    """Format a number of bytes for people: `512 B`, `1.50 KiB`, `12.70 GiB`.

    Exact integers belong to JSON and CSV; this is for screens only.
    """
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 1023.996 KiB would print as "1024.00 KiB": step up where rounding does.
        if size >= factor - factor // 1024 // 256 or size >= factor:
            return f"{sign}{size / factor:.2f} {unit}"
    return f"{sign}{size} B"


def format_delta(num_bytes: int) -> str:
    """Format a difference with its sign: `+1.00 GiB`, `-2.00 MiB`, `0 B`."""
    return f"+{format_bytes(num_bytes)}" if num_bytes > 0 else format_bytes(num_bytes)


def format_count(number: int) -> str:
    """Format a count with thousands separators."""
    return f"{number:,}"


def count_of(number: int, noun: str) -> str:
    """Format a count with its noun: `1 block`, `2,000 blocks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_share(part: int, whole: int) -> str:
    """Format `part / whole` as a percentage; `-` where there is no whole."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def format_address(address: int) -> str:
    """Format a device address as PyTorch prints pointers."""
    return f"{address:#x}"


def parse_size(text: str) -> int:
    """Parse `80GiB`, `200MiB`, `1.5g` or a plain number of bytes.

    `GB` means GiB, as everywhere around PyTorch's settings.

    Raises:
        UsageError: the text is no size, or more than `MAX_SIZE`.
    """
    match = _SIZE.match(text)
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is no size: write bytes, or a number with KiB, MiB, GiB or TiB")
    whole, _, fraction = match[1].partition(".")
    # Integer arithmetic: a size given with decimals must not drift by a float's error.
    size = int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
    if size > MAX_SIZE:
        raise UsageError(f"{text!r} is no size of a card: at most {MAX_SIZE // TIB:,} TiB")
    return size
