"""The texts of the pages: help, coverage and notices, the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.content import Content

from snapscope.analyses.moments import format_time
from snapscope.escaping import escape
from snapscope.tui.commands import ledger_command
from snapscope.tui.phrases import QUIET, STRONG, WARNING, device_name, format_span
from snapscope.tui.state import ViewState
from snapscope.units import format_bytes, format_count, format_share


def help_page(*, pane: str, pane_help: str, keys: Mapping[str, Iterable[tuple[str, str]]]) -> Content:
    """Explain the focused pane, then list keys by where they work.

    Args:
        pane: name of the focused pane.
        pane_help: what it is for.
        keys: (keys, what they do) by heading.
    """
    lines = [Content.styled(f"You are in: {pane}", STRONG)]
    lines += [Content(line) for line in pane_help.strip().splitlines()]
    for heading, entries in keys.items():
        lines += [Content(""), Content.styled(heading, STRONG)]
        lines += [Content.assemble((f"  {shown:<18}", "bold $text-accent"), name) for shown, name in entries]
    return Content("\n").join(lines)


def notices_page(state: ViewState) -> Content:
    """Say what the file covers, how to record a better one, and what was odd about it."""
    snapshot, coverage = state.history.snapshot, state.opened.coverage
    source = snapshot.source
    wrapped = f" in {', '.join(escape(name, limit=60) for name in source.containers)}" if source.containers else ""
    facts = [
        ("file", f"{escape(source.name)} ({format_bytes(source.size_bytes)}, {source.encoding}{wrapped})"),
        ("written by", f"PyTorch {snapshot.format.torch_version}, {snapshot.format.backend}"),
        ("device", device_name(state.history.device)),
    ]
    facts += [
        ("other device", f"{device_name(device)}: {format_count(events)} events, {format_bytes(reserved)} reserved")
        for device, events, reserved in coverage.other_devices[:16]
    ]
    facts.append(("history", f"{coverage.head.value.replace('_', ' ')}: {coverage.head_evidence}"))
    if coverage.start_time_us is not None and coverage.end_time_us is not None:
        span = format_span(coverage.end_time_us - coverage.start_time_us)
        facts.append(
            (
                "span",
                f"{format_count(coverage.num_events)} events, {span} from {format_time(coverage.start_time_us)} UTC",
            )
        )
    if coverage.num_before:
        count, size = format_count(coverage.num_before), format_bytes(coverage.before_bytes)
        facts.append(("older", f"{count} allocations, {size} before the history"))
    share = format_share(coverage.stack_bytes, coverage.live_bytes)
    facts.append(("stacks", f"{share} of the bytes live at the end have one; context {coverage.context.value!r}"))
    if coverage.missing_actions:
        facts.append(("missing", f"no {', '.join(coverage.missing_actions)} events"))
    if snapshot.settings.conf:
        facts.append(("settings", escape(snapshot.settings.conf)))
    lines = [Content.styled("what this file covers", STRONG)]
    lines += [Content.assemble((f"  {name:<13}", QUIET), text) for name, text in facts]
    if coverage.advice:
        lines += [Content(""), Content.styled("to record more of it", STRONG)]
        lines += [Content(f"  {line}") for line in coverage.advice]
    lines += [Content(""), Content.styled("notices", STRONG)]
    for notice in state.history.notices:
        size = f", {format_bytes(notice.bytes)}" if notice.bytes else ""
        lines.append(Content.assemble((f"  {notice.code}", WARNING), f" {format_count(notice.count)}×{size}"))
        lines.append(Content(f"    {escape(notice.message)}"))
    if not state.history.notices:
        lines.append(Content("  none: the file agrees with itself"))
    return Content("\n").join(lines)


def command_page(state: ViewState, *, is_copied: bool) -> Content:
    """Show the command that prints the same table."""
    lines = [
        Content("the same table in text:"),
        Content(""),
        Content.styled(escape(ledger_command(state), limit=2000), STRONG),
        Content(""),
        Content("more: --json, --csv, -o PATH"),
    ]
    if is_copied:
        lines.append(Content.styled("It was sent to your terminal's clipboard.", QUIET))
    return Content("\n").join(lines)
