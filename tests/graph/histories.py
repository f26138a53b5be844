"""Small histories for the tests of the graph."""

from __future__ import annotations

from typing import Final

from snapscope.history import DeviceHistory
from tests import builders as b
from tests.builders import INACTIVE, MIB
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
LOAD: Final = [b.frame("load", "/p/init.py", 5)]
FORWARD: Final = [b.frame("forward", "/p/model.py", 9)]
LOSS: Final = [b.frame("loss", "/p/train.py", 3)]


def split_and_merge() -> DeviceHistory:
    """One segment of 20 MiB, whose first 8 MiB are handed out whole, in two, and merged again.

    event  1  a 8 MiB at 0      (back at 3)
           4  b 2 MiB at 0      (back at 7)
           5  c 4 MiB at 2      (back at 9)
          10  d 6 MiB at 0      b and c's memory
          11  e 4 MiB at 6      2 MiB of a's, 2 MiB that nobody had
    """
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB),
        b.alloc(A, 8 * MIB, frames=LOAD),
        b.free(A, 8 * MIB, frames=LOAD),
        b.alloc(A, 2 * MIB, frames=FORWARD),
        b.alloc(A + 2 * MIB, 4 * MIB, frames=FORWARD),
        b.free(A, 2 * MIB, frames=FORWARD),
        b.free(A + 2 * MIB, 4 * MIB, frames=FORWARD),
        b.alloc(A, 6 * MIB, frames=LOSS),
        b.alloc(A + 6 * MIB, 4 * MIB, frames=FORWARD),
    ]
    blocks = [
        b.block(6 * MIB, frames=LOSS),
        b.block(4 * MIB, frames=FORWARD),
        b.block(10 * MIB, state=INACTIVE),
    ]
    return history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)], allocator_settings=b.settings()))


def late_start() -> DeviceHistory:
    """Three blocks older than the history: one freed and reused, one pending at first, one that stays."""
    events: list[b.Events] = [
        b.free(A, 4 * MIB, frames=LOAD),
        b.free_completed(A + 4 * MIB, 4 * MIB, frames=LOAD),
        b.alloc(A, 8 * MIB, frames=FORWARD),
    ]
    blocks = [b.block(8 * MIB, frames=FORWARD), b.block(2 * MIB), b.block(10 * MIB, state=INACTIVE)]
    return history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)], allocator_settings=b.settings()))
