"""Profiles: what one side of a comparison holds, and what names a site in any file."""

from __future__ import annotations

from typing import Any

import pytest

from snapscope.analyses.ledger import balance
from snapscope.analyses.moments import find_moment
from snapscope.analyses.profile import MemoryProfile, profile
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.analyses.profiles import made, profile_of, profile_of_fixture, site
from tests.builders import MIB
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

A = 0x7F0000000000


def check(side: MemoryProfile) -> None:
    assert sum(entry.bytes for entry in side.sites) == side.requested_bytes
    assert sum(side.categories.values()) == sum(side.fine.values()) == side.requested_bytes
    for category in Category:
        assert sum(e.bytes for e in side.sites if e.category is category) == side.categories[category]
    for entry in side.sites:
        assert sum(size * count for size, count in entry.sizes) <= entry.bytes
        assert entry.count > 0
    groups = [(entry.key, entry.label if not entry.key else "", entry.category) for entry in side.sites]
    assert len(set(groups)) == len(groups)


@pytest.mark.parametrize("name", recordings())
def test_everything_sums_in_every_recording(name: str) -> None:
    history = DeviceHistory(load_snapshot(fixture_path(name)))
    for at in ("peak", "end", "start"):
        moment = find_moment(history, at)
        side = profile(history, moment)
        check(side)
        ledger = balance(history, moment)
        assert side.reserved_bytes == ledger.reserved_bytes
        cached = side.free_segments_bytes + side.holes_bytes + side.private_pool_bytes
        assert side.allocated_bytes + side.pending_bytes + cached == side.reserved_bytes


def stack_key(*frames: Any) -> tuple[str, ...]:
    """Return the key of a stack, innermost frame first."""
    events: list[b.Events] = [b.segment_alloc(A, 2 * MIB), b.alloc(A, MIB, frames=list(frames))]
    blocks = [b.block(MIB, frames=list(frames)), b.block(MIB, state=b.INACTIVE)]
    history = history_of(b.snapshot(traces=[events], segments=[b.segment(A, blocks)]))
    return profile_of(history).sites[0].key


MAIN = b.frame("main", "/p/app/train.py", 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Comprehensions have no frame of their own from Python 3.12 on.
        (
            [b.frame("<listcomp>", "/p/app/m.py", 4), b.frame("f", "/p/app/m.py", 4), MAIN],
            [b.frame("f", "/p/app/m.py", 4), MAIN],
        ),
        # Regions of a compiled graph are numbered.
        (
            [b.frame("call", "/tmp/torchinductor_me/ab/cab.py", 9), b.frame("f", "/p/app/m.py", 4), MAIN],
            [b.frame("call", "/tmp/torchinductor_me/xy/cxy.py", 77), b.frame("f", "/p/app/m.py", 5), MAIN],
        ),
        (
            [b.frame("torch_dynamo_resume_in_f_at_12", "/p/app/m.py", 12), MAIN],
            [b.frame("torch_dynamo_resume_in_f_at_31", "/p/app/m.py", 31), MAIN],
        ),
        # So are the cells of a notebook.
        (
            [b.frame("<module>", "/tmp/ipykernel_71/123.py", 1), MAIN],
            [b.frame("<module>", "/tmp/ipykernel_9/4567.py", 1), MAIN],
        ),
        # C++ frames and launchers come and go.
        (
            [b.frame("at::empty", "Empty.cpp", 0), MAIN],
            [MAIN, b.frame("run_path", "/usr/lib/python3.11/runpy.py", 291)],
        ),
        # A recursion may go deeper.
        (
            [b.frame("apply", "/p/app/m.py", 4), b.frame("apply", "/p/app/m.py", 4), MAIN],
            [b.frame("apply", "/p/app/m.py", 4), MAIN],
        ),
        ([b.frame("f", "C:\\work\\app\\m.py", 4)], [b.frame("f", "/srv/app/m.py", 8)]),
    ],
)
def test_numbers_and_machines_name_no_site(one: list[Any], other: list[Any]) -> None:
    assert stack_key(*one) == stack_key(*other) != ()


def test_functions_and_files_name_a_site() -> None:
    assert stack_key(b.frame("f", "/p/app/m.py", 4), MAIN) != stack_key(b.frame("g", "/p/app/m.py", 4), MAIN)
    assert stack_key(b.frame("f", "/p/app/m.py", 4), MAIN) != stack_key(b.frame("f", "/p/app/n.py", 4), MAIN)


def test_labels_of_one_line_are_told_apart_by_what_differs() -> None:
    side = profile_of_fixture("torch-2.14/adamw_fp32")
    labels = {entry.label for entry in side.sites if entry.category is Category.ACTIVATION}
    assert {"gpt.py:52 forward > linear.py forward", "gpt.py:52 forward > activation.py forward"} <= labels


def test_steps_settings_and_ooms_are_kept() -> None:
    side = profile_of_fixture("torch-2.14/oom_optimizer_step")
    assert (side.num_ooms, side.has_history, side.has_stacks) == (1, True, True)
    assert side.settings["roundup_power2_divisions"] == "off"
    steps = profile_of_fixture("torch-2.14/adamw_fp32")
    assert steps.num_steps == 3
    assert max(size for _, size in steps.step_peaks) == steps.requested_bytes == steps.peak_bytes["requested"]
    assert not profile_of_fixture("cases/15_odd_files/no_traces.pickle").has_history


def test_a_made_profile_is_one() -> None:
    check(
        made(site("a.py f", (MIB, 2)), site("(no stack)", (MIB, 1), category=Category.TEMPORARY, fine="intermediate"))
    )
