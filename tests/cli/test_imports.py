"""What the command line loads: help costs nothing, and only `open` starts the terminal UI."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import Final

import pytest

from tests.cli.running import TEXT_VERBS, VERBS, environment, fixture
from tests.conftest import ROOT

HEAVY: Final = {"networkx", "numpy", "orjson", "pandas", "rich", "textual", "torch", "zstandard"}
SCRIPT: Final = """
import json, sys
from snapscope.cli import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*arguments: str) -> set[str]:
    """Return the modules that a fresh process has loaded after a call of the command line."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    code, modules = json.loads(ran.stderr.splitlines()[-1])
    assert code in (0, 2)
    return set(modules)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], [], *([verb, "--help"] for verb in VERBS)], ids=" ".join
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    modules = modules_after(*arguments)
    assert not modules & HEAVY
    assert not any(name.startswith(("snapscope.tui", "snapscope.analyses", "snapscope.load")) for name in modules)


@pytest.mark.parametrize("verb", TEXT_VERBS)
def test_verbs_of_text_load_no_terminal_ui(verb: str) -> None:
    modules = modules_after(verb, fixture("cases/06_step_peak_reconciles/a.pickle"))
    assert not modules & {"networkx", "pandas", "textual", "torch"}
    assert not any(name.startswith("snapscope.tui") for name in modules)


def test_open_looks_for_its_terminal_first() -> None:
    modules = modules_after("open", "no-such-file")
    assert not modules & HEAVY


def imports_of(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_only_open_starts_the_terminal_ui() -> None:
    starters = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "snapscope").rglob("*.py")
        if "tui" not in path.relative_to(ROOT).parts[1]
        and any(name.startswith(("snapscope.tui", "textual")) for name in imports_of(path.read_text(encoding="utf-8")))
    }
    assert starters == {"snapscope/cli/open.py"}
