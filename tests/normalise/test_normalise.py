"""Every form and oddity of a snapshot, normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.errors import HostileError, InputError, MalformedError
from snapscope.history import DeviceHistory, default_device
from snapscope.load import RawSnapshot
from snapscope.model import EMPTY_STACK, HOST_DEVICE, NO_STACK, NO_TIME, UNKNOWN_POOL, Action, Snapshot, Source
from snapscope.normalise import normalise
from tests import builders as b
from tests.builders import MIB

A = 0x7F0000000000


def made(value: Any, *, encoding: str = "pickle", stream_bytes: int = 1 << 30) -> Snapshot:
    source = Source(name="made", size_bytes=0, containers=(), encoding=encoding, protocol=4)
    return normalise(RawSnapshot(value=value, source=source, notices=(), stream_bytes=stream_bytes))


def codes(snapshot: Snapshot) -> dict[str, int]:
    return {notice.code: notice.count for notice in snapshot.notices}


def small(events: list[Any], **extra: Any) -> Snapshot:
    blocks = [b.block(512), b.block(2 * MIB - 512, state=b.INACTIVE)]
    return made(b.snapshot(traces=[[b.segment_alloc(A, 2 * MIB), *events]], segments=[b.segment(A, blocks)], **extra))


def test_an_event_without_frames_after_a_stack_of_long_names() -> None:
    long = b.frame("f" * 2000, "m.py", 1)
    events = [b.alloc(A, 512, frames=[long]), b.alloc(A + 512, 512, frames=[long]), b.alloc(A + 1024, 512)]
    assert "frames" not in events[2]
    snapshot = small(events)
    assert snapshot.devices[0].events.stack.tolist()[1:] == [1, 1, NO_STACK]


def test_stacks_are_interned_by_identity_and_by_value() -> None:
    shared = b.frame("f", "m.py", 1)
    events = [
        b.alloc(A, 512, frames=[shared]),
        b.alloc(A + 512, 512, frames=[shared]),
        b.alloc(A + 1024, 512, frames=[dict(shared)]),
        b.alloc(A + 1536, 512, frames=[]),
        b.alloc(A + 2048, 512),
        b.alloc(A + 2560, 512, frames=[b.frame("f", "m.py", 2)]),
    ]
    stack = small(events).devices[0].events.stack.tolist()[1:]
    assert stack[0] == stack[1] == stack[2] > EMPTY_STACK
    assert stack[3:5] == [EMPTY_STACK, NO_STACK]
    assert stack[5] not in stack[:5]


def test_json_gives_the_same_tables() -> None:
    events = [b.alloc(A, 512, frames=[b.frame("f", "m.py", 1)], time_us=5, pool=(0, 0))]
    value = b.snapshot(traces=[events], segments=[b.segment(A, [b.block(2 * MIB)])])
    one, other = made(value), made(value, encoding="json")
    for column in ("action", "addr", "size_bytes", "stack", "pool", "time_us"):
        np.testing.assert_array_equal(getattr(one.devices[0].events, column), getattr(other.devices[0].events, column))


def test_absent_keys_have_defaults() -> None:
    events = small([b.alloc(A, 512)]).devices[0].events
    assert events.time_us.tolist() == [NO_TIME, NO_TIME]
    assert events.pool.tolist() == [UNKNOWN_POOL, UNKNOWN_POOL]
    assert events.compile_context.tolist() == [-1, -1]


def test_keys_that_only_some_events_have() -> None:
    """An oom event has no address, one alloc has metadata: the others still read as they are."""
    events = small(
        [
            b.alloc(A, 512, user_metadata="step=1", time_us=3, pool=(1, 0), frames=[b.frame()]),
            b.oom(20 * MIB, 7 * MIB, time_us=9),
            b.free(A, 512, frames=[b.frame()]),
        ]
    )
    table = events.devices[0].events
    assert table.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC, Action.OOM, 1, 2]
    assert table.addr.tolist() == [A, A, 0, A, A]
    assert table.time_us.tolist() == [NO_TIME, 3, 9, NO_TIME, NO_TIME]
    assert [events.stacks.strings[i] if i >= 0 else None for i in table.user_metadata] == [
        None, "step=1", None, None, None,
    ]  # fmt: skip
    assert [events.pools[i] if i >= 0 else None for i in table.pool] == [None, (1, 0), None, None, None]
    assert table.oom_events.tolist() == [2]
    assert table.oom_device_free_bytes.tolist() == [7 * MIB]


def test_unknown_actions_and_keys_are_counted() -> None:
    snapshot = small(
        [b.event("workspace_snapshot", addr=0), b.alloc(A, 512, color="red"), b.alloc(A + 512, 1, color="x")]
    )
    assert codes(snapshot) == {"unknown_action": 1, "unknown_key": 2}
    assert snapshot.devices[0].events.action.tolist()[1] == Action.OTHER


def test_forward_frames_and_metadata_of_other_types() -> None:
    snapshot = small([b.alloc(A, 512, forward_frames=["one", "two"], user_metadata={"step": 3})])
    events = snapshot.devices[0].events
    assert events.forward_events.tolist() == [1]
    assert snapshot.stacks.strings[events.forward_text[0]] == "one\ntwo"
    assert snapshot.stacks.strings[events.user_metadata[1]] == "step=3"


def test_fx_fields_of_frames() -> None:
    fx = {**b.frame(), "fx_node_op": "call_function", "fx_node_name": "mul", "fx_original_trace": None}
    snapshot = small([b.alloc(A, 512, frames=[fx])])
    assert list(snapshot.stacks.frame_extras.values()) == [{"fx_node_op": "call_function", "fx_node_name": "mul"}]
    assert not snapshot.notices


def test_bare_list() -> None:
    snapshot = made([b.segment(A, [b.block(2 * MIB)], device=1)])
    assert snapshot.format.form == "list"
    assert [tables.device for tables in snapshot.devices] == [1]


def test_history_form_of_2_0() -> None:
    blocks = [
        {"size": 512, "state": "active_allocated", "history": [{"addr": A, "real_size": 300, "frames": [b.frame()]}]},
        {"size": 2 * MIB - 512, "state": "inactive", "history": [{"addr": A, "real_size": 9}]},
    ]
    segment = {"device": 0, "address": A, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 512, "stream": 0,
               "segment_type": "small", "blocks": blocks}  # fmt: skip
    snapshot = made({"segments": [segment], "device_traces": []})
    table = snapshot.devices[0].blocks
    assert snapshot.format.form == "history"
    assert table.addr.tolist() == [A, A + 512]
    assert table.requested_bytes.tolist() == [300, -1]
    assert table.stack[0] > EMPTY_STACK


def test_host_memory_is_a_device_of_its_own() -> None:
    host = [b.segment_alloc(A, 1 << 15), b.alloc(A, 1 << 15)]
    snapshot = made(
        b.snapshot(host_traces=host, host_segments=[b.segment(A, [b.block(1 << 15)], device=-1, kind="small")])
    )
    assert [tables.label for tables in snapshot.devices] == ["device 0", "host (pinned)"]
    history = DeviceHistory(snapshot, HOST_DEVICE)
    assert history.block_totals.allocated_bytes.tolist() == [0, 0, 1 << 15]
    assert default_device(snapshot) == 0


def test_device_with_most_events_is_the_default() -> None:
    traces = [[], [b.segment_alloc(A, 2 * MIB), b.alloc(A, 512)], [b.segment_alloc(A, 2 * MIB)]]
    assert default_device(made(b.snapshot(traces=traces))) == 1
    assert default_device(made(b.snapshot(traces=[[], []], segments=[b.segment(A, [b.block(512)], device=1)]))) == 1
    assert default_device(made([])) == 0


@pytest.mark.parametrize(
    ("segment", "code"),
    [
        (b.segment(A, [b.block(512)], total_size=1024), "block_sum"),
        (b.segment(A, [b.block(512), b.block(512, addr=A + 4096)]), "block_gap"),
        (b.segment(A, [b.block(512)], allocated_size=0), "segment_counter"),
        (b.segment(A, [b.block(512, state="active_maybe")]), "unknown_state"),
        (b.segment(A, [b.block(512, requested=513)]), "requested_above_size"),
        (b.segment(A, [b.block(512)], color="red"), "unknown_key"),
        (b.segment(A, [b.block(512)], pool=(1, 2, 3)), "bad_pool_id"),  # type: ignore[arg-type]
    ],
)
def test_contradictions_are_notices(segment: b.Raw, code: str) -> None:
    assert code in codes(made([segment]))


def test_overlapping_segments() -> None:
    snapshot = made([b.segment(A, [b.block(1024)]), b.segment(A + 512, [b.block(1024)])])
    assert [(n.code, n.bytes) for n in snapshot.notices] == [("segment_overlap", 512)]


def test_a_rotated_ring_is_put_right() -> None:
    events = [b.alloc(A + 512 * t, 512, time_us=t) for t in (3, 4, 5, 1, 2)]
    snapshot = made(b.snapshot(traces=[events]))
    assert snapshot.devices[0].events.time_us.tolist() == [1, 2, 3, 4, 5]
    assert codes(snapshot) == {"trace_rotated": 1}


def test_a_clock_that_goes_back_keeps_the_order() -> None:
    events = [b.alloc(A + 512 * t, 512, time_us=t) for t in (1, 3, 2, 5, 4, 6)]
    snapshot = made(b.snapshot(traces=[events]))
    assert snapshot.devices[0].events.time_us.tolist() == [1, 3, 2, 5, 4, 6]
    assert codes(snapshot) == {"time_goes_back": 2}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"segments": 5}, "'segments' is no list"),
        ({"segments": [5]}, "is no dict"),
        ({"segments": [], "device_traces": [5]}, "is no list"),
        ({"segments": [], "device_traces": [[5]]}, "an event is no dict"),
        (b.snapshot(traces=[[b.alloc("x", 5)]]), "'addr' is no 64-bit integer"),  # type: ignore[arg-type]
        (b.snapshot(traces=[[b.alloc(1 << 64, 5)]]), "'addr' is no 64-bit integer"),
        (b.snapshot(traces=[[b.alloc(A, 1 << 61)]]), "impossible size"),
        (b.snapshot(traces=[[b.alloc(A, -5)]]), "impossible size"),
        (b.snapshot(traces=[[b.alloc(A, 1 << 70)]]), "'size' is no 64-bit integer"),
        (b.snapshot(traces=[[b.alloc((1 << 64) - 5, 512)]]), "beyond 64 bits"),
        (b.snapshot(traces=[[b.alloc(A, 1 << 60) for _ in range(9)]]), "absurd total"),
        (b.snapshot(traces=[[b.alloc(A, 5, time_us="x")]]), "'time_us' is no 64-bit integer"),
        ([b.segment(-(1 << 65), [b.block(5)])], "'address' is no 64-bit integer"),
        ([b.segment(A, [b.block(5)], device="cpu")], "no device number"),  # type: ignore[arg-type]
        (b.snapshot(traces=[[]] * 5000), "absurd number of devices"),
    ],
)
def test_impossible_values_are_refused(value: Any, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        made(value)


@pytest.mark.parametrize("key", ["addr", "size", "time_us"])
def test_json_numbers_that_became_floats_are_refused(key: str) -> None:
    event = {**b.alloc(A, 512, time_us=3), key: 1e20}
    with pytest.raises(MalformedError, match=f"'{key}' is no 64-bit integer"):
        made(b.snapshot(traces=[[event]]), encoding="json")


def test_shared_parts_cannot_blow_up() -> None:
    events = [b.alloc(A, 512)] * 1000
    with pytest.raises(HostileError, match="claims 1,000,000 events"):
        made(b.snapshot(traces=[events] * 1000), stream_bytes=10_000)


def test_long_stacks_cost_their_length_once() -> None:
    """Two stacks of 100,000 frames, 20,000 times in turn: comparing them each time would take minutes."""
    frames = [b.frame("f", "m.py", line) for line in range(100_000)]
    stacks = (frames, frames[::-1])
    events = [b.alloc(A + 512 * i, 512, frames=stacks[i % 2]) for i in range(20_000)]
    assert len(np.unique(made(b.snapshot(traces=[events])).devices[0].events.stack)) == 2


def test_shared_text_is_cut() -> None:
    long = "x" * 1_000_000
    lines = [long] * 1000
    events = [
        b.alloc(A + 512 * n, 512, frames=[b.frame(long, long, n)], user_metadata={long: long, "k": 1})
        | {"forward_frames": lines}
        for n in range(200)
    ]
    snapshot = small(events)
    assert sum(map(len, snapshot.stacks.strings)) < 300_000
    stored = snapshot.devices[0].events
    assert len(stored.forward_events) == 200
    assert len(set(stored.forward_text.tolist())) == 1
    assert snapshot.stacks.num_frames == 200


def test_sums_of_notices_stay_within_64_bits() -> None:
    blocks = [b.block(512) | {"address": A + (1 << 59)}]
    segments = [b.segment(A, blocks) for _ in range(40)]
    notices = {notice.code: notice for notice in made(b.snapshot(segments=segments)).notices}
    assert notices["block_gap"].bytes == (1 << 63) - 1


def test_absurd_totals_are_refused() -> None:
    segments = [b.segment(A + n, []) | {"total_size": 1 << 60} for n in range(5)]
    with pytest.raises(MalformedError, match="absurd total"):
        made(b.snapshot(segments=segments))


def test_settings() -> None:
    conf = "max_non_split_rounding_mb:40,large_segment_size_mb:64,per_process_memory_fraction:0.5,x:[1:2,3:4]"
    raw = b.settings(conf, max_split_size=64 * MIB, expandable_segments=True)
    raw["roundup_power2_divisions"] = {**raw["roundup_power2_divisions"], "256": 4}
    found = made(b.snapshot(allocator_settings=raw)).settings
    assert found.known
    assert found.max_split_size_bytes == 64 * MIB
    assert found.max_non_split_rounding_bytes == 40 * MIB
    assert found.large_segment_size_bytes == 64 * MIB
    assert found.per_process_memory_fraction == 0.5
    assert found.expandable_segments
    assert found.roundup_power2_divisions[8] == 4
    assert made(b.snapshot(allocator_settings=b.settings())).settings.max_split_size_bytes is None
    assert not made(b.snapshot()).settings.known
    assert codes(made(b.snapshot(allocator_settings=[]))) == {"bad_settings": 1}


_SCALARS = st.none() | st.booleans() | st.integers(-(1 << 66), 1 << 66) | st.floats() | st.text(max_size=5)
_ANY = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@settings(max_examples=150)
@given(data=st.data())
def test_any_value_anywhere(data: st.DataObject) -> None:
    """Whatever stands in place of a value: a report, or an InputError."""
    value: Any = b.snapshot(
        traces=[
            [b.segment_alloc(A, 2 * MIB), b.alloc(A, 512, frames=[b.frame()], time_us=1, pool=(0, 0)), b.free(A, 512)]
        ],
        segments=[b.segment(A, [b.block(512), b.block(2 * MIB - 512, state=b.INACTIVE)])],
        external_annotations=[b.annotation("x", "START", 1)],
        allocator_settings=b.settings(),
    )
    holder = value
    for _ in range(data.draw(st.integers(1, 6))):
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()) or not isinstance(holder[key], (dict, list)):
            holder[key] = data.draw(_ANY)
            break
        holder = holder[key]
    try:
        snapshot = made(value)
    except InputError:
        return
    for tables in snapshot.devices:
        history = DeviceHistory(snapshot, tables.device)
        assert history.totals.requested_bytes.min() >= 0
        assert history.block_totals.allocated_bytes[-1] >= 0
