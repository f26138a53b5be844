"""On a terminal: colours, and nothing wider than it is."""

from __future__ import annotations

import re
import sys
from typing import Final

import pytest

from tests.cli.running import TEXT_VERBS, fixture, succeed

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals here", allow_module_level=True)

from rich.cells import cell_len

from tests.cli.terminal import run_on_terminal

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
