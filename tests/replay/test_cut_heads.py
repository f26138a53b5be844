"""A history whose head is cut off tells the same as the whole one, from there on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from snapscope.history import DeviceHistory
from snapscope.load import RawSnapshot, read_snapshot
from snapscope.normalise import normalise
from tests.conftest import fixture_path, recordings


def _cut(raw: RawSnapshot, device: int, num_lost: int) -> RawSnapshot:
    value: dict[str, Any] = dict(raw.value)
    traces = list(value["device_traces"])
    traces[device] = traces[device][num_lost:]
    return RawSnapshot(
        value={**value, "device_traces": traces},
        source=raw.source,
        notices=raw.notices,
        stream_bytes=raw.stream_bytes,
    )


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_cut_head(name: str) -> None:
    raw = read_snapshot(fixture_path(name))
    whole = DeviceHistory(normalise(raw))
    if not whole.blocks.is_exact.all() or "replay_conflict" in {n.code for n in whole.notices}:
        pytest.skip("its own head is lost")
    for share in (0.1, 0.5, 0.77, 0.99):
        num_lost = int(whole.num_events * share)
        part = DeviceHistory(normalise(_cut(raw, whole.device, num_lost)), whole.device)
        assert part.num_events == whole.num_events - num_lost
        for field in ("requested_bytes", "pending_requested_bytes", "reserved_bytes"):
            expected = getattr(whole.totals, field)[num_lost:]
            np.testing.assert_array_equal(getattr(part.totals, field), expected, err_msg=f"{field} at {share}")
        unsure = int(part.blocks.block_bytes[~part.blocks.is_exact].size)
        error = part.block_totals.allocated_bytes - whole.block_totals.allocated_bytes[num_lost:]
        # A block that isn't marked as estimated must be exact; an estimate is off by 1 MiB at most.
        assert np.abs(error).max() <= unsure << 20, (share, unsure)
        if not unsure:
            assert not error.any()
