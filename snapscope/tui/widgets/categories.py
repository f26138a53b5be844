"""The five categories at the cursor: a table, or one line where there is no room for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from snapscope.analyses.ledger import CategoryRow
from snapscope.classify.material import Category
from snapscope.tui.kinds import doubt_of, letter_of, style_of
from snapscope.tui.phrases import QUIET, STRONG, WARNING
from snapscope.tui.rows import LiveRows
from snapscope.units import format_bytes, format_count, format_share

_WIDE: Final = 48
_SHORT_NAMES: Final = {Category.OPTIMIZER_STATE: "optimizer"}


class CategoryPane(Static):
    """Sums what is live at the cursor by category; the rows add up to the requested bytes.

    A click groups the tree by category.
    """

    ALLOW_SELECT: ClassVar[bool] = False

    class Chosen(Message):
        """The user pointed at the table."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.live: LiveRows | None = None

    def show(self, live: LiveRows) -> None:
        """Show the sums of some rows."""
        self.live = live
        self._write()

    def on_resize(self) -> None:
        """Choose what fits."""
        self._write()

    def on_click(self, event: events.Click) -> None:
        """Ask for the allocations behind the sums."""
        event.stop()
        self.post_message(self.Chosen())

    def _write(self) -> None:
        width, height = self.content_size.width, self.content_size.height
        if self.live is None or width <= 0:
            return
        if height > len(Category):
            self.update(Content("\n").join(list(_table(self.live, width, height))))
        else:
            self.update(_line(self.live, width))


def _table(live: LiveRows, width: int, height: int) -> Iterator[Content]:
    """Yield a row per category and their sum, below a header where there is room."""
    whole = live.balance.requested_bytes
    is_wide = width >= _WIDE
    name_cells = 15 if is_wide else 10
    count = f" {'count':>7}" if is_wide else ""
    if height > len(Category) + 2:
        sure = " how sure" if is_wide else ""
        yield Content.styled(f"  {'category':<{name_cells}} {'bytes':>10} {'share':>6}{count}{sure}", QUIET)
    for row in live.categories:
        name = row.category.label if is_wide else _SHORT_NAMES.get(row.category, row.category.label)
        count = f" {format_count(row.num_allocations):>7}" if is_wide else ""
        doubt = doubt_of(row) if is_wide else doubt_of(row)[:4].replace("medi", "med")
        yield Content.assemble(
            (row.category.label[0].upper(), style_of(row.category)),
            f" {_cells(name, name_cells, row.bytes, format_share(row.bytes, whole))}{count}",
            (f" {doubt}", WARNING),
        )
    count = f" {format_count(sum(row.num_allocations for row in live.categories)):>7}" if is_wide else ""
    text = _cells("requested", name_cells, whole, format_share(whole, whole) if whole else "")
    yield Content.styled(f"= {text}{count}", STRONG)


def _cells(name: str, name_cells: int, num_bytes: int, share: str) -> str:
    """Return name, bytes and share in columns, which `1009.62 MiB` doesn't shift."""
    left = f"{name} {format_bytes(num_bytes):>{name_cells + 10 - len(name)}}"
    return f"{left}{share:>{name_cells + 18 - len(left)}}"


def _line(live: LiveRows, width: int) -> Content:
    """Return all categories in one line: their bytes, else their shares, else only the largest."""
    whole = live.balance.requested_bytes
    for texts in (
        [format_bytes(row.bytes) for row in live.categories],
        [format_share(row.bytes, whole) for row in live.categories],
        [f"{round(100 * row.bytes / whole) if whole else 0}%" for row in live.categories],
    ):
        line = Content("  ").join(_parts(live.categories, texts))
        if line.cell_length + 1 <= width:
            return Content(" ") + line
    first = max(live.categories, key=lambda row: row.bytes)
    return Content(" ") + _parts((first,), [format_share(first.bytes, whole)])[0]


def _parts(rows: tuple[CategoryRow, ...], texts: list[str]) -> list[Content]:
    return [
        Content.assemble((_letter(row), style_of(row.category)), f" {text}")
        for row, text in zip(rows, texts, strict=True)
    ]


def _letter(row: CategoryRow) -> str:
    return letter_of(row.category, row.confidence) if row.bytes else row.category.label[0].upper()
