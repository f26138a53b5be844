"""Read README.md and docs/: fenced blocks, tables, sections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A block of code: fenced, or indented by four blanks."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").split("\n")
    number = 0
    while number < len(lines):
        line, first = lines[number], number + 1
        number += 1
        if line.startswith("```"):
            end = lines.index("```", number)
            yield Block(page, first, line[3:], "\n".join(lines[number:end]))
            number = end + 1
        elif line.startswith("    "):
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield Block(page, first, "", "\n".join(text[4:] for text in lines[first - 1 : end]))
            number = end


def sections_of(page: Path) -> dict[str, str]:
    """Return what stands under each heading, up to the next of any level."""
    parts = re.split(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip((heading.strip("`") for heading in parts[1::2]), parts[2::2], strict=True))


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all tables of a text, without their headers."""
    rows: list[list[str]] = []
    for line in text.split("\n"):
        if re.fullmatch(r"\|[-|]+\|", line):
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows
