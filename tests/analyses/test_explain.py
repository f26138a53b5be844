"""One allocation: which one is meant, and what is said of it."""

from __future__ import annotations

import contextlib
import re

import pytest

from snapscope.analyses.explain import explain, find_lifetime, frames_of
from snapscope.analyses.moments import find_moment
from snapscope.errors import UsageError
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.builders import MIB
from tests.conftest import fixture_path, recordings
from tests.graph.histories import A, late_start, split_and_merge
from tests.replay.test_properties import history_of


def edges_of(history: DeviceHistory, target: str, at: str | None = None) -> list[tuple[str, str, str, int]]:
    found = explain(history, target, at)
    return [(edge.kind, edge.source, edge.target, edge.bytes // MIB) for edge in found.relations]


def test_an_allocation_with_all_its_neighbours() -> None:
    history = split_and_merge()
    assert edges_of(history, "event:10") == [
        ("reuses", "event:5", "event:10", 4),
        ("reuses", "event:4", "event:10", 2),
        ("made_room", "event:5", "event:10", 4),
        ("made_room", "event:4", "event:10", 2),
        ("pins", "event:10", f"segment:{A:#x}", 10),
    ]
    # 20 − 6 − 4 at the peak, where both are in use; 20 − 6 at its birth.
    assert edges_of(history, "event:10", "event:10")[-1] == ("pins", "event:10", f"segment:{A:#x}", 14)
    assert edges_of(history, "event:1") == [
        ("reuses", "event:1", "event:5", 4),
        ("reuses", "event:1", "event:4", 2),
        ("reuses", "event:1", "event:11", 2),
        ("made_room", "event:1", "event:4", 8),
        ("pins", "event:1", f"segment:{A:#x}", 12),
    ]
    assert ("follows", "event:5", "event:11", 4) in edges_of(history, "event:11")


@pytest.mark.parametrize(
    ("target", "at", "node"),
    [
        (f"{A:#x}", "event:1", "event:1"),
        (f"{A:#X}", "event:1", "event:1"),
        (str(A), "event:4", "event:4"),
        (f"{A + 3 * MIB:#x}", "event:4", None),
        (f"{A + 3 * MIB:#x}", "event:5", "event:5"),
        (f"{A + 6 * MIB - 1:#x}", "end", "event:10"),
        (f"block:{A:#x}", "start", "event:10"),
        ("event:1", "peak", "event:1"),
        ("event:2", "end", "event:1"),
        ("event:3", "end", "event:1"),
        (" event:9 ", "end", "event:5"),
    ],
)
def test_who_is_meant(target: str, at: str, node: str | None) -> None:
    history = split_and_merge()
    if node is None:
        with pytest.raises(UsageError, match="nothing lives at"):
            explain(history, target, at)
        return
    assert explain(history, target, at).node == node
    assert find_lifetime(history, target, find_moment(history, at)) == explain(history, target, at).row


@pytest.mark.parametrize(
    ("target", "at", "message"),
    [
        (
            f"{A:#x}",
            "event:3",
            "nothing lives at 0x7f0000000000 at event:3: event:1 (8.00 MiB, init.py:5 load) was there until event 3, "
            "event:4 (2.00 MiB, model.py:9 forward) is there from event 4 on",
        ),
        (f"{A:#x}", "start", "before the first event: event:1 (8.00 MiB, init.py:5 load) is there from event 1 on"),
        (
            f"{A + 19 * MIB:#x}",
            None,
            "nothing lives at 0x7f0001300000 at the peak (event 11): no allocation ever did in this file "
            "(snapscope lifetimes lists them)",
        ),
        ("event:0", None, "event 0 is no alloc or free but segment_alloc: it belongs to no allocation"),
        ("event:12", None, "no event 12: device 0 has events 0 to 11"),
        ("event:-1", None, "'event:-1' is no allocation: give an address (0x7f… or decimal) or event:N"),
        ("", None, "'' is no allocation"),
        ("0x", None, "is no allocation"),
        ("0x1ffffffffffffffff", None, "is no allocation"),
        ("99999999999999999999", None, "is no allocation"),
        ("٣", None, "is no allocation"),
        ("forward", None, "'forward' is no allocation"),
    ],
)
def test_who_is_not_there_is_said(target: str, at: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        explain(split_and_merge(), target, at)


def test_without_a_target_the_largest_that_is_live() -> None:
    history = split_and_merge()
    assert explain(history).node == "event:10"
    assert explain(history, at="event:5").node == "event:5"
    with pytest.raises(UsageError, match="nothing is live before the first event: give an address"):
        explain(history, at="start")
    with pytest.raises(UsageError, match="nothing is live"):
        explain(history_of(b.snapshot()))
    with pytest.raises(UsageError, match="no event 0: device 0 has no history: give an address"):
        explain(history_of(b.snapshot(segments=[b.segment(A, [b.block(MIB)])])), "event:0")


def test_an_event_is_looked_at_where_it_lives() -> None:
    history = split_and_merge()
    assert explain(history, "event:1").at.label == "event:1"
    assert explain(history, "event:10").at.label == "peak"
    assert explain(history, "event:1", "end").at.label == "end"
    assert not explain(history, "event:1", "end").is_live


def test_what_is_older_than_the_history() -> None:
    history = late_start()
    pending = explain(history, "event:2")
    assert (pending.node, pending.is_live, pending.is_pending, pending.at.event) == ("event:2", False, True, -1)
    stays = explain(history, f"{A + 8 * MIB:#x}")
    assert stays.node == "block:0x7f0000800000"
    assert edges_of(history, "block:0x7f0000800000") == [("pins", stays.node, f"segment:{A:#x}", 10)]


def test_an_event_that_contradicts_the_rest_names_nobody_or_somebody() -> None:
    # The free of an address that lives on with another size: whatever is said, it is no traceback.
    events: list[b.Events] = [b.alloc(A, MIB), b.alloc(A, 3 * MIB), b.free(A, MIB), b.free_completed(A, MIB)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, [b.block(2 * MIB)])]))
    for event in range(len(history.tables.events)):
        with contextlib.suppress(UsageError):
            assert explain(history, f"event:{event}").row >= 0


def test_frames_are_innermost_first_and_say_whose_they_are() -> None:
    history = DeviceHistory(load_snapshot(fixture_path("torch-2.14/oom_forward")))
    row = explain(history, "event:151").row
    frames = frames_of(history, int(history.lifetimes.alloc_stack[row]))
    assert frames[0].file.startswith("torch/")
    user = [frame.label for frame in frames if frame.kind == "user"]
    assert user[0] == "gpt.py:40 forward"
    assert {frame.kind for frame in frames} == {"torch", "user"}
    assert frames_of(history, -1) == []


@pytest.mark.parametrize("name", recordings())
def test_every_edge_of_a_recording_is_said_from_both_ends(name: str) -> None:
    history = DeviceHistory(load_snapshot(fixture_path(name)))
    if not len(history.lifetimes.live_at(history.num_events - 1)):
        return
    found = explain(history, at="end")
    assert found.is_live
    for edge in found.relations[:20]:
        assert found.node in (edge.source, edge.target)
        if edge.row is not None:
            other = edge.target if edge.source == found.node else edge.source
            back = explain(history, other, "end").relations
            assert (edge.kind, edge.source, edge.target, edge.bytes) in {
                (some.kind, some.source, some.target, some.bytes) for some in back
            }
