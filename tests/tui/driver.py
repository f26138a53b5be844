"""Drive the app without a terminal: press keys, wait until all panes agree, read the screen as text."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from textual.pilot import Pilot

from snapscope.tui.app import SnapscopeApp
from snapscope.tui.rows import Row, RowKind
from snapscope.tui.screens.timeline import TimelineScreen
from snapscope.tui.state import OpenRequest, ViewState
from tests.conftest import fixture_path

OOM: Final = "torch-2.14/oom_forward"
TRAINING: Final = "torch-2.14/multi_stream"
TWO_GPU: Final = "torch-2.14/two_gpu"

_TRIES: Final = 1000
_KEYS: Final = {" ": "space"}
_TO_DO: Final = ("_layout_required", "_repaint_required", "_recompose_required", "_next_callbacks", "_callbacks")


class Driver:
    """An app that runs at a size, with its file loaded unless told otherwise."""

    def __init__(self, app: SnapscopeApp, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def state(self) -> ViewState:
        """The shared state."""
        state = self.app.state
        assert state is not None
        return state

    @property
    def view(self) -> TimelineScreen:
        """The view below any dialog."""
        view = self.app.screen_stack[0]
        assert isinstance(view, TimelineScreen)
        return view

    @property
    def text(self) -> str:
        """The screen, line by line, without blanks at the ends."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen."""
        return self.text.split("\n")

    @property
    def selected_line(self) -> str:
        """The line of the selected row."""
        return next((line for line in self.lines if line.startswith(">")), "")

    @property
    def groups(self) -> list[Row]:
        """The first level of the tree, without the balance."""
        live = self.view.live_tree.live
        assert live is not None
        return [row for row in live.rows if row.kind is RowKind.GROUP]

    @property
    def dialog(self) -> str:
        """The class of what lies over the view; empty for nothing."""
        return type(self.app.screen).__name__ if self.app.screen is not self.view else ""

    async def until_error(self) -> None:
        """Wait until an error ends the app."""
        for _ in range(_TRIES):
            if self.app.error is not None:
                break
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def settle(self) -> None:
        """Wait until nothing is left to be done and all panes show the shared state."""
        await self.until(lambda: True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a thread brings about, and for all panes to show it."""
        before = None
        for _ in range(_TRIES):
            # The screen is laid out and painted when the app is idle.
            await self.pilot.pause()
            if not self.app.is_running:
                return
            is_done = condition() and self.is_settled and self._is_quiet
            now = self.text if is_done else None
            if is_done and now == before:
                return
            before = now
        raise TimeoutError("the panes don't agree")

    @property
    def is_settled(self) -> bool:
        """Whether the file is loaded and all panes agree."""
        view = self.app.screen_stack[0] if self.app.screen_stack else None
        return isinstance(view, TimelineScreen) and view.is_settled

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is left to be done: no message waits, nothing is to be laid out or painted."""
        screen = self.app.screen
        nodes: list[Any] = [self.app, screen, *screen.walk_children()]
        return not getattr(screen, "_dirty_widgets", ()) and all(
            node._message_queue.empty() and not any(getattr(node, name, False) for name in _TO_DO) for node in nodes
        )

    async def press(self, *keys: str) -> None:
        """Press keys, each when what the one before did is on the screen."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        """Type a line into a dialog and accept it."""
        for character in text:
            await self.pilot.press(_KEYS.get(character, character))
        await self.press("enter")


@asynccontextmanager
async def opened(
    source: str | Path, *, size: tuple[int, int] = (80, 24), waits: bool = True, **request: Any
) -> AsyncIterator[Driver]:
    """Open a file, or a fixture by its name, and wait until it is shown."""
    path = str(source) if Path(source).exists() else str(fixture_path(str(source)))
    app = SnapscopeApp(OpenRequest(source=path, **request))
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driver(app, pilot)
        if waits:
            await driver.settle()
        yield driver


def write_snapshot(folder: Path, snapshot: dict[str, Any], name: str = "made.pickle") -> Path:
    """Write a snapshot made by hand."""
    path = folder / name
    path.write_bytes(pickle.dumps(snapshot))
    return path
