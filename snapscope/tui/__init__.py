"""The terminal UI: the only package that may import textual.

    state   what is looked at: one frozen value that every view shares
    app     loading in a thread, the views as modes, the command palette
    screens, widgets   what is on the screen; each with its .tcss beside it

Text of the file is never parsed as markup, and escaped before it is shown.
"""

from __future__ import annotations

__all__ = ["run_app"]


def run_app(
    source: str,
    *,
    device: int | None = None,
    at: str | None = None,
    focus: str | None = None,
    capacity_bytes: int | None = None,
    view: str = "timeline",
    rules: str | None = None,
) -> int:
    """Open a snapshot in the terminal and stay until the user leaves.

    The terminal is as it was when this returns or raises.

    Args:
        source: path of the file, or `-` for stdin.
        device: ordinal or `HOST_DEVICE`; None = the one with most memory events.
        at: the moment to open at, as `--at`; None = the last oom event, else the peak.
        focus: regular expression on frames to filter by at first.
        capacity_bytes: the card's size, which no snapshot holds.
        view: name of the view to open.
        rules: path of a file of category rules of the user's own.

    Returns:
        The exit code: 0, 130 where ctrl+c ended the loading, 143 where SIGTERM ended the app, 129 where SIGHUP did.

    Raises:
        InputError: the file can't be read as a snapshot.
        UsageError: there is no such device, moment or view in it, or `focus` is no regular
            expression, or `rules` can't be read.
    """
    from snapscope.classify.user_rules import read_rules

    own = () if rules is None else read_rules(rules)
    from snapscope.tui.app import open_app
    from snapscope.tui.state import OpenRequest

    return open_app(
        OpenRequest(
            source=source,
            device=device,
            at=at,
            focus=focus,
            capacity_bytes=capacity_bytes,
            view=view,
            rules_path=rules,
            rules=own,
        )
    )
