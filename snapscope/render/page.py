"""Pages of text: a head line, sections, tables, notices; coloured or plain.

Text from the file is only ever put into `rich.text.Text` objects, never parsed as markup,
and escaped before.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, Notice
from snapscope.units import count_of, format_bytes, format_count

_WIDE: Final = 10_000
_MAX_NOTICES: Final = 12


class Page:
    """A page being written.

    Args:
        width: columns of the terminal; None where the text goes to a file or a pipe (then
            nothing is cut).
        color: whether to write ANSI colours.
    """

    def __init__(self, *, width: int | None = None, color: bool = False) -> None:
        self._buffer = io.StringIO()
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

    def table(self, rows: Iterable[Sequence[str]], *, align: str, header: Sequence[str] = ()) -> None:
        """Write a table without borders.

        Args:
            rows: cells as text.
            align: one letter a column: `r` right, `l` left, `f` left and folded into what
                width is left.
            header: column titles; none = no header.
        """
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(header), header_style="dim", pad_edge=False)
        for place, letter in enumerate(align):
            table.add_column(
                Text(header[place]) if header else "",
                justify="right" if letter == "r" else "left",
                no_wrap=letter != "f",
                overflow="fold" if letter == "f" else "crop",
            )
        for row in rows:
            table.add_row(*(Text(escape(cell, limit=1000)) for cell in row))
        self._console.print(table)

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
        return "\n".join(line.rstrip() for line in self._buffer.getvalue().split("\n"))


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
