"""The examples of docs/how-to/fail-the-build.md do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from tests.cli.running import environment, run_cli, succeed
from tests.conftest import ROOT, fixture_path
from tests.docs.pages import blocks_of

PAGE: Final = ROOT / "docs/how-to/fail-the-build.md"
BLOCKS: Final = {block.language: block.text for block in blocks_of(PAGE)}
RUN: Final = "torch-2.14/adamw_fp32"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a committed baseline, and a `snapscope` on the path."""
    (tmp_path / "tests").mkdir()
    for name in ("memory-baseline.json", "tests/memory-baseline.json"):
        succeed("baseline", f"{fixture_path(RUN)}@step:0", "-o", str(tmp_path / name))
    program = tmp_path / "bin" / "snapscope"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m snapscope "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for key, value in environment(PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}").items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_the_test(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the example for pytest with a torch that dumps this file."""
    torch: Any = ModuleType("torch")
    memory = SimpleNamespace(
        _record_memory_history=lambda **_options: None, _dump_snapshot=lambda out: shutil.copy(path, out)
    )
    torch.cuda = SimpleNamespace(memory=memory)
    monkeypatch.setitem(sys.modules, "torch", torch)
    names: dict[str, Any] = {"train": lambda **_options: None}
    exec(compile(BLOCKS["python"], PAGE.name, "exec"), names)
    names["test_memory_of_a_training_step"](folder)


@pytest.mark.skipif(os.name != "posix", reason="the program is a shell script here")
def test_the_test_passes_and_fails(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed("baseline", str(fixture_path(RUN)), "-o", "tests/memory-baseline.json", "--force")
    run_the_test(fixture_path(RUN), project, monkeypatch)
    succeed("baseline", f"{fixture_path(RUN)}@step:0", "-o", "tests/memory-baseline.json", "--force")
    with pytest.raises(AssertionError, match=r"FAILED --fail-above 5%: peak grew by 169.34 MiB"):
        run_the_test(fixture_path(RUN), project, monkeypatch)


@pytest.mark.usefixtures("project")
@pytest.mark.skipif(os.name != "posix", reason="the workflow runs in a shell")
def test_the_workflow_leaves_its_comment_and_fails() -> None:
    shutil.copy(fixture_path(RUN), "snap.pickle")
    commands = re.findall(r"run: (snapscope .+)$", BLOCKS["yaml"], re.MULTILINE)
    (command,) = commands
    for base, code in ((f"{fixture_path(RUN)}@step:0", 1), (str(fixture_path(RUN)), 0)):
        succeed("baseline", base, "-o", "memory-baseline.json", "--force")
        ran = subprocess.run(command, shell=True, capture_output=True, check=False, timeout=60)
        assert (ran.returncode, ran.stdout, ran.stderr) == (code, b"", b"")
        comment = Path("memory.md").read_text(encoding="utf-8")
        assert ("❌" in comment) == bool(code)


def test_every_limit_of_the_table_is_one() -> None:
    limits = re.findall(r"--fail-(?:above|below) [^`\s]+", PAGE.read_text(encoding="utf-8"))
    assert len(set(limits)) >= 6
    for limit in limits:
        option, value = limit.split()
        ran = run_cli("diff", str(fixture_path(RUN)), str(fixture_path(RUN)), option, value)
        assert (ran.code, ran.stderr) == (0, "")
