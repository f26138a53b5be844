"""The layout of every moment against the allocator's own picture of it: one process, dumped several times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from snapscope.history import DeviceHistory
from snapscope.load import read_snapshot
from snapscope.model import BlockState
from snapscope.opening import load_snapshot
from tests.conftest import fixture_path, recordings

# All dumps of each process, in their order. The last one holds the whole history.
SERIES: dict[str, list[str]] = {}
for _name in recordings("runs/series"):
    SERIES.setdefault(_name.rpartition(".")[0], []).append(_name)
EARLIER = [(name, dumps[-1]) for dumps in SERIES.values() for name in dumps[:-1]]

Piece = tuple[int, int, BlockState]
"""Address, size and state of a block or a hole."""


def history_of(name: str) -> DeviceHistory:
    return DeviceHistory(load_snapshot(fixture_path(name)))


def trace_of(name: str) -> list[Any]:
    value: Any = read_snapshot(fixture_path(name)).value
    trace: list[Any] = value["device_traces"][0]
    return trace


def pieces_in_file(history: DeviceHistory) -> list[Piece]:
    """What the dump's own segments hold, by address."""
    blocks = history.tables.blocks
    columns = zip(blocks.addr.tolist(), blocks.size_bytes.tolist(), blocks.state.tolist(), strict=True)
    return sorted((addr, size, BlockState(state)) for addr, size, state in columns)


def pieces_at(history: DeviceHistory, event: int) -> list[Piece]:
    """What the history says that there was after an event, by address."""
    layout = history.layout_at(event)
    starts = layout.segments.addr.tolist()

    def placed(segment: Any, offset: Any, size: Any, states: Iterable[BlockState]) -> list[Piece]:
        rows = zip(segment.tolist(), offset.tolist(), size.tolist(), states, strict=True)
        return [(starts[at] + distance, length, state) for at, distance, length, state in rows]

    blocks, holes = layout.blocks, layout.pieces
    states = [BlockState.PENDING_FREE if waits else BlockState.ALLOCATED for waits in blocks.is_pending.tolist()]
    return sorted(
        [
            *placed(blocks.segment, blocks.offset_bytes, blocks.size_bytes, states),
            *placed(holes.segment, holes.offset_bytes, holes.size_bytes, [BlockState.INACTIVE] * len(holes)),
        ]
    )


def segments_in_file(history: DeviceHistory) -> list[tuple[int, ...]]:
    found = history.tables.segments
    return sorted(zip(found.addr.tolist(), found.size_bytes.tolist(), found.stream.tolist(), strict=True))


def test_there_are_three_series() -> None:
    assert {name: len(dumps) for name, dumps in SERIES.items()} == {
        "runs/series/series_expandable_streams": 3,
        "runs/series/series_pools": 3,
        "runs/series/series_streams": 3,
    }


@pytest.mark.parametrize(("earlier", "last"), EARLIER)
def test_earlier_history_is_the_head_of_the_last(earlier: str, last: str) -> None:
    head, whole = trace_of(earlier), trace_of(last)
    assert 0 < len(head) < len(whole)
    assert head == whole[: len(head)]


@pytest.mark.parametrize(("earlier", "last"), EARLIER)
def test_layout_on_the_way_is_what_was_dumped_there(earlier: str, last: str) -> None:
    dumped, whole = history_of(earlier), history_of(last)
    event = dumped.num_events - 1
    assert event < whole.num_events - 1
    assert pieces_at(whole, event) == pieces_in_file(dumped)
    segments = whole.layout_at(event).segments
    found = zip(segments.addr.tolist(), segments.size_bytes.tolist(), segments.stream.tolist(), strict=True)
    assert sorted(found) == segments_in_file(dumped)


@pytest.mark.parametrize("last", [dumps[-1] for dumps in SERIES.values()])
def test_layout_at_the_end_is_what_was_dumped_there(last: str) -> None:
    history = history_of(last)
    assert pieces_at(history, history.num_events - 1) == pieces_in_file(history)


def test_series_hold_what_is_hard() -> None:
    """Pending blocks, holes, private pools and released segments: the comparison above isn't of easy cases."""
    dumps = {name: history_of(name) for name, _ in EARLIER}
    for series in SERIES:
        states = {state for name in dumps if name.startswith(series) for *_, state in pieces_in_file(dumps[name])}
        expected = {BlockState.ALLOCATED, BlockState.INACTIVE}
        assert states == (expected if series.endswith("pools") else {*expected, BlockState.PENDING_FREE}), series
    for earlier, last in EARLIER:
        ahead = history_of(last)
        assert pieces_at(ahead, dumps[earlier].num_events - 1) != pieces_at(ahead, ahead.num_events - 1)
