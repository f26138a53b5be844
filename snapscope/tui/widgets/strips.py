"""From characters with inks to Textual's strips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from rich.segment import Segment
from rich.style import Style

Ink = TypeVar("Ink")


def segments(characters: Sequence[str], inks: Sequence[Ink], styles: Mapping[Ink, Style]) -> Iterable[Segment]:
    """Yield runs of characters of equal ink."""
    start = 0
    for ink, run in groupby(inks):
        end = start + sum(1 for _ in run)
        yield Segment("".join(characters[start:end]), styles[ink])
        start = end
