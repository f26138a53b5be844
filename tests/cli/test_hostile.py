"""Text from a file is never taken for control codes or markup, and never breaks a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import os
import pickle
import unicodedata
from pathlib import Path
from typing import Any, Final

import pytest

from snapscope.analyses.ledger import By
from tests import builders as b
from tests.builders import MIB
from tests.cli.running import TABLE_VERBS, TEXT_VERBS, Ran, fail, load_json, run_cli, succeed

A: Final = 0x7F0000000000
NASTY: Final = {
    "ansi": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "c1": "\x9b31m",
    "newline": "two\nlines\r\nmore\x0b\x0c\x85\u2028\u2029",
    "tab": "a\tb",
    "nul": "a\0b",
    "markup": "[red]no[/red] [link=file:///etc/passwd]x[/link] :smile:",
    "bidi": "\u202egnp.exe\u2066\u200f",
    "surrogate": "lone \ud800 and \udfff",
    "zero width": "a\u200bb\ufeff",
    "csv": 'a,"b";=1+1',
    "formula": "=HYPERLINK(0)",
    "braces": "{0} %s ${HOME}",
    "long": "x" * 20_000,
    "combining": "e" + "\u0301" * 300,
    "wide": "漢字" * 40,
    "private": "\ue000\U000f0000",
    "empty": "",
}
CONTROL: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def hostile_file(text: str) -> bytes:
    """Return a snapshot that holds a text wherever a snapshot can hold one."""
    frames = [b.frame(text, f"/project/{text}", 3), b.frame(text, text, 0), b.frame("main", "/project/main.py", 1)]
    fields: dict[str, Any] = {"frames": frames, "compile_context": text, "user_metadata": text, "time_us": 7}
    events: list[b.Events] = [
        b.segment_alloc(A, 20 * MIB, **fields),
        b.alloc(A, 4 * MIB, **fields),
        b.alloc(A + 4 * MIB, 2 * MIB, **fields),
        b.free(A + 4 * MIB, 2 * MIB, **fields),
        b.event(text or "?", 5, addr=A, **fields),
        b.alloc(A + 4 * MIB, MIB, **{**fields, text or "?": text}),
        b.oom(30 * MIB, 5 * MIB, **fields),
    ]
    blocks = [b.block(4 * MIB, frames=frames), b.block(MIB, frames=frames), b.block(15 * MIB, state=b.INACTIVE)]
    made = b.snapshot(
        traces=[events],
        segments=[b.segment(A, blocks, frames=frames)],
        allocator_settings=b.settings(text, **{text or "?": text}),
        external_annotations=[b.annotation(text, "START", 1), b.annotation(text, "END", 2)],
        **{text or "?": text},
    )
    return pickle.dumps(made)


def assert_printable(content: str) -> None:
    for line in content.split("\n"):
        bad = {f"U+{ord(char):04X}" for char in line if unicodedata.category(char) in CONTROL}
        assert not bad, (bad, line[:200])


def say(*arguments: str, stdin: bytes) -> Ran:
    return succeed(*arguments, stdin=stdin)


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("kind", NASTY)
def test_text_shows_nothing_unescaped(kind: str, verb: str) -> None:
    ran = say(verb, "-", "--top", "0", stdin=hostile_file(NASTY[kind]))
    assert_printable(ran.text)
    plain = say(verb, "-", "--top", "0", stdin=hostile_file("plain"))
    if kind not in ("empty", "combining"):
        assert len(ran.lines) == len(plain.lines)


@pytest.mark.parametrize("kind", NASTY)
@pytest.mark.parametrize("by", [by.value for by in By])
def test_every_grouping_shows_nothing_unescaped(kind: str, by: str) -> None:
    assert_printable(say("ledger", "-", "--by", by, "--at", "oom", stdin=hostile_file(NASTY[kind])).text)


@pytest.mark.parametrize("verb", TEXT_VERBS)
@pytest.mark.parametrize("kind", NASTY)
def test_json_stays_json(kind: str, verb: str) -> None:
    ran = say(verb, "-", "--json", stdin=hostile_file(NASTY[kind]))
    assert_printable(ran.text)
    document = load_json(ran.stdout)
    if verb == "ledger":
        assert sum(row["bytes"] for row in document["rows"]) == document["requested_bytes"] == 6 * MIB


def test_json_keeps_text_as_it_was() -> None:
    text = NASTY["markup"]
    (row,) = load_json(say("ledger", "-", "--json", stdin=hostile_file(text)).stdout)["rows"]
    assert text in row["key"]


@pytest.mark.parametrize("verb", TABLE_VERBS)
@pytest.mark.parametrize("kind", NASTY)
def test_csv_stays_csv(kind: str, verb: str) -> None:
    ran = say(verb, "-", "--csv", stdin=hostile_file(NASTY[kind]))
    assert_printable(ran.text)
    rows = list(csv.reader(io.StringIO(ran.text), strict=True))
    assert len({len(row) for row in rows}) == 1
    plain = say(verb, "-", "--csv", stdin=hostile_file("plain"))
    assert len(rows) == len(plain.lines)


def test_markup_is_shown_as_it_is() -> None:
    shown = say("ledger", "-", stdin=hostile_file("[red]x[/red]")).text
    assert "[red]x[/red]:3 [red]x[/red]" in shown


def test_color_adds_nothing_that_the_file_asks_for() -> None:
    shown = say("ledger", "-", "--color", "always", stdin=hostile_file("\x1b[5mblink")).text
    assert r"\x1b[5mblink" in shown
    assert "\x1b[5m" not in shown


@pytest.mark.parametrize("kind", ["ansi", "newline", "markup", "bidi", "title"])
def test_file_names_are_escaped_too(kind: str, tmp_path: Path) -> None:
    path = tmp_path / NASTY[kind].replace("/", "|")
    path.write_bytes(hostile_file("plain"))
    for verb in TEXT_VERBS:
        assert_printable(succeed(verb, str(path)).text)
        assert load_json(succeed(verb, str(path), "--json").stdout)["file"] == str(path)
    path.write_bytes(b"")
    assert_printable(fail(3, "summary", str(path)))


@pytest.mark.skipif(os.name != "posix", reason="names are text here")
def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.pickle")
    try:
        with open(path, "wb") as file:
            file.write(hostile_file("plain"))
    except OSError:
        pytest.skip("this file system takes no such names")
    name = os.fsdecode(path)
    assert_printable(succeed("summary", name).text)
    assert load_json(succeed("summary", name, "--json").stdout)["file"].endswith("caf\\udce9.pickle")
    assert_printable(fail(2, "open", name))


@pytest.mark.parametrize(
    "arguments",
    [
        ["\x1b[31m"],
        ["summary", "\x1b[31m\n"],
        ["summary", "a\0b"],
        ["summary", "--\x1b[31m"],
        ["ledger", "x", "--by", "\x1b[31m"],
        ["ledger", "-", "--at", "\x1b[31m\n"],
        ["ledger", "-", "--at", "time:\x1b[31m"],
        ["ledger", "-", "--focus", "(\x1b[31m"],
        ["ledger", "-", "--device", "\x1b[31m"],
        ["ledger", "-", "--capacity", "\x1b[31m"],
        ["ledger", "-", "-o", "no/\x1b[31m"],
    ],
    ids=repr,
)
def test_messages_escape_what_was_typed(arguments: list[str]) -> None:
    ran = run_cli(*arguments, stdin=hostile_file("plain"))
    assert ran.code in (2, 3)
    assert_printable(ran.stderr)
    assert len(ran.stderr.splitlines()) == 1
