"""The failing request in the allocator's terms."""

from __future__ import annotations

from typing import Any, Final

import pytest

from snapscope.analyses.request import Request, read_request
from snapscope.model import SizeClass
from tests import builders as b
from tests.builders import INACTIVE, KIB, MIB, PENDING
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
GAP: Final = 1 << 36


def read(size: int, *segments: b.Raw, before: b.Events = (), **fields: Any) -> Request:
    """Read a request that fails over segments."""
    conf = fields.pop("conf", b.settings())
    value = b.snapshot([[before, b.oom(size, 6 * MIB, **fields)]], segments, allocator_settings=conf)
    history = history_of(value)
    event = history.num_events - 1
    return read_request(history, history.layout_at(event), event)


def held(number: int, *sizes: float, **fields: Any) -> b.Raw:
    """Make a segment of MiB in use, or free where negative."""
    blocks = [b.block(int(abs(size) * MIB), state=INACTIVE if size < 0 else b.ALLOCATED) for size in sizes]
    return b.segment(A + number * GAP, blocks, **fields)


@pytest.mark.parametrize(
    ("size", "segment", "size_class"),
    [(512, 2, SizeClass.SMALL), (MIB, 2, SizeClass.SMALL), (MIB + 512, 20, SizeClass.LARGE),
     (10 * MIB - 512, 20, SizeClass.LARGE), (10 * MIB, 10, SizeClass.LARGE), (10 * MIB + 512, 12, SizeClass.LARGE)],
)  # fmt: skip
def test_the_segment_it_would_have_made(size: int, segment: int, size_class: SizeClass) -> None:
    request = read(size)
    assert (request.segment_bytes, request.driver_bytes) == (segment * MIB, segment * MIB)
    assert request.size_class is size_class


def test_whose_free_memory_it_could_use() -> None:
    """Of its pool, stream and size class 3 + 7; the rest is told apart by why it can't serve."""
    request = read(
        15 * MIB,
        held(0, 10, -3, 2, -7, 2),
        held(1, 9, -11, stream=7),
        held(2, 1.5, -0.5, kind="small"),
        held(3, 6, -14, pool=(1, 0)),
        held(4, -13, pool=(1, 0)),
        pool=(0, 0),
    )
    assert request.own_segments.tolist() == [True, False, False, False, False]
    assert (request.holes_bytes, request.num_holes, request.largest_hole_bytes) == (10 * MIB, 2, 7 * MIB)
    assert (request.other_stream_holes_bytes, request.largest_other_stream_hole_bytes) == (11 * MIB, 11 * MIB)
    assert request.other_class_bytes == 512 * KIB
    assert (request.private_pool_bytes, request.private_segments_bytes) == (27 * MIB, 13 * MIB)
    assert (request.pool_name, request.stream, request.device_free_bytes) == ("default pool", 0, 6 * MIB)
    assert request.usable_hole_bytes == 0


def test_a_request_within_a_private_pool() -> None:
    request = read(15 * MIB, held(0, 10, -10), held(1, 6, -14, pool=(1, 0)), pool=(1, 0))
    assert (request.pool_name, request.holes_bytes) == ("private pool (1, 0)", 14 * MIB)
    assert request.private_pool_bytes == 0


@pytest.mark.parametrize(("stream", "pool"), [(9, "private pool (1, 0)"), (0, "default pool"), (8, "default pool")])
def test_the_pool_where_the_trace_does_not_tell(stream: int, pool: str) -> None:
    """Before PyTorch 2.12: what the stream allocated last; capture uses a stream of its own."""
    segments = [held(0, 10, -10, pool=(1, 0), stream=9), held(1, 10, -10)]
    before = [b.alloc(A, 10 * MIB, stream=9), b.alloc(A + GAP, 10 * MIB)]
    assert read(30 * MIB, *segments, before=before, stream=stream).pool_name == pool


def test_final_segments_of_old_files_are_ordinary() -> None:
    """PyTorch 2.0 tells no pool of a segment."""
    segment = {key: value for key, value in held(0, 10, -10).items() if key != "segment_pool_id"}
    assert read(30 * MIB, segment).holes_bytes == 10 * MIB


@pytest.mark.parametrize(
    ("size", "sizes", "driver"),
    [
        # Nothing of 30 MiB is there: two granules.
        (30, (), 40),
        # 15 MiB at the end are free: 15 more, one granule.
        (30, (25, -15), 20),
        # A hole in the middle doesn't grow.
        (30, (5, -15, 20), 40),
    ],
)
def test_an_expandable_segment_grows_behind_its_free_end(size: int, sizes: tuple[float, ...], driver: int) -> None:
    segments = [held(0, *sizes, is_expandable=True)] if sizes else []
    request = read(size * MIB, *segments, conf=b.settings(expandable_segments=True))
    assert request.is_expandable
    assert request.driver_bytes == driver * MIB
    # What the message names doesn't change.
    assert request.segment_bytes == 30 * MIB


def test_small_expandable_segments_grow_by_2_mib() -> None:
    request = read(MIB, held(0, 2, is_expandable=True, kind="small"), conf=b.settings(expandable_segments=True))
    assert request.driver_bytes == 2 * MIB


def test_expandable_or_not_where_both_kinds_are() -> None:
    """The setting in the file is that of the snapshot; the kind reserved last tells what held at the request."""
    segments = [held(0, 20, is_expandable=True), held(1, 20)]
    first = [b.segment_map(A, 20 * MIB), b.alloc(A, 20 * MIB)]
    second = [b.segment_alloc(A + GAP, 20 * MIB), b.alloc(A + GAP, 20 * MIB)]
    conf = b.settings(expandable_segments=False)
    assert not read(30 * MIB, *segments, before=[*first, *second], conf=conf).is_expandable
    assert read(30 * MIB, *segments, before=[*second, *first], conf=conf).is_expandable


def test_what_waits_could_join_holes() -> None:
    """8 free, 4 wait, 8 free: 20 in one piece; a live block ends it."""
    blocks = [
        b.block(8 * MIB, state=INACTIVE),
        b.block(4 * MIB, state=PENDING),
        b.block(8 * MIB, state=INACTIVE),
        b.block(2 * MIB),
        b.block(18 * MIB, state=PENDING),
    ]
    request = read(30 * MIB, b.segment(A, blocks))
    assert (request.pending_bytes, request.largest_with_pending_bytes) == (22 * MIB, 20 * MIB)
    assert read(30 * MIB, held(0, 8, -12)).largest_with_pending_bytes == 0


def test_what_max_split_size_keeps_from_it() -> None:
    conf = b.settings(max_split_size=100 * MIB)
    request = read(30 * MIB, held(0, 10, -110, 10, -50), conf=conf)
    assert (request.largest_hole_bytes, request.usable_hole_bytes) == (110 * MIB, 50 * MIB)
