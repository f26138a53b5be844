"""The three disjoint parts of cached memory."""

from __future__ import annotations

from typing import Final

from snapscope.analyses.cached import CachedBytes, split_cached
from tests import builders as b
from tests.builders import INACTIVE, MIB, PENDING
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000


def test_every_free_byte_is_in_one_part() -> None:
    """20 free in one segment, 12 beside a block that waits, 30 in a graph's pool, 40 + 15 in an expandable one."""
    segments = [
        b.segment(A, [b.block(20 * MIB, state=INACTIVE)]),
        b.segment(A + (1 << 30), [b.block(8 * MIB, state=PENDING), b.block(12 * MIB, state=INACTIVE)]),
        # All inactive bytes of a private pool are its own part, wholly free segments and holes alike.
        b.segment(A + (2 << 30), [b.block(20 * MIB, state=INACTIVE)], pool=(1, 0)),
        b.segment(A + (3 << 30), [b.block(10 * MIB), b.block(10 * MIB, state=INACTIVE)], pool=(1, 0)),
        # Granules of 20: the block lies in the first.
        b.segment(A + (4 << 30), [b.block(5 * MIB), b.block(55 * MIB, state=INACTIVE)], is_expandable=True),
    ]
    cached = split_cached(history_of(b.snapshot(segments=segments)).layout_at(-1))
    assert cached == CachedBytes(
        free_segments_bytes=(20 + 40) * MIB, holes_bytes=(12 + 15) * MIB, private_pool_bytes=30 * MIB
    )
    assert cached.total_bytes == 117 * MIB


def test_nothing_is_cached_where_nothing_is_reserved() -> None:
    cached = split_cached(history_of(b.snapshot()).layout_at(-1))
    assert cached == CachedBytes(free_segments_bytes=0, holes_bytes=0, private_pool_bytes=0)
