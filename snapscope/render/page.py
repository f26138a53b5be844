"""Pages of text: a head line, sections, tables, notices; coloured or plain.

Text from the file is only ever put into `rich.text.Text` objects, never parsed as markup,
and escaped before.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, Notice
from snapscope.units import count_of, format_bytes, format_count

_WIDE: Final = 10_000
_MAX_NOTICES: Final = 12
_MAX_CELL: Final = 1000

LONG_TABLE: Final = 2000
"""Rows from which on a table is written without Rich, which takes a millisecond for each."""

_LINES_AT_ONCE: Final = 1000


class Rows(Protocol):
    """Rows of cells that can be gone through more than once, made anew each time or held."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __iter__(self) -> Iterator[Sequence[str]]:
        """Begin with the first row."""


class Page:
    """A page being written.

    Args:
        width: columns of the terminal; None where the text goes to a file or a pipe (then
            nothing is cut).
        color: whether to write ANSI colours.
    """

    def __init__(self, *, width: int | None = None, color: bool = False) -> None:
        self._buffer = io.StringIO()
        self._pieces: list[str | Callable[[], Iterator[str]]] = []
        self._width = width
        self._console = Console(
            file=self._buffer,
            width=width or _WIDE,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line, wrapped between words where the terminal is narrower."""
        self._console.print(Text(escape(text, limit=2000), style=style), soft_wrap=self._width is None)

    def title(self, text: str) -> None:
        """Write the title of a section, after an empty line."""
        self.line()
        self.line(text, style="bold")

    def table(self, rows: Rows, *, align: str, header: Sequence[str] = ()) -> None:
        """Write a table without borders.

        Args:
            rows: cells as text; of a long table they are kept until the page is written, and not folded.
            align: one letter a column: `r` right, `l` left, `f` left and folded into what
                width is left.
            header: column titles; none = no header.
        """
        if len(rows) > LONG_TABLE:
            self._long_table(rows, align, header)
            return
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(header), header_style="dim", pad_edge=False)
        for place, letter in enumerate(align):
            table.add_column(
                Text(header[place]) if header else "",
                justify="right" if letter == "r" else "left",
                no_wrap=letter != "f",
                overflow="fold" if letter == "f" else "crop",
            )
        for row in rows:
            table.add_row(*(Text(escape(cell, limit=_MAX_CELL)) for cell in row))
        self._console.print(table)

    def _long_table(self, rows: Rows, align: str, header: Sequence[str]) -> None:
        widths = [cell_len(title) for title in header] or [0] * len(align)
        for row in rows:
            for place, cell in enumerate(row):
                width = _width(escape(cell, limit=_MAX_CELL))
                if width > widths[place]:
                    widths[place] = width
        if header:
            self._console.print(Text(_aligned(header, align, widths), style="dim"), soft_wrap=True)
        self._end_piece()
        self._pieces.append(partial(_lines, rows, align, widths))

    def notices(self, notices: Sequence[Notice]) -> None:
        """Write the data's oddities, if there are any."""
        if not notices:
            return
        self.title("notices")
        for notice in notices[:_MAX_NOTICES]:
            tail = f" ({format_count(notice.count)}"
            tail += f", {format_bytes(notice.bytes)})" if notice.bytes else ")"
            self.line(f"  ! {notice.message}{tail if notice.count > 1 or notice.bytes else ''}", style="yellow")
        if len(notices) > _MAX_NOTICES:
            self.line(f"  ! and {len(notices) - _MAX_NOTICES} more kinds (all in --json)", style="yellow")

    def text(self) -> str:
        """Return the page; no line ends in blanks."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """Return the page piece by piece: a long table never is in memory as a whole."""
        self._end_piece()
        for piece in self._pieces:
            if isinstance(piece, str):
                yield piece
            else:
                yield from piece()

    def _end_piece(self) -> None:
        self._pieces.append("\n".join(line.rstrip() for line in self._buffer.getvalue().split("\n")))
        self._buffer.seek(0)
        self._buffer.truncate()


def _lines(rows: Rows, align: str, widths: Sequence[int]) -> Iterator[str]:
    lines: list[str] = []
    for row in rows:
        lines.append(_aligned([escape(cell, limit=_MAX_CELL) for cell in row], align, widths) + "\n")
        if len(lines) == _LINES_AT_ONCE:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def _aligned(cells: Sequence[str], align: str, widths: Sequence[int]) -> str:
    padded = []
    for cell, letter, width in zip(cells, align, widths, strict=True):
        blanks = " " * (width - _width(cell))
        padded.append(blanks + cell if letter == "r" else cell + blanks)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def device_line(history: DeviceHistory) -> str:
    """Return `FILE · device 2 (also: device 0, 3 events)`."""
    others = [
        f"{tables.label}: {count_of(len(tables.events), 'event')}, {format_bytes(tables.reserved_bytes)}"
        + (f", {count_of(len(tables.events.oom_events), 'OOM')}" if len(tables.events.oom_events) else "")
        for tables in history.snapshot.devices
        if tables.device != history.device and (len(tables.events) or tables.reserved_bytes)
    ]
    option = "host" if any(t.device == HOST_DEVICE for t in history.snapshot.devices) and len(others) == 1 else "N"
    tail = f" (also {'; '.join(others[:8])}{'; …' if len(others) > 8 else ''}: --device {option})" if others else ""
    return f"{history.snapshot.source.name}  {history.tables.label}{tail}"


def cut_rows(rows: Sequence[tuple[int, int]], top: int) -> tuple[int, tuple[int, int] | None]:
    """Tell how many rows to show, and what the rest comes to.

    Args:
        rows: (bytes, allocations) of each row.
        top: how many to show at most; 0 = all.

    Returns:
        The number of rows shown, and (bytes, allocations) left out, or None.
    """
    # One row left out takes as much room as the line that would say so.
    if top <= 0 or len(rows) <= top + 1:
        return len(rows), None
    rest = rows[top:]
    return top, (sum(size for size, _ in rest), sum(number for _, number in rest))
