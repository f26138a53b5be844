"""Which sites are the same, by their frames and by what they allocate."""

from __future__ import annotations

import time

import pytest

from snapscope.analyses.profile import SiteEntry
from snapscope.analyses.site_match import match_sites
from snapscope.classify.material import Category
from tests.analyses.profiles import site
from tests.builders import MIB

LINEAR = "torch/nn/modules/linear.py forward"
CALL = "torch/nn/modules/module.py _call_impl"


def pairs_of(before: list[SiteEntry], after: list[SiteEntry]) -> set[tuple[str | None, str | None]]:
    found = match_sites(before, after)
    assert sorted(id(old) for old, _ in found if old is not None) == sorted(map(id, before))
    assert sorted(id(new) for _, new in found if new is not None) == sorted(map(id, after))
    return {(old.label if old else None, new.label if new else None) for old, new in found}


def test_the_same_frames_on_another_line_are_the_same_site() -> None:
    assert pairs_of([site("m.py f", (MIB, 1), line=3)], [site("m.py f", (9 * MIB, 4), line=8)]) == {
        ("m.py:3 f", "m.py:8 f")
    }


def test_a_moved_file_is_the_same_site() -> None:
    old = site("a/m.py f", (MIB, 1), stack=["a/m.py f", "train.py main"])
    new = site("b/c/m.py f", (2 * MIB, 1), stack=["b/c/m.py f", "train.py main"])
    assert pairs_of([old], [new]) == {(old.label, new.label)}


def test_a_renamed_file_is_the_same_site_though_its_blocks_grew() -> None:
    old = [
        site("enc.py split", (MIB, 3), stack=["enc.py split", CALL, "main.py fit"]),
        site("enc.py forward", (4 * MIB, 1), stack=[LINEAR, CALL, "enc.py forward", CALL, "main.py fit"]),
    ]
    new = [
        site("body.py split", (3 * MIB, 3), stack=["body.py split", CALL, "main.py fit"]),
        site("body.py forward", (12 * MIB, 1), stack=[LINEAR, CALL, "body.py forward", CALL, "main.py fit"]),
    ]
    assert pairs_of(old, new) == {("enc.py:1 split", "body.py:1 split"), ("enc.py:1 forward", "body.py:1 forward")}


def test_a_renamed_function_is_the_same_site_though_its_blocks_grew() -> None:
    outer = [CALL, "enc.py forward", CALL, "main.py fit", "main.py <module>"]
    old = [
        site("enc.py split", (4 * MIB, 12), stack=["enc.py split", *outer]),
        site("enc.py mlp", (12 * MIB, 4), stack=["enc.py mlp", *outer]),
    ]
    new = [
        site("enc.py feed", (20 * MIB, 4), stack=["enc.py feed", *outer]),
        site("enc.py heads", (6 * MIB, 12), stack=["enc.py heads", *outer]),
    ]
    assert pairs_of(old, new) == {("enc.py:1 split", "enc.py:1 heads"), ("enc.py:1 mlp", "enc.py:1 feed")}


def test_a_wrapper_in_between_is_the_same_site() -> None:
    old = site("m.py f", (MIB, 1), stack=["m.py f", "train.py fit", "train.py main"])
    new = site("m.py f", (MIB, 2), stack=["m.py f", "log.py wrapper", "train.py fit", "train.py main"])
    assert pairs_of([old], [new]) == {("m.py:1 f", "m.py:1 f")}


def test_all_outer_functions_of_a_short_stack_may_change_their_names() -> None:
    old = site("data.py batches", (MIB, 2), stack=["data.py batches", "main.py fit", "main.py run", "main.py <module>"])
    new = site(
        "data.py batches", (2 * MIB, 2), stack=["data.py batches", "main.py train", "main.py main", "main.py <module>"]
    )
    assert pairs_of([old], [new]) == {("data.py:1 batches", "data.py:1 batches")}


def test_sites_that_share_little_are_not_the_same() -> None:
    old = site("m.py f", (MIB, 1), stack=["m.py f", "train.py main"])
    new = site("loss.py g", (4 * MIB, 2), stack=["loss.py g", "train.py main"])
    assert pairs_of([old], [new]) == {(old.label, None), (None, new.label)}


def test_functions_of_one_name_in_pytorch_and_in_the_program_are_two() -> None:
    old = site("m.py forward", (MIB, 1), stack=["m.py forward"])
    new = site("torch/nn/modules/linear.py forward", (MIB, 2), stack=[LINEAR])
    assert pairs_of([old], [new]) == {(old.label, None), (None, new.label)}


def test_without_a_stack_the_category_tells() -> None:
    old = [site("(no stack)", (MIB, 1), category=Category.TEMPORARY), site("(no stack)", (MIB, 9))]
    new = [site("(no stack)", (3 * MIB, 9)), site("(no stack)", (3 * MIB, 1), category=Category.TEMPORARY)]
    found = match_sites(old, new)
    assert all(left is not None and right is not None and left.category is right.category for left, right in found)


def test_of_several_the_most_alike_are_paired() -> None:
    outer = ["train.py fit", "train.py main"]
    old = [site(f"m.py {name}", (size, 2), stack=[f"m.py {name}", *outer]) for name, size in (("a", MIB), ("b", 7))]
    new = [site(f"m.py {name}", (size, 2), stack=[f"m.py {name}", *outer]) for name, size in (("y", 7), ("x", MIB))]
    assert pairs_of(old, new) == {("m.py:1 a", "m.py:1 x"), ("m.py:1 b", "m.py:1 y")}


@pytest.mark.parametrize("depth", [2, 5000])
def test_many_long_stacks_take_seconds_not_hours(depth: int) -> None:
    def side(name: str) -> list[SiteEntry]:
        return [
            site(
                f"{name}{k}.py f", (512, 1), stack=[f"{name}{k}.py f", *(f"m{n % 7}.py g{n % 3}" for n in range(depth))]
            )
            for k in range(300)
        ]

    before, after = side("a"), side("b")
    start = time.process_time()
    assert len(match_sites(before, after)) <= 600
    # A guard against a quadratic algorithm: it takes two seconds.
    assert time.process_time() - start < 60
