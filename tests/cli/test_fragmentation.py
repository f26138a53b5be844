"""`snapscope fragmentation` over every fixture: text, JSON and CSV, and that they agree."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.units import format_bytes
from tests.cli.running import fail, fixture, succeed
from tests.cli.test_sums import FILES
from tests.conftest import FIXTURES

MIXED: Final = fixture("torch-2.14/fragmentation")
CASE_02: Final = fixture("cases/02_fragmentation_oom/a.pickle")


def document(path: str, *options: str, stdin: bytes = b"") -> Any:
    return succeed("fragmentation", path, "--json", *options, stdin=stdin).document()


def check_sums(found: Any) -> None:
    ladder = found["ladder"]
    parts = [found[f"{name}_bytes"] for name in ("free_segments", "holes", "rounding", "other_pool")]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == ladder["reserved_bytes"] - ladder["requested_bytes"] - ladder["pending_bytes"]
    assert sum(row["reserved_bytes"] for row in found["pools"]) == ladder["reserved_bytes"]
    segments = found["segments"]
    assert sum(segment["size_bytes"] for segment in segments) == ladder["reserved_bytes"]
    assert sum(segment["allocated_bytes"] for segment in segments) == ladder["allocated_bytes"]
    assert sum(segment["pending_bytes"] for segment in segments) == ladder["pending_bytes"]
    requested = 0
    for segment in segments:
        cursor = segment["addr"]
        for block in segment["blocks"]:
            assert block["addr"] == cursor
            cursor += block["size_bytes"]
            requested += block["requested_bytes"] if block["state"] == "active_allocated" else 0
        assert cursor == segment["addr"] + segment["size_bytes"]
        free = [block["size_bytes"] for block in segment["blocks"] if block["state"] == "inactive"]
        assert (sum(free), len(free), max(free, default=0)) == (
            segment["free_bytes"], segment["num_holes"], segment["largest_hole_bytes"],
        )  # fmt: skip
    assert requested == ladder["requested_bytes"]
    for point in found["history"]:
        assert point["reserved_bytes"] >= point["allocated_bytes"] + point["holes_bytes"]
    smallest = found["smallest_set"]
    if smallest is not None:
        assert smallest["blocks"] == len(smallest["addresses"]) == sum(site["blocks"] for site in smallest["sites"])
        held = {block["addr"]: block for segment in segments for block in segment["blocks"]}
        assert smallest["block_bytes"] == sum(held[addr]["size_bytes"] for addr in smallest["addresses"])
        assert all(held[addr]["state"] != "inactive" for addr in smallest["addresses"])


@pytest.mark.parametrize("name", FILES)
def test_every_fixture(name: str) -> None:
    path = (FIXTURES / name).as_posix()
    found, lines = document(path), succeed("fragmentation", path).lines
    check_sums(found)
    ladder = found["ladder"]
    free = ladder["reserved_bytes"] - ladder["requested_bytes"]
    head = lines[0]
    assert head.startswith(f"{format_bytes(free)} of {format_bytes(ladder['reserved_bytes'])} reserved")
    assert f": {format_bytes(found['holes_bytes'])} in {found['num_holes']} hole" in head
    assert head.endswith(f"the largest {format_bytes(found['largest_hole_bytes'])}")
    if found["largest_cached_request_bytes"]:
        assert format_bytes(found["largest_cached_request_bytes"]) in lines[1]


@pytest.mark.parametrize("option", [("--focus", "forward"), ("--ignore", "forward")])
def test_a_focus_keeps_the_sums(option: tuple[str, str]) -> None:
    found, plain = document(MIXED, *option), document(MIXED)
    check_sums(found)
    assert len(found["pinned_by"]) != len(plain["pinned_by"])
    for key in ("bytes", "blocks"):
        assert sum(row[key] for row in found["pinned_by"]) == sum(row[key] for row in plain["pinned_by"])
    same = ("ladder", "holes_bytes", "pools", "segments")
    assert {key: found[key] for key in same} == {key: plain[key] for key in same}


def test_top_cuts_the_text_and_says_what_it_left_out() -> None:
    found = document(MIXED)
    lines = succeed("fragmentation", MIXED, "--top", "1", "--segments").lines
    (rest,) = [line for line in lines if f"({len(found['pinned_by']) - 1} more sites: --top 0" in line]
    assert format_bytes(sum(row["bytes"] for row in found["pinned_by"][1:])) in rest
    (rest,) = [line for line in lines if f"({len(found['segments']) - 1} more: --top 0)" in line]
    by_free = sorted((segment["free_bytes"] for segment in found["segments"]), reverse=True)
    assert format_bytes(sum(by_free[1:])) in rest
    assert document(MIXED, "--top", "1") == found
    every = succeed("fragmentation", MIXED, "--top", "0", "--segments").lines
    assert sum(line.startswith("0x") for line in every) == len(found["segments"])
    assert not [line for line in every if "--top 0" in line]


def test_csv_has_a_line_for_each_segment() -> None:
    found = document(MIXED)
    rows = list(csv.DictReader(io.StringIO(succeed("fragmentation", MIXED, "--csv").text)))
    assert len(rows) == len(found["segments"])
    for row, segment in zip(rows, found["segments"], strict=True):
        for key in ("addr", "size_bytes", "free_bytes", "returnable_bytes", "num_holes", "largest_hole_bytes"):
            assert int(row[key]) == segment[key]
        assert row["pool"] == segment["pool"]
        assert row["is_expandable"] == str(segment["is_expandable"]).lower()


def test_the_drawing_shows_holes_and_blocks() -> None:
    """Each of 8 segments of 128 MiB holds a block of 64 and a hole of 64."""
    lines = succeed("fragmentation", CASE_02, "--at", "oom", "--segments").lines
    drawn = [line for line in lines if line.startswith("0x")]
    assert [(line.count("·"), line.count("T")) for line in drawn] == [(20, 20)] * len(drawn)
    assert len(drawn) == len(document(CASE_02, "--at", "oom")["segments"])


def test_stdin() -> None:
    found = document("-", stdin=Path(CASE_02).read_bytes())
    assert {**found, "file": ""} == {**document(CASE_02), "file": ""}


def test_no_events_no_problem() -> None:
    """The final state is all there is, and the packing of what lived can't be told."""
    path = fixture("cases/15_odd_files/no_traces.pickle")
    found = document(path)
    assert (found["packing"], found["history"], found["at"]["event"]) == (None, [], -1)
    assert found["holes_bytes"] == 512 << 20


def test_moments_that_are_not() -> None:
    assert "no oom event" in fail(2, "fragmentation", fixture("torch-2.14/adamw_fp32"), "--at", "oom")
    assert "is no moment" in fail(2, "fragmentation", CASE_02, "--at", "yesterday")
