"""Run the command line: in this process for speed, in one of its own where pipes and terminals matter."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest import mock

from snapscope.cli import run
from tests.conftest import FIXTURES, ROOT, fixture_path

VERBS = (
    "open", "summary", "ledger", "oom", "fragmentation", "timeline", "lifetimes", "steps", "leaks", "explain", "diff",
    "check", "baseline", "ranks", "graph",
)  # fmt: skip
TEXT_VERBS = (
    "summary", "ledger", "oom", "fragmentation", "timeline", "lifetimes", "steps", "leaks", "explain", "graph",
)  # fmt: skip
"""Verbs that print a page about a FILE and ask for nothing else."""
TABLE_VERBS = ("ledger", "fragmentation", "timeline", "lifetimes", "steps", "leaks")


@dataclass(frozen=True)
class Ran:
    """What one call of the command line did."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def document(self) -> Any:
        return load_json(self.stdout)


def fixture(name: str) -> str:
    """Return the path of a fixture relative to the repository, as a person would write it."""
    return fixture_path(name).relative_to(ROOT).as_posix()


def run_cli(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run the command line in this process; neither stdin nor stdout is a terminal."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline=""), io.StringIO()
    source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "stdin", source):
        code = run(arguments)
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return Ran(code=int(code), stdout=out.buffer.getvalue(), stderr=err.getvalue())


def succeed(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run the command line, which must succeed and say nothing on stderr."""
    ran = run_cli(*arguments, stdin=stdin)
    assert (ran.code, ran.stderr) == (0, ""), arguments
    return ran


def fail(code: int, *arguments: str, stdin: bytes = b"") -> str:
    """Run the command line, which must fail with this code and one line; return that line."""
    ran = run_cli(*arguments, stdin=stdin)
    assert ran.code == code, (arguments, ran.stderr)
    assert ran.stdout == b"", arguments
    assert ran.stderr.endswith("\n")
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, (arguments, lines)
    assert lines[0].startswith("snapscope: "), lines
    return lines[0].removeprefix("snapscope: ")


def environment(**extra: str) -> dict[str, str]:
    """Return an environment in which `python -m snapscope` works from anywhere."""
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**plain, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "TERM": "xterm-256color", **extra}


def run_process(
    *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m snapscope` as a process of its own, its stdin from /dev/null unless given."""
    return subprocess.run(
        [sys.executable, "-m", "snapscope", *arguments],
        cwd=ROOT,
        env=environment(**(env or {})),
        # An empty pipe would do as well as /dev/null, but isn't what a job has.
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=120,
    )


def load_json(content: bytes) -> Any:
    """Parse strict JSON: no NaN, no infinity, no key twice."""

    def no_constant(name: str) -> NoReturn:
        raise AssertionError(f"{name} in JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), [key for key, _ in pairs]
        return dict(pairs)

    return json.loads(content.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=once)


__all__ = [
    "FIXTURES",
    "ROOT",
    "TABLE_VERBS",
    "TEXT_VERBS",
    "VERBS",
    "Ran",
    "environment",
    "fail",
    "fixture",
    "load_json",
    "run_cli",
    "run_process",
    "succeed",
]
