"""What is shown until the file is read: how far the loading is."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from snapscope.escaping import escape
from snapscope.tui.loading import Progress, Stage
from snapscope.tui.phrases import GOOD, QUIET, STRONG
from snapscope.units import format_bytes

_BAR_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Shares of the whole, as measured on a million events.
_START = {Stage.READING: 0.0, Stage.NORMALISING: 0.45, Stage.REPLAYING: 0.68, Stage.CLASSIFYING: 0.9}
_END = {Stage.READING: 0.45, Stage.NORMALISING: 0.68, Stage.REPLAYING: 0.9, Stage.CLASSIFYING: 1.0}


class LoadingScreen(Screen[None]):
    """A bar over all stages; bytes while the file is read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "app.leave", "Quit")]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name_shown = escape("standard input" if name == "-" else name, limit=200)
        self._progress: Progress | None = None
        self._started = time.monotonic()

    def compose(self) -> ComposeResult:
        """Hold one text."""
        yield Static(id="loading-text", markup=False)

    def on_mount(self) -> None:
        """Count the seconds."""
        self._write()
        self.set_interval(0.25, self._write)

    def show_progress(self, progress: Progress) -> None:
        """Say how far it is."""
        self._progress = progress
        self._write()

    def _write(self) -> None:
        self.query_one("#loading-text", Static).update(self._text())

    def _text(self) -> Content:
        progress = self._progress or Progress(stage=Stage.READING)
        stages = list(Stage)
        lines = [Content.assemble(("snapscope", STRONG), " opens ", (self._name_shown, STRONG)), Content("")]
        for stage in stages:
            name = stage.value
            if stage is Stage.READING and progress.bytes_read:
                of = f" of {format_bytes(progress.total_bytes)}" if progress.total_bytes else ""
                name += f"  {format_bytes(progress.bytes_read)}{of}"
            place = stages.index(stage) - stages.index(progress.stage)
            mark = "✓" if place < 0 else "▸" if place == 0 else " "
            style = GOOD if place < 0 else STRONG if place == 0 else QUIET
            lines.append(Content.styled(f"{mark} {name}", style))
        seconds = time.monotonic() - self._started
        lines += [Content(""), self._bar(progress), Content.styled(f"{seconds:.0f} s   q quits at once", QUIET)]
        return Content("\n").join(lines)

    @staticmethod
    def _bar(progress: Progress) -> Content:
        low, high = _START[progress.stage], _END[progress.stage]
        within = 0.0
        if progress.stage is Stage.READING and progress.total_bytes:
            within = min(progress.bytes_read / progress.total_bytes, 1.0)
        share = low + (high - low) * within
        full, rest = divmod(round(share * _BAR_CELLS * 8), 8)
        filled = "█" * full + (_EIGHTHS[rest] if rest else "")
        return Content.assemble(
            (filled, "$primary"), ("─" * (_BAR_CELLS - len(filled)), QUIET), f" {100 * share:3.0f}%"
        )
