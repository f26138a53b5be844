"""Where everything lies at one moment."""

from __future__ import annotations

import pytest

from snapscope.graph import lifetime_ids
from snapscope.history import DeviceHistory
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.graph.histories import A, split_and_merge
from tests.replay.test_properties import history_of


def pins_of(history: DeviceHistory, event: int) -> list[tuple[str, int, int]]:
    layout = history.layout_at(event)
    return [
        (name, segment, hostage // MIB)
        for name, segment, hostage in zip(
            lifetime_ids(history, layout.blocks.row),
            layout.blocks.segment.tolist(),
            layout.hostages().tolist(),
            strict=True,
        )
    ]


def test_every_block_holds_the_free_bytes_of_its_segment() -> None:
    history = split_and_merge()
    # 20 − 6 − 4 at the end, 20 − 2 − 4 after event 5, 20 − 8 while a waits for nobody after event 2.
    assert pins_of(history, 11) == [("event:10", 0, 10), ("event:11", 0, 10)]
    assert pins_of(history, 5) == [("event:4", 0, 14), ("event:5", 0, 14)]
    assert pins_of(history, 2) == [("event:1", 0, 12)]
    assert pins_of(history, 3) == []
    assert pins_of(history, -1) == []
    segments = history.layout_at(11).segments
    assert (segments.size_bytes.tolist(), segments.free_bytes.tolist()) == ([20 * MIB], [10 * MIB])
    assert segments.num_blocks.tolist() == [2]


@pytest.mark.parametrize(
    ("sizes", "hostage"),
    [
        # 60 MiB in granules of 20: a block in the second holds that one only.
        ([(21, False), (2, True), (37, False)], [18]),
        # A block over the border of two holds both.
        ([(18, False), (4, True), (38, False)], [36]),
        # Two blocks in one granule hold the same bytes.
        ([(2, True), (3, False), (2, True), (53, False)], [16, 16]),
        # The first granule is full.
        ([(20, True), (20, False), (20, True)], [0, 0]),
    ],
)
def test_an_expandable_segment_is_held_by_the_granule(sizes: list[tuple[int, bool]], hostage: list[int]) -> None:
    blocks = [b.block(size * MIB) if used else b.block(size * MIB, state=INACTIVE) for size, used in sizes]
    history = history_of(b.snapshot(segments=[b.segment(A, blocks, is_expandable=True)]))
    assert [held for _, _, held in pins_of(history, -1)] == hostage
