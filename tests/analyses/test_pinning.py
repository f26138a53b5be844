"""Who pins free memory: against brute force, and against what recordings know of themselves."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.analyses.oom import find_oom
from snapscope.analyses.pinning import FreeingSet, find_cells, pin_rows, smallest_for_hole, smallest_for_return
from snapscope.analyses.selection import LEFT_OUT_KEY, select
from snapscope.history import DeviceHistory
from snapscope.layout import Layout
from snapscope.model import BoolColumn
from snapscope.opening import load_snapshot
from tests import builders as b
from tests.analyses.test_oom import Recorded, answers_in, recorded
from tests.builders import INACTIVE, MIB, PENDING
from tests.conftest import fixture_path, recordings
from tests.replay.test_properties import history_of

A: Final = 0x7F0000000000
GAP: Final = 1 << 30
SITES: Final = {name: [b.frame(name, f"/p/{name}.py", 1)] for name in ("a", "b", "c")}
Blocks = list[tuple[int, str]]
"""MiB and the site; `.` is free, `w` waits for a stream."""


def memory(*segments: Blocks, is_expandable: bool = False, kind: str | None = None) -> DeviceHistory:
    """Make segments without a history."""
    made = []
    for number, blocks in enumerate(segments):
        placed = [
            b.block(size * MIB, state=INACTIVE)
            if site == "."
            else b.block(size * MIB, state=PENDING if site == "w" else b.ALLOCATED, frames=SITES.get(site, ()))
            for size, site in blocks
        ]
        made.append(b.segment(A + number * GAP, placed, is_expandable=is_expandable, kind=kind or "large"))
    return history_of(b.snapshot(segments=made))


def pins(history: DeviceHistory, segments: BoolColumn | None = None) -> dict[str, tuple[int, ...]]:
    """Return (blocks, MiB of them, segments, alone, any) by site."""
    return {
        pin.row.key.partition(" ")[2]: (
            pin.row.num_allocations, pin.block_bytes // MIB, pin.num_segments,
            pin.held_alone_bytes // MIB, pin.held_any_bytes // MIB,
        )
        for pin in pin_rows(history, history.layout_at(-1), segments=segments)
    }  # fmt: skip


# ------------------------------------------------------------------------------- who pins


def test_sites_share_what_several_of_them_hold() -> None:
    """The first segment is a's alone, the second a's and b's, the third full, the fourth nobody's."""
    history = memory(
        [(2, "a"), (10, "."), (4, "a"), (4, ".")],
        [(3, "a"), (9, "."), (8, "b")],
        [(20, "c")],
        [(20, ".")],
    )
    assert pins(history) == {"a": (3, 9, 2, 14, 23), "b": (1, 8, 1, 0, 9)}
    assert list(pins(history)) == ["a", "b"]


def test_blocks_that_wait_pin_too() -> None:
    history = memory([(2, "a"), (10, "."), (8, "w")])
    rows = pin_rows(history, history.layout_at(-1))
    assert [(pin.row.key, pin.block_bytes // MIB, pin.held_alone_bytes, pin.held_any_bytes // MIB) for pin in rows] == [
        ("(before the history)", 8, 0, 10),
        ("a.py:1 a", 2, 0, 10),
    ]


def test_granules_are_pinned_one_by_one() -> None:
    """Granules of 20 MiB: a lies in the first and second, b in the second, c fills the fourth and more."""
    history = memory([(2, "."), (30, "a"), (3, "b"), (20, "."), (45, "c"), (20, ".")], is_expandable=True)
    # 2 free in [0, 20), 5 in [20, 40), 15 in [40, 60), none in [60, 80) and [80, 100), 20 behind.
    assert pins(history) == {"a": (1, 30, 2, 2, 7), "b": (1, 3, 1, 0, 5), "c": (1, 45, 1, 15, 15)}
    cells = find_cells(history.layout_at(-1))
    assert (cells.free_bytes // MIB).tolist() == [2, 5, 15, 0]


def test_a_block_of_many_granules_pins_those_of_its_ends() -> None:
    history = memory([(10, "."), (80, "a"), (10, ".")], is_expandable=True)
    assert pins(history) == {"a": (1, 80, 2, 20, 20)}


def test_private_pools_pin_nothing_unless_asked_for() -> None:
    segments = [
        b.segment(A, [b.block(8 * MIB, frames=SITES["a"]), b.block(12 * MIB, state=INACTIVE)], pool=(1, 0)),
        b.segment(A + GAP, [b.block(5 * MIB, frames=SITES["b"]), b.block(15 * MIB, state=INACTIVE)]),
    ]
    history = history_of(b.snapshot(segments=segments))
    assert list(pins(history)) == ["b"]
    assert pins(history, segments=np.array([True, False])) == {"a": (1, 8, 1, 12, 12)}


def test_a_selection_keeps_the_sums() -> None:
    history = memory([(2, "a"), (10, "."), (4, "b"), (4, "c")])
    rows = pin_rows(history, history.layout_at(-1), selection=select(history, focus="a.py"))
    assert [(pin.row.key, pin.block_bytes // MIB) for pin in rows] == [("a.py:1 a", 2), (LEFT_OUT_KEY, 8)]
    assert [pin.held_alone_bytes for pin in rows] == [0, 0]
    assert [pin.held_any_bytes // MIB for pin in rows] == [10, 10]


def test_nobody_pins_what_is_full_or_empty() -> None:
    history = memory([(20, "a")], [(20, ".")])
    assert pins(history) == {}
    assert smallest_for_return(history, history.layout_at(-1)) is None
    assert pins(history_of(b.snapshot())) == {}


PIECES: Final = st.lists(st.tuples(st.integers(1, 12), st.sampled_from("abc..")), min_size=1, max_size=6)
LAYOUTS: Final = st.lists(PIECES, min_size=1, max_size=3)


def merged(blocks: Blocks) -> Blocks:
    """Join neighbouring free pieces, as the allocator does."""
    out: Blocks = []
    for size, site in blocks:
        if out and site == "." == out[-1][1]:
            size += out.pop()[0]
        out.append((size, site))
    return out


@settings(max_examples=60)
@given(layout=LAYOUTS)
def test_pins_against_counting(layout: list[Blocks]) -> None:
    segments = [merged(blocks) for blocks in layout]
    found = pins(memory(*segments))
    expected: dict[str, tuple[int, ...]] = {}
    for site in "abc":
        count = size = partly = alone = held = 0
        for blocks in segments:
            free = sum(length for length, owner in blocks if owner == ".")
            owners = {owner for _, owner in blocks if owner != "."}
            if free and site in owners:
                mine = [length for length, owner in blocks if owner == site]
                count, size, partly, held = count + len(mine), size + sum(mine), partly + 1, held + free
                alone += free if owners == {site} else 0
        if count:
            expected[site] = (count, size, partly, alone, held)
    assert found == expected
    assert all(alone <= held for *_, alone, held in found.values())


# ------------------------------------------------------------------------------- the fewest bytes to end


def largest_gap(blocks: Blocks, ended: set[int]) -> int:
    """Return the largest free piece of a segment if some of its blocks end."""
    best = run = 0
    for place, (size, site) in enumerate(blocks):
        run = run + size if site == "." or place in ended else 0
        best = max(best, run)
    return best


@settings(max_examples=80)
@given(layout=LAYOUTS, wanted=st.integers(1, 60))
def test_fewest_bytes_for_a_hole(layout: list[Blocks], wanted: int) -> None:
    """Every choice of blocks of one segment, tried one by one."""
    segments = [merged(blocks) for blocks in layout]
    if any(largest_gap(blocks, set()) >= wanted for blocks in segments):
        return
    costs = [
        sum(blocks[place][0] for place in chosen)
        for blocks in segments
        for number in range(1, len(blocks) + 1)
        for chosen in combinations([place for place, (_, site) in enumerate(blocks) if site != "."], number)
        if largest_gap(blocks, set(chosen)) >= wanted
    ]
    history = memory(*segments)
    picture = history.layout_at(-1)
    found = smallest_for_hole(history, picture, np.ones(len(segments), bool), wanted * MIB)
    assert (found.block_bytes if found else None) == (min(costs) * MIB if costs else None)
    if found is not None:
        assert found.freed_bytes >= wanted * MIB
        assert found.num_segments == 1
        (number,) = set(homes_of(picture, found))
        names = [place for place, (_, site) in enumerate(segments[number]) if site != "."]
        own = picture.blocks_of(number)
        ended = {names[i] for i, row in enumerate(picture.blocks.row[own].tolist()) if row in found.lifetimes.tolist()}
        assert largest_gap(segments[number], ended) * MIB == found.freed_bytes


def homes_of(picture: Layout, found: FreeingSet) -> list[int]:
    """Return the segments of the blocks to end."""
    homes: list[int] = picture.blocks.segment[np.isin(picture.blocks.row, found.lifetimes)].tolist()
    return homes


def test_a_hole_comes_about_in_chosen_segments_only() -> None:
    history = memory([(1, "a"), (9, "."), (1, "b"), (9, ".")], [(5, "a"), (10, "."), (5, "c")])
    picture = history.layout_at(-1)
    found = smallest_for_hole(history, picture, np.array([True, True]), 15 * MIB)
    assert found is not None
    assert (found.block_bytes, found.freed_bytes, [row.key for row in found.rows]) == (MIB, 19 * MIB, ["b.py:1 b"])
    found = smallest_for_hole(history, picture, np.array([False, True]), 15 * MIB)
    assert found is not None
    assert (found.block_bytes, found.freed_bytes) == (5 * MIB, 15 * MIB)
    assert smallest_for_hole(history, picture, np.array([False, False]), MIB) is None
    assert smallest_for_hole(history, picture, np.array([True, True]), 21 * MIB) is None


def check_return(segments: list[Blocks], found: FreeingSet, picture: Layout) -> None:
    """What a set is said to free is free without it: whole segments."""
    ended = found.lifetimes.tolist()
    freed = number = 0
    for place, blocks in enumerate(segments):
        rows = picture.blocks.row[picture.blocks_of(place)].tolist()
        if rows and set(rows) <= set(ended):
            freed, number = freed + sum(size for size, _ in blocks), number + 1
    assert (found.freed_bytes, found.num_segments) == (freed * MIB, number)
    assert found.block_bytes == sum(row.bytes for row in found.rows)


@settings(max_examples=80)
@given(layout=st.lists(PIECES, min_size=1, max_size=6), wanted=st.integers(1, 80))
def test_few_bytes_for_segments_to_go_back(layout: list[Blocks], wanted: int) -> None:
    """The answer is valid, exists whenever one does, and is no worse than the best single segment."""
    segments = [merged(blocks) for blocks in layout]
    partly = [
        (sum(size for size, _ in blocks), sum(size for size, site in blocks if site != "."))
        for blocks in segments
        if {site for _, site in blocks} - {"."} and any(site == "." for _, site in blocks)
    ]
    history = memory(*segments)
    picture = history.layout_at(-1)
    found = smallest_for_return(history, picture, wanted_bytes=wanted * MIB)
    assert (found is not None) == (sum(total for total, _ in partly) >= wanted)
    if found is not None:
        check_return(segments, found, picture)
        assert found.freed_bytes >= wanted * MIB
        alone = [used * MIB for total, used in partly if total >= wanted]
        assert found.block_bytes <= min(alone, default=found.block_bytes)


def test_unasked_all_segments_that_are_mostly_free_go_back() -> None:
    """4 of 20 and 9 of 20 are in use; of the third segment half is, and that counts as used."""
    segments: list[Blocks] = [[(4, "a"), (16, ".")], [(11, "."), (9, "b")], [(10, "c"), (10, ".")], [(20, ".")]]
    history = memory(*segments)
    found = smallest_for_return(history, history.layout_at(-1))
    assert found is not None
    assert (found.block_bytes, found.freed_bytes, found.num_segments) == (13 * MIB, 40 * MIB, 2)
    mostly_used = memory([(18, "a"), (2, ".")], [(15, "b"), (5, ".")])
    found = smallest_for_return(mostly_used, mostly_used.layout_at(-1))
    assert found is not None
    assert [row.key for row in found.rows] == ["b.py:1 b"]


def test_granules_that_go_back_need_every_block_of_theirs_gone() -> None:
    """a lies over the border at 20 MiB, b in the second granule: both are in the way of the second."""
    history = memory([(15, "."), (6, "a"), (4, "b"), (35, ".")], is_expandable=True)
    picture = history.layout_at(-1)
    found = smallest_for_return(history, picture, wanted_bytes=40 * MIB)
    assert found is not None
    assert (found.block_bytes, found.freed_bytes, found.num_segments) == (10 * MIB, 40 * MIB, 2)
    found = smallest_for_return(history, picture, wanted_bytes=20 * MIB)
    assert found is not None
    # The first granule is a's alone.
    assert ([row.key for row in found.rows], found.freed_bytes) == (["a.py:1 a"], 20 * MIB)


# ------------------------------------------------------------------------------- recordings


def user_line(history: DeviceHistory, stack: int) -> str:
    """Return the innermost line of the program itself, as the answers name it."""
    stacks = history.snapshot.stacks
    for frame in stacks.frames_of(stack).tolist():
        file = stacks.file_of(frame)
        if file.startswith(("/project/", "/app/")):
            return f"{file.rpartition('/')[2]}:{stacks.line_of(frame)}:{stacks.function_of(frame)}"
    return "(no python frame of the user)"


def check_pins(case: Recorded) -> None:
    """Compare sites with lines: several lines may be one site, and one line several.

    What a line holds is at least what each of its sites does, and at most what they do together.
    """
    report, history = case.report(), case.history
    by_line: dict[str, list[tuple[int, int]]] = defaultdict(list)
    stacks, sizes = history.lifetimes.alloc_stack, history.blocks.block_bytes
    for pin in report.pins:
        for row in pin.row.lifetimes.tolist():
            by_line[user_line(history, int(stacks[row]))].append((1, int(sizes[row])))
    found = {line: (len(blocks), sum(size for _, size in blocks)) for line, blocks in by_line.items()}
    assert found == {row["site"]: (row["blocks"], row["bytes"]) for row in case.answer["pinned_by"]}
    lines_of = [{user_line(history, int(stacks[row])) for row in pin.row.lifetimes.tolist()} for pin in report.pins]
    for row in case.answer["pinned_by"]:
        own = [pin for pin, lines in zip(report.pins, lines_of, strict=True) if lines == {row["site"]}]
        touched = [pin for pin, lines in zip(report.pins, lines_of, strict=True) if row["site"] in lines]
        assert row["holes_held_any_bytes"] <= sum(pin.held_any_bytes for pin in touched)
        assert row["holes_held_any_bytes"] >= max((pin.held_any_bytes for pin in own), default=0)
        if own == touched and len(own) == 1:
            assert own[0].held_any_bytes == row["holes_held_any_bytes"]
            assert own[0].held_alone_bytes == row["holes_held_alone_bytes"]
            assert own[0].num_segments == row["segments"]
    assert all(pin.held_alone_bytes <= pin.held_any_bytes for pin in report.pins)


ORDINARY: Final = [
    name
    for name in recordings("runs/oom")
    if not any(word in name for word in ("exp_", "expandable", "retry_then_fine"))
]


@pytest.mark.parametrize("name", ORDINARY)
def test_pins_are_those_of_the_answers(name: str) -> None:
    check_pins(recorded(name))


def test_pins_are_those_of_more_answers(shared: Path) -> None:
    cases = [case for case in answers_in(shared / "snapshots/runs/oom") if case.answer["num_ooms"]]
    checked = [case for case in cases if not case.answer["ledger"]["expandable_reserved_bytes"]]
    assert len(checked) >= 12
    for case in checked:
        check_pins(case)


@pytest.mark.parametrize("name", ["torch-2.14/fragmentation", "torch-2.14/cuda_graph", "torch-2.14/multi_stream",
                                  "runs/oom/exp_checkerboard", "cases/02_fragmentation_oom/a.pickle"])  # fmt: skip
def test_bounds_on_recordings(name: str) -> None:
    """Nobody holds more than all holes; what sites hold alone is theirs only once."""
    history = DeviceHistory(load_snapshot(fixture_path(name)))
    for event in np.linspace(0, history.num_events - 1, 5).astype(int).tolist():
        picture = history.layout_at(event)
        ordinary = ~picture.segments.is_private
        holes = int(picture.segments.free_bytes[ordinary].sum() - picture.segments.returnable_bytes[ordinary].sum())
        rows = pin_rows(history, picture)
        assert sum(pin.held_alone_bytes for pin in rows) <= holes
        assert max((pin.held_any_bytes for pin in rows), default=0) <= holes
        assert sum(pin.held_any_bytes for pin in rows) >= holes
        assert bool(rows) == bool(holes)
        found = smallest_for_return(history, picture)
        assert (found is not None) == bool(holes)


def test_case_02_is_pinned_by_the_evaluation() -> None:
    report = find_oom(DeviceHistory(load_snapshot(fixture_path("cases/02_fragmentation_oom/a.pickle"))))
    (pin,) = report.pins
    assert (pin.row.key, pin.row.num_allocations) == ("train.py:210 eval_loop", 8)
    assert pin.block_bytes == pin.held_alone_bytes == pin.held_any_bytes == 512 * MIB
