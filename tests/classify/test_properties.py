"""Whatever was lost from a history: every allocation has one category, and sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.ledger import By, group_live, sum_categories
from snapscope.analyses.moments import moment_at
from snapscope.analyses.step_table import tabulate_steps
from snapscope.analyses.timeline import timeline
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.load import read_snapshot
from tests.bench.make_snapshot import build
from tests.builders import Raw
from tests.classify.program import Program, history_of, train
from tests.conftest import fixture_path

RECORDINGS = [
    "torch-2.14/annotated", "torch-2.14/checkpointed", "torch-2.14/lora", "torch-2.14/fsdp_rank0", "torch-2.14/leak",
    "torch-2.14/no_context", "torch-2.14/context_state", "torch-2.14/ring_overflow", "torch-2.0/amp_bf16",
    "torch-2.14/cuda_graph", "torch-2.14/multi_stream", "torch-2.14/oom_optimizer_step", "torch-2.6/oom_backward",
]  # fmt: skip
_VALUES: dict[str, Any] = {}


def recording(name: str) -> Any:
    if name not in _VALUES:
        _VALUES[name] = read_snapshot(fixture_path(name)).value
    return _VALUES[name]


def check_columns(history: DeviceHistory) -> None:
    kinds = history.classification
    for column, size in (
        (kinds.category, len(Category)),
        (kinds.fine, len(FINE_LABELS)),
        (kinds.evidence, len(Evidence)),
    ):
        assert len(column) == len(history.lifetimes)
        assert ((column >= 0) & (column < size)).all()
    known = np.array([WORDS[each].confidence for each in Evidence])
    assert (kinds.confidence <= known[kinds.evidence]).all()


def check_sums(history: DeviceHistory, event: int) -> None:
    requested = int(history.totals.requested_bytes[event + 1])
    live = history.lifetimes.live_at(event)
    rows = sum_categories(history, live)
    assert [row.category for row in rows] == list(Category)
    assert sum(row.bytes for row in rows) == requested
    assert all(sum(row.confidence_bytes) == row.bytes for row in rows)
    assert sum(row.num_allocations for row in rows) == len(live)
    # With rounding they sum to the allocated bytes.
    blocks = history.blocks.block_bytes
    by_category = [int(blocks[live[history.classification.category[live] == each]].sum()) for each in Category]
    assert sum(by_category) == history.block_totals.allocated_bytes[event + 1]
    for by in (By.CATEGORY, By.FINE, By.MODULE, By.STEP):
        grouped = group_live(history, moment_at(history, event, "x"), by=by)
        assert sum(row.bytes for row in grouped) == requested, by
        assert len({row.key for row in grouped}) == len(grouped), by


def check_steps(history: DeviceHistory) -> None:
    table = tabulate_steps(history)
    cursor = 0
    for row in table.rows:
        assert row.start_event == cursor <= row.end_event
        cursor = row.end_event + 1
        assert sum(row.end_categories) == row.end_bytes == history.totals.requested_bytes[row.end_event + 1]
        assert row.peak_bytes == history.totals.requested_bytes[row.peak_event + 1]
        assert row.start_event <= row.peak_event <= row.end_event
        inner = row.start_event
        for phase in row.phases:
            assert phase.start_event == inner <= phase.end_event
            inner = phase.end_event + 1
        assert inner == cursor
    assert cursor == (history.num_events if table.rows else 0)


def check_curve(history: DeviceHistory) -> None:
    curve = timeline(history)
    np.testing.assert_array_equal(curve.category_bytes.sum(axis=0), curve.requested_bytes)
    assert (curve.category_bytes >= 0).all()


def check(history: DeviceHistory, event: int) -> None:
    check_columns(history)
    check_sums(history, event)
    check_steps(history)
    check_curve(history)


def with_trace(value: Any, device: int, trace: list[Raw], **extra: Any) -> Any:
    traces = list(value["device_traces"])
    traces[device] = trace
    return {**value, "device_traces": traces, **extra}


def mutilate(data: st.DataObject, trace: list[Raw]) -> list[Raw]:
    """Cut, lose, or blind a history, as rings, skipped actions and odd contexts do."""
    kind = data.draw(st.sampled_from(["head", "tail", "hole", "some", "stacks", "free stacks", "action"]))
    size = len(trace)
    low = data.draw(st.integers(0, size - 1))
    if kind == "head":
        return trace[low:]
    if kind == "tail":
        return trace[: low + 1]
    if kind == "hole":
        return trace[:low] + trace[low + data.draw(st.integers(1, size)) :]
    if kind == "some":
        keep = data.draw(st.integers(2, 9))
        return [event for place, event in enumerate(trace) if (place * 2654435761) % 10 < keep]
    if kind == "action":
        lost = data.draw(st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc"]))
        return [event for event in trace if event["action"] != lost]
    blind = ("alloc", "free_requested", "free_completed") if kind == "stacks" else ("free_requested", "free_completed")
    return [
        {key: value for key, value in event.items() if key != "frames"} if event["action"] in blind else event
        for event in trace
    ]


@settings(max_examples=40)
@given(data=st.data())
def test_recordings_that_lost_something(data: st.DataObject) -> None:
    value = recording(data.draw(st.sampled_from(RECORDINGS)))
    device = max(range(len(value["device_traces"])), key=lambda number: len(value["device_traces"][number]))
    trace = mutilate(data, value["device_traces"][device])
    extra: dict[str, Any] = {"external_annotations": []} if data.draw(st.booleans()) else {}
    history = history_of(with_trace(value, device, trace, **extra))
    check(history, data.draw(st.integers(-1, history.num_events - 1)))


@settings(max_examples=25)
@given(data=st.data())
def test_simulated_histories(data: st.DataObject) -> None:
    value = build(data.draw(st.integers(1, 1500)), seed=data.draw(st.integers(0, 999)), layers=1)
    trace = value["device_traces"][0]
    history = history_of(with_trace(value, 0, mutilate(data, trace)))
    check(history, data.draw(st.integers(-1, history.num_events - 1)))


@settings(max_examples=40)
@given(data=st.data())
def test_small_programs_that_lost_something(data: st.DataObject) -> None:
    context = data.draw(st.sampled_from(["all", "alloc", "none"]))
    value = train(Program(context=context), data.draw(st.integers(1, 4))).snapshot()
    history = history_of(with_trace(value, 0, mutilate(data, value["device_traces"][0])))
    check(history, data.draw(st.integers(-1, history.num_events - 1)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_classifying_twice_gives_the_same(name: str) -> None:
    first, second = (history_of(recording(name)).classification for _ in range(2))
    for column in ("category", "fine", "evidence", "confidence"):
        np.testing.assert_array_equal(getattr(first, column), getattr(second, column))


@pytest.mark.parametrize("name", RECORDINGS)
def test_moving_all_addresses_changes_nothing(name: str) -> None:
    value = recording(name)
    offset = 1 << 41
    moved = {
        **value,
        "segments": [
            {
                **segment,
                "address": segment["address"] + offset,
                "blocks": [
                    {**block, "address": block["address"] + offset} if "address" in block else block
                    for block in segment["blocks"]
                ],
            }
            for segment in value["segments"]
        ],
        "device_traces": [
            [{**event, "addr": event["addr"] + offset} if event.get("addr") else event for event in trace]
            for trace in value["device_traces"]
        ],
    }
    plain, other = history_of(value), history_of(moved)
    for column in ("category", "evidence"):
        np.testing.assert_array_equal(getattr(plain.classification, column), getattr(other.classification, column))
