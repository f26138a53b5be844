"""The app: loads in a thread, then shows views of one shared state as modes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar, Final

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.constants import DEFAULT_THEME
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen

from snapscope.errors import ExitCode, SnapscopeError, UsageError
from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.load import Input
from snapscope.tui.background import Background, post_from_thread
from snapscope.tui.curve import Window
from snapscope.tui.kinds import category_variables
from snapscope.tui.loading import Loader, Progress
from snapscope.tui.phrases import device_name
from snapscope.tui.screens.loading import LoadingScreen
from snapscope.tui.screens.timeline import TimelineScreen
from snapscope.tui.screens.view import ViewScreen
from snapscope.tui.state import Focus, OpenRequest, ViewState, answer_event, make_focus, open_device
from snapscope.tui.terminal import forgive_bad_bytes, leaving_on_signals, piped_input

# Colours mixed for millions of shades turn to mud on sixteen.
_FEW_COLORS_THEME: Final = "ansi-dark"
_PALETTE_ROWS: Final = 8

VIEWS: Final[dict[str, type[ViewScreen]]] = {"timeline": TimelineScreen}
"""The views by the name that `--view` takes; each is a mode of the app."""


class _Loading(Message):
    """The loader got further."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress


class _Loaded(Message):
    """The loader, or another thread, made a state to look at."""

    def __init__(self, state: ViewState) -> None:
        super().__init__()
        self.state = state


class _Failed(Message):
    """A thread met an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Focused(Message):
    """A filter was worked out."""

    def __init__(self, history: DeviceHistory, focus: Focus | None) -> None:
        super().__init__()
        self.history = history
        self.focus = focus


class SnapscopeApp(App[int]):
    """The terminal UI of one snapshot.

    Args:
        request: what to open.
        source: what to read it from, where that isn't `request.source` (see `piped_input`).

    Attributes:
        state: what all views show; None while the file is read.
        error: what ended the app, to be raised when the terminal is restored.
        signal: number of the signal that ended the app, else None.
    """

    TITLE = "snapscope"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, str | Callable[[], Screen[object]]]] = dict(VIEWS)  # type: ignore[arg-type]
    CSS_PATH: ClassVar[list[str]] = [  # type: ignore[assignment]
        "screens/timeline.tcss",
        "screens/loading.tcss",
        "screens/prompt.tcss",
        "screens/page.tcss",
        "widgets/timeline.tcss",
        "widgets/categories.tcss",
        "widgets/live_tree.tcss",
        "widgets/detail.tcss",
        "widgets/keybar.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True, system=True),
        Binding("ctrl+q", "leave", "quit", show=False, priority=True, system=True),
    ]

    state: reactive[ViewState | None] = reactive(None)

    def __init__(self, request: OpenRequest, source: Input | None = None) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.signal: int | None = None
        self._signalled_loop: asyncio.AbstractEventLoop | None = None
        self._request = request
        self._loading_screen = LoadingScreen(request.source)
        self._loader = Loader(
            request,
            request.source if source is None else source,
            on_progress=lambda progress: post_from_thread(self, _Loading(progress)),
            on_done=lambda state: post_from_thread(self, _Loaded(state)),
            on_error=self.fail_from_thread,
        )
        self._focusing = Background[tuple[ViewState, str], _Focused](
            _work_out_focus, deliver=lambda message: post_from_thread(self, message), fail=self.fail_from_thread
        )
        self._switching = Background[tuple[ViewState, int], ViewState](
            _open_other_device, deliver=lambda state: post_from_thread(self, _Loaded(state)), fail=self.fail_from_thread
        )

    def get_default_screen(self) -> Screen[None]:
        """Begin with the loading screen."""
        return self._loading_screen

    def get_css_variables(self) -> dict[str, str]:
        """Add the colours of the categories to the theme's."""
        variables = super().get_css_variables()
        self.theme_variables = {**variables, **category_variables(variables)}
        return self.theme_variables

    def on_mount(self) -> None:
        """Begin to load once the first frame is painted."""
        has_few_colors = self.console.color_system == "standard"
        if has_few_colors and self.theme == DEFAULT_THEME and _FEW_COLORS_THEME in self.available_themes:
            self.theme = _FEW_COLORS_THEME
        if not self.is_headless:
            self._take_signals()
        if self.signal is None:
            self.call_after_refresh(self._loader.start)

    def on_unmount(self) -> None:
        """Let the threads go."""
        self._loader.cancel()
        self._focusing.close()
        self._switching.close()

    # -- what threads report ----------------------------------------------------------------

    def fail_from_thread(self, error: Exception) -> None:
        """Take an error that a thread met."""
        post_from_thread(self, _Failed(error))

    def on__loading(self, message: _Loading) -> None:
        """Show how far the loading is."""
        self._loading_screen.show_progress(message.progress)

    async def on__loaded(self, message: _Loaded) -> None:
        """Show a state; the first one in the view that was asked for."""
        is_first = self.state is None
        self.state = message.state
        if is_first:
            await self.switch_mode(self._request.view)

    def on__focused(self, message: _Focused) -> None:
        """Filter, unless another device was opened meanwhile."""
        if self.state is not None and self.state.history is message.history:
            self.state = replace(self.state, focus=message.focus)

    def on__failed(self, message: _Failed) -> None:
        """End the app while it loads, or on a bug; otherwise say what can't be done."""
        error = message.error
        if self.state is None or not isinstance(error, SnapscopeError):
            self.error = error
            self.exit(int(getattr(error, "exit_code", ExitCode.BUG)))
        else:
            self.notify(escape(str(error)), severity="error", markup=False)

    # -- acts that take time ----------------------------------------------------------------

    def filter_by(self, pattern: str) -> None:
        """Keep only allocations with a frame that matches; an empty pattern keeps all."""
        if self.state is not None:
            self._focusing.submit((self.state, pattern))

    def switch_device(self, device: int) -> None:
        """Look at another device of the file."""
        if self.state is not None:
            self.notify(f"opening {device_name(device)} …", markup=False, timeout=1)
            self._switching.submit((self.state, device))

    # -- leaving ----------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Leave at once."""
        self._loader.cancel()
        self.exit(int(ExitCode.OK))

    def action_interrupt(self) -> None:
        """Leave at once; an interrupted loading says so in the exit code."""
        self._loader.cancel()
        self.exit(int(ExitCode.INTERRUPTED if self.state is None else ExitCode.OK))

    def _take_signals(self) -> None:
        """Leave on a signal as on a key, so that the terminal is restored."""
        self._signalled_loop = asyncio.get_running_loop()
        # Windows has no such handlers, and only the main thread may set them. With one of them, any signal wakes
        # the loop.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            self._signalled_loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
        if self.signal is not None:
            self._leave_signalled()

    def leave_on_signal(self, number: int) -> None:
        """Leave for a signal, as soon as the screen is there to be left; only the first one counts."""
        if self.signal is not None:
            return
        self.signal = number
        if self._signalled_loop is not None:
            # Closed if the app has just ended by itself.
            with suppress(RuntimeError):
                self._signalled_loop.call_soon_threadsafe(self._leave_signalled)

    def _leave_signalled(self) -> None:
        self._loader.cancel()
        self.exit(128 + (self.signal or 0))

    def _handle_exception(self, error: Exception) -> None:
        """Keep what ends the app: `open_app` raises it when the terminal is restored."""
        if self.error is None:
            self.error = error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        """Leave the saying to whoever started the app, except where Textual is debugged."""
        if "debug" not in self.features:
            self._exit_renderables.clear()
        super()._print_error_renderables()

    # -- the command palette ----------------------------------------------------------------

    def action_command_palette(self) -> None:
        """Show the palette where there is room for its list: Textual's list of no rows fails on page up."""
        if self.size.height >= _PALETTE_ROWS:
            super().action_command_palette()
        else:
            self.bell()
            self.notify("no room for the palette", severity="warning", markup=False, timeout=2)

    def on_resize(self, event: events.Resize) -> None:
        """Close the palette where there is no room for it any more."""
        if event.size.height < _PALETTE_ROWS and isinstance(self.screen, CommandPalette):
            self.pop_screen()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer every act of the view, the theme, and a picture of the screen."""
        offered: set[str] = set()
        for active in screen.active_bindings.values():
            binding = active.binding
            if (
                not active.enabled
                or binding.action in offered
                or binding.action.startswith("screen.")
                or not binding.description
            ):
                continue
            offered.add(binding.action)
            name, _, help_text = binding.description.partition(": ")
            title = f"{name}  (key {binding.key_display or self.get_key_display(binding)})"
            yield SystemCommand(
                title,
                help_text or name,
                lambda key=binding.key: self.simulate_key(key),
            )
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Keys", "Maximize", "Minimize"):
                yield command


def _work_out_focus(job: tuple[ViewState, str]) -> _Focused:
    state, pattern = job
    return _Focused(state.history, make_focus(state.history, pattern) if pattern else None)


def _open_other_device(job: tuple[ViewState, int]) -> ViewState:
    """Open a device at its own answer, looked at in the same way."""
    state, device = job
    history = DeviceHistory(state.history.snapshot, device, sites=state.history.sites, rules=state.history.rules)
    opened = open_device(history, capacity_bytes=state.request.capacity_bytes)
    focus = make_focus(history, state.focus.pattern) if state.focus is not None else None
    return replace(
        state,
        opened=opened,
        cursor=answer_event(opened),
        window=Window(first=0, num_states=history.num_events + 1),
        focus=focus,
    )


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let the screen's thread have its turn every millisecond, while others work."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def open_app(request: OpenRequest) -> int:
    """Run the app; see `snapscope.tui.run_app`."""
    if request.view not in VIEWS:
        raise UsageError(f"no view {request.view!r}: there is {', '.join(VIEWS)}")
    if sys.platform != "win32":
        forgive_bad_bytes()
    with piped_input(request.source) as source, _short_turns():
        app = SnapscopeApp(request, source)
        with leaving_on_signals(app.leave_on_signal):
            result = app.run()
    if app.signal is not None:
        return 128 + app.signal
    if app.error is not None:
        raise app.error
    return int(ExitCode.BUG) if result is None else result
