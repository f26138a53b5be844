"""The rows of the live tree sum up, whatever is open, wherever the cursor is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from snapscope.analyses.ledger import By
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from snapscope.tui.rows import LiveRows, Row, RowKind, make_live_rows
from snapscope.tui.state import OpenRequest, ViewState, first_state, make_focus, open_device
from tests.conftest import fixture_path

_SUMMED = (RowKind.GROUP, RowKind.CALL, RowKind.ALLOCATION, RowKind.MORE, RowKind.LEFT_OUT)


def state_of(name: str, **request: str) -> ViewState:
    path = str(fixture_path(name))
    return first_state(OpenRequest(source=path, **request), open_device(DeviceHistory(load_snapshot(path))))  # type: ignore[arg-type]


def events_of(state: ViewState) -> list[int]:
    return sorted({-1, state.cursor, *np.linspace(0, state.history.num_events - 1, 5).astype(int).tolist()})


def check_sums(live: LiveRows, row: Row, depth: int = 0) -> None:
    children = [child for child in live.children(row) if child.kind in _SUMMED]
    assert len({child.key for child in children}) == len(children)
    assert sum(child.bytes or 0 for child in children) == row.bytes
    assert sum(child.count or 0 for child in children) == row.count
    for child in children:
        if child.has_children and depth < 8:
            check_sums(live, child, depth + 1)


@pytest.mark.parametrize("by", [*By, None], ids=lambda by: by.value if by else "calls")
@pytest.mark.parametrize("pattern", [None, "forward"])
@pytest.mark.parametrize("name", ["torch-2.14/multi_stream", "torch-2.14/late_start", "torch-2.14/cuda_graph"])
def test_rows_sum_to_the_requested_bytes(name: str, pattern: str | None, by: By | None) -> None:
    state = state_of(name)
    if pattern is not None:
        state = replace(state, focus=make_focus(state.history, pattern))
    for event in events_of(state):
        at = replace(state.at_event(event), by=by or By.SITE, shows_calls=by is None)
        live = make_live_rows(at)
        rows = [row for row in live.rows if row.kind in _SUMMED]
        assert sum(row.bytes or 0 for row in rows) == live.balance.requested_bytes
        assert sum(row.count or 0 for row in rows) == live.num_allocations
        for row in rows:
            check_sums(live, row)


def test_balance_rows_add_up() -> None:
    for name in ("torch-2.14/oom_forward", "torch-2.14/cuda_graph", "runs/oom/pend_in_capture"):
        live = make_live_rows(state_of(name))
        running = 0
        for row in live.rows:
            if row.kind is RowKind.BALANCE and row.label != "+ device free":
                running = running + (row.bytes or 0) if row.sign == "+" else row.bytes or 0
                if row.sign == "=" and row.label != "= requested":
                    assert running == row.bytes
        sums = {row.label: row.bytes or 0 for row in live.rows if row.kind is RowKind.BALANCE}
        assert sums["= allocated"] == sums["= requested"] + sums["+ rounding"]
        assert sums["= reserved"] == sums["= allocated"] + sum(
            size for label, size in sums.items() if label.startswith(("+ pending", "+ cached"))
        )


def test_pending_allocations_are_inside_their_row() -> None:
    state = state_of("runs/oom/pend_in_capture")
    live = make_live_rows(state)
    pending = next(row for row in live.rows if row.label == "+ pending free")
    if pending.has_children:
        blocks = state.history.blocks.block_bytes
        found = [child.lifetime for child in live.children(pending) if child.lifetime is not None]
        assert sum(int(blocks[lifetime]) for lifetime in found) == pending.bytes
    else:
        assert pending.bytes == 0


def test_total_of_a_call_is_its_own_and_its_callees() -> None:
    state = replace(state_of("torch-2.14/oom_forward"), shows_calls=True)
    live = make_live_rows(state)
    todo = [row for row in live.rows if row.kind is RowKind.CALL]
    assert todo
    while todo:
        row = todo.pop()
        callees = [child for child in live.children(row) if child.kind is RowKind.CALL]
        assert row.bytes == (row.self_bytes or 0) + sum(callee.bytes or 0 for callee in callees)
        todo += callees


def test_the_call_tree_opens_on_the_heaviest_path() -> None:
    live = make_live_rows(replace(state_of("torch-2.14/oom_forward"), shows_calls=True))
    rows, last = live.rows, None
    for key in live.first_path:
        calls = [row for row in rows if row.kind is RowKind.CALL]
        last = next(row for row in calls if row.key == key)
        assert last is calls[0]
        rows = live.children(last)
    assert last is not None
    assert len(live.first_path) > 1


def test_focus_bytes_over_time_are_those_of_the_rows() -> None:
    state = state_of("torch-2.14/multi_stream")
    focus = make_focus(state.history, "forward")
    for event in events_of(state):
        live = make_live_rows(replace(state.at_event(event), focus=focus))
        kept = [row for row in live.rows if row.kind is RowKind.GROUP]
        assert sum(row.bytes or 0 for row in kept) == focus.requested_bytes[event + 1]


def test_keys_of_sites_stay_when_the_moment_changes() -> None:
    state = state_of("torch-2.14/multi_stream")
    names: dict[str, str] = {}
    for event in events_of(state):
        for row in make_live_rows(state.at_event(event)).rows:
            if row.kind is RowKind.GROUP:
                name = names.setdefault(row.key, row.label)
                assert row.label.split(" ")[0].rpartition(":")[0] == name.split(" ")[0].rpartition(":")[0]
