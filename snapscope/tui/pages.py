"""The texts of the pages: help, coverage and notices, the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from textual.content import Content

from snapscope.analyses.moments import format_time
from snapscope.escaping import escape
from snapscope.render.oom import oom_text
from snapscope.render.page import Page
from snapscope.tui.commands import ledger_command
from snapscope.tui.phrases import QUIET, STRONG, WARNING, device_name, format_span
from snapscope.tui.state import ViewState
from snapscope.units import format_bytes, format_count, format_share

_INDENT: Final = 15
_KEYS_INDENT: Final = 20
_VERDICT_ROWS: Final = 10


def help_page(width: int, *, pane: str, pane_help: str, keys: Mapping[str, Iterable[tuple[str, str]]]) -> Content:
    """Explain the focused pane, then list keys by where they work.

    Args:
        width: columns of the page.
        pane: name of the focused pane.
        pane_help: what it is for; paragraphs, indented lines stay lines.
        keys: (keys, what they do) by heading.
    """
    lines = [Content.styled(f"You are in: {pane}", STRONG)]
    for paragraph in pane_help.strip().split("\n\n"):
        lines += [Content(line) for line in _flow(paragraph, width)]
        lines.append(Content(""))
    for heading, entries in keys.items():
        lines.append(Content.styled(heading, STRONG))
        for shown, name in entries:
            lines += _entry(shown, name, width, style="bold $text-accent", indent=_KEYS_INDENT)
        lines.append(Content(""))
    return Content("\n").join(lines)


def notices_page(width: int, state: ViewState) -> Content:
    """Say what the file covers, how to record a better one, and what was odd about it."""
    lines = [Content.styled("what this file covers", STRONG)]
    for name, text in _facts(state):
        lines += _entry(name, text, width)
    if state.opened.coverage.advice:
        lines += [Content(""), Content.styled("to record more of it", STRONG)]
        for line in state.opened.coverage.advice:
            code, _, why = line.partition("  # ")
            lines += _entry("", f"{why}:" if why else "", width, indent=2)
            lines += _entry("", code, width, indent=4)
    lines += [Content(""), Content.styled("notices", STRONG)]
    notices = state.history.notices
    for notice in notices:
        size = f", {format_bytes(notice.bytes)}" if notice.bytes else ""
        lines.append(Content.assemble((f"  {notice.code}", WARNING), f"  {format_count(notice.count)}×{size}"))
        lines += _entry("", escape(notice.message), width, indent=4)
    if not notices:
        lines.append(Content("  none: the file agrees with itself"))
    return Content("\n").join(lines)


def verdict_page(width: int, state: ViewState) -> Content:
    """Say why the last request failed: the page of `snapscope oom`."""
    report = state.opened.oom
    if report is None:
        return Content("no oom event in this history")
    text = oom_text(state.history, report, Page(width=width), top=_VERDICT_ROWS)
    first, _, rest = text.partition("\n")
    return Content.assemble((first, STRONG), f"\n{rest}")


def command_page(width: int, state: ViewState) -> Content:
    """Show the command that prints the same table."""
    del width
    return Content("\n").join(
        [
            Content("the same table in text (it was sent to your terminal's clipboard):"),
            Content(""),
            Content.styled(escape(ledger_command(state), limit=2000), STRONG),
            Content(""),
            Content("more: --json, --csv, -o PATH"),
        ]
    )


def _facts(state: ViewState) -> Iterator[tuple[str, str]]:
    snapshot, coverage = state.history.snapshot, state.opened.coverage
    source = snapshot.source
    yield "file", escape(source.name)
    wrapped = f" in {', '.join(escape(name, limit=60) for name in source.containers)}" if source.containers else ""
    yield "stored as", f"{source.encoding}{wrapped}, {format_bytes(source.size_bytes)}"
    yield "written by", f"PyTorch {snapshot.format.torch_version}, {snapshot.format.backend}"
    yield "device", device_name(state.history.device)
    for device, events, reserved in coverage.other_devices[:16]:
        yield "", f"{device_name(device)} has {format_count(events)} events, {format_bytes(reserved)} reserved [d]"
    yield "history", f"{coverage.head.value.replace('_', ' ')}: {coverage.head_evidence}"
    if coverage.start_time_us is not None and coverage.end_time_us is not None:
        span = format_span(coverage.end_time_us - coverage.start_time_us)
        yield "span", f"{format_count(coverage.num_events)} events, {span}"
        yield "from", f"{format_time(coverage.start_time_us)} UTC"
    if coverage.num_before:
        count, size = format_count(coverage.num_before), format_bytes(coverage.before_bytes)
        yield "older", f"{count} allocations, {size} before the history"
    share = format_share(coverage.stack_bytes, coverage.live_bytes)
    yield "stacks", f"{share} of the bytes live at the end have one; context {coverage.context.value!r}"
    if coverage.missing_actions:
        yield "missing", f"no {', '.join(coverage.missing_actions)} events"
    if snapshot.settings.conf:
        yield "settings", escape(snapshot.settings.conf)


def _flow(paragraph: str, width: int) -> list[str]:
    """Wrap a paragraph; its indented lines stay lines."""
    if paragraph.startswith("  "):
        return [
            line for part in paragraph.split("\n") for line in textwrap.wrap(part, width, subsequent_indent=" " * 6)
        ]
    return textwrap.wrap(" ".join(paragraph.split()), width)


def _entry(name: str, text: str, width: int, *, style: str = QUIET, indent: int = _INDENT) -> list[Content]:
    """Return a name and a text beside it, wrapped within its column."""
    first, *rest = textwrap.wrap(text, max(width - indent, 10)) or [""]
    head = Content.assemble((f"  {name}".ljust(indent)[: max(indent, len(name) + 3)], style), first)
    return [head, *(Content(" " * indent + line) for line in rest)]
