"""What all views share: the state they follow, and the keys that change it.

A view is a mode of the app. To add one: subclass `ViewScreen`, show `state` in `show_state`,
and name it in `app.VIEWS`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from snapscope.analyses.ledger import By
from snapscope.analyses.moments import FORMS, find_moment
from snapscope.analyses.selection import compile_pattern
from snapscope.tui.commands import ledger_command
from snapscope.tui.pages import command_page, help_page, notices_page, verdict_page
from snapscope.tui.screens.page import PageScreen
from snapscope.tui.screens.prompt import PromptScreen
from snapscope.tui.state import ViewState

if TYPE_CHECKING:
    from snapscope.tui.app import SnapscopeApp


class ViewScreen(Screen[None]):
    """A view of the shared state."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "go('peak')", "peak: go to the peak of requested bytes"),
        Binding("o", "next_oom", "OOM: go to the next out-of-memory event"),
        Binding("v", "verdict", "verdict: why memory ran out, and what would have helped"),
        Binding("r", "go('peak-reserved')", "reserved peak: go to the peak of reserved bytes", show=False),
        Binding("g", "go_to", "go: to an event, a time, a peak"),
        Binding("full_stop", "step(1)", "one event forward", key_display=".", show=False),
        Binding("comma", "step(-1)", "one event back", key_display=",", show=False),
        Binding("slash", "filter", "filter: by a regular expression on the frames", key_display="/"),
        Binding("b", "next_by", f"by: {', '.join(by.value for by in By)}"),
        Binding("t", "toggle_calls", "tree: list of groups, or call tree"),
        Binding("f", "toggle_frames", "frames: fold or unfold library frames", show=False),
        Binding("d", "next_device", "device: go to the next device"),
        Binding("i,exclamation_mark", "notices", "info: what the file covers, notices", key_display="i !", show=False),
        Binding("c", "command", "command: the command line that gives the same table", show=False),
        Binding("escape", "back", "back: restore the panes, or clear the filter", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "app.leave", "quit"),
    ]

    def key_order(self) -> tuple[str, ...]:
        """Return acts in the order in which the bottom line offers them."""
        return ()

    def key_names(self) -> dict[str, str]:
        """Return names of acts that depend on the state."""
        return {}

    @property
    def shared(self) -> SnapscopeApp:
        """The app, which keeps the shared state."""
        return cast("SnapscopeApp", self.app)

    @property
    def state(self) -> ViewState | None:
        """The shared state."""
        return self.shared.state

    def on_mount(self) -> None:
        """Follow the shared state."""
        self.watch(self.app, "state", self._follow)

    def _follow(self, state: ViewState | None) -> None:
        if state is not None:
            self.show_state(state)
            self.refresh_bindings()

    def show_state(self, state: ViewState) -> None:
        """Show another state; every view does this in its way."""
        raise NotImplementedError

    def look(self, state: ViewState) -> None:
        """Make a state the shared one."""
        self.shared.state = state

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys do something for this file."""
        del parameters
        state = self.state
        if state is None:
            return action in ("help", "quit", "leave")
        if action in ("next_oom", "verdict"):
            return bool(len(state.history.tables.events.oom_events))
        if action == "next_device":
            return len(state.history.snapshot.devices) > 1
        if action in ("go", "go_to", "step"):
            return state.opened.has_history
        return True

    # -- moments ----------------------------------------------------------------------------

    def action_go(self, at: str) -> None:
        """Move the cursor to a moment named as by `--at`."""
        if self.state is not None:
            self.look(self.state.at_event(find_moment(self.state.history, at).event))

    def action_step(self, step: int) -> None:
        """Move the cursor by events."""
        if self.state is not None:
            self.look(self.state.at_event(self.state.cursor + step))

    def action_next_oom(self) -> None:
        """Move the cursor to the next oom event, from the last to the first."""
        event = self.state.next_oom() if self.state is not None else None
        if self.state is not None and event is not None:
            self.look(self.state.at_event(event))

    def action_go_to(self) -> None:
        """Ask for a moment and go there."""
        state = self.state
        if state is None:
            return
        hint = f"a number, or {FORMS}"
        self.app.push_screen(
            PromptScreen(title="go to", hint=hint, check=lambda text: _moment(state, text)), self._go_to
        )

    def _go_to(self, text: str | None) -> None:
        if text is not None and text.strip() and self.state is not None:
            self.look(self.state.at_event(_moment(self.state, text)))

    # -- what is shown ----------------------------------------------------------------------

    def action_filter(self) -> None:
        """Ask for a filter on frames."""
        state = self.state
        if state is None:
            return
        text = state.focus.pattern if state.focus is not None else ""
        hint = "regular expression on `file:line function` of any frame; empty shows all"
        self.app.push_screen(
            PromptScreen(title="filter by frames", hint=hint, text=text, check=_check_pattern), self._filter
        )

    def _filter(self, text: str | None) -> None:
        if text is not None:
            self.shared.filter_by(text)

    def action_next_by(self) -> None:
        """Group by the next kind; from the call tree, by the last one."""
        if self.state is not None:
            choices = list(By)
            following = choices[(choices.index(self.state.by) + 1) % len(choices)]
            by = self.state.by if self.state.shows_calls else following
            self.look(replace(self.state, by=by, shows_calls=False))

    def action_toggle_calls(self) -> None:
        """Switch between groups and the call tree."""
        if self.state is not None:
            self.look(replace(self.state, shows_calls=not self.state.shows_calls))

    def action_toggle_frames(self) -> None:
        """Fold or unfold library frames."""
        if self.state is not None:
            self.look(replace(self.state, shows_all_frames=not self.state.shows_all_frames))

    def action_next_device(self) -> None:
        """Open the next device of the file."""
        if self.state is not None:
            devices = [tables.device for tables in self.state.history.snapshot.devices]
            place = devices.index(self.state.history.device)
            self.shared.switch_device(devices[(place + 1) % len(devices)])

    def action_back(self) -> None:
        """Clear the filter."""
        if self.state is not None and self.state.focus is not None:
            self.shared.filter_by("")

    # -- pages ------------------------------------------------------------------------------

    def action_verdict(self) -> None:
        """Show why the last request failed."""
        if self.state is not None and self.state.opened.oom is not None:
            self.app.push_screen(PageScreen(title="verdict", text=partial(verdict_page, state=self.state)))

    def action_notices(self) -> None:
        """Show what the file covers and what is odd about it."""
        if self.state is not None:
            self.app.push_screen(PageScreen(title="coverage and notices", text=partial(notices_page, state=self.state)))

    def action_command(self) -> None:
        """Show the command that gives the same table, and copy it."""
        if self.state is not None:
            self.app.copy_to_clipboard(ledger_command(self.state))
            self.app.push_screen(PageScreen(title="command line", text=partial(command_page, state=self.state)))

    def action_help(self) -> None:
        """Explain the focused pane and list all keys."""
        pane = self.focused
        text = partial(
            help_page,
            pane=_pane_name(pane),
            pane_help=(pane.HELP if pane is not None else None) or "",
            keys=self._all_keys(),
        )
        self.app.push_screen(PageScreen(title="help", text=text))

    def _all_keys(self) -> dict[str, list[tuple[str, str]]]:
        """Return (keys, what they do) of the focused pane, and of the view, as far as they do something now."""
        places = {action: place for place, action in enumerate(self.key_order())}
        found: dict[tuple[bool, str], tuple[int, list[str]]] = {}
        for active in self.active_bindings.values():
            binding = active.binding
            # What Textual's own screen binds (copying selected text) is none of the view's acts.
            if not binding.description or not active.enabled or binding.action.startswith("screen."):
                continue
            action = binding.action.rpartition(".")[2].partition("(")[0]
            place = places.get(action, len(places))
            _, keys = found.setdefault((active.node is self.focused, binding.description), (place, []))
            name = binding.key_display or self.app.get_key_display(binding)
            if name not in keys:
                keys.append(name)
        by_use = sorted(found.items(), key=lambda item: item[1][0])
        return {
            heading: [(" ".join(keys), text) for (is_pane, text), (_, keys) in by_use if is_pane == is_wanted]
            for heading, is_wanted in (("in this pane", True), ("anywhere", False))
            if any(is_pane == is_wanted for is_pane, _ in found)
        }


def _pane_name(pane: Widget | None) -> str:
    names = {"timeline": "the timeline", "live": "the live tree", "detail": "the detail pane"}
    return names.get((pane.id or "") if pane is not None else "", "no pane")


def _moment(state: ViewState, text: str) -> int:
    """Resolve what was typed after `g`; a bare number is an event.

    Raises:
        UsageError: it means nothing, or lies outside the history.
    """
    text = text.strip().replace(",", "")
    if not text:
        return state.cursor
    at = f"event:{text}" if re.fullmatch(r"-?[0-9]{1,15}", text) else text
    return find_moment(state.history, at).event


def _check_pattern(text: str) -> None:
    compile_pattern(text)
