"""The five categories and the steps, as every command shows them."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
from typing import Any, Final

import pytest

from snapscope.analyses.ledger import By
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS
from tests import builders as b
from tests.builders import MIB
from tests.cli.running import fail, fixture, succeed
from tests.conftest import FIXTURES

AMP: Final = fixture("torch-2.14/amp_bf16")
NO_CONTEXT: Final = fixture("torch-2.14/no_context")
OOM: Final = fixture("torch-2.14/oom_optimizer_step")
STEP_PEAK: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
LEVELS: Final = ("high", "medium", "low", "none")
LETTERS: Final = {label[0].upper(): label for label in CATEGORY_LABELS}


def document(verb: str, path: str, *options: str) -> Any:
    return succeed(verb, path, "--json", *options).document()


def table(shown: str, title: str) -> list[str]:
    """Return the lines of the table under a title, without its header."""
    lines = shown.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(title))
    return lines[first + 2 : lines.index("", first + 2) if "" in lines[first + 2 :] else None]


# ------------------------------------------------------------------------------------------- ledger


@pytest.mark.parametrize("at", ["peak", "start", "end", "event:700", "step:1"])
@pytest.mark.parametrize("by", [by.value for by in By])
def test_categories_are_the_same_whatever_the_rows_group_by(by: str, at: str) -> None:
    found = document("ledger", AMP, "--at", at, "--by", by)
    assert list(found["categories"]) == list(CATEGORY_LABELS)
    assert sum(found["categories"].values()) == found["requested_bytes"] == sum(row["bytes"] for row in found["rows"])
    assert found["categories"] == document("ledger", AMP, "--at", at)["categories"]
    for row in found["category_rows"]:
        assert row["bytes"] == found["categories"][row["category"]] == sum(row[f"{level}_bytes"] for level in LEVELS)
    assert [row["category"] for row in found["category_rows"]] == list(CATEGORY_LABELS)


def test_rows_by_category_are_the_categories() -> None:
    found = document("ledger", AMP, "--by", "category")
    assert {row["key"]: row["bytes"] for row in found["rows"]} == {
        label: size for label, size in found["categories"].items() if size
    }
    assert all(row["category"] == row["key"] for row in found["rows"])


def test_rows_by_fine_label_part_the_categories() -> None:
    found = document("ledger", AMP, "--by", "fine")
    sums = dict.fromkeys(CATEGORY_LABELS, 0)
    for row in found["rows"]:
        category, _, fine = row["key"].partition("/")
        assert row["category"] == category
        assert fine in FINE_LABELS
        sums[category] += row["bytes"]
    assert sums == found["categories"]


def test_rows_by_module_name_the_chain_of_forwards() -> None:
    keys = [row["key"] for row in document("ledger", AMP, "--by", "module")["rows"]]
    assert "gpt / gpt / linear" in keys
    # What no module allocated keeps its site.
    assert "(C++ backward)" in keys


def test_rows_by_module_use_the_names_that_the_program_gave() -> None:
    address = 0x7F0000000000
    named = {"blocks.0.attn.qkv.weight": "blocks.0.attn.qkv", "head.bias.grad": "head", "just a text": None}
    events: list[b.Events] = []
    for number, text in enumerate(named):
        events.append(b.alloc(address + number * MIB, MIB, frames=[b.frame("make", "train.py", 7)]))
        events.append(b.event("annotate", MIB, addr=address + number * MIB, frames=[], user_metadata=text))
    value = b.snapshot([events], [b.segment(address, [b.block(MIB)] * 3)])
    rows = succeed("ledger", "-", "--by", "module", "--json", stdin=pickle.dumps(value)).document()["rows"]
    assert {row["key"] for row in rows} == {"blocks.0.attn.qkv", "head", "train.py:7 make"}


def test_letters_and_question_marks_in_text() -> None:
    for path in (AMP, NO_CONTEXT, OOM):
        rows = {row["key"]: row for row in document("ledger", path)["rows"]}
        seen = 0
        for line in table(succeed("ledger", path, "--top", "0").text, "who holds it"):
            match = re.fullmatch(
                r" *[\d.]+ [KMG]?i?B +[\d.]+% +[\d,]+  ([PGOAT])(\??) +(.+?)(?:  \(also line .*)?", line
            )
            if match:
                letter, guess, key = match.groups()
                assert rows[key]["category"] == LETTERS[letter]
                assert (rows[key]["confidence"] in ("low", "none")) == bool(guess), line
                seen += 1
        assert seen == len(rows)


def test_how_sure_splits_the_bytes() -> None:
    found = document("ledger", OOM)
    lines = table(succeed("ledger", OOM).text, "by category")
    assert [line.split()[5] for line in lines[:5]] == list(CATEGORY_LABELS)
    for line, row in zip(lines, found["category_rows"], strict=False):
        words = [level for level in LEVELS if row[f"{level}_bytes"]]
        assert re.findall("|".join(LEVELS), line) == words, line
    assert lines[5].endswith("= requested")


def test_left_out_rows_have_no_category() -> None:
    last = document("ledger", AMP, "--focus", "gpt.py")["rows"][-1]
    assert (last["category"], last["confidence"]) == (None, None)


# -------------------------------------------------------------------------------- the other commands


def test_categories_of_the_curve_are_those_of_the_ledger() -> None:
    curve = document("timeline", OOM, "--points", "12")
    for place, event in enumerate(curve["events"]):
        found = document("ledger", OOM, "--at", f"event:{event}")["categories"]
        assert {label: curve["categories"][label][place] for label in CATEGORY_LABELS} == found


@pytest.mark.parametrize("options", [[], ["--focus", "gpt.py"], ["--ignore", "train.py:51"]])
def test_categories_of_the_curve_add_up(options: list[str]) -> None:
    curve = document("timeline", OOM, "--exact", *options)
    columns = [curve["categories"][label] for label in CATEGORY_LABELS]
    assert [sum(values) for values in zip(*columns, strict=True)] == curve["requested_bytes"]


def test_categories_of_lifetimes_are_those_of_the_ledger() -> None:
    rows = document("lifetimes", OOM)["rows"]
    sums = dict.fromkeys(CATEGORY_LABELS, 0)
    for row in rows:
        assert row["fine"] in FINE_LABELS
        assert row["confidence"] in LEVELS
        if row["free_requested_event"] == -1:
            sums[row["category"]] += row["requested_bytes"]
    assert sums == document("ledger", OOM, "--at", "end")["categories"]


def test_summary_shows_what_was_there_at_the_oom() -> None:
    shown = succeed("summary", OOM).text
    expected = succeed("ledger", OOM, "--at", "oom").text
    assert "by category at the last OOM (event 962, " in shown
    assert table(shown, "by category") == table(expected, "by category")
    assert table(shown, "who holds it") == table(expected, "who holds it")
    # Its JSON stays at the peak.
    assert document("summary", OOM)["ledger"]["at"]["label"] == "peak"


def test_summary_without_an_oom_shows_the_peak() -> None:
    shown = succeed("summary", AMP).text
    assert "by category at the peak (event " in shown
    assert table(shown, "by category") == table(succeed("ledger", AMP).text, "by category")


def test_a_device_that_ran_out_of_memory_comes_first() -> None:
    address = 0x7F0000000000
    busy: list[b.Events] = [b.alloc(address, MIB, frames=[]), b.free(address, MIB), b.alloc(address, MIB, frames=[])]
    value = b.snapshot(
        [busy, [b.alloc(address, MIB, frames=[]), b.oom(MIB, 0, frames=[])]],
        [b.segment(address, [b.block(MIB)], device=number) for number in range(2)],
    )
    assert succeed("ledger", "-", "--json", stdin=pickle.dumps(value)).document()["device"] == 1
    assert "device 0: 4 events" in succeed("ledger", "-", stdin=pickle.dumps(value)).text
    assert "1 OOM" in succeed("ledger", "-", "--device", "0", stdin=pickle.dumps(value)).text
    said = fail(2, "ledger", "-", "--device", "0", "--at", "oom", stdin=pickle.dumps(value))
    assert "device 1 has one: use --device" in said


# --------------------------------------------------------------------------------------------- steps


def test_case_06_rows_say_what_was_before_the_step() -> None:
    expected = json.loads((FIXTURES / "cases/expected.json").read_bytes())["06_step_peak_reconciles"]["expected"]
    found = document("ledger", STEP_PEAK, "--at", "step:1", "--by", "step")
    assert found["requested_bytes"] == expected["peak"] == sum(row["bytes"] for row in found["rows"])
    assert {row["key"]: row["bytes"] for row in found["rows"]} == {
        "init": expected["baseline_at_step_start"],
        "step 1": expected["in_step"],
    }
    sites = {
        row["key"].replace(" ", ":"): row["bytes"] for row in document("ledger", STEP_PEAK, "--at", "step:1")["rows"]
    }
    assert sites == {site: size for site, size, _ in expected["rows"]}
    (step,) = [row for row in document("steps", STEP_PEAK)["steps"] if row["name"] == "step 1"]
    assert (step["start_bytes"], step["peak_bytes"]) == (expected["baseline_at_step_start"], expected["peak"])


@pytest.mark.parametrize("path", [AMP, NO_CONTEXT, OOM, STEP_PEAK])
def test_steps_cover_the_history_and_agree_with_the_ledger(path: str) -> None:
    found = document("steps", path)
    cursor, before = 0, document("ledger", path, "--at", "start")["requested_bytes"]
    for row in found["steps"]:
        assert (row["start_event"], row["start_bytes"]) == (cursor, before)
        state = document("ledger", path, "--at", f"event:{row['end_event']}")
        assert (row["end_bytes"], row["categories"]) == (state["requested_bytes"], state["categories"])
        assert document("ledger", path, "--at", f"event:{row['peak_event']}")["requested_bytes"] == row["peak_bytes"]
        if row["name"].startswith("step "):
            at = document("ledger", path, "--at", row["name"].replace(" ", ":"))["at"]
            assert at["event"] == row["peak_event"]
        cursor, before = row["end_event"] + 1, row["end_bytes"]
    assert cursor == document("summary", path)["coverage"]["num_events"]


def test_steps_as_csv_are_the_steps_of_json() -> None:
    rows = list(csv.DictReader(io.StringIO(succeed("steps", AMP, "--csv").text)))
    for flat, row in zip(rows, document("steps", AMP)["steps"], strict=True):
        values = {key: value for key, value in (row | row["categories"]).items() if key in flat}
        assert {key: str(value).lower() if value is True else str(value) for key, value in values.items()} == flat


def test_annotated_and_inferred_are_said() -> None:
    for path, source in ((AMP, "annotated"), (OOM, "inferred")):
        found = document("steps", path)
        assert (found["source"], found["inferred"]) == (source, source == "inferred")
        cut = ", the last unfinished" if path == OOM else ""
        assert f", {source}{cut}; the highest peak is " in succeed("steps", path).lines[0]


def test_no_steps_are_said() -> None:
    path = fixture("cases/15_odd_files/no_traces.pickle")
    found = document("steps", path)
    assert (found["source"], found["inferred"], found["steps"]) == ("none", False, [])
    assert succeed("steps", path).lines[0].startswith("no steps can be told")
    assert succeed("steps", path, "--csv").lines == succeed("steps", AMP, "--csv").lines[:1]


def test_top_cuts_the_table_of_steps() -> None:
    path = fixture("torch-2.14/fragmentation")
    whole = succeed("steps", path, "--top", "0").text
    cut = succeed("steps", path, "--top", "3").text
    number = len(document("steps", path)["steps"])
    assert f"({number - 3} more steps: --top 0 shows all)" in cut
    assert "more step" not in whole
    assert sum(line.startswith("  step ") for line in whole.split("\n")) > 10


def test_a_hostile_name_of_a_step() -> None:
    address = 0x7F0000000000
    for name in ("step " + "1" * 5000, "step \u0663", "ProfilerStep#1\n", "step 1\x1b[31m"):
        value = b.snapshot(
            [[b.alloc(address, MIB, frames=[], time_us=5)]],
            [b.segment(address, [b.block(MIB)])],
            external_annotations=[b.annotation(name, "START", 1), b.annotation(name, "END", 9)],
        )
        assert "\x1b" not in succeed("steps", "-", stdin=pickle.dumps(value)).text
