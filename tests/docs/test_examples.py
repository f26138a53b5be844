"""Everything that README.md and docs/ show as typed into a terminal, typed in."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import pytest

from snapscope.cli.root import VERBS, root
from tests.cli.running import run_cli
from tests.conftest import ROOT, fixture_path
from tests.docs.pages import PAGES, Block, blocks_of

BLOCKS: Final = [block for page in PAGES for block in blocks_of(page)]
SESSIONS: Final = [block for block in BLOCKS if block.text.startswith("$ ")]
(RULES,) = [block for block in BLOCKS if block.language == "toml"]
# A path to the script, or `!` in a notebook, may stand before the name.
COMMAND: Final = re.compile(r"(?:^|[\s`!/])snapscope ((?:[a-z]+|--[a-z]+)(?: [^`|>&#]*)?)")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the repository to a reader of its fixtures, and may be written to."""
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures", target_is_directory=True)
    for name in ("snap.pickle", "oom.pickle"):
        (tmp_path / name).write_bytes(fixture_path("torch-2.14/oom_optimizer_step").read_bytes())
    (tmp_path / "rules.toml").write_text(RULES.text, encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[[rule]]\nfile = '('\ncategory = 'gradient'\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


def steps_of(session: Block) -> list[tuple[str, list[str]]]:
    """Return the commands of a session, each with the lines that must follow it."""
    steps: list[tuple[str, list[str]]] = []
    for line in session.text.split("\n"):
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return steps


def output_of(command: str, last_code: int) -> tuple[list[str], int]:
    if command == "echo $?":
        return [str(last_code)], 0
    typed, _, pipe = command.partition(" | ")
    typed, _, target = typed.partition(" > ")
    name, *arguments = shlex.split(typed)
    assert name == "snapscope", command
    ran = run_cli(*arguments)
    lines = (ran.text + ran.stderr).splitlines()
    if target:
        Path(target).write_bytes(ran.stdout)
        lines = ran.stderr.splitlines()
    if pipe:
        count = re.fullmatch(r"head -(\d+)", pipe)
        assert count, command
        lines = lines[: int(count[1])]
    return lines, ran.code


def matches(shown: list[str], lines: list[str]) -> bool:
    """Tell whether a document shows these lines; `...` stands for any number of them."""
    if not shown:
        return not lines
    if shown[0] == "...":
        return any(matches(shown[1:], lines[skipped:]) for skipped in range(len(lines) + 1))
    return bool(lines) and shown[0].rstrip() == lines[0].rstrip() and matches(shown[1:], lines[1:])


def test_ellipsis() -> None:
    assert matches(["a", "...", "d"], ["a", "b", "c", "d"])
    assert matches(["a", "...", "b"], ["a", "b"])
    assert matches(["..."], [])
    assert not matches(["a", "..."], ["b", "a"])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["a", "b"], ["a"])


def test_there_are_sessions() -> None:
    pages = {session.page.name for session in SESSIONS}
    assert {"README.md", "cli.md", "first-snapshot.md", "write-category-rules.md"} <= pages


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("session", SESSIONS, ids=lambda block: block.name)
def test_sessions_show_what_the_tool_prints(session: Block) -> None:
    code = 0
    for command, shown in steps_of(session):
        lines, code = output_of(command, code)
        assert matches(shown, lines), "\n".join([f"{session.name}: $ {command}", *lines])


def commands() -> list[tuple[str, str]]:
    """Return every call of the command line in any block of code, or in `quotes` of the text."""
    found = [(block.name, line) for block in BLOCKS for line in block.text.split("\n")]
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += [(page.name, quoted) for quoted in re.findall(r"`([^`\n]+)`", prose)]
    return [
        (place, match[1].strip())
        for place, line in found
        if not line.startswith(("snapscope: ", "complete ", "eval "))
        for match in [COMMAND.search(line)]
        if match and "VERB" not in line and not line.startswith(("pip", "snapscope device"))
    ]


@pytest.mark.parametrize(("place", "typed"), commands())
def test_every_command_that_is_written_anywhere_is_right_use(place: str, typed: str) -> None:
    verb, *arguments = shlex.split(typed)
    if verb.startswith("--"):
        assert verb in ("--help", "--version"), place
        return
    assert verb in VERBS, (place, typed)
    command = import_module(f"snapscope.cli.{verb}").command
    assert isinstance(command, click.Command)
    if not arguments:
        return
    with click.Context(root, help_option_names=["-h", "--help"]) as parent:
        context = command.make_context(verb, arguments, parent=parent)
    named = [context.params.get(name) for name in ("file", "files", "demo", "after")]
    assert any(named), (place, typed)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.name)
def test_python_is_python(block: Block) -> None:
    compile(block.text, block.name, "exec")


def test_every_fence_says_its_language() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n")):
            if line.startswith("```") and line != "```":
                assert line[3:] in ("console", "sh", "python", "toml", "yaml"), (page, number + 1)


def test_the_package_can_be_used_from_python() -> None:
    script = (
        "import snapscope\n"
        "for _ in range(2):\n"
        "    snapshot = snapscope.load_snapshot('fixtures/cases/06_step_peak_reconciles/a.pickle')\n"
        "    history = snapscope.DeviceHistory(snapshot)\n"
        "    print(int(history.totals.requested_bytes.max()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("125829120\n125829120\n", "")
