"""What --at, --by, --device, --capacity, --top, --focus and --ignore do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.analyses.ledger import By
from tests.cli.running import fail, fixture, succeed
from tests.conftest import FIXTURES

STARTS_LATE: Final = fixture("cases/05_history_starts_late/a.pickle")
STEP_PEAK: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
NO_TRACES: Final = fixture("cases/15_odd_files/no_traces.pickle")
OOM_FORWARD: Final = fixture("torch-2.14/oom_forward")
NO_TIMES: Final = fixture("torch-2.0/oom_forward")
TWO_GPU: Final = fixture("torch-2.14/two_gpu")
CAPTURE: Final = fixture("runs/oom/pend_in_capture")
MIB: Final = 1 << 20


def ledger(path: str, *options: str) -> Any:
    return succeed("ledger", path, "--json", *options).document()


# ------------------------------------------------------------------------------------------- --at


@pytest.mark.parametrize(
    ("at", "event", "requested_mib"),
    [
        ("peak", 1, 120),
        ("peak-allocated", 1, 120),
        ("peak-active", 1, 120),
        ("peak-reserved", -1, 0),
        ("start", -1, 0),
        ("event:-1", -1, 0),
        ("event:0", 0, 100),
        ("event:2", 2, 100),
        ("end", 3, 100),
        ("time:1760000000000020", 1, 120),
        ("time:1760000000000025", 1, 120),
        ("time:2025-10-09T08:53:20.000030", 2, 100),
        ("time:2025-10-09T08:53:20.000030Z", 2, 100),
        ("time:2025-10-09T10:53:20.000030+02:00", 2, 100),
        ("time:2025-10-09 03:23:20.00003-05:30", 2, 100),
    ],
)
def test_at_finds_its_event(at: str, event: int, requested_mib: int) -> None:
    document = ledger(STEP_PEAK, "--at", at)
    assert (document["at"]["event"], document["at"]["label"]) == (event, at)
    assert document["requested_bytes"] == requested_mib * MIB


def test_at_finds_oom_events() -> None:
    last = ledger(OOM_FORWARD, "--at", "oom")
    assert last["at"]["event"] == 188
    assert last["device_free_bytes"] == 20 * MIB
    assert {**ledger(OOM_FORWARD, "--at", "oom:1"), "at": last["at"]} == last


@pytest.mark.parametrize(
    ("path", "at", "message"),
    [
        (STEP_PEAK, "", "--at '' is no moment: use peak, "),
        (STEP_PEAK, "noon", "--at 'noon' is no moment: use peak, "),
        (STEP_PEAK, "event:", "is no moment"),
        (STEP_PEAK, "5", "--at '5' is no moment: for the event of that number write event:5"),
        (STEP_PEAK, "-1", "write event:-1"),
        (STEP_PEAK, "event:٣", "is no moment: use peak, "),
        (STEP_PEAK, "oom:٣", "is no moment: use peak, "),
        (STEP_PEAK, "step:٣", "is no moment: use peak, "),
        (STEP_PEAK, "time:٣", "'٣' is no time"),
        (STEP_PEAK, "time:20251009T085320", "is no time"),
        (STEP_PEAK, "time:2025-W41-4", "is no time"),
        (STEP_PEAK, "time:2025-10-09T08", "is no time"),
        (STEP_PEAK, "time:2025-10-09T08:53:20,5", "is no time"),
        (STEP_PEAK, "time:2025-10-09T08:53:20+2", "is no time"),
        (STEP_PEAK, "time:2025-10-09T08:53:20+25:00", "is no time"),
        (STEP_PEAK, "time:2025-10-09T24:00:00", "is no time"),
        (STEP_PEAK, "time:2025-13-09", "is no time"),
        (STEP_PEAK, "time:0001-01-01T00:00+23:59", "lies outside the history"),
        (STEP_PEAK, "event:one", "is no moment"),
        (STEP_PEAK, "event:4", "no event 4: device 0 has events 0 to 3, and -1 = start"),
        (STEP_PEAK, "event:-2", "no event -2"),
        (STEP_PEAK, "event:99999999999999999999", "is no moment"),
        (STEP_PEAK, "oom", "no oom event in the history of device 0: use --at peak or --at end"),
        (STEP_PEAK, "oom:1", "no oom event"),
        (OOM_FORWARD, "oom:0", "no oom:0: device 0 has oom:1 to oom:1"),
        (OOM_FORWARD, "oom:2", "no oom:2: device 0 has oom:1 to oom:1"),
        (STEP_PEAK, "time:", "'' is no time"),
        (STEP_PEAK, "time:yesterday", "'yesterday' is no time: give microseconds since 1970, or ISO 8601 in UTC"),
        (STEP_PEAK, "time:1", "lies outside the history, which runs from 2025-10-09T08:53:20.000010 to "),
        (STEP_PEAK, "time:2030-01-01", "lies outside the history"),
        (NO_TIMES, "time:1", "no times (PyTorch before 2.2): use --at event:N"),
    ],
)
def test_at_says_what_is_wrong(path: str, at: str, message: str) -> None:
    assert message in fail(2, "ledger", path, "--at", at)


@pytest.mark.parametrize("at", ["peak", "peak-allocated", "peak-active", "peak-reserved", "start", "end", "event:-1"])
def test_without_a_history_every_moment_is_the_final_state(at: str) -> None:
    document = ledger(NO_TRACES, "--at", at)
    assert (document["at"]["event"], document["requested_bytes"]) == (-1, 512 * MIB)


@pytest.mark.parametrize("at", ["event:0", "time:1"])
def test_without_a_history_there_are_no_events(at: str) -> None:
    said = fail(2, "ledger", NO_TRACES, "--at", at)
    assert "events 0 to -1" not in said
    assert "PyTorch before" not in said


# --------------------------------------------------------------------------------------------- --by


def test_rows_by_stream_and_pool_have_names() -> None:
    assert [row["key"] for row in ledger(fixture("torch-2.14/cuda_graph"), "--by", "pool")["rows"]] == [
        "default pool",
        "private pool (1, 0)",
        "private pool (0, 1)",
    ]
    assert ledger(OOM_FORWARD, "--by", "stream")["rows"][0]["key"] == "stream 0"


@pytest.mark.parametrize("by", ["stream", "pool"])
def test_only_sites_and_files_have_lines(by: str) -> None:
    # Line numbers of dozens of files say nothing about a stream.
    assert not any(row["lines"] for row in ledger(OOM_FORWARD, "--by", by)["rows"])
    assert "also line" not in succeed("ledger", OOM_FORWARD, "--by", by).text


# ----------------------------------------------------------------------------------------- --device


def test_the_device_with_most_events_is_chosen_and_the_others_are_named() -> None:
    assert ledger(TWO_GPU)["device"] == 1
    assert "device 1 (also device 0: 1,384 events, 362.00 MiB: --device N)" in succeed("ledger", TWO_GPU).text


@pytest.mark.parametrize("device", ["0", "1", "cuda:1"])
def test_device_chooses(device: str) -> None:
    assert ledger(TWO_GPU, "--device", device)["device"] == int(device[-1])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("2", "no device 2 in this snapshot (there are: device 0, device 1)"),
        ("host", "no pinned host memory in this snapshot (there are: device 0, device 1)"),
        ("-1", "'-1' is no device: write a number, or host for pinned memory"),
        ("gpu", "'gpu' is no device"),
        ("٣", "is no device"),
        ("", "'' is no device"),
    ],
)
def test_a_device_that_is_not_there_is_wrong_use(device: str, message: str) -> None:
    assert message in fail(2, "ledger", TWO_GPU, "--device", device)


# --------------------------------------------------------------------------------------- --capacity

ANSWERS: Final = sorted(
    path.name.removesuffix(".answer.json")
    for path in (FIXTURES / "runs/oom").glob("*.answer.json")
    if "ledger" in json.loads(path.read_bytes())
)


@pytest.mark.parametrize("run", ANSWERS)
def test_ladder_at_the_oom_is_what_pytorch_and_the_driver_counted(run: str) -> None:
    answer = json.loads((FIXTURES / f"runs/oom/{run}.answer.json").read_bytes())["ledger"]
    document = ledger(fixture(f"runs/oom/{run}"), "--at", "oom", "--capacity", str(answer["capacity_bytes"]))
    known = {key: answer[key] for key in document if key.endswith("_bytes")}
    assert {key: document[key] for key in known} == known
    assert document["capacity_bytes"] == sum(
        document[f"{rung}_bytes"] for rung in ("requested", "rounding", "pending", "cached", "outside", "device_free")
    )


def test_ladder_ends_at_the_capacity() -> None:
    lines = succeed("ledger", OOM_FORWARD, "--at", "oom", "--capacity", "1200MiB").lines
    rungs = {cells[0]: cells[1] for cells in (re.split(r"  +", line) for line in lines) if len(cells) > 1}
    assert rungs["= reserved"] == "780.00 MiB"
    assert rungs["+ outside PyTorch"] == "400.00 MiB"
    assert rungs["+ device free"] == "20.00 MiB"
    assert rungs["= capacity"] == "1.17 GiB"


@pytest.mark.parametrize("size", ["1258291200", "1200MiB", "1200 MB", "1228800k", "1.171875GiB"])
def test_capacity_is_read_in_every_unit(size: str) -> None:
    assert ledger(OOM_FORWARD, "--capacity", size)["capacity_bytes"] == 1200 * MIB


def test_capacity_unknown_is_said() -> None:
    assert ledger(OOM_FORWARD)["capacity_bytes"] is None
    assert "needs --capacity: the card's size isn't in the file" in succeed("ledger", OOM_FORWARD).text


@pytest.mark.parametrize("at", ["peak", "oom"])
def test_a_card_smaller_than_what_is_reserved_on_it_is_called_so(at: str) -> None:
    shown = succeed("ledger", OOM_FORWARD, "--at", at, "--capacity", "100MiB").text
    assert "only an oom event tells" not in shown
    assert "-680.00 MiB" not in shown


@pytest.mark.parametrize("verb", ["summary", "timeline", "lifetimes"])
def test_every_verb_takes_the_capacity(verb: str) -> None:
    succeed(verb, OOM_FORWARD, "--capacity", "1200MiB")


# -------------------------------------------------------------------------------------------- --top


def table(shown: str) -> list[list[str]]:
    """Return the cells of a ledger's rows: bytes, share, count, name, and the category's letter."""
    lines = shown.split("\n")
    first = next(number for number, line in enumerate(lines) if line.rstrip().endswith("  site"))
    rows = []
    for line in lines[first + 1 :]:
        if not line:
            break
        size, unit, share, count, rest = line.split(None, 4)
        letter, name = re.fullmatch(r"(?:([PGOAT]\??)  ?)? *(.+)", rest).groups()  # type: ignore[union-attr]
        rows.append([f"{size} {unit}", share, count.replace(",", ""), name, letter or ""])
    return rows


@pytest.mark.parametrize("top", [0, 1, 2, 7, 1000])
def test_top_cuts_text_and_says_what_it_left_out(top: int) -> None:
    whole = ledger(OOM_FORWARD)
    rows = table(succeed("ledger", OOM_FORWARD, "--top", str(top)).text)
    total = rows.pop()
    assert total[3] == "= requested"
    assert int(total[2]) == sum(int(row[2]) for row in rows) == sum(row["num_allocations"] for row in whole["rows"])
    if 0 < top < len(whole["rows"]) - 1:
        assert len(rows) == top + 1
        assert rows[-1][3] == f"({len(whole['rows']) - top} more rows: --top 0 shows all)"
    else:
        assert len(rows) == len(whole["rows"])


def test_top_cuts_lifetimes_too() -> None:
    for top, shown in ((0, 127), (1, 1), (3, 3)):
        lines = succeed("lifetimes", OOM_FORWARD, "--top", str(top)).lines
        assert sum("  0x7e" in line for line in lines) == shown
    assert any("(124 more: --top 0, --json, --csv)" in line for line in lines)


@pytest.mark.parametrize("form", ["--json", "--csv"])
@pytest.mark.parametrize("verb", ["ledger", "lifetimes"])
def test_top_never_cuts_data(verb: str, form: str) -> None:
    assert succeed(verb, OOM_FORWARD, form, "--top", "1").stdout == succeed(verb, OOM_FORWARD, form).stdout


# -------------------------------------------------------------------------------- --focus, --ignore

LEFT_OUT: Final = "(left out by --focus/--ignore)"


@pytest.mark.parametrize("by", [by.value for by in By])
@pytest.mark.parametrize(
    "options",
    [["--focus", "gpt"], ["--ignore", "gpt"], ["--focus", "gpt", "--ignore", r":32 "]],
)
def test_rows_still_add_up_when_frames_are_selected(options: list[str], by: str) -> None:
    whole = ledger(OOM_FORWARD, "--by", by)
    document = ledger(OOM_FORWARD, "--by", by, *options)
    assert document["requested_bytes"] == whole["requested_bytes"] == sum(row["bytes"] for row in document["rows"])
    assert sum(row["num_allocations"] for row in document["rows"]) == sum(r["num_allocations"] for r in whole["rows"])
    assert document["rows"][-1]["key"] == LEFT_OUT


def test_focus_and_ignore_part_the_rows_between_them() -> None:
    left_out = [
        next(row["bytes"] for row in ledger(OOM_FORWARD, option, "gpt.py")["rows"] if row["key"] == LEFT_OUT)
        for option in ("--focus", "--ignore")
    ]
    assert sum(left_out) == ledger(OOM_FORWARD)["requested_bytes"]


def test_focus_that_fits_all_changes_nothing() -> None:
    assert ledger(STEP_PEAK, "--focus", ".")["rows"] == ledger(STEP_PEAK)["rows"]
    assert ledger(STEP_PEAK, "--ignore", "nowhere")["rows"] == ledger(STEP_PEAK)["rows"]


def test_what_was_left_out_stays_a_row_under_top() -> None:
    rows = table(succeed("ledger", OOM_FORWARD, "--ignore", "train.py:51|gpt.py:32", "--top", "1").text)
    assert rows[-2][3] == LEFT_OUT


def test_focus_selects_lifetimes_and_curves() -> None:
    rows = succeed("lifetimes", STEP_PEAK, "--focus", "model.py:9 forward", "--json").document()["rows"]
    assert [row["site"] for row in rows] == ["model.py:9 forward"]
    curve = succeed("timeline", STEP_PEAK, "--focus", "forward", "--json").document()
    assert curve["requested_bytes"] == [0, 0, 20 * MIB, 0, 0]
    assert curve["reserved_bytes"] == [120 * MIB] * 5


@pytest.mark.parametrize("verb", ["summary", "ledger", "timeline", "lifetimes"])
@pytest.mark.parametrize("option", ["--focus", "--ignore"])
def test_a_pattern_that_is_none_is_wrong_use(verb: str, option: str) -> None:
    assert "'[' is no regular expression: " in fail(2, verb, STEP_PEAK, option, "[")


# ----------------------------------------------------------------------------------------- timeline


@pytest.mark.parametrize("points", [4, 10, 50, 100_000])
def test_a_sampled_curve_keeps_its_ends_and_peaks(points: int) -> None:
    exact = succeed("timeline", OOM_FORWARD, "--exact", "--json").document()
    curve = succeed("timeline", OOM_FORWARD, "--points", str(points), "--json").document()
    assert len(exact["events"]) == exact["num_events"] + 1
    assert curve["sampled"] == (points < len(exact["events"]))
    assert len(curve["events"]) <= points + 1
    for key in ("requested_bytes", "reserved_bytes"):
        assert max(curve[key]) == max(exact[key])
        assert (curve[key][0], curve[key][-1]) == (exact[key][0], exact[key][-1])
    assert curve["events"] == sorted(set(curve["events"]))
    places = [exact["events"].index(event) for event in curve["events"]]
    for key in ("time_us", "requested_bytes", "allocated_bytes", "pending_bytes", "reserved_bytes"):
        assert curve[key] == [exact[key][place] for place in places]


def test_points_of_the_curve_are_those_of_the_ledger() -> None:
    curve = succeed("timeline", CAPTURE, "--exact", "--json").document()
    for place, event in enumerate(curve["events"]):
        state = ledger(CAPTURE, "--at", f"event:{event}")
        for key in ("requested_bytes", "allocated_bytes", "pending_bytes", "reserved_bytes"):
            assert curve[key][place] == state[key], (event, key)


def test_paths_are_shown_as_they_were_given(tmp_path: Path) -> None:
    copy = tmp_path / "snäp shot.pickle"
    copy.write_bytes(Path(STEP_PEAK).read_bytes())
    assert ledger(str(copy))["file"] == str(copy)
    assert f"{copy}  device 0" in succeed("ledger", str(copy)).text


@pytest.mark.parametrize("option", ["--focus", "--ignore"])
@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "is no regular expression: "), ("a{99999999999999999999}", "too large"), ("(" * 20_000, "")],
    ids=["syntax", "repetition", "nesting"],
)
def test_a_pattern_that_python_cannot_hold_is_wrong_use(option: str, pattern: str, message: str) -> None:
    assert message in fail(2, "ledger", STEP_PEAK, option, pattern)


def test_a_pattern_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    succeed("ledger", STEP_PEAK, "--focus", "[[a]|forward")
    assert not recwarn.list
