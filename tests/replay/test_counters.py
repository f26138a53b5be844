"""Replay against PyTorch's own counters, on every recording with a truth file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapscope.history import DeviceHistory
from snapscope.model import BlockState
from snapscope.opening import load_snapshot
from snapscope.replay import size_blocks
from tests.conftest import fixture_path, read_truth, recordings, truth_path

# In these the head of the history is missing, so only the end can be compared.
_LATE = ("late_start", "ring_overflow")
# `reset_peak_memory_stats` was called on the way, so the peaks are not those of the history.
_RESET = ("runs/leak/",)
_NAMES = [*recordings("allocator"), *recordings("runs")]


def _check(history: DeviceHistory, truth: dict[str, Any], name: str) -> None:
    blocks, totals = history.block_totals, history.totals
    stats = truth.get("stats", {})
    if "allocated_bytes" in truth:
        assert blocks.allocated_bytes[-1] == truth["allocated_bytes"]
    assert totals.reserved_bytes[-1] == truth["reserved_bytes"]
    is_whole = not any(part in name for part in _LATE) and not any(part in name for part in _RESET)
    if is_whole and "peak_bytes" in truth:
        assert blocks.allocated_bytes.max() == truth["peak_bytes"]
    if is_whole and "requested_bytes.all.peak" in stats:
        # The counter goes down at free_completed, so it counts pending blocks.
        active = totals.requested_bytes + totals.pending_requested_bytes
        assert active.max() == stats["requested_bytes.all.peak"]
    if is_whole and "peak_reserved_bytes" in truth:
        assert totals.reserved_bytes.max() == truth["peak_reserved_bytes"]


def _check_final_blocks(history: DeviceHistory) -> None:
    """The walk alone, before the final picture corrects it, ends in exactly the final blocks."""
    sizes = size_blocks(history.tables, history.pairing, history.ranges, history.snapshot.settings)
    assert not [notice for notice in sizes.notices if notice.code in ("block_size_differs", "replay_conflict")]
    blocks, lifetimes = history.tables.blocks, history.lifetimes
    active = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    alive = np.flatnonzero(lifetimes.free_completed_event < 0)
    expected = sorted(zip(blocks.addr[active].tolist(), blocks.size_bytes[active].tolist(), strict=True))
    found = sorted(zip(lifetimes.addr[alive].tolist(), sizes.block_bytes[alive].tolist(), strict=True))
    assert found == expected


@pytest.mark.parametrize("name", [name for name in _NAMES if truth_path(name).exists()])
def test_counters(name: str) -> None:
    truth = read_truth(name)
    history = DeviceHistory(load_snapshot(fixture_path(name)), truth.get("device", 0))
    _check(history, truth, name)
    _check_final_blocks(history)


@pytest.mark.parametrize("name", [name for name in _NAMES if not truth_path(name).exists()])
def test_final_blocks(name: str) -> None:
    _check_final_blocks(DeviceHistory(load_snapshot(fixture_path(name))))


def test_counters_shared(shared: Path) -> None:
    checked = 0
    for path in sorted((shared / "snapshots").rglob("*.truth.json")):
        snapshot = path.with_name(path.name.replace(".truth.json", ".pickle"))
        truth = json.loads(path.read_text())
        history = DeviceHistory(load_snapshot(snapshot), truth.get("device", 0))
        _check(history, truth, snapshot.as_posix())
        _check_final_blocks(history)
        checked += 1
    assert checked >= 70


def test_public_recordings_replay(shared: Path) -> None:
    """Files by other people's programs: the replay never contradicts itself."""
    for path in sorted((shared / "snapshots" / "public").glob("*.pickle")):
        snapshot = load_snapshot(path)
        for tables in snapshot.devices:
            history = DeviceHistory(snapshot, tables.device)
            totals, blocks = history.totals, history.block_totals
            assert totals.requested_bytes.min() >= 0
            assert (totals.reserved_bytes >= blocks.allocated_bytes + blocks.pending_bytes).all(), path.name
            assert totals.reserved_bytes[-1] == tables.reserved_bytes
            codes = {notice.code for notice in history.notices}
            assert not codes & {"replay_conflict", "block_size_differs", "segment_conflict"}, (path.name, codes)


def test_the_truth_files_can_fail() -> None:
    """A wrong counter is seen: the comparison above isn't vacuous."""
    name = "allocator/torch-2.14/multi_stream"
    truth = read_truth(name)
    history = DeviceHistory(load_snapshot(fixture_path(name)), truth.get("device", 0))
    with pytest.raises(AssertionError):
        _check(history, {**truth, "peak_bytes": truth["peak_bytes"] + 512}, name)
    with gzip.open(fixture_path(name)) as file:
        assert file.read(2) == b"\x80\x04"
