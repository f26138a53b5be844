"""The compiled block walk comes to what the Python one comes to, step by step."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope import native
from tests.bench.make_snapshot import build
from tests.conftest import FIXTURES, fixture_path, recordings
from tests.native.compare import check_same_blocks

pytestmark = pytest.mark.skipif(native.core() is None, reason="the compiled part isn't there, or isn't wanted")


@pytest.mark.parametrize("name", [*recordings("allocator"), *recordings("runs")])
def test_recording(name: str) -> None:
    check_same_blocks(fixture_path(name))


@pytest.mark.parametrize("path", sorted((FIXTURES / "cases").rglob("*.pickle")), ids=lambda path: path.name)
def test_case(path: Path) -> None:
    check_same_blocks(path)


def test_shared_recordings(shared: Path) -> None:
    paths = sorted(shared.rglob("*.pickle"))
    assert paths
    for path in paths:
        check_same_blocks(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutilated_histories(data: st.DataObject) -> None:
    """Lost and displaced events lead into all the odd branches."""
    value = build(
        data.draw(st.integers(20, 1200)),
        seed=data.draw(st.integers(0, 99)),
        layers=1,
        window=data.draw(st.integers(0, 300)),
    )
    trace = list(value["device_traces"][0])
    rows = st.integers(0, max(len(trace) - 1, 0))
    for row in sorted(data.draw(st.sets(rows, max_size=len(trace) // 4)), reverse=True):
        if row < len(trace):
            del trace[row]
    for row in data.draw(st.lists(rows, max_size=20)):
        if row < len(trace):
            shift = data.draw(st.sampled_from([-4096, 512, 1 << 20, -(1 << 21)]))
            trace[row] = {**trace[row], "addr": max(trace[row]["addr"] + shift, 0)}
    divisions = dict.fromkeys((str(1 << power) for power in range(16)), data.draw(st.sampled_from([0, 4, 8])))
    conf: dict[str, object] = {"PYTORCH_CUDA_ALLOC_CONF": "", "roundup_power2_divisions": divisions}
    conf["expandable_segments"] = data.draw(st.booleans())
    conf["max_split_size"] = data.draw(st.sampled_from([-1, 20 << 20]))
    check_same_blocks(pickle.dumps({**value, "device_traces": [trace], "allocator_settings": conf}))
