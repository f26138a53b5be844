"""Why two peaks differ: rows, what became of each, sizes, settings, steps; answers of real recordings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.diff import Change, Diff
from snapscope.analyses.profile import MemoryProfile, SiteEntry
from snapscope.analyses.unnamed import OTHER_SITES_LABEL
from snapscope.classify.material import Category
from snapscope.render.diff import sizes_text
from tests.analyses.profiles import check_sums, compared, made, profile_of_file, profile_of_fixture, site
from tests.builders import GIB, KIB, MIB

BEFORE = "(before the history)"


def rows_of(diff: Diff) -> list[tuple[str, int, str]]:
    return [(row.change.value, row.delta_bytes // MIB, row.shown.label) for row in diff.rows]


def test_rows_sum_to_the_difference_most_bytes_first() -> None:
    before = made(site("a.py f", (4 * MIB, 2)), site("a.py g", (6 * MIB, 1)), site("a.py same", (MIB, 1)))
    after = made(site("a.py f", (4 * MIB, 5)), site("b.py h", (2 * MIB, 3)), site("a.py same", (MIB, 1)))
    diff = compared(before, after)
    # 8 + 6 + 1 before, 20 + 6 + 1 after.
    assert diff.delta_bytes == 12 * MIB
    assert rows_of(diff) == [
        ("grown", 12, "a.py:1 f"),
        ("new", 6, "b.py:1 h"),
        ("gone", -6, "a.py:1 g"),
        ("same", 0, "a.py:1 same"),
    ]
    assert diff.rows[0].size_changes == ((4 * MIB, 2, 5),)
    assert not diff.is_empty


def test_what_varies_from_run_to_run_is_no_difference() -> None:
    before, after = made(site("a.py f", (MIB, 9)), site("a.py g", (60_000, 1))), made(site("a.py f", (MIB, 9)))
    diff = compared(before, after)
    assert (diff.noise_bytes, diff.is_empty, diff.delta_bytes) == (64 * KIB, True, -60_000)
    # A ten-thousandth of the larger side, where that is more.
    large = compared(made(site("a.py f", (GIB, 10))), made(site("a.py f", (GIB, 10)), site("a.py g", (MIB, 1))))
    assert (large.noise_bytes, large.is_empty) == ((10 * GIB + MIB) // 10_000, True)
    assert not compared(before, made(site("a.py f", (MIB, 9)), site("a.py g", (126_000, 1)))).is_empty


def test_moved_is_said_beside_the_change() -> None:
    diff = compared(made(site("a.py f", (MIB, 1), line=3)), made(site("a.py f", (3 * MIB, 1), line=8)))
    (row,) = diff.rows
    assert (row.change, row.moved) == (Change.GROWN, ("a.py:3 f", "a.py:8 f"))
    (row,) = compared(made(site("a.py f", (MIB, 1), line=3)), made(site("a.py f", (MIB, 1), line=8))).rows
    assert (row.change, row.moved) == (Change.SAME, ("a.py:3 f", "a.py:8 f"))


def test_a_site_that_is_only_told_from_other_rivals_hasnt_moved() -> None:
    old = site("a.py f", (MIB, 1), stack=["a.py f", "x.py g", "main.py main"])
    new = replace(old, key=("a.py f", "y.py g", "main.py main"), label=f"{old.label} < y.py g")
    (row,) = compared(made(old), made(new)).rows
    assert row.moved is None


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ([(32 * MIB, 8)], [(32 * MIB, 16)], "8 to 16 blocks of 32.00 MiB"),
        ([(MIB, 21)], [(2 * MIB, 21)], "21 blocks of 1.00 MiB, now 2.00 MiB"),
        ([(MIB, 1)], [(2 * MIB, 1)], "1 block of 1.00 MiB, now 2.00 MiB"),
        # Other shapes of one tensor differ little; a scalar doesn't become a matrix.
        ([(4, 1)], [(70 * MIB, 1)], "0 to 1 block of 70.00 MiB; 1 to 0 blocks of 4 B"),
        ([(MIB, 4)], [(MIB, 4), (8, 2000)], "0 to 2,000 blocks of 8 B"),
        ([(4, 1), (64 * MIB, 1)], [(4, 2), (64 * MIB, 2)], "1 to 2 blocks of 64.00 MiB; 1 to 2 blocks of 4 B"),
        ([(MIB, 3), (2 * MIB, 3)], [(9 * MIB, 5)], "0 to 5 blocks of 9.00 MiB; 3 to 0 blocks of 2.00 MiB"),
        ([(MIB, 2)], [(MIB, 2)], ""),
    ],
)
def test_counts_and_sizes_are_told_apart(old: list[tuple[int, int]], new: list[tuple[int, int]], text: str) -> None:
    (row,) = compared(made(site("a.py f", *old)), made(site("a.py f", *new))).rows
    assert sizes_text(row) == text


def test_sizes_that_one_side_leaves_out_are_not_called_gone() -> None:
    whole = site("a.py f", (4 * MIB, 2), (MIB, 1))
    entry = site("a.py f", (4 * MIB, 3), (MIB, 1))
    cut = made(replace(entry, sizes=entry.sizes[:1]))
    (row,) = compared(made(whole), cut).rows
    assert row.size_changes == ((4 * MIB, 2, 3),)


def test_settings_and_steps_of_both_sides_are_compared() -> None:
    f = site("a.py f", (MIB, 1))
    before = made(f, settings={"a": "1", "b": "x"}, step_peaks=(("step 0", 5), ("step 1", 7)), num_steps=2)
    after = made(f, settings={"a": "1", "b": "y", "c": "z"}, step_peaks=(("step 1", 8), ("step 2", 9)), num_steps=2)
    diff = compared(before, after)
    assert [(c.name, c.before, c.after) for c in diff.settings] == [("b", "x", "y"), ("c", None, "z")]
    assert {(s.name, s.before_bytes, s.after_bytes) for s in diff.steps} == {
        ("step 0", 5, None), ("step 1", 7, 8), ("step 2", None, 9),
    }  # fmt: skip


# ------------------------------------------------------------------------------------ no stacks


def test_blocks_older_than_the_history_are_taken_for_the_sites_of_the_other_file() -> None:
    weights = site("m.py build", (6 * MIB, 4), (2 * MIB, 4), category=Category.PARAMETER, fine="weight")
    loss = site("loss.py f", (MIB, 2))
    late = made(site(BEFORE, (6 * MIB, 4), (2 * MIB, 4), category=Category.PARAMETER, fine="weight"), loss)
    for diff in (compared(made(weights, loss), late), compared(late, made(weights, loss))):
        assert diff.is_empty
        assert {row.shown.label for row in diff.rows} == {"m.py:1 build", "loss.py:1 f"}
        (notice,) = (*diff.before.notices, *diff.after.notices)
        assert (notice.code, notice.count, notice.bytes) == ("named_by_size", 8, 32 * MIB)


def test_blocks_of_other_sizes_stay_without_a_site() -> None:
    weights = site("m.py build", (6 * MIB, 4), category=Category.PARAMETER, fine="weight")
    loss = site("loss.py f", (MIB, 2))
    late = made(site(BEFORE, (5 * MIB, 4), category=Category.PARAMETER, fine="weight"), loss)
    assert rows_of(compared(made(weights, loss), late))[:2] == [("gone", -24, "m.py:1 build"), ("new", 20, BEFORE)]


def test_only_blocks_that_were_guessed_change_their_category() -> None:
    state = site("opt.py step", (6 * MIB, 4), category=Category.OPTIMIZER_STATE, fine="exp_avg")
    loss = site("loss.py f", (MIB, 2))
    for label, is_guess in ((BEFORE, True), ("(no stack)", False)):
        other = made(site(label, (6 * MIB, 4), category=Category.PARAMETER, fine="weight"), loss)
        diff = compared(made(state, loss), other)
        assert diff.is_empty == is_guess
        assert diff.delta_of(Category.OPTIMIZER_STATE) == (0 if is_guess else -24 * MIB)


def test_a_file_without_stacks_holds_what_the_other_file_holds() -> None:
    sites = (
        site("m.py build", (6 * MIB, 4), category=Category.PARAMETER, fine="weight"),
        site("m.py forward", (3 * MIB, 5)),
        site("(C++ backward)", (3 * MIB, 2), category=Category.GRADIENT, fine="grad"),
    )
    # All is guessed wrong.
    bare = made(site("(no stack)", (6 * MIB, 4), (3 * MIB, 7), category=Category.TEMPORARY, fine="intermediate"))
    for diff in (compared(made(*sites), bare), compared(bare, made(*sites))):
        assert diff.is_empty
        assert not any(diff.delta_of(category) for category in Category)


def test_against_a_file_without_stacks_the_rest_is_compared_by_category() -> None:
    before = made(site("m.py a", (3 * MIB, 5)), site("m.py b", (7 * MIB, 1)))
    after = made(site("(no stack)", (4 * MIB, 5), (8 * MIB, 1)))
    assert rows_of(compared(before, after)) == [("grown", 6, OTHER_SITES_LABEL)]


def test_two_files_without_stacks_are_compared_by_category() -> None:
    before, after = made(site("(no stack)", (3 * MIB, 5))), made(site("(no stack)", (3 * MIB, 6)))
    assert rows_of(compared(before, after)) == [("grown", 3, "(no stack)")]


# ---------------------------------------------------------------------------------- any two profiles

FRAMES = ("m.py f", "m.py g", "lib/n.py f", "torch/nn/modules/linear.py forward", "main.py main")
ENTRIES = st.builds(
    site,
    st.sampled_from(("m.py f", "m.py g", "n.py h", BEFORE, "(no stack)", "(C++ backward)")),
    st.tuples(st.sampled_from((0, 1, 4, 512, MIB, 3 * MIB)), st.integers(1, 4)),
    stack=st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4),
    category=st.sampled_from(list(Category)),
    fine=st.sampled_from(("weight", "grad", "state", "kept")),
    line=st.integers(1, 3),
)


def distinct(entries: list[SiteEntry]) -> MemoryProfile:
    """Make a profile of these, one of each site and category."""
    return made(*{(entry.key or entry.label, entry.category): entry for entry in entries}.values())


PROFILES = st.builds(distinct, st.lists(ENTRIES, max_size=8))


@settings(max_examples=200)
@given(before=PROFILES, after=PROFILES)
def test_any_two_profiles_sum_both_ways(before: MemoryProfile, after: MemoryProfile) -> None:
    there, back = compared(before, after), compared(after, before)
    assert there.delta_bytes == -back.delta_bytes == after.requested_bytes - before.requested_bytes
    for diff in (there, back):
        for row in diff.rows:
            assert (row.change is Change.SAME) == (abs(row.delta_bytes) <= diff.noise_bytes)
            sizes_text(row)


@given(profile=PROFILES)
def test_any_profile_against_itself_is_empty(profile: MemoryProfile) -> None:
    diff = compared(profile, profile)
    assert diff.is_empty
    assert not diff.before.notices
    assert not any(row.delta_bytes or row.moved for row in diff.rows)


# --------------------------------------------------------------------------- recordings and answers


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch-2.14/adamw_fp32", "torch-2.14/adamw_fp32_pystacks"),
        ("torch-2.14/adamw_fp32", "torch-2.14/adamw_fp32_nohooks"),
        ("torch-2.14/adamw_fp32", "torch-2.6/adamw_fp32"),
        ("torch-2.6/adamw_fp32", "torch-2.0/adamw_fp32"),
        # Its model was built before the recording began.
        ("torch-2.14/adamw_fp32", "torch-2.14/late_start"),
    ],
)
def test_one_program_recorded_twice_is_empty(before: str, after: str) -> None:
    diff = compared(profile_of_fixture(before), profile_of_fixture(after))
    assert diff.is_empty, [(row.change, row.shown.label, row.delta_bytes) for row in diff.rows if row.delta_bytes]


@pytest.mark.parametrize(
    ("after", "first", "category"),
    [
        ("torch-2.14/sgd_momentum", "train.py:51 train", "optimizer_state"),
        ("torch-2.14/checkpointed", "gpt.py:52 forward > linear.py forward", "activation"),
    ],
)
def test_the_first_row_names_the_cause(after: str, first: str, category: str) -> None:
    diff = compared(profile_of_fixture("torch-2.14/adamw_fp32"), profile_of_fixture(after))
    assert (diff.rows[0].shown.label, diff.rows[0].shown.category.label) == (first, category)


def test_two_steps_of_one_file_differ_by_the_optimizer_state() -> None:
    name = "torch-2.14/adamw_fp32"
    diff = compared(profile_of_fixture(name, "step:0"), profile_of_fixture(name, "step:1"))
    assert (diff.rows[0].change, diff.rows[0].shown.label) == (Change.NEW, "train.py:51 train")
    assert compared(profile_of_fixture(name, "step:1"), profile_of_fixture(name, "step:2")).is_empty


def test_two_ranks_differ_by_what_the_larger_batch_saves() -> None:
    diff = compared(profile_of_fixture("torch-2.14/fsdp_rank0"), profile_of_fixture("torch-2.14/fsdp_rank2"))
    assert {category.label for category in Category if diff.delta_of(category)} == {"activation", "temporary"}
    assert all(row.change in (Change.GROWN, Change.SAME) for row in diff.rows)


def test_the_case_of_a_moved_line() -> None:
    diff = compared(
        profile_of_fixture("cases/11_diff_and_gate/a.pickle"), profile_of_fixture("cases/11_diff_and_gate/b.pickle")
    )
    found = [(r.shown.label, r.before_bytes, r.after_bytes, r.delta_bytes, r.change.value, r.moved) for r in diff.rows]
    assert found == [
        ("loss.py:12 upcast", 0, 4 * GIB, 4 * GIB, "new", None),
        ("model.py:90 block", 4 * GIB, 3 * GIB, -GIB, "shrunk", ("model.py:88 block", "model.py:90 block")),
        ("init.py:5 load", 6 * GIB, 6 * GIB, 0, "same", None),
    ]


def test_every_recorded_answer_is_met(shared: Path) -> None:
    answers = sorted((shared / "snapshots/runs/diff").glob("*.diff.json"))
    assert answers
    for path in answers:
        answer = json.loads(path.read_bytes())
        diff = compared(profile_of_file(path.parent / answer["before"]), profile_of_file(path.parent / answer["after"]))
        assert diff.delta_bytes == answer["delta_bytes"], path.name
        assert diff.is_empty == answer["expect_empty"], path.name
        for category in Category:
            wanted = answer["categories_delta"].get(category.label, 0)
            assert abs(diff.delta_of(category) - wanted) <= abs(wanted) / 100, (path.name, category)
        for name, key in (("reserved", "delta_reserved_peak_bytes"), ("allocated", "delta_allocated_peak_bytes")):
            assert diff.after.peak_bytes[name] - diff.before.peak_bytes[name] == answer[key], (path.name, name)


def test_two_public_recordings_sum_by_category(shared: Path) -> None:
    folder = shared / "snapshots/public"
    before, after = (folder / f"lm-2.7b-{name}.pickle" for name in ("ctx128-fwd", "ctx512-fwd-mixed"))
    diff = check_sums(compared(profile_of_file(before), profile_of_file(after)))
    assert diff.delta_of(Category.ACTIVATION) > diff.delta_bytes * 0.99
    changed = [row for row in diff.rows if row.change is not Change.SAME]
    assert sum(row.change in (Change.NEW, Change.GONE) for row in changed) < len(changed) / 3
