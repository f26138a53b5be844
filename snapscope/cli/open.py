"""`snapscope open`: starts the terminal UI, and is the only command that loads it."""

from __future__ import annotations

import os
import shlex
import sys

import click

from snapscope.cli.options import capacity_option, device_options, is_terminal, rules_option
from snapscope.errors import UsageError


@click.command("open", epilog="Example: snapscope open snap.pickle --at oom")
@click.argument("file", metavar="FILE", required=False)
@click.option("--demo", is_flag=True, help="Open a small recording that comes with snapscope.")
@click.option("--at", metavar="MOMENT", help="Where the cursor starts: see ledger --help. [default: oom, else peak]")
@click.option("--view", type=click.Choice(["timeline"]), default="timeline", help="The first screen.")
@click.option("--focus", metavar="REGEX", help="Only allocations with a frame (file:line function) that matches.")
@rules_option
@capacity_option
@device_options
def command(
    file: str | None,
    demo: bool,
    at: str | None,
    view: str,
    focus: str | None,
    device: int | None,
    capacity: int | None,
    rules: str | None,
) -> None:
    """Explore FILE in the terminal: the curve, what is live at any event, and whose code it is."""
    if demo == (file is not None):
        raise UsageError("give a FILE, or --demo for the recording that comes with snapscope")
    _require_terminal(file or "FILE")
    from snapscope.demo import demo_path
    from snapscope.tui import run_app

    def start(source: str) -> int:
        return run_app(source, device=device, at=at, focus=focus, capacity_bytes=capacity, view=view, rules=rules)

    if file is None:
        with demo_path() as path:
            code = start(str(path))
    else:
        code = start(file)
    if code:
        raise click.exceptions.Exit(code)


def _require_terminal(file: str) -> None:
    """Refuse where there is nobody to look, naming the command that gives the same as text.

    Raises:
        UsageError: stdin, stdout or stderr is no terminal, or one that can't address its screen; or FILE is `-`
            and nothing is piped into it.
    """
    same = f"snapscope summary {shlex.quote(file)}"
    if file == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UsageError("FILE is - but stdin is closed: pipe a snapshot into it")
        if is_terminal(sys.stdin):
            raise UsageError("FILE is - but stdin is a terminal: pipe a snapshot into it")
    # Textual draws on stderr; text on stdout would have been asked for another purpose.
    shown = (sys.stdout, sys.stderr) if file == "-" else (sys.stdout, sys.stderr, sys.stdin)
    if not all(map(is_terminal, shown)):
        raise UsageError(f"open needs a terminal: `{same}` gives the same as text")
    if os.environ.get("TERM", "") in ("dumb", "unknown"):
        raise UsageError(f"open needs a terminal that can address its screen (TERM={os.environ['TERM']}): `{same}`")
