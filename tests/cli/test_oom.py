"""`snapscope oom` over every fixture: text, JSON, and that the two agree."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.units import format_bytes
from tests import builders as b
from tests.builders import INACTIVE, MIB, Raw
from tests.cli.running import fail, fixture, succeed
from tests.cli.test_sums import FILES
from tests.conftest import FIXTURES

A: Final = 0x7F0000000000
FAILED: Final = fixture("runs/oom/two_ooms")
SUBJECT: Final = (
    "verdict", "also", "answer", "at", "site", "requested_bytes", "device_free_bytes", "request_pool_holes_bytes",
    "short_by_bytes", "needed_bytes", "ladder",
)  # fmt: skip


def document(path: str, *options: str, stdin: bytes = b"") -> Any:
    return succeed("oom", path, "--json", *options, stdin=stdin).document()


def check_sums(found: Any) -> None:
    ledger = found["ledger"]
    assert sum(row["bytes"] for row in ledger["rows"]) == ledger["requested_bytes"]
    assert sum(ledger["categories"].values()) == ledger["requested_bytes"]
    assert sum(row["reserved_bytes"] for row in found["pools"]) == ledger["reserved_bytes"]
    for row in found["pools"]:
        assert row["reserved_bytes"] == row["allocated_bytes"] + row["pending_bytes"] + row["free_bytes"]
    assert sum(row["block_bytes"] for row in found["pending"]) == ledger["pending_bytes"]
    for row in found["pinned_by"]:
        assert row["holes_held_alone_bytes"] <= row["holes_held_any_bytes"]
    growth = found["growth"]
    if growth is not None:
        assert sum(row["delta_bytes"] for row in growth["rows"]) == growth["delta_bytes"]
    for retry in found["retries"]:
        assert retry["released_bytes"] > 0


def check_failure(found: Any, lines: list[str]) -> None:
    """The head of the page and of the JSON are the same failure, in the same figures."""
    wanted = next(one for one in found["ooms"] if one["at"]["event"] == found["at"]["event"])
    assert {key: found[key] for key in SUBJECT} == {key: wanted[key] for key in SUBJECT}
    head = f"{found['verdict'].upper()}: asked for {format_bytes(found['requested_bytes'])}"
    assert lines[0].startswith(head)
    assert lines[1] == found["answer"]
    assert found["verdict"] not in found["also"]
    assert found["left_bytes"] <= found["room_bytes"]
    holes = found["request_pool_holes_bytes"]
    assert found["request_pool_largest_hole_bytes"] <= holes
    assert (found["request_pool_num_holes"] > 0) == (holes > 0)
    free = found["device_free_bytes"] or 0
    assert found["short_by_bytes"] == max(
        0, found["requested_bytes"] - free - holes - found["other_stream_holes_bytes"]
    )
    # PyTorch's own message: allocated and unallocated are all that is reserved.
    said = {part["text"]: part["bytes"] for part in found["message"]}
    assert said["tried to allocate"] == found["segment_bytes_asked"] >= found["requested_bytes"]
    shown = said["allocated by PyTorch"] + said["reserved by PyTorch but unallocated"]
    assert shown == found["ladder"]["reserved_bytes"]


@pytest.mark.parametrize("name", FILES)
def test_every_fixture(name: str) -> None:
    path = (FIXTURES / name).as_posix()
    found, lines = document(path), succeed("oom", path).lines
    check_sums(found)
    assert len(found["ooms"]) == found["num_ooms"]
    if found["num_ooms"]:
        check_failure(found, lines)
        return
    assert found["verdict"] == "none"
    assert lines[0] == found["answer"]
    assert {found[key] for key in ("requested_bytes", "device_free_bytes", "short_by_bytes", "site")} == {None}
    live = format_bytes(found["ledger"]["requested_bytes"])
    assert any(line.startswith(f"at the end {live} are live") for line in lines)


def test_none_is_no_failure() -> None:
    """A file without an `oom` event is answered, with exit code 0."""
    ran = succeed("oom", fixture("torch-2.14/adamw_fp32"))
    assert "no oom event in this history" in ran.lines[0]


@pytest.mark.parametrize("option", [("--focus", "nets"), ("--ignore", "nets"), ("--focus", "jobs_oom|fit")])
def test_a_focus_keeps_the_sums(option: tuple[str, str]) -> None:
    found, plain = document(FAILED, *option), document(FAILED)
    check_sums(found)
    assert [row["key"] for row in found["ledger"]["rows"]][-1].startswith("(left out by --focus")
    assert [row["site"] for row in found["pinned_by"]][-1].startswith("(left out by --focus")
    assert found["ledger"]["requested_bytes"] == plain["ledger"]["requested_bytes"]
    assert sum(row["bytes"] for row in found["pinned_by"]) == sum(row["bytes"] for row in plain["pinned_by"])
    assert sum(row["blocks"] for row in found["pinned_by"]) == sum(row["blocks"] for row in plain["pinned_by"])
    assert {key: found[key] for key in SUBJECT} == {key: plain[key] for key in SUBJECT}


def rows_below(lines: list[str], title: str) -> list[str]:
    """Return the table below a title, without its header."""
    start = next(place for place, line in enumerate(lines) if line.startswith(title))
    end = next((place for place in range(start, len(lines)) if not lines[place].strip()), len(lines))
    return lines[start + 2 : end]


def test_top_cuts_the_text_and_says_what_it_left_out() -> None:
    found, lines = document(FAILED), succeed("oom", FAILED, "--top", "1").lines
    shown, rest, total = rows_below(lines, "who holds it")
    rows = found["ledger"]["rows"]
    assert shown.split()[:2] == format_bytes(rows[0]["bytes"]).split()
    left = sum(row["bytes"] for row in rows[1:])
    assert rest.strip().startswith(format_bytes(left))
    assert f"({len(rows) - 1} more rows" in rest
    assert total.strip().startswith(format_bytes(found["ledger"]["requested_bytes"]))
    pins = [line for line in rows_below(lines, "who pins") if not line.startswith("  the largest")][:2]
    assert f"({len(found['pinned_by']) - 1} more sites" in pins[1]
    assert format_bytes(sum(row["bytes"] for row in found["pinned_by"][1:])) in pins[1]
    # Text alone is cut.
    assert document(FAILED, "--top", "1") == found
    assert len(succeed("oom", FAILED, "--top", "0").lines) > len(lines)


def test_what_is_left_out_of_the_pools_is_english() -> None:
    text = succeed("oom", fixture("torch-2.14/multi_stream"), "--top", "1").text
    assert re.search(r"\d mores", text) is None


def test_several_ooms() -> None:
    found = document(FAILED)
    assert (found["num_ooms"], [one["at"]["event"] for one in found["ooms"]]) == (2, [267, 1740])
    assert found["at"]["event"] == 1740
    text = succeed("oom", FAILED).text
    assert "2 oom events" in text
    assert "event 267" in text


def test_stdin() -> None:
    content = Path(fixture("cases/02_fragmentation_oom/a.pickle")).read_bytes()
    found = document("-", stdin=content)
    named = document(fixture("cases/02_fragmentation_oom/a.pickle"))
    assert {**found, "file": ""} == {**named, "file": ""}
    assert succeed("oom", "-", stdin=content).lines[0].startswith("FRAGMENTATION")


def test_capacity_tells_what_is_outside() -> None:
    found = document(fixture("cases/02_fragmentation_oom/a.pickle"), "--capacity", "2GiB")
    ladder = found["ladder"]
    assert ladder["capacity_bytes"] == 2 << 30
    # 2048 − 1024 reserved − 115 free.
    assert ladder["outside_bytes"] == 909 * MIB
    text = succeed("oom", fixture("cases/02_fragmentation_oom/a.pickle"), "--capacity", "2GiB").text
    assert "909.00 MiB" in text


def test_a_device_without_an_oom_answers_none() -> None:
    path = fixture("cases/12_rank_imbalance/rank3_memory_snapshot.pickle")
    assert document(path)["device"] == 3
    assert document(path, "--device", "0")["verdict"] == "none"


def hostile(text: str) -> bytes:
    """Fail at a frame of this name, over holes that one of this name pins."""
    frames: list[Raw] = [b.frame(text, f"/p/{text}.py", 3)]
    events: list[b.Events] = [
        b.segment_alloc(A, 140 * MIB, frames=frames),
        b.alloc(A, 40 * MIB, frames=frames),
        b.alloc(A + 40 * MIB, 60 * MIB, frames=frames),
        b.alloc(A + 100 * MIB, 20 * MIB, frames=frames),
        b.free(A, 40 * MIB, frames=frames),
        b.free_requested(A + 100 * MIB, 20 * MIB, frames=frames),
        b.segment_alloc(A + (1 << 40), 40 * MIB, frames=frames),
        b.segment_free(A + (1 << 40), 40 * MIB, frames=frames),
        b.oom(70 * MIB, 30 * MIB, frames=frames),
    ]
    blocks = [
        b.block(40 * MIB, state=INACTIVE),
        b.block(60 * MIB, frames=frames),
        b.block(20 * MIB, state=b.PENDING, frames=frames),
        b.block(20 * MIB, state=INACTIVE),
    ]
    return pickle.dumps(b.snapshot([events], [b.segment(A, blocks)]))


@pytest.mark.parametrize("text", ["[red]x[/red]", "\x1b[31mx", "a\nb", "\u202ex", "{0}%s", "[/]"])
@pytest.mark.parametrize("verb", ["oom", "fragmentation"])
def test_names_from_the_file_are_only_text(verb: str, text: str) -> None:
    """Every table that names a site has one here: the failure, pins, what waits, remedies, the release."""
    at = ("--at", "oom")
    plain = succeed(verb, "-", *at, stdin=hostile("x")).lines
    shown = succeed(verb, "-", *at, stdin=hostile(text))
    assert len(shown.lines) == len(plain)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown.text)
    if text.isprintable():
        assert text in shown.text
    found = succeed(verb, "-", "--json", *at, stdin=hostile(text)).document()
    assert found["pinned_by"]
    assert found["pending"]


def test_what_is_no_snapshot() -> None:
    assert "posix.mkdir" in fail(3, "oom", fixture("cases/15_odd_files/hostile.pickle"))
    assert "no frame" in fail(2, "oom", FAILED, "--focus", "nobody_is_called_this").replace("no allocation has a", "no")
