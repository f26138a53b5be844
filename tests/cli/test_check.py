"""`snapscope check`: limits on one file, and what can't be judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.running import fail, fixture, run_cli, succeed

LEAK: Final = fixture("cases/07_leak_per_step/a.pickle")
OOM: Final = fixture("cases/02_fragmentation_oom/a.pickle")
NO_HISTORY: Final = fixture("cases/15_odd_files/no_traces.pickle")
STEADY: Final = fixture("torch-2.14/adamw_fp32")
MIB: Final = 1 << 20


def checked(*words: str, code: int) -> Any:
    ran = run_cli("check", *words, "--json")
    assert (ran.code, ran.stderr) == (code, "")
    document = ran.document()
    assert document["passed"] == (code == 0)
    return document


def test_limits_that_hold() -> None:
    limits = ["--max-peak", "1GiB", "--max-reserved", "1GiB", "--no-oom", "--max-fragmentation", "50%"]
    document = checked(STEADY, *limits, "--max", "optimizer_state=50%", "--max", "gradient=1GiB", code=0)
    assert document["failed"] == []
    assert sum(document["categories"].values()) == document["found"]["requested_bytes"]


@pytest.mark.parametrize(
    ("options", "what", "limit", "value"),
    [
        (["--max-peak", "99MiB"], "peak", 99 * MIB, 100 * MIB),
        (["--max-reserved", "1MiB"], "reserved peak", MIB, 100 * MIB),
        (["--max-growth", "7MiB"], "growth per step", 7 * MIB, 8 * MIB),
        (["--max", "temporary=10%"], "temporary", 10 * MIB, None),
    ],
)
def test_one_reason_a_failed_limit(options: list[str], what: str, limit: int, value: int | None) -> None:
    (failed,) = checked(LEAK, *options, code=1)["failed"]
    assert (failed["what"], failed["limit_bytes"]) == (what, limit)
    assert failed["value_bytes"] > limit
    assert value in (None, failed["value_bytes"])
    text = run_cli("check", LEAK, *options)
    assert text.code == 1
    assert text.text.splitlines()[0].startswith("FAILED: 1 gate, ")
    assert f"FAILED {failed['gate']}: {failed['reason']}" in text.text


def test_holes_are_a_share_of_what_is_reserved() -> None:
    document = checked(OOM, "--max-fragmentation", "40%", code=1)
    (failed,) = document["failed"]
    assert failed["limit_bytes"] == document["found"]["reserved_bytes"] * 40 // 100
    checked(OOM, "--max-fragmentation", "50%", code=0)


def test_an_oom_fails_where_none_is_allowed() -> None:
    (failed,) = checked(OOM, "--no-oom", code=1)["failed"]
    assert failed["reason"] == "the history holds 1 oom event"
    checked(STEADY, "--no-oom", code=0)


def test_what_cannot_be_judged_fails() -> None:
    found = checked(NO_HISTORY, "--max-peak", "80GiB", "--max-growth", "0", "--no-oom", code=1)["failed"]
    assert [gate["value_bytes"] for gate in found] == [None, None, None]
    assert all(gate["reason"].startswith("cannot tell: ") for gate in found)
    (few,) = checked(OOM, "--max-growth", "1GiB", code=1)["failed"]
    assert few["reason"] == "cannot tell: the history holds too few complete steps"


def test_a_limit_that_a_final_state_passes_is_no_guess() -> None:
    (failed,) = checked(NO_HISTORY, "--max-reserved", "1MiB", code=1)["failed"]
    assert failed["value_bytes"] == 1 << 30


def test_a_baseline_stands_in_for_the_snapshot(tmp_path: Path) -> None:
    path = str(tmp_path / "base.json")
    succeed("baseline", STEADY, "-o", path)
    limits = ["--max-peak", "1GiB", "--max", "gradient=1GiB", "--no-oom"]
    theirs, own = checked(path, *limits, code=0), checked(STEADY, *limits, code=0)
    assert theirs["categories"] == own["categories"]
    assert theirs["rows"] == own["rows"]
    (failed,) = checked(path, "--max-growth", "0", code=1)["failed"]
    assert failed["reason"].startswith("cannot tell: a baseline")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([STEADY], "nothing to check"),
        ([STEADY, "--max", "weights=1GiB"], "is no limit"),
        ([STEADY, "--max", "1GiB"], "is no limit of a category"),
        ([STEADY, "--max-fragmentation", "gradient=1GiB"], "is no limit"),
        ([STEADY, "--max-peak", "much"], "is no size"),
    ],
)
def test_wrong_use(words: list[str], message: str) -> None:
    assert message in fail(2, "check", *words)


def test_an_unreadable_file_is_no_failed_check() -> None:
    fail(3, "check", fixture("cases/15_odd_files/truncated.pickle"), "--no-oom")
