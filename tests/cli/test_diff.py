"""`diff` and `baseline`: sides, limits, exit codes, forms, hostile text and hostile baselines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.cli.sides import split_side
from snapscope.render.diff import COLUMNS
from tests.builders import GIB, MIB
from tests.cli.running import Ran, fail, fixture, load_json, run_cli, succeed
from tests.cli.terminal import run_on_terminal
from tests.cli.test_hostile import NASTY, assert_printable, hostile_file

A: Final = fixture("cases/11_diff_and_gate/a.pickle")
B: Final = fixture("cases/11_diff_and_gate/b.pickle")
RUN: Final = fixture("torch-2.14/adamw_fp32")
BF16: Final = fixture("torch-2.14/amp_bf16")
TWO_GPU: Final = fixture("torch-2.14/two_gpu")
NO_TRACES: Final = fixture("cases/15_odd_files/no_traces.pickle")


def gate(*arguments: str, code: int) -> Ran:
    """Run a comparison with limits; what it says is on stdout whether it fails or not."""
    ran = run_cli("diff", *arguments)
    assert (ran.code, ran.stderr) == (code, ""), arguments
    return ran


def difference(*arguments: str, stdin: bytes = b"") -> Any:
    return succeed("diff", "--json", *arguments, stdin=stdin).document()


@pytest.fixture
def baseline(tmp_path: Path) -> str:
    path = tmp_path / "base.json"
    assert succeed("baseline", A, "-o", str(path)).stdout == b""
    return str(path)


# ------------------------------------------------------------------------------------------- sides


@pytest.mark.parametrize(
    ("text", "path", "at", "device"),
    [
        ("x.pickle", "x.pickle", None, None),
        ("x.pickle@step:3", "x.pickle", "step:3", None),
        ("x.pickle@step:init", "x.pickle", "step:init", None),
        ("x.pickle@event:-1", "x.pickle", "event:-1", None),
        ("x.pickle@oom", "x.pickle", "oom", None),
        ("x.pickle@oom:2", "x.pickle", "oom:2", None),
        ("x.pickle@peak-reserved", "x.pickle", "peak-reserved", None),
        ("x.pickle@end@device:1", "x.pickle", "end", 1),
        ("x.pickle@device:host@start", "x.pickle", "start", -1),
        ("x@y.pickle@step:1", "x@y.pickle", "step:1", None),
        ("x@time:2026-11-29T13:33:17.5Z", "x", "time:2026-11-29T13:33:17.5Z", None),
        ("-@step:1", "-", "step:1", None),
        ("x.pickle@noon", "x.pickle@noon", None, None),
        ("x.pickle@step:", "x.pickle@step:", None, None),
        ("x.pickle@event:1\n", "x.pickle@event:1\n", None, None),
        ("@end", "", "end", None),
    ],
)
def test_a_side_may_name_its_moment_and_device(text: str, path: str, at: str | None, device: int | None) -> None:
    assert split_side(text) == (path, at, device)


def test_a_file_whose_name_ends_like_a_moment_is_that_file(tmp_path: Path) -> None:
    odd = tmp_path / "snap@step:1"
    shutil.copy(A, odd)
    document = difference(str(odd), B)
    assert (document["before"]["file"], document["before"]["at"]["label"]) == (str(odd), "peak")
    assert difference(f"{odd}@start", B)["before"]["at"] == {"event": -1, "label": "start"}


def test_two_steps_of_one_file_are_compared() -> None:
    document = difference(f"{RUN}@step:0", f"{RUN}@step:1")
    assert [document[side]["at"]["label"] for side in ("before", "after")] == ["step:0", "step:1"]
    # AdamW's two states for 81 MiB of parameters, without the buffer; and a gradient.
    assert document["categories"]["optimizer_state"]["delta_bytes"] == 169_041_920
    assert difference(f"{RUN}@step:1", f"{RUN}@step:2")["is_empty"]


def test_at_is_for_both_sides_and_a_side_has_the_last_word() -> None:
    document = difference(RUN, f"{RUN}@start", "--at", "end")
    assert [document[side]["at"]["label"] for side in ("before", "after")] == ["end", "start"]


def test_two_devices_of_one_file_are_compared() -> None:
    document = difference(f"{TWO_GPU}@device:0", f"{TWO_GPU}@device:1")
    assert (document["before"]["device"], document["after"]["device"], document["device"]) == (0, 1, 1)
    assert not document["is_empty"]
    assert difference(TWO_GPU, TWO_GPU, "--device", "1")["before"]["device"] == 1


def test_one_side_may_be_stdin() -> None:
    for arguments in (("-", RUN), (RUN, "-"), ("--", "-@step:1", f"{RUN}@step:1")):
        assert difference(*arguments, stdin=Path(RUN).read_bytes())["is_empty"]


@pytest.mark.parametrize("sides", [("-", "-"), ("-@step:0", "-@step:1")])
def test_stdin_cannot_be_both_sides(sides: tuple[str, str]) -> None:
    assert "only one of BEFORE and AFTER can be -" in fail(2, "diff", "--", *sides)


@pytest.mark.parametrize("place", [0, 1])
def test_a_side_that_cannot_be_read_is_named(place: int, tmp_path: Path) -> None:
    bad = fixture("cases/15_odd_files/truncated.pickle")
    out = tmp_path / "out"
    for path, message in ((bad, "ends in the middle"), ("nowhere.pickle", "no such file")):
        sides = [A, A]
        sides[place] = path
        assert fail(3, "diff", *sides, "-o", str(out)).startswith(f"{path}: ")
        assert message in fail(3, "diff", *sides, "--json")
    assert not out.exists()
    assert "nowhere.pickle: no such file" in fail(3, "diff", A, "nowhere.pickle@step:1")


# ------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("", 0),
        ("--fail-above 5%", 1),
        ("--fail-above 40%", 0),
        ("--fail-above 30%", 0),
        ("--fail-above 3GiB", 0),
        ("--fail-above 2.9GiB", 1),
        ("--fail-above activation=3GiB", 0),
        ("--fail-above activation=10%", 1),
        ("--fail-above gradient=1MiB", 0),
        ("--fail-above reserved=1%", 1),
        ("--fail-above allocated=1GiB", 1),
        ("--fail-above holes=0", 0),
        ("--fail-above site:upcast=1GiB", 1),
        ("--fail-above site:^model=0", 0),
        ("--fail-below site:^model=512MiB", 1),
        ("--fail-below 0", 0),
        ("--fail-above 40% --fail-above site:loss=1MiB", 1),
    ],
)
def test_limits_decide_the_exit_code(options: str, code: int) -> None:
    gate(A, B, *options.split(), code=code)
    document = gate(A, B, *options.split(), "--json", code=code).document()
    assert bool(document["failed"]) == bool(code)
    assert gate(A, B, *options.split(), "--csv", code=code).stdout == gate(A, B, "--csv", code=0).stdout


def test_a_failed_limit_says_why_with_the_rows_that_explain_it() -> None:
    lines = gate(A, B, "--fail-above", "site:loss=1MiB", "--fail-above", "5%", code=1).lines
    reason = "site:loss grew by 4.00 GiB (from 0 B to 4.00 GiB), more than 1MiB"
    where = lines.index(f"FAILED --fail-above site:loss=1MiB: {reason}")
    assert lines[where + 1] == "    +4.00 GiB  activation  loss.py:12 upcast"
    assert lines[where + 2].startswith("FAILED --fail-above 5%: peak grew by 3.00 GiB (from 10.00 GiB to 13.00 GiB)")
    (site, peak) = gate(A, B, "--fail-above", "site:loss=1MiB", "--fail-above", "5%", "--json", code=1).document()[
        "failed"
    ]
    assert site["limit_bytes"] == MIB
    assert (peak["what"], peak["limit_bytes"], peak["value_bytes"]) == ("peak", 10 * GIB // 20, 3 * GIB)
    shown = gate(A, B, "--fail-above", "5%", "--markdown", code=1).text
    assert "- ❌ `--fail-above 5%`: peak grew by 3.00 GiB" in shown


def test_the_peak_of_a_final_state_cannot_be_judged() -> None:
    ran = gate(NO_TRACES, NO_TRACES, "--fail-above", "1GiB", "--json", code=1)
    (failed,) = ran.document()["failed"]
    assert failed["value_bytes"] is None
    assert failed["reason"].startswith(f"cannot tell: {NO_TRACES} has no history")
    gate(NO_TRACES, NO_TRACES, "--fail-above", "1GiB", "--at", "end", code=0)


# ------------------------------------------------------------------------------------------- forms


def test_text_rows_sum_and_top_says_what_it_left_out() -> None:
    short = succeed("diff", RUN, BF16, "--top", "3").text
    assert re.search(r"\(6 more sites: --top 0 shows all\)", short)
    whole = succeed("diff", RUN, BF16, "--top", "0").text
    assert "more sites" not in whole
    assert difference(RUN, BF16, "--top", "1") == difference(RUN, BF16)


def test_csv_columns_are_the_keys_of_the_rows() -> None:
    rows = list(csv.DictReader(io.StringIO(succeed("diff", A, B, "--csv").text)))
    assert list(rows[0]) == list(COLUMNS)
    document = difference(A, B)["rows"]
    assert {*document[0]} - {"moved", "sizes"} == {*COLUMNS} - {"moved_from", "moved_to"}
    assert [(row["site"], int(row["delta_bytes"])) for row in rows] == [(r["site"], r["delta_bytes"]) for r in document]
    assert sum(int(row["delta_bytes"]) for row in rows) == 3 * GIB


def test_json_sums_in_every_table() -> None:
    for before, after in ((A, B), (RUN, BF16), (NO_TRACES, RUN), (RUN, f"{TWO_GPU}@device:1")):
        document = difference(before, after)
        for rows in (document["rows"], document["fine"], document["categories"].values()):
            for key in ("before_bytes", "after_bytes"):
                assert sum(row[key] for row in rows) == document[key.partition("_")[0]]["requested_bytes"]
            assert sum(row["delta_bytes"] for row in rows) == document["delta_bytes"]
        for row in document["rows"]:
            assert row["delta_bytes"] == row["after_bytes"] - row["before_bytes"]


def test_output_goes_to_a_file_that_no_side_is(tmp_path: Path, baseline: str) -> None:
    out = tmp_path / "out.md"
    assert succeed("diff", A, B, "--markdown", "-o", str(out)).stdout == b""
    assert out.read_bytes() == succeed("diff", A, B, "--markdown").stdout
    assert "exists: --force overwrites it" in fail(2, "diff", A, B, "-o", str(out))
    assert "it would be lost" in fail(2, "diff", baseline, B, "-o", baseline, "--force")
    copy = tmp_path / "b.pickle"
    shutil.copy(B, copy)
    assert "it would be lost" in fail(2, "diff", A, str(copy), "-o", str(copy), "--force")


@pytest.mark.parametrize("form", ["", "--json", "--csv", "--markdown"])
def test_a_pipe_has_no_colour_and_each_form_ends_its_last_line(form: str) -> None:
    ran = succeed("diff", RUN, BF16, *form.split())
    assert b"\x1b" not in ran.stdout
    assert ran.stdout.endswith(b"\n")
    assert not ran.stdout.endswith(b"\n\n")


def test_a_narrow_terminal_cuts_nothing_off() -> None:
    code, shown = run_on_terminal("diff", A, B)
    assert code == 0
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()) <= 80
    assert re.sub(r"\s+", "", "moved from model.py:88 block, 1 block of 4.00 GiB, now 3.00 GiB") in re.sub(
        r"\s+", "", shown
    )


# ----------------------------------------------------------------------------------- hostile text


@pytest.mark.parametrize("form", ["", "--json", "--csv", "--markdown"])
@pytest.mark.parametrize("kind", NASTY)
def test_no_text_of_a_file_is_taken_for_more_than_text(kind: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "nasty.pickle"
    path.write_bytes(hostile_file(NASTY[kind]))
    for sides in (("-", str(path)), (A, str(path)), (str(path), A)):
        ran = succeed("diff", *sides, *form.split(), "--top", "0", stdin=hostile_file("plain"))
        assert_printable(ran.text)
        if form == "--json":
            load_json(ran.stdout)
        elif form == "--csv":
            rows = list(csv.reader(io.StringIO(ran.text), strict=True))
            assert {len(row) for row in rows} == {len(COLUMNS)}
        elif form == "--markdown":
            check_markdown(ran.text)


def check_markdown(text: str) -> None:
    """Fail if a table breaks, or if anything but our own signs stands outside of `code`."""
    for line in text.splitlines():
        assert line.count("`") % 2 == 0, line
        outside = "".join(line.split("`")[::2])
        if line.startswith("|"):
            assert line.count("|") in (5, 5), line
            outside = outside.replace("**requested**", "").replace("optimizer_state", "")
        elif line.startswith("**Memory: "):
            outside = outside.strip("*")
        assert not re.search(r"[*_~<>\[\]\\@]|//|www\.", outside), line


@pytest.mark.parametrize(
    "text",
    [
        "**bold** _it_ `code` @someone #1 <img src=x> [a](http://b) www.x.org &#64;me | a\\|b",
        "``` ```",
        "$x$ ~~y~~ ![i](u)",
    ],
)
def test_markdown_of_a_file_stays_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nasty.pickle"
    path.write_bytes(hostile_file(text))
    shown = succeed("diff", A, str(path), "--markdown", "--top", "0", "--fail-above", "1TiB").text
    check_markdown(shown)
    failing = run_cli("diff", A, B, "--markdown", "--fail-above", f"site:upcast|{re.escape(text)}=1")
    assert failing.code == 1
    check_markdown(failing.text)


def test_markdown_shows_functions_as_they_are_called(tmp_path: Path) -> None:
    path = tmp_path / "lambda.pickle"
    path.write_bytes(hostile_file("<lambda>"))
    # Inside of code Markdown decodes nothing.
    assert "&lt;" not in succeed("diff", A, str(path), "--markdown").text
    assert "<lambda>" in succeed("diff", A, str(path), "--markdown").text


# --------------------------------------------------------------------------------------- baselines


def test_a_baseline_takes_the_place_of_its_snapshot(baseline: str) -> None:
    by_baseline, by_snapshot = difference(baseline, B), difference(A, B)
    assert by_baseline["before"].pop("file") == baseline
    assert by_snapshot["before"].pop("file") == A
    assert by_baseline == by_snapshot
    assert difference(A, baseline)["is_empty"]
    gate(baseline, B, "--fail-above", "5%", code=1)
    assert difference(baseline, baseline)["is_empty"]


def test_a_baseline_may_be_compressed_indented_and_reordered(baseline: str, tmp_path: Path) -> None:
    document = json.loads(Path(baseline).read_bytes())
    packed = tmp_path / "base.json.gz"
    packed.write_bytes(gzip.compress(Path(baseline).read_bytes()))
    tidy = tmp_path / "tidy.json"
    tidy.write_text(json.dumps(document, indent=4), encoding="utf-8")
    for path in (packed, tidy):
        assert difference(str(path), A)["is_empty"]


def test_a_baseline_is_the_same_bytes_every_time(baseline: str) -> None:
    assert succeed("baseline", A).stdout == Path(baseline).read_bytes()
    assert succeed("baseline", A, "--json").stdout == Path(baseline).read_bytes()
    assert "exists: --force" in fail(2, "baseline", A, "-o", baseline)
    succeed("baseline", B, "-o", baseline, "--force")
    assert difference(baseline, B)["is_empty"]


def test_a_baseline_is_of_one_moment_of_one_device(baseline: str, tmp_path: Path) -> None:
    assert "it holds one moment of one device" in fail(2, "diff", f"{baseline}@start", B)
    assert "it holds one moment of one device" in fail(2, "diff", B, f"{baseline}@device:1")
    assert "can't be compared at end" in fail(2, "diff", baseline, B, "--at", "end")
    assert succeed("diff", baseline, B, "--at", "peak").stdout == succeed("diff", baseline, B).stdout
    assert "is a baseline already" in fail(2, "baseline", baseline)
    other = tmp_path / "end.json"
    succeed("baseline", RUN, "--at", "end", "-o", str(other))
    assert difference(str(other), RUN, "--at", "end")["is_empty"]


def test_a_baseline_of_each_device_and_moment(tmp_path: Path) -> None:
    for place, side in enumerate((f"{TWO_GPU}@device:1", f"{RUN}@step:2", f"{RUN}@event:100", NO_TRACES)):
        out = tmp_path / f"{place}.json"
        succeed("baseline", side, "-o", str(out))
        assert difference(str(out), side)["is_empty"]


def test_a_baseline_is_no_snapshot(baseline: str) -> None:
    content = Path(baseline).read_bytes()
    assert "is a baseline of snapscope, not a snapshot" in fail(3, "summary", baseline)
    assert "is a baseline of snapscope, not a snapshot" in fail(3, "diff", "-", A, stdin=content)


def test_a_baseline_that_is_broken_is_3_in_one_line(baseline: str, tmp_path: Path) -> None:
    text = Path(baseline).read_text(encoding="utf-8")
    broken = tmp_path / "broken.json"
    cases = {
        text[: len(text) // 2]: "ends in the middle of the JSON",
        text + "}": "is no valid JSON",
        text.replace(str(10 * GIB), str(11 * GIB), 1): "no valid baseline",
        text.replace('"snapscope_baseline": 1', '"snapscope_baseline": 2'): "this version reads 1",
        '{"snapscope_baseline": 1}': "no valid baseline",
        '{"snapscope_baseline": 1, "frames": ' + "[" * 5000 + "]" * 5000 + "}": "JSON",
        text.replace('"bytes":', '"bytes":9223372036854775807,"x":', 1): "no valid baseline",
        text.replace('"at": "peak"', '"at": "\\u001b[31m\\n"'): "",
    }
    for content, message in cases.items():
        broken.write_text(content, encoding="utf-8")
        if message:
            said = fail(3, "diff", str(broken), B)
            assert said.startswith(f"{broken}: ")
            assert message in said
        else:
            assert_printable(succeed("diff", str(broken), B).text)


def test_a_large_baseline_is_read_in_time(tmp_path: Path) -> None:
    document = json.loads(succeed("baseline", A).stdout)
    site = document["sites"][0]
    extra = [{**site, "bytes": 0, "count": 0, "sizes": [], "stack": [place]} for place in range(50_000)]
    document["frames"] = [f"f{place}.py g" for place in range(50_000)]
    document["sites"] = [{**row, "stack": []} for row in document["sites"]] + extra
    path = tmp_path / "large.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert difference(str(path), B)["delta_bytes"] == 3 * GIB
