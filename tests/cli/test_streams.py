"""Pipes, files and terminals: stdout is data, stderr is everything else."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.cli.running import TABLE_VERBS, TEXT_VERBS, environment, fail, fixture, run_process, succeed
from tests.conftest import ROOT

SMALL: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
GZIPPED: Final = fixture("torch-2.14/oom_forward")
BIG: Final = fixture("torch-2.14/kv_cache")
ANSI: Final = b"\x1b["
FORMS: Final = [
    (verb, form) for verb in TEXT_VERBS for form in ("", "--json", "--csv") if form != "--csv" or verb in TABLE_VERBS
]


@pytest.mark.parametrize(("verb", "form"), FORMS)
def test_output_file_holds_what_stdout_would(verb: str, form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert succeed(verb, GZIPPED, *form.split(), "-o", str(out)).stdout == b""
    assert out.read_bytes() == succeed(verb, GZIPPED, *form.split()).stdout


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_output_file_is_never_overwritten_unasked(verb: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious", encoding="utf-8")
    assert fail(2, verb, SMALL, "-o", str(out)) == f"{out} exists: --force overwrites it"
    assert out.read_text(encoding="utf-8") == "precious"
    succeed(verb, SMALL, "-o", str(out), "--force")
    assert out.read_bytes() == succeed(verb, SMALL).stdout


def test_a_dangling_link_counts_as_a_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    fail(2, "summary", SMALL, "-o", str(link))
    assert not (tmp_path / "nowhere").exists()


def test_force_needs_no_file(tmp_path: Path) -> None:
    out = tmp_path / "new"
    succeed("summary", SMALL, "-o", str(out), "--force")
    assert out.read_bytes() == succeed("summary", SMALL).stdout


def test_an_output_that_cannot_be_is_wrong_use(tmp_path: Path) -> None:
    assert "can't write" in fail(2, "summary", SMALL, "-o", str(tmp_path / "no" / "out"))
    assert fail(2, "summary", SMALL, "-o", str(tmp_path), "--force") == f"-o {tmp_path} is a folder: name a file in it"


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_the_snapshot_itself_is_never_overwritten(verb: str, tmp_path: Path) -> None:
    path, link = tmp_path / "snap.pickle", tmp_path / "link.pickle"
    content = Path(SMALL).read_bytes()
    path.write_bytes(content)
    link.symlink_to(path)
    for other in (path, link, tmp_path / ".." / tmp_path.name / "snap.pickle"):
        said = fail(2, verb, str(path), "-o", str(other), "--force")
        assert said == f"-o {other} is the snapshot itself: it would be lost"
    assert path.read_bytes() == content


def test_an_output_without_a_name_is_wrong_use() -> None:
    assert fail(2, "summary", SMALL, "-o", "").startswith("-o '' names no file")


def test_an_output_of_minus_is_stdout() -> None:
    assert succeed("summary", SMALL, "-o", "-").stdout == succeed("summary", SMALL).stdout


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_stdin_is_a_file_like_any_other(verb: str) -> None:
    content = Path(GZIPPED).read_bytes()
    document = succeed(verb, "-", "--json", stdin=content).document()
    assert document["file"] == "stdin"
    assert document == {**succeed(verb, GZIPPED, "--json").document(), "file": "stdin"}
    assert succeed(verb, "-", "--json", stdin=gzip.decompress(content)).document()["device"] == 0


def test_stdin_through_a_real_pipe() -> None:
    ran = run_process("summary", "-", stdin=Path(GZIPPED).read_bytes())
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"stdin  device 0" in ran.stdout


def test_color_is_asked_for() -> None:
    plain = succeed("ledger", SMALL)
    assert ANSI not in plain.stdout
    assert succeed("ledger", SMALL, "--color", "never").stdout == plain.stdout
    colored = succeed("ledger", SMALL, "--color", "always").stdout
    assert ANSI in colored
    bare = re.sub(rb"\x1b\[[0-9;]*m", b"", colored).split(b"\n")
    # Blanks may stand before the code that ends a colour.
    assert [line.rstrip() for line in bare] == plain.stdout.split(b"\n")


def test_color_asked_for_outright_beats_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert ANSI in succeed("ledger", SMALL, "--color", "always").stdout
    assert ANSI not in succeed("ledger", SMALL).stdout


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_data_is_never_colored(verb: str) -> None:
    for form in ("--json", "--csv")[: 2 if verb in TABLE_VERBS else 1]:
        assert succeed(verb, SMALL, form, "--color", "always").stdout == succeed(verb, SMALL, form).stdout


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_a_pipe_gets_plain_text_in_full_width(verb: str) -> None:
    ran = run_process(verb, GZIPPED)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == succeed(verb, GZIPPED).stdout
    assert b"\x1b" not in ran.stdout
    assert not [line for line in ran.stdout.split(b"\n") if line.endswith(b" ")]


@pytest.mark.parametrize(
    "arguments", [["lifetimes", BIG, "--json"], ["lifetimes", BIG, "--csv"], ["timeline", BIG, "--exact", "--json"]]
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "snapscope", *arguments],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        said = process.stderr.read()
        code = process.wait(timeout=60)
    assert said == b""
    assert code in (0, 141)


def test_a_reader_that_was_never_there() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb", closefd=True) as stdout:
        ran = subprocess.run(
            [sys.executable, "-m", "snapscope", "summary", SMALL],
            cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert ran.stderr == b""
    assert ran.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_no_bug(form: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "snapscope", "lifetimes", SMALL, *form],
            cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert ran.returncode == 2
    assert b"No space left on device" in ran.stderr
    assert b"bug" not in ran.stderr
    assert b"Traceback" not in ran.stderr


SHELLED: Final = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")


def run_in_shell(redirected: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m snapscope {redirected}'],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
    )  # fmt: skip


@SHELLED
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("", 2),
        ("summary", 2),
        ("summary no-such-file", 3),
        ("summary no-such-file --debug", 3),
        (f"summary {SMALL}", 0),
    ],
)
def test_without_stderr_the_exit_code_is_the_same(arguments: str, code: int, stderr: str) -> None:
    assert run_in_shell(f"{arguments} {stderr}").returncode == code


@SHELLED
@pytest.mark.parametrize("arguments", ["--help", "--version", "summary --help", f"summary {SMALL}"])
@pytest.mark.parametrize(
    ("stdout", "message"), [(">/dev/full", b"No space left on device"), (">&-", b"stdout is closed")]
)
def test_without_stdout_help_ends_as_verbs_do(arguments: str, stdout: str, message: bytes) -> None:
    ran = run_in_shell(f"{arguments} {stdout}")
    assert ran.returncode == 2
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["summary", "--help"]])
def test_help_for_a_reader_that_was_never_there(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb", closefd=True) as stdout:
        ran = subprocess.run(
            [sys.executable, "-m", "snapscope", *arguments],
            cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert ran.stderr == b""
    assert ran.returncode in (0, 141)


@SHELLED
@pytest.mark.parametrize(("arguments", "code"), [("summary -", 3), ("ledger - --json", 3), ("open -", 2)])
def test_a_closed_stdin_is_said(arguments: str, code: int) -> None:
    ran = run_in_shell(f"{arguments} <&-")
    assert (ran.returncode, ran.stdout) == (code, b"")
    assert ran.stderr.startswith(b"snapscope: ")
    assert b"closed: pipe a snapshot into it" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[SMALL], [SMALL, "--view", "timeline"], ["-"]])
def test_open_without_a_terminal_names_the_command_that_gives_the_same(arguments: list[str]) -> None:
    started = time.monotonic()
    ran = run_process("open", *arguments)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert f"`snapscope summary {arguments[0]}`".encode() in ran.stderr
    assert time.monotonic() - started < 30


def test_the_module_and_the_script_are_the_same() -> None:
    ran = run_process("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, succeed("--version").stdout, b"")
