"""Small snapshots, odd in all the ways that the compiled reader has to know or to leave alone."""

from __future__ import annotations

from typing import Any

from tests import builders as b

A = 0x7F0000000000
F, G = b.frame("f", "m.py", 1), b.frame("g", "m.py", 2)


def events() -> list[dict[str, Any]]:
    return [
        b.alloc(A, 700, frames=[F, G], time_us=1 << 50, compile_context="N/A", user_metadata=""),
        b.alloc(A + 1024, 700, frames=[G], time_us=1 << 50, compile_context="0/0", user_metadata="m"),
        b.free_requested(A, 700, frames=[F], time_us=1 << 50, compile_context="N/A", user_metadata=""),
        b.free_completed(A, 700, frames=[], time_us=1 << 50, compile_context="N/A", user_metadata=""),
    ]


def wrapped(trace: list[Any], **extra: Any) -> dict[str, Any]:
    blocks = [b.block(1024, requested=700), b.block(1024, state=b.INACTIVE)]
    return b.snapshot(traces=[trace], segments=[b.segment(A, blocks)], **extra)


def forward_frames_that_are(what: str) -> dict[str, Any]:
    """Lists of events where lines of text should be."""
    trace = events()
    others: dict[str, Any] = {"the trace": trace, "in a list": [trace], "another trace": events(), "frames": [F, G]}
    trace[1]["forward_frames"] = others[what]
    return b.snapshot(traces=[trace, others[what]] if what == "another trace" else [trace])


def changed(*changes: tuple[int, str, Any]) -> dict[str, Any]:
    trace = events()
    for row, key, value in changes:
        if value is None:
            trace[row].pop(key, None)
        else:
            trace[row][key] = value
    return wrapped(trace)


SAMPLES: dict[str, Any] = {
    "plain": wrapped(events()),
    "an event lacks the address": changed((1, "addr", None)),
    "an event lacks the frames": changed((2, "frames", None)),
    "an event lacks the metadata": changed((2, "user_metadata", None)),
    "an event lacks all text": changed((1, "compile_context", None), (1, "user_metadata", None)),
    "one event has a pool": changed((1, "pool_id", (0, 3))),
    "an empty pool": changed((1, "pool_id", ()), (2, "pool_id", (0, 3))),
    "unknown keys": changed((0, "new", 1), (1, "newer", [1, {"a": 2}]), (1, "new", "x")),
    "a key for another": changed((2, "new", 1), (2, "user_metadata", None)),
    "forward frames": changed((0, "forward_frames", ["a", "b"]), (2, "forward_frames", [])),
    "forward frames, the trace": forward_frames_that_are("the trace"),
    "forward frames, in a list": forward_frames_that_are("in a list"),
    "forward frames, another trace": forward_frames_that_are("another trace"),
    "forward frames, frames": forward_frames_that_are("frames"),
    "oom": wrapped([*events(), {"action": "oom", "device_free": 5, "size": 512, "stream": 0, "frames": [F]}]),
    "unknown action": changed((1, "action", "fork_action")),
    "metadata is a dict": changed((1, "user_metadata", {"a": 1})),
    "an absurd size": changed((1, "size", 1 << 61)),
    "a size that is none": changed((1, "size", "x")),
    "a negative address": changed((1, "addr", -5)),
    "a pointer of 64 bits": changed((1, "addr", (1 << 64) - 4096), (2, "stream", (1 << 64) - 1)),
    "frames with more keys": changed((1, "frames", [{**F, "fx_node_op": "call", "new": 1}, G])),
    "frames that are none": changed((1, "frames", [F, "x"])),
    "a rotated ring": changed((0, "time_us", 5), (1, "time_us", 6), (2, "time_us", 3), (3, "time_us", 4)),
    "two devices": b.snapshot(traces=[events(), [], events()]),
    "host traces": wrapped(events(), host_traces=events(), host_segments=[]),
    "host traces in a list": wrapped(events(), host_traces=[events()], host_segments=[]),
    "host traces in lists": wrapped(events(), host_traces=[events(), events()], host_segments=[]),
    "no events": wrapped([]),
    "a wrapper": {"rank": 0, "snapshot": wrapped(events())},
    "a list of it": [wrapped(events())],
    "segments only": wrapped([])["segments"],
    "an event as a segment": {**wrapped(events()), "segments": events()},
    "one list twice": (lambda trace: b.snapshot(traces=[trace, trace]))(events()),
    "one event twice": (lambda trace: wrapped([*trace, trace[0]]))(events()),
    "something else": {"action": "alloc"},
    "unknown top-level key": {**wrapped(events()), "new": {"x": [1, 2, {"y": None}]}},
}
