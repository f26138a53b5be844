"""Phrases of the head lines: short pieces of text that fit whatever width there is.

Styles are names of Textual's theme, so that dark, light and 16-colour terminals are legible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual.content import Content

from snapscope.analyses.coverage import Coverage, Head
from snapscope.analyses.moments import Peak
from snapscope.analyses.oom import Failure
from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.model import HOST_DEVICE, NO_TIME, Action
from snapscope.replay import BEFORE
from snapscope.sites import NO_STACK_LABEL
from snapscope.tui.kinds import is_inferred, place_in_run
from snapscope.tui.state import ViewState
from snapscope.units import format_bytes, format_count, format_delta, format_share

STRONG = "bold"
QUIET = "$text-muted"
GOOD = "$text-success"
WARNING = "$text-warning"
BAD = "bold $text-error"

_US_PER_S = 1_000_000
_SITE_CELLS = 48


@dataclass(frozen=True, slots=True)
class Phrase:
    """A piece of a line.

    Attributes:
        content: the text.
        rank: the higher, the earlier it is left out where the line is too narrow; 0 = never.
        short: what stands there where there is no room for all of it.
    """

    content: Content
    rank: int = 0
    short: Content | None = None


def fit(phrases: Sequence[Phrase], width: int, separator: str = "  ") -> Content:
    """Join as many phrases as fit, in their order.

    Each phrase is taken in, in its short form, by rank; what room is left then goes to the
    full forms, again by rank. What has rank 0 is always there, cut at the edge if need be.
    """
    order = sorted(range(len(phrases)), key=lambda place: (phrases[place].rank, place))
    chosen: list[Content | None] = [None] * len(phrases)

    def fits() -> bool:
        lengths = [content.cell_length for content in chosen if content is not None]
        return sum(lengths) + len(separator) * max(len(lengths) - 1, 0) <= width

    for place in order:
        phrase = phrases[place]
        chosen[place] = phrase.content if phrase.short is None else phrase.short
        if phrase.rank > 0 and not fits():
            chosen[place] = None
    for place in order:
        before = chosen[place]
        if before is not None:
            chosen[place] = phrases[place].content
            if not fits():
                chosen[place] = before
    line = Content(separator).join([content for content in chosen if content is not None])
    return line.truncate(width, ellipsis=True) if line.cell_length > width else line


def pane_title(title: Content, *, has_focus: bool) -> Content:
    """Return the title of a pane; the focused one is marked by more than its colour."""
    return Content.assemble("▶ " if has_focus else " ", title, " ")


def device_name(device: int) -> str:
    """Name a device for people."""
    return "host (pinned)" if device == HOST_DEVICE else f"device {device}"


def format_span(span_us: int) -> str:
    """Format a length of time: `812 ms`, `5.8 s`, `3 min 20 s`."""
    seconds = span_us / _US_PER_S
    if seconds < 0.9995:
        return f"{span_us / 1000:.{0 if span_us >= 10_000 else 1}f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def offset_us(history: DeviceHistory, event: int) -> int | None:
    """Return microseconds from the first event to this one; None without times."""
    times = history.tables.events.time_us
    if event < 0 or not len(times) or int(times[0]) == NO_TIME or int(times[event]) == NO_TIME:
        return None
    return int(times[event]) - int(times[0])


def format_offset(history: DeviceHistory, event: int) -> str:
    """Format the time since the first event: `+0.812 s`; empty without times."""
    offset = offset_us(history, event)
    return "" if offset is None else f"{offset / _US_PER_S:+.3f} s"


def event_name(event: int) -> str:
    """Name an event: `event 41,207`, or the state before the first."""
    return "the start" if event == BEFORE else f"event {format_count(event)}"


def head_line(state: ViewState, width: int) -> Content:
    """Return file, device, events, coverage."""
    coverage, source = state.opened.coverage, state.history.snapshot.source
    folder, slash, name = escape(source.name, limit=300).rpartition("/")
    phrases = [
        Phrase(Content.styled("snapscope", STRONG), 5),
        Phrase(
            Content.assemble((folder + slash, QUIET), (name, STRONG)),
            2,
            Content.styled(name if len(name) <= 34 else f"{name[:22]}…{name[-11:]}", STRONG),
        ),
        _devices(state),
        _events(coverage),
        coverage_phrase(coverage),
    ]
    notices = state.history.notices
    if notices:
        phrases.append(Phrase(Content.styled(f"{len(notices)} notice{'s' * (len(notices) > 1)} [i]", WARNING), 3))
    return fit(phrases, width)


def _devices(state: ViewState) -> Phrase:
    own = device_name(state.history.device)
    others = [device for device, _, _ in state.opened.coverage.other_devices]
    if not others:
        return Phrase(Content(own), 1)
    names = ", ".join("host" if device == HOST_DEVICE else str(device) for device in others[:6])
    names += "…" if len(others) > 6 else ""
    return Phrase(
        Content.assemble(own, (f" (others: {names} [d])", WARNING)),
        1,
        Content.assemble(own, (" [d]", WARNING)),
    )


def _events(coverage: Coverage) -> Phrase:
    count = f"{format_count(coverage.num_events)} event{'s' * (coverage.num_events != 1)}"
    if coverage.start_time_us is None or coverage.end_time_us is None:
        return Phrase(Content(count), 4)
    span = format_span(coverage.end_time_us - coverage.start_time_us)
    return Phrase(Content(f"{count}, {span}"), 4, Content(count))


def coverage_phrase(coverage: Coverage) -> Phrase:
    """Say how much of the run's history there is."""
    size = format_bytes(coverage.before_bytes)
    if coverage.head is Head.COMPLETE:
        return Phrase(Content.styled("history complete", GOOD), 3, Content.styled("complete", GOOD))
    if coverage.head is Head.NO_HISTORY:
        return Phrase(Content.styled("no history", WARNING))
    if coverage.head is Head.LOST:
        return Phrase(
            Content.styled(f"head lost: {size} are older", WARNING),
            1,
            Content.styled(f"head lost: {size}", WARNING),
        )
    return Phrase(
        Content.styled(f"starts late: {size} are older than the history", WARNING),
        1,
        Content.styled(f"{size} older", WARNING),
    )


def answer_line(state: ViewState, width: int) -> Content:
    """Return the answer: the failed request where there is one, else the peak."""
    report = state.opened.oom
    if report is not None and report.subject is not None:
        return _oom_line(report.subject, report.num_ooms, width)
    peaks, totals = state.opened.peaks, state.history.totals
    peak = peaks.requested
    if state.opened.coverage.head is Head.NO_HISTORY:
        return fit(
            [
                Phrase(Content.styled("final state", STRONG)),
                Phrase(Content.styled(f"requested {format_bytes(int(totals.requested_bytes[-1]))}", STRONG)),
                Phrase(Content(f"allocated {format_bytes(peaks.allocated.bytes)}"), 1),
                Phrase(Content(f"reserved {format_bytes(int(totals.reserved_bytes[-1]))}")),
                Phrase(Content.styled("no history in this file", WARNING), 2),
            ],
            width,
        )
    reserved = int(totals.reserved_bytes[peak.event + 1])
    phrases = [
        Phrase(Content.styled(f"peak {format_bytes(peak.bytes)} requested", STRONG)),
        Phrase(Content.styled(f"at {event_name(peak.event)}", STRONG)),
        Phrase(Content(f"allocated {format_bytes(peaks.allocated.bytes)}"), 2),
        Phrase(Content(f"reserved {format_bytes(reserved)}"), 1),
    ]
    if peaks.reserved.bytes > reserved:
        text = f"(at most {format_bytes(peaks.reserved.bytes)}, {event_name(peaks.reserved.event)} [r])"
        phrases.append(Phrase(Content.styled(text, QUIET), 3))
    return fit(phrases, width)


def _oom_line(failure: Failure, num_ooms: int, width: int) -> Content:
    request, balance = failure.request, failure.balance
    asked = format_bytes(request.requested_bytes)
    free = "unknown" if request.device_free_bytes is None else format_bytes(request.device_free_bytes)
    cause = failure.verdict.cause.value
    phrases = [
        Phrase(Content.styled(f"OOM: {cause} [v]", BAD), 0, Content.styled(f"OOM: {cause}", BAD)),
        Phrase(Content.styled(f"asked {asked} (rounded)", STRONG), 0, Content.styled(f"asked {asked}", STRONG)),
        Phrase(Content(f"device free {free}"), 2),
        Phrase(Content(f"holes {format_bytes(request.holes_bytes)}"), 3),
        # The line below has both for the event under the cursor, which at first is this one.
        Phrase(Content(f"reserved {format_bytes(balance.reserved_bytes)}"), 6),
        Phrase(Content(f"live {format_bytes(balance.requested_bytes)}"), 5),
    ]
    label = escape(failure.site)
    if len(label) > _SITE_CELLS:
        label = escape(label.rpartition("/")[2], limit=_SITE_CELLS)
    # `(C++ backward)` says where, `(no stack)` and the like don't.
    if failure.site != NO_STACK_LABEL:
        phrases.insert(2, Phrase(Content.styled(f"in {label}", STRONG), 1))
    if num_ooms > 1:
        phrases.append(Phrase(Content.styled(f"the last of {num_ooms} [o]", QUIET), 4))
    return fit(phrases, width)


def caption(state: ViewState, width: int) -> Content:
    """Return what the cursor stands on: event, bytes, and how far from the peak."""
    history, event = state.history, state.cursor
    requested = int(history.totals.requested_bytes[event + 1])
    reserved = int(history.totals.reserved_bytes[event + 1])
    peak = state.opened.peaks.requested
    below = requested - peak.bytes
    distance = "the peak" if event == peak.event else f"peak {format_delta(below)}" if below else "equals the peak"
    step, is_guess = place_in_run(history, event), is_inferred(history)
    core = [
        Phrase(Content.styled(event_name(event), STRONG)),
        Phrase(Content(f"{step} (inferred)" if step and is_guess else step), 2, Content(step + "?" * is_guess)),
        Phrase(Content.assemble(("█ ", "$text-primary"), (f"requested {format_bytes(requested)}", STRONG))),
        Phrase(
            Content.assemble(("─ ", "$text-warning"), f"reserved {format_bytes(reserved)}"),
            1,
            Content.assemble(("─ ", "$text-warning"), f"res. {format_bytes(reserved)}"),
        ),
    ]
    if state.focus is not None:
        focused = int(state.focus.requested_bytes[event + 1])
        core.insert(3, Phrase(Content.styled(f"in focus {format_bytes(focused)}", GOOD), 1))
    core = [phrase for phrase in core if phrase.content]
    if Content("  ").join([phrase.content for phrase in core]).cell_length <= width:
        # All of it in full, before anything else.
        core = [replace(phrase, short=None) for phrase in core]
    place = next(place for place, phrase in enumerate(core) if "█" in phrase.content.plain)
    more = [
        Phrase(Content.styled(_what(history, event), QUIET), 5),
        Phrase(Content(format_offset(history, event)), 4),
    ]
    phrases = [*core[:place], *more, core[place], Phrase(Content(f"({distance})"), 3), *core[place + 1 :]]
    return fit([phrase for phrase in phrases if phrase.content], width)


def _what(history: DeviceHistory, event: int) -> str:
    """Say what an event did: `alloc 64.00 MiB`."""
    if event < 0:
        return ""
    events = history.tables.events
    action = Action(int(events.action[event]))
    size = int(events.size_bytes[event])
    return f"{action.name.lower()} {format_bytes(size)}" if size else action.name.lower()


def live_title(state: ViewState, num_allocations: int, width: int) -> Content:
    """Return the sum over what is live: bytes, allocations, when, and the share of the peak."""
    requested = int(state.history.totals.requested_bytes[state.cursor + 1])
    peak = state.opened.peaks.requested
    noun = "allocation" if num_allocations == 1 else "allocations"
    where = "at the end" if state.opened.coverage.head is Head.NO_HISTORY else f"at {event_name(state.cursor)}"
    is_final = state.opened.coverage.head is Head.NO_HISTORY
    where = "at the end" if is_final else f"at {event_name(state.cursor)}"
    share = "" if is_final else f"- {_share_of_peak(requested, peak, state.cursor)}"
    how = "call tree" if state.shows_calls else f"by {state.by.value}"
    phrases = [
        Phrase(Content(f"live {how}:"), 3),
        Phrase(Content.styled(f"requested {format_bytes(requested)}", STRONG)),
        Phrase(Content(f"in {format_count(num_allocations)} {noun}"), 1),
        Phrase(Content(where), 2),
        Phrase(Content(share), 2 if state.focus is None else 4),
    ]
    if state.focus is not None:
        phrases.append(Phrase(Content.styled(f"filter /{escape(state.focus.pattern, limit=30)}/", GOOD)))
    return fit([phrase for phrase in phrases if phrase.content], width, separator=" ")


def _share_of_peak(requested: int, peak: Peak, event: int) -> str:
    """Say how near the peak is; only what reaches it is 100 %."""
    if requested == peak.bytes:
        return "the peak" if event == peak.event else "equals the peak"
    share = format_share(requested, peak.bytes)
    return "just below the peak" if share == "100.0%" else f"{share} of the peak"
