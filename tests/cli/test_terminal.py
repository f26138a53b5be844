"""On a terminal: colours, and nothing wider than it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

import pytest

from tests.cli.running import TEXT_VERBS, environment, fixture, succeed

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals here", allow_module_level=True)

import pty

from rich.cells import cell_len

from tests.cli.terminal import run_on_terminal
from tests.conftest import ROOT

SMALL: Final = fixture("cases/06_step_peak_reconciles/a.pickle")
TWO_GPU: Final = fixture("torch-2.14/two_gpu")


def test_a_terminal_gets_color() -> None:
    code, shown = run_on_terminal("ledger", SMALL)
    assert code == 0
    assert "\x1b[1m" in shown


@pytest.mark.parametrize(
    ("options", "env"),
    [(["--color", "never"], {}), ([], {"NO_COLOR": "1"}), (["--json"], {}), (["--csv"], {}), ([], {"TERM": "dumb"})],
    ids=["never", "NO_COLOR", "json", "csv", "dumb"],
)
def test_a_terminal_gets_no_color_where_none_is_wanted(options: list[str], env: dict[str, str]) -> None:
    code, shown = run_on_terminal("ledger", SMALL, *options, env=env)
    assert code == 0
    assert "\x1b" not in shown


def test_data_is_the_same_on_a_terminal() -> None:
    code, shown = run_on_terminal("ledger", TWO_GPU, "--json")
    assert (code, shown) == (0, succeed("ledger", TWO_GPU, "--json").text)


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_nothing_is_wider_than_the_terminal(verb: str, columns: int) -> None:
    code, shown = run_on_terminal(verb, TWO_GPU, columns=columns)
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\n")
    wide = [line for line in lines if cell_len(line) > columns]
    assert not wide


def test_open_on_a_dumb_terminal_names_the_command_that_gives_the_same() -> None:
    code, shown = run_on_terminal("open", SMALL, env={"TERM": "dumb"})
    assert code == 2
    assert f"`snapscope summary {SMALL}`" in shown


def test_open_of_stdin_needs_something_piped_in() -> None:
    code, shown = run_on_terminal("open", "-")
    assert (code, shown) == (2, "snapscope: FILE is - but stdin is a terminal: pipe a snapshot into it\n")


@pytest.mark.parametrize("away", ["stdin", "stdout", "stderr"])
def test_open_needs_all_three_streams_on_the_terminal(away: str) -> None:
    master, slave = pty.openpty()
    stdin, stdout, stderr = (subprocess.PIPE if away == name else slave for name in ("stdin", "stdout", "stderr"))
    ran = subprocess.run(
        [sys.executable, "-m", "snapscope", "open", SMALL],
        cwd=ROOT, env=environment(), stdin=stdin, stdout=stdout, stderr=stderr, check=False, timeout=60,
    )  # fmt: skip
    os.close(slave)
    said = ran.stderr or os.read(master, 1 << 16)
    os.close(master)
    assert ran.returncode == 2
    assert f"`snapscope summary {SMALL}`".encode() in said
