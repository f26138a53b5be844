"""Rows add up to the head line, and the ladder's rungs to one another: at every moment of every recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from snapscope.analyses.ledger import Balance, By, group_live
from snapscope.analyses.ledger import balance as balance_at
from snapscope.analyses.moments import Moment, find_moment, find_peaks
from snapscope.analyses.summary import summarise
from snapscope.analyses.timeline import timeline
from snapscope.errors import InputError
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests.conftest import FIXTURES, recordings

UNREADABLE: Final = {"empty.pickle", "hostile.pickle", "truncated.pickle"}
FILES: Final = [f"{name}.pickle.gz" for folder in ("allocator", "runs") for name in recordings(folder)] + sorted(
    path.relative_to(FIXTURES).as_posix()
    for path in (FIXTURES / "cases").rglob("*")
    if path.is_file() and path.name not in UNREADABLE | {"expected.json"}
)


def moments_of(history: DeviceHistory) -> Iterator[Moment]:
    names = ["peak", "peak-reserved", "end", "start"]
    if len(history.tables.events.oom_events):
        names.append("oom")
    for name in names:
        yield find_moment(history, name)


def check_balance(rungs: Balance, where: str) -> None:
    assert rungs.requested_bytes + rungs.rounding_bytes == rungs.allocated_bytes, where
    assert rungs.allocated_bytes + rungs.pending_bytes + rungs.cached_bytes == rungs.reserved_bytes, where
    parts = rungs.cached_free_segments_bytes + rungs.cached_holes_bytes + rungs.cached_private_pool_bytes
    assert parts == rungs.cached_bytes, where
    for name in Balance.__slots__:
        value = getattr(rungs, name)
        assert value is None or (type(value) is int and value >= 0), (where, name, value)
    assert rungs.pending_bytes >= rungs.pending_requested_bytes, where


def check_history(history: DeviceHistory, name: str) -> None:
    for moment in moments_of(history):
        where = f"{name} {history.tables.label} --at {moment.label}"
        rungs = balance_at(history, moment)
        check_balance(rungs, where)
        counts = set()
        for by in By:
            rows = group_live(history, moment, by=by)
            assert sum(row.bytes for row in rows) == rungs.requested_bytes, f"{where} --by {by.value}"
            assert len({row.key for row in rows}) == len(rows), f"{where} --by {by.value}"
            assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)
            counts.add(sum(row.num_allocations for row in rows))
        assert len(counts) == 1, where
    peaks = find_peaks(history)
    curve = timeline(history)
    assert (curve.requested_bytes >= 0).all(), name
    assert (curve.requested_bytes <= curve.allocated_bytes).all(), name
    assert (curve.allocated_bytes + curve.pending_bytes <= curve.reserved_bytes).all(), name
    assert int(curve.requested_bytes.max()) == peaks.requested.bytes, name
    coverage = summarise(history).coverage
    assert coverage.explained_bytes + coverage.before_stack_bytes <= coverage.live_bytes, name


@pytest.mark.parametrize("name", FILES)
def test_rows_add_up(name: str) -> None:
    snapshot = load_snapshot(FIXTURES / name)
    for tables in snapshot.devices:
        check_history(DeviceHistory(snapshot, tables.device), name)


def shared_snapshots(shared: Path) -> list[Path]:
    return sorted(
        path
        for path in (shared / "snapshots").rglob("*")
        if path.suffix in (".pickle", ".gz") or path.name.endswith("-json.json")
    )


def test_rows_add_up_in_more_recordings(shared: Path) -> None:
    paths = shared_snapshots(shared)
    assert paths
    broken = []
    for path in paths:
        try:
            snapshot = load_snapshot(path)
        except InputError as error:
            broken.append(f"{path.name}: {error}")
            continue
        for tables in snapshot.devices:
            try:
                check_history(DeviceHistory(snapshot, tables.device), path.name)
            except AssertionError as error:
                broken.append(str(error).splitlines()[0])
    assert not broken
