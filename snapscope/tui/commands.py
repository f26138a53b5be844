"""The command line that gives the same table, to copy out of the terminal UI."""

from __future__ import annotations

import shlex

from snapscope.history import default_device
from snapscope.model import HOST_DEVICE
from snapscope.replay import BEFORE
from snapscope.tui.state import ViewState


def ledger_command(state: ViewState) -> str:
    """Return the `snapscope ledger` command for what the live tree shows."""
    request, history = state.request, state.history
    words = ["snapscope", "ledger", request.source]
    words += ["--at", "start" if state.cursor == BEFORE else f"event:{state.cursor}"]
    words += ["--by", state.by.value]
    if history.device != default_device(history.snapshot):
        words += ["--device", "host" if history.device == HOST_DEVICE else str(history.device)]
    if state.focus is not None:
        words += ["--focus", state.focus.pattern]
    if request.capacity_bytes is not None:
        words += ["--capacity", str(request.capacity_bytes)]
    if request.rules_path is not None:
        words += ["--rules", request.rules_path]
    return shlex.join(words)
