"""What is no change of memory makes no difference: lines, folders, addresses, names, order, recording mode."""

from __future__ import annotations

import random
from functools import cache
from typing import Final

import pytest

from snapscope.analyses.diff import compare
from snapscope.analyses.profile import MemoryProfile
from tests.analyses.mutations import MUTATIONS, Mutation, drop_cpp_frames, raw_fixture
from tests.analyses.profiles import check_sums, profile_of
from tests.replay.test_properties import history_of

FIXTURES: Final = (
    "torch-2.14/adamw_fp32",
    "torch-2.14/amp_bf16",
    "torch-2.14/checkpointed",
    "torch-2.14/cuda_graph",
    "torch-2.14/late_start",
    "torch-2.14/ring_overflow",
    "torch-2.14/no_context",
    "torch-2.0/adamw_fp32",
    "runs/oom/two_ooms",
    "cases/06_step_peak_reconciles/a.pickle",
    "cases/07_leak_per_step/a.pickle",
)


@cache
def original(name: str) -> MemoryProfile:
    return profile_of(history_of(raw_fixture(name)))


def mutated(name: str, mutations: tuple[Mutation, ...], seed: int) -> MemoryProfile:
    value, rng = raw_fixture(name), random.Random(seed)
    for mutation in mutations:
        mutation(value, rng)
    return profile_of(history_of(value))


def check_empty(name: str, mutations: tuple[Mutation, ...], seed: int = 0) -> None:
    before, after = original(name), mutated(name, mutations, seed)
    for diff in (check_sums(compare(before, after)), check_sums(compare(after, before))):
        assert diff.delta_bytes == 0
        assert diff.is_empty, [(row.change, row.shown.label, row.delta_bytes) for row in diff.rows if row.delta_bytes]
        assert all(row.delta_bytes == 0 for row in diff.rows)
        # In a case made by hand a function's name may be all that tells an optimizer.
        assert all(change.before_bytes == change.after_bytes for change in diff.fine) or name.startswith("cases/")
        assert not diff.settings
        assert all(step.before_bytes == step.after_bytes for step in diff.steps)


@pytest.mark.parametrize("name", FIXTURES)
def test_a_file_against_itself_is_empty(name: str) -> None:
    check_empty(name, ())


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize("name", FIXTURES)
def test_each_change_that_is_none_of_memory_is_empty(name: str, mutation: Mutation) -> None:
    check_empty(name, (mutation,))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FIXTURES)
def test_several_such_changes_are_empty(name: str, seed: int) -> None:
    rng = random.Random(seed)
    check_empty(name, tuple(rng.sample(MUTATIONS, 4)), seed)


@pytest.mark.parametrize("name", FIXTURES)
def test_python_stacks_only_are_the_same_sites(name: str) -> None:
    before, after = original(name), mutated(name, (drop_cpp_frames,), 0)
    diff = check_sums(compare(before, after))
    assert diff.delta_bytes == 0
    assert all(row.delta_bytes == 0 for row in diff.rows if row.shown.key), name
