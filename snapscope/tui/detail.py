"""What there is to say about one row: the text of the detail pane."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from textual.content import Content

from snapscope.analyses.ledger import pool_name, sum_categories
from snapscope.analyses.moments import format_time
from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.lifetimes import Context
from snapscope.model import Int64Column, SizeClass
from snapscope.replay import BEFORE, NEVER, REQUESTED_BEFORE
from snapscope.sites import FrameKind
from snapscope.tui.kinds import doubt_of, is_inferred, place_in_run, style_of, why_category
from snapscope.tui.phrases import QUIET, STRONG, WARNING, format_offset
from snapscope.tui.rows import LiveRows, Row, RowKind
from snapscope.units import format_address, format_bytes, format_count, format_share

_MAX_FRAMES = 400
_TEXT_LIMIT = 400
_SHORT_LIMIT = 50
_ALLOCATOR_FUNCTION = re.compile(r"c10::|at::detail::|torch::unwind|torch::CapturedTraceback|torch::cuda::|\?\?")
_AUTOGRAD_NODE = re.compile(r"\b\w+Backward\d*\b(?=::apply)|\bAccumulateGrad\b")
_CPP_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)


def describe(live: LiveRows, row: Row, *, shows_all_frames: bool, is_compact: bool = False) -> Content:
    """Return the text of the detail pane.

    Args:
        live: the rows that `row` is one of.
        row: the selected row.
        shows_all_frames: library, C++ and interpreter frames are not folded.
        is_compact: the stack as running text, for a pane of a few lines.
    """
    history = live.state.history
    if row.kind is RowKind.BALANCE:
        lines = list(_balance(live, row))
    elif row.lifetime is not None:
        lines = list(_allocation(history, row.lifetime, is_compact=is_compact))
    elif row.kind is RowKind.NOTE:
        lines = [Content(row.label)]
    elif row.kind is RowKind.LEFT_OUT:
        lines = [Content("Live allocations without a frame that matches the filter: they still count in the sums.")]
    else:
        lines = list(_group(live, row, is_compact=is_compact))
    has_frames = row.stack is not None and len(history.snapshot.stacks.frames_of(row.stack)) > 0
    if row.stack is not None and has_frames and row.kind is not RowKind.MORE:
        if is_compact and not shows_all_frames:
            lines.append(_running_stack(history, row.stack))
        else:
            lines += _stack(history, row.stack, shows_all_frames=shows_all_frames)
    elif row.kind in (RowKind.GROUP, RowKind.ALLOCATION, RowKind.CALL):
        lines.append(Content.styled(_why_no_stack(history), QUIET))
    if row.lifetime is not None and is_compact:
        # In a pane of a few lines whose code it is comes before where it lies.
        lines += _place_and_labels(history, row.lifetime)
    return Content("\n").join(lines)


def _balance(live: LiveRows, row: Row) -> Iterator[Content]:
    yield Content.assemble((row.label, STRONG), "  ", format_bytes(row.bytes or 0), f"  ({row.bytes or 0:,} B)")
    yield Content(row.meaning)
    if row.lifetimes is not None and len(row.lifetimes):
        yield Content(f"{format_count(len(row.lifetimes))} allocations wait: open the row to see them.")
    if row.label.endswith("reserved") and live.balance.capacity_bytes is None:
        yield Content.styled("The card's size isn't in the file: give it with --capacity 80GiB.", QUIET)


def _group(live: LiveRows, row: Row, *, is_compact: bool) -> Iterator[Content]:
    history, whole = live.state.history, live.balance.requested_bytes
    lifetimes = row.node.lifetimes() if row.node is not None else row.lifetimes
    if row.kind is RowKind.CALLER or lifetimes is None or not len(lifetimes):
        yield Content.styled(row.label, STRONG)
        return
    noun = "allocation" if row.count == 1 else "allocations"
    size = f"{format_bytes(row.bytes or 0)} in {format_count(row.count or 0)} {noun}"
    if is_compact:
        # The row above has the name and the share already.
        yield Content.assemble((size, STRONG), f", {_sizes(history, lifetimes)}")
        yield _categories(history, lifetimes)
        return
    own = f", {format_bytes(row.self_bytes)} of it in the frame itself" if row.self_bytes is not None else ""
    yield Content.styled(row.label, STRONG)
    yield Content(f"{size}{own}: {format_share(row.bytes or 0, whole)} of what is live")
    yield Content(_sizes(history, lifetimes))
    yield _categories(history, lifetimes)
    if len(row.lines) > 1:
        yield Content(f"lines {', '.join(str(line) for line in row.lines)}, most bytes first")


def _categories(history: DeviceHistory, lifetimes: Int64Column) -> Content:
    """Say which categories the allocations are of, and how sure that is where it isn't high."""
    found = sorted(sum_categories(history, lifetimes), key=lambda row: -row.bytes)
    found = [row for row in found if row.num_allocations]
    parts = []
    for row in found:
        size = f" {format_bytes(row.bytes)}" if len(found) > 1 else ""
        doubt = doubt_of(row)
        name, letter = row.category.label, row.category.label[0].upper()
        parts.append(
            Content.assemble(
                (letter, style_of(row.category)), f" {name}{size}", (f" ({doubt})" if doubt else "", WARNING)
            )
        )
    return Content(", ").join(parts)


def _sizes(history: DeviceHistory, lifetimes: Int64Column) -> str:
    """Say how large the allocations are and when they were born."""
    table = history.lifetimes
    sizes, born = table.requested_bytes[lifetimes], table.birth_event[lifetimes]
    low, high = int(sizes.min()), int(sizes.max())
    size = f"{format_bytes(low)} each" if low == high else f"{format_bytes(low)} to {format_bytes(high)} each"
    is_before = born == BEFORE
    parts = [size] if len(lifetimes) > 1 else []
    if is_before.any():
        parts.append(f"{format_count(int(is_before.sum()))} from before the history")
    if not is_before.all():
        first, last = int(born[~is_before].min()), int(born[~is_before].max())
        span = (
            f"event {format_count(first)}" if first == last else f"events {format_count(first)} to {format_count(last)}"
        )
        parts.append(span)
    streams = table.stream[lifetimes]
    if (streams != streams[0]).any():
        parts.append(f"on {len(np.unique(streams))} streams")
    return ", ".join(parts)


def _allocation(history: DeviceHistory, lifetime: int, *, is_compact: bool) -> Iterator[Content]:
    table, blocks = history.lifetimes, history.blocks
    size = format_bytes(int(blocks.block_bytes[lifetime]))
    is_exact = bool(blocks.is_exact[lifetime])
    yield Content.assemble(
        (format_address(int(table.addr[lifetime])), STRONG),
        f"  {format_bytes(int(table.requested_bytes[lifetime]))} requested, {size} allocated",
        ("" if is_exact else " (estimated)", WARNING),
    )
    category, why = why_category(history, lifetime)
    yield Content.assemble((category.label[0].upper(), style_of(category)), f" {why}")
    yield Content(", ".join(_life(history, lifetime, has_clock=not is_compact)))
    if not is_compact:
        yield from _place_and_labels(history, lifetime)


def _place_and_labels(history: DeviceHistory, lifetime: int) -> Iterator[Content]:
    yield Content(", ".join(_place(history, lifetime)))
    yield from _labels(history, int(history.lifetimes.birth_event[lifetime]))


def _life(history: DeviceHistory, lifetime: int, *, has_clock: bool) -> Iterator[str]:
    table = history.lifetimes
    born = int(table.birth_event[lifetime])
    asked = int(table.free_requested_event[lifetime])
    done = int(table.free_completed_event[lifetime])
    step = place_in_run(history, born)
    if step and is_inferred(history):
        step += " (inferred)"
    yield (
        "born before the history"
        if born == BEFORE
        else f"born {_event(history, born, has_clock=has_clock)}{' in ' * bool(step)}{step}"
    )
    if asked == NEVER:
        yield "alive at the end"
        return
    yield (
        "freed before the history"
        if asked == REQUESTED_BEFORE
        else f"freed {_event(history, asked, has_clock=has_clock)}"
    )
    if done == NEVER:
        yield "pending since, until the end"
    elif asked >= 0 and done > asked + 1:
        yield f"pending until {_event(history, done, has_clock=has_clock)}"
    if asked >= 0 and born != BEFORE:
        yield f"lived {format_count(asked - born)} events"


def _event(history: DeviceHistory, event: int, *, has_clock: bool) -> str:
    times = history.tables.events.time_us
    offset = format_offset(history, event)
    if not offset:
        return f"at event {format_count(event)}"
    if not has_clock:
        return f"at event {format_count(event)} ({offset})"
    clock = format_time(int(times[event])).rpartition("T")[2][:12]
    return f"at event {format_count(event)} ({clock} UTC, {offset})"


def _place(history: DeviceHistory, lifetime: int) -> Iterator[str]:
    table, ranges = history.lifetimes, history.ranges
    stream = int(table.stream[lifetime])
    yield f"stream {stream:#x}" if stream > 9 else f"stream {stream}"
    yield pool_name(history, int(table.pool[lifetime]))
    row = int(table.range_row[lifetime])
    if row < 0:
        yield "segment not in the file"
        return
    size_class = SizeClass(int(ranges.size_class[row]))
    kind = "" if size_class is SizeClass.UNKNOWN else f" {size_class.name.lower()}"
    kind += " expandable" if ranges.is_expandable[row] else ""
    size, start = format_bytes(int(ranges.size_bytes[row])), format_address(int(ranges.addr[row]))
    yield f"in a{kind} segment of {size} at {start}"


def _labels(history: DeviceHistory, born: int) -> Iterator[Content]:
    """Yield what the program itself noted at the allocation."""
    if born == BEFORE:
        return
    events, strings = history.tables.events, history.snapshot.stacks.strings
    for name, column in (("user_metadata", events.user_metadata), ("compile_context", events.compile_context)):
        text = strings[column[born]] if column[born] >= 0 else ""
        # PyTorch writes N/A where nothing was being compiled.
        if text not in ("", "N/A"):
            yield Content.assemble((f"{name} ", QUIET), escape(text, limit=_TEXT_LIMIT))
    found = np.flatnonzero(events.forward_events == born)
    if len(found):
        text = strings[events.forward_text[found[0]]]
        yield Content.styled("forward_frames", QUIET)
        for line in text.splitlines()[:20]:
            yield Content(f"  {escape(line, limit=_TEXT_LIMIT)}")


def _why_no_stack(history: DeviceHistory) -> str:
    if history.context in (Context.NONE, Context.STATE):
        return 'no stack: recorded without stacks of events (context="all" records them)'
    return "no stack: older than the history, or allocated where there are no Python frames"


def _running_stack(history: DeviceHistory, stack: int) -> Content:
    """Return the user's frames in one paragraph, innermost first; C++ ones where there are none."""
    sites = history.sites
    callers = [escape(caller, limit=_TEXT_LIMIT) for caller in sites.callers(stack)]
    site = sites.of_stack(stack)
    label = escape(site.label, limit=_TEXT_LIMIT)
    visible = sites.visible_frames(stack).tolist()
    if site.file:
        names = callers if callers and callers[0] == label else [label, *callers]
    else:
        names = [label, *dict.fromkeys(_short_functions(history, visible))]
    num_others = len(visible) - len(callers) if site.file else 0
    others = f"  ({num_others} library frames folded)" if num_others > 0 else ""
    return Content.assemble((names[0], STRONG), "".join(f" < {name}" for name in names[1:]), (others, QUIET))


def _short_functions(history: DeviceHistory, frames: list[int]) -> Iterator[str]:
    """Yield what C++ frames say: the autograd nodes among them, else the functions."""
    functions = [history.snapshot.stacks.function_of(frame)[:_TEXT_LIMIT] for frame in frames]
    nodes = [match[0] for function in functions if (match := _AUTOGRAD_NODE.search(function))]
    for function in nodes or functions[:20]:
        if not _ALLOCATOR_FUNCTION.match(function):
            plain = _CPP_ARGUMENTS.sub("", function.replace("(anonymous namespace)::", ""))
            yield escape("::".join(plain.split("::")[-2:]), limit=_SHORT_LIMIT)


def _stack(history: DeviceHistory, stack: int, *, shows_all_frames: bool) -> Iterator[Content]:
    """Yield a stack, innermost frame first; frames that aren't the user's are folded or dim."""
    sites, table = history.sites, history.snapshot.stacks
    frames = (table.frames_of(stack) if shows_all_frames else sites.visible_frames(stack)).tolist()
    if not frames:
        frames = table.frames_of(stack).tolist()
        shows_all_frames = True
    yield Content.styled(f"stack of {format_count(len(frames))} frames, innermost first", QUIET)
    folded: list[int] = []
    for frame in frames[:_MAX_FRAMES]:
        is_user = sites.kind_of(frame) is FrameKind.USER
        if not is_user and not shows_all_frames:
            folded.append(frame)
            continue
        yield from _fold(history, folded)
        folded = []
        yield _frame(history, frame, is_user=is_user)
        yield from _frame_extras(history, frame)
    yield from _fold(history, folded)
    if len(frames) > _MAX_FRAMES:
        yield Content.styled(f"  … {len(frames) - _MAX_FRAMES} more frames", QUIET)


def _frame(history: DeviceHistory, frame: int, *, is_user: bool) -> Content:
    label = escape(history.sites.frame_label(frame), limit=_TEXT_LIMIT)
    return Content.assemble("▪ ", (label, STRONG)) if is_user else Content.styled(f"    {label}", QUIET)


def _frame_extras(history: DeviceHistory, frame: int) -> Iterator[Content]:
    """Yield what a compiled graph's frame says about its source."""
    for name, text in history.snapshot.stacks.frame_extras.get(frame, {}).items():
        for line in text.splitlines()[-6:]:
            yield Content.styled(f"      {escape(name, limit=40)}: {escape(line.strip(), limit=_TEXT_LIMIT)}", QUIET)


def _fold(history: DeviceHistory, frames: list[int]) -> Iterator[Content]:
    if not frames:
        return
    files = list(dict.fromkeys(history.sites.file_of(frame).split("/")[0] for frame in frames))
    names = ", ".join(escape(name, limit=40) for name in files[:3]) + (", …" if len(files) > 3 else "")
    noun = "frame" if len(frames) == 1 else "frames"
    yield Content.styled(f"    … {len(frames)} {noun} of {names} [f]", QUIET)
