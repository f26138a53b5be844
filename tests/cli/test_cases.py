"""The answers that cases/expected.json asks for, as the command line gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.running import TEXT_VERBS, fail, fixture, succeed
from tests.conftest import FIXTURES

EXPECTED: Final[dict[str, Any]] = json.loads((FIXTURES / "cases/expected.json").read_bytes())
MIB: Final = 1 << 20


def case(name: str) -> str:
    return fixture(f"cases/{name}")


def document(verb: str, path: str, *options: str) -> Any:
    return succeed(verb, path, "--json", *options).document()


# ------------------------------------------------------------------------------- 02 and 06


def test_case_02_state_at_the_oom() -> None:
    expected = EXPECTED["02_fragmentation_oom"]["expected"]
    at_oom = document("ledger", case("02_fragmentation_oom/a.pickle"), "--at", "oom")
    assert at_oom["reserved_bytes"] == expected["reserved"]
    assert at_oom["allocated_bytes"] == expected["allocated"]
    assert at_oom["pending_bytes"] == expected["pending_free"]
    assert at_oom["cached_bytes"] == at_oom["cached_holes_bytes"] == expected["inactive"]
    assert at_oom["cached_free_segments_bytes"] == expected["releasable"]
    assert at_oom["device_free_bytes"] == expected["oom"]["device_free"]
    (oom,) = document("summary", case("02_fragmentation_oom/a.pickle"))["ooms"]
    assert oom["requested_bytes"] == expected["oom"]["requested"]
    assert [(row["key"], row["num_allocations"], row["bytes"]) for row in at_oom["rows"]] == [
        ("train.py:210 eval_loop", 8, 536870912)
    ]


def test_case_01_is_no_fragmentation() -> None:
    """10 GB are reserved and unallocated, which PyTorch's message takes for fragmentation."""
    expected = EXPECTED["01_capacity_oom"]["expected"]
    found = document("oom", case("01_capacity_oom/a.pickle"))
    assert (found["verdict"], found["also"]) == (expected["verdict"], [])
    numbers = expected["oom"]
    assert found["requested_bytes"] == numbers["requested"]
    assert found["device_free_bytes"] == numbers["device_free"]
    assert found["device_free_bytes"] + found["request_pool_holes_bytes"] == numbers["best_case_free"]
    assert found["short_by_bytes"] == numbers["short_by"]
    ladder = found["ladder"]
    assert (ladder["reserved_bytes"], ladder["allocated_bytes"]) == (numbers["reserved"], numbers["allocated"])
    text = succeed("oom", case("01_capacity_oom/a.pickle")).text
    assert text.startswith("CAPACITY")
    assert expected["text"].partition(",")[0] in text
    assert "expandable_segments" not in text
    assert "fragmentation" not in text.replace("Not fragmentation", "")


def test_case_02_is_fragmentation_by_the_evaluation() -> None:
    expected = EXPECTED["02_fragmentation_oom"]["expected"]
    found = document("oom", case("02_fragmentation_oom/a.pickle"))
    assert (found["verdict"], found["also"], found["short_by_bytes"]) == (expected["verdict"], [], 0)
    assert found["request_pool_num_holes"] == expected["holes"]
    assert found["request_pool_largest_hole_bytes"] == expected["largest_hole"]
    assert found["request_pool_holes_bytes"] == expected["inactive"]
    assert found["request_pool_holes_bytes"] + found["device_free_bytes"] == expected["free_in_total"]
    (pin,) = found["pinned_by"]
    (wanted,) = expected["pinned_by"]
    assert pin["site"].replace(" ", ":") == wanted["stack_top"]
    assert (pin["blocks"], pin["bytes"], pin["holes_held_alone_bytes"]) == (
        wanted["blocks"], wanted["bytes"], wanted["holes_held"],
    )  # fmt: skip
    setting = next(each for each in found["remedies"] if "expandable_segments" in each["action"])
    assert setting["is_enough"]
    assert expected["expandable_segments"] == "off; likely to help"
    assert "off here" in setting["why"]
    state = document("fragmentation", case("02_fragmentation_oom/a.pickle"), "--at", "oom")
    assert (state["num_holes"], state["largest_hole_bytes"]) == (expected["holes"], expected["largest_hole"])
    assert (state["free_segments_bytes"], state["holes_bytes"]) == (expected["releasable"], expected["inactive"])


def test_case_01_and_12_state_at_the_oom() -> None:
    expected = EXPECTED["01_capacity_oom"]["expected"]["oom"]
    at_oom = document("ledger", case("01_capacity_oom/a.pickle"), "--at", "oom")
    assert (at_oom["reserved_bytes"], at_oom["allocated_bytes"]) == (expected["reserved"], expected["allocated"])
    assert at_oom["cached_bytes"] == expected["reserved_unallocated"]
    expected = EXPECTED["12_rank_imbalance"]["expected"]
    for rank, peak in enumerate(expected["peaks"]):
        found = document("summary", case(f"12_rank_imbalance/rank{rank}_memory_snapshot.pickle"))
        assert found["device"] == expected["device_of_rank"][rank]
        assert found["peaks"]["requested"]["bytes"] == peak
        assert bool(found["ooms"]) == (f"rank {rank}" in expected["oom"])
        verdict = document("oom", case(f"12_rank_imbalance/rank{rank}_memory_snapshot.pickle"))["verdict"]
        assert (verdict != "none") == (f"rank {rank}" in expected["oom"])


def test_case_06_rows_add_up_to_the_peak_and_not_to_the_step() -> None:
    expected = EXPECTED["06_step_peak_reconciles"]["expected"]
    at_peak = document("ledger", case("06_step_peak_reconciles/a.pickle"))
    assert at_peak["requested_bytes"] == expected["peak"]
    assert [(row["key"].replace(" ", ":"), row["bytes"]) for row in at_peak["rows"]] == [
        (site, num_bytes) for site, num_bytes, _ in expected["rows"]
    ]


# -------------------------------------------------------------------------------------- 07


def test_case_07_leak_per_step() -> None:
    expected = EXPECTED["07_leak_per_step"]["expected"]
    found = document("leaks", case("07_leak_per_step/a.pickle"))
    assert found["verdict"] == expected["verdict"]
    assert found["after_each_step"] == expected["after_each_step"]
    assert found["growth_per_step_bytes"] == expected["growth_per_step"]
    assert [
        {
            "stack_top": row["site"].replace(" ", ":"),
            "count": row["count"],
            "bytes": row["bytes"],
            "one_per_step": row["one_per_step"],
        }
        for row in found["survivors"]
    ] == expected["survivors"]
    shown = succeed("leaks", case("07_leak_per_step/a.pickle")).text
    assert shown.startswith("GROWS 8.00 MiB per step (5 of 5 steps)\n")
    for innocent in ("model.py:9", "init.py:5"):
        assert innocent in EXPECTED["07_leak_per_step"]["must_not"]
        assert innocent not in shown


# -------------------------------------------------------------------------------------- 05

LATE: Final = case("05_history_starts_late/a.pickle")
LATE_EXPECTED: Final = EXPECTED["05_history_starts_late"]["expected"]


def test_case_05_live_bytes_at_start_peak_and_end() -> None:
    assert document("ledger", LATE, "--at", "start")["requested_bytes"] == LATE_EXPECTED["start_live"]
    assert document("ledger", LATE, "--at", "end")["requested_bytes"] == LATE_EXPECTED["end"]
    peak = document("summary", LATE)["peaks"]["requested"]
    assert peak == {"event": -1, "bytes": LATE_EXPECTED["peak"]}
    assert f"requested {LATE_EXPECTED['peak_at']}" in succeed("summary", LATE).lines[0]
    assert document("ledger", LATE)["at"]["event"] == -1


def test_case_05_what_is_known_of_the_bytes_live_at_the_end() -> None:
    expected = LATE_EXPECTED["live_at_end"]
    coverage = document("summary", LATE)["coverage"]
    assert coverage["explained_bytes"] == expected["with alloc event"]
    assert coverage["before_stack_bytes"] == expected["stack known, allocated before the history"]
    assert coverage["live_bytes"] - coverage["stack_bytes"] == expected["no stack"]
    assert coverage["live_bytes"] == LATE_EXPECTED["end"] == sum(expected.values())
    assert coverage["freed_before_bytes"] == LATE_EXPECTED["freed_without_alloc"]
    assert LATE_EXPECTED["coverage"] in succeed("summary", LATE).text


def test_case_05_curve_starts_above_zero_and_draws_no_alloc_for_the_unborn() -> None:
    curve = document("timeline", LATE)
    assert curve["requested_bytes"] == [900 * MIB, 500 * MIB, 500 * MIB, 600 * MIB]
    lives = document("lifetimes", LATE)["rows"]
    (freed,) = [row for row in lives if row["free_requested_event"] >= 0]
    assert freed["birth_event"] == -1
    assert freed["requested_bytes"] == LATE_EXPECTED["freed_without_alloc"]
    assert sum(row["birth_event"] >= 0 for row in lives) == 1
    for verb in TEXT_VERBS:
        assert "-300" not in succeed(verb, LATE).text


# -------------------------------------------------------------------------------------- 15

PLAIN: Final = case("02_fragmentation_oom/a.pickle")
SAME: Final = [*(f"protocol{number}.pickle" for number in range(6)), "a.json", "pickle_named.json"]


def without_the_form(report: Any) -> Any:
    """Return a report without what tells how the file was written."""
    form = {**report.get("format", {}), "size_bytes": 0, "encoding": "", "protocol": 0, "containers": []}
    return {**report, "file": "", "format": form if "format" in report else None}


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("name", SAME)
def test_case_15_every_form_of_the_file_gives_the_same_report(name: str, verb: str) -> None:
    assert without_the_form(document(verb, case(f"15_odd_files/{name}"))) == without_the_form(document(verb, PLAIN))


def test_case_15_tells_how_the_file_was_written() -> None:
    for name in SAME:
        facts = document("summary", case(f"15_odd_files/{name}"))["format"]
        is_json = name == "a.json"
        assert facts["encoding"] == ("json" if is_json else "pickle")
        digits = name.removesuffix(".pickle")[-1]
        assert facts["protocol"] == (None if is_json else int(digits) if digits.isdigit() else 4)
        assert facts["size_bytes"] == Path(case(f"15_odd_files/{name}")).stat().st_size


def test_case_15_address_above_2_63() -> None:
    high = case("15_odd_files/addr_above_2_63.pickle")
    assert "0xffff7f0000000000" in succeed("lifetimes", high).text
    assert document("lifetimes", high)["rows"][0]["addr"] == 0xFFFF7F0000000000
    assert str(0xFFFF7F0000000000) in succeed("lifetimes", high, "--csv").text
    assert without_the_form(document("summary", high)) == without_the_form(document("summary", PLAIN))


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("name", ["no_traces.pickle", "segments_only.pickle"])
def test_case_15_the_state_is_there_without_a_history(name: str, verb: str) -> None:
    path = case(f"15_odd_files/{name}")
    shown = succeed(verb, path).text
    if verb in ("summary", "timeline"):
        assert "no history in this file" in shown
        assert "torch.cuda.memory._record_memory_history(" in shown
    if verb == "ledger":
        assert "512.00 MiB  100.0%      8  T  train.py:210 eval_loop" in shown
    if verb == "lifetimes":
        assert "8 allocations of 512.00 MiB in all, 8 of them alive at the end" in shown


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("name", ["empty.pickle", "truncated.pickle", "hostile.pickle"])
def test_case_15_bad_files_are_refused_in_the_words_asked_for(name: str, verb: str) -> None:
    words = {
        "empty.pickle": "0 bytes: the dump failed while being written",
        "truncated.pickle": "ends in the middle of the pickle",
        "hostile.pickle": "posix.mkdir",
    }[name]
    said = fail(3, verb, case(f"15_odd_files/{name}"))
    assert words in said
    assert words in EXPECTED["15_odd_files"]["expected"][name] or name == "hostile.pickle"


def test_case_15_nothing_in_a_hostile_file_runs() -> None:
    made = Path("/tmp/asks_pickle_was_executed")
    was_there = made.exists()
    for verb in TEXT_VERBS:
        fail(3, verb, case("15_odd_files/hostile.pickle"))
        content = Path(case("15_odd_files/hostile.pickle")).read_bytes()
        fail(3, verb, "-", stdin=content)
    assert not was_there, f"{made} is there: some other program has unpickled the fixture"
    assert not made.exists()
