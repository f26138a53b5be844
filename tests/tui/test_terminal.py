"""On a pseudo-terminal: the app leaves at once, with the right code, and the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals here", allow_module_level=True)

import fcntl
import pty
import struct
import termios

from tests.conftest import ROOT, fixture_path

PROGRAM: Final = """
import sys
from snapscope.errors import SnapscopeError
from snapscope.tui import run_app
try:
    code = run_app(sys.argv[1])
except SnapscopeError as error:
    print(error, file=sys.stderr)
    code = int(error.exit_code)
print("\\nleft with", code, flush=True)
sys.exit(code)
"""
BROKEN: Final = """
import sys
from snapscope.cli import run
from snapscope.tui.screens.timeline import TimelineScreen
def fail(self): raise KeyError(0)
TimelineScreen.action_unzoom = fail
sys.exit(run(["open", sys.argv[1]]))
"""
SMALL: Final = fixture_path("cases/06_step_peak_reconciles/a.pickle")
ALTERNATE_SCREEN_ON: Final = "\x1b[?1049h"
ALTERNATE_SCREEN_OFF: Final = "\x1b[?1049l"
MOUSE_OFF: Final = "\x1b[?1000l"


class Terminal:
    """A process on a terminal of 80×24."""

    def __init__(
        self, source: str, *options: str, stdin: int | None = None, is_verb: bool = False, program: str = PROGRAM
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *(("-m", "snapscope", "open") if is_verb else ("-c", program)), source, *options],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            stdin=slave if stdin is None else stdin,
            stdout=slave,
            stderr=slave,
            # Its controlling terminal, so that it may open /dev/tty.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, text: str, *, seconds: float = 30) -> None:
        """Read until some text was shown (ever; escape sequences are no part of it)."""
        end = time.monotonic() + seconds
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown):
            if time.monotonic() > end:
                pytest.fail(f"no {text!r} in {self.shown[-2000:]!r}")
            self._read()

    def press(self, keys: str | bytes) -> None:
        """Send keys."""
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def hang_up(self) -> int:
        """Take the terminal away; return the exit code."""
        os.close(self._master)
        return self.process.wait(timeout=30)

    def finish(self, *, seconds: float = 30) -> tuple[int, float]:
        """Wait for the end; return the exit code and how long it took."""
        start = time.monotonic()
        while self.process.poll() is None:
            if time.monotonic() > start + seconds:
                self.process.kill()
                pytest.fail("it doesn't end")
            self._read()
        took = time.monotonic() - start
        self._read()
        self.has_echo = bool(termios.tcgetattr(self._master)[3] & termios.ECHO)
        os.close(self._master)
        return self.process.returncode, took

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            if select.select([self._master], [], [], 0.02)[0]:
                self.shown += os.read(self._master, 1 << 16).decode(errors="replace")


def test_q_leaves_and_restores_the_terminal() -> None:
    terminal = Terminal(str(SMALL))
    terminal.wait_for("? help")
    terminal.press("q")
    code, _ = terminal.finish()
    assert code == 0
    assert ALTERNATE_SCREEN_OFF in terminal.shown
    assert "left with 0" in terminal.shown.rpartition(ALTERNATE_SCREEN_OFF)[2]


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("\x03", 130)])
def test_leaving_does_not_wait_for_the_file(tmp_path: Path, key: str, code: int) -> None:
    pipe = tmp_path / "never.pickle"
    os.mkfifo(pipe)
    terminal = Terminal(str(pipe))
    terminal.wait_for("quits at once")
    terminal.press(key)
    found, took = terminal.finish(seconds=10)
    assert found == code
    assert took < 5
    assert ALTERNATE_SCREEN_OFF in terminal.shown


def test_an_error_is_said_after_the_terminal_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no snapshot")
    terminal = Terminal(str(path))
    code, _ = terminal.finish()
    assert code == 3
    after = terminal.shown.rpartition(ALTERNATE_SCREEN_OFF)[2]
    assert "notes.txt" in after
    assert "Traceback" not in terminal.shown


def test_a_bug_is_one_line_and_its_own_exit_code() -> None:
    terminal = Terminal(str(SMALL), program=BROKEN)
    terminal.wait_for("? help")
    terminal.press("0")
    code, _ = terminal.finish()
    assert code == 70
    after = terminal.shown.rpartition(ALTERNATE_SCREEN_OFF)[2]
    assert "snapscope: a bug in snapscope: KeyError: 0" in after
    assert "Traceback" not in terminal.shown


def test_a_snapshot_through_a_pipe_leaves_the_keys_to_the_terminal() -> None:
    with SMALL.open("rb") as stream:
        terminal = Terminal("-", stdin=stream.fileno())
        terminal.wait_for("snapscope  stdin")
        terminal.press("q")
        assert terminal.finish()[0] == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=["SIGTERM", "SIGINT", "SIGHUP"],
)
def test_a_signal_while_loading_restores_the_terminal(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    pipe = tmp_path / "never.pickle"
    os.mkfifo(pipe)
    terminal = Terminal(str(pipe), is_verb=True)
    terminal.wait_for("quits at once")
    terminal.process.send_signal(sent)
    assert terminal.finish(seconds=10)[0] == code
    assert {ALTERNATE_SCREEN_OFF, MOUSE_OFF} <= set(re.findall(r"\x1b\[\?[0-9]+l", terminal.shown))
    assert terminal.has_echo


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("\x03", 130)])
def test_the_verb_ends_with_the_code_of_the_app(tmp_path: Path, key: str, code: int) -> None:
    pipe = tmp_path / "never.pickle"
    os.mkfifo(pipe)
    terminal = Terminal(str(pipe), is_verb=True)
    terminal.wait_for("quits at once")
    terminal.press(key)
    assert terminal.finish(seconds=10)[0] == code


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_restores_the_terminal(sent: signal.Signals, code: int) -> None:
    terminal = Terminal(str(SMALL), is_verb=True)
    terminal.wait_for("? help")
    terminal.process.send_signal(sent)
    assert terminal.finish(seconds=10)[0] == code
    assert {ALTERNATE_SCREEN_OFF, MOUSE_OFF} <= set(re.findall(r"\x1b\[\?[0-9]+l", terminal.shown))
    assert terminal.has_echo


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_before_the_first_frame_restores_the_terminal(sent: signal.Signals, code: int) -> None:
    terminal = Terminal(str(SMALL), is_verb=True)
    while ALTERNATE_SCREEN_ON not in terminal.shown:
        terminal._read()
    terminal.process.send_signal(sent)
    assert terminal.finish(seconds=10)[0] == code
    assert ALTERNATE_SCREEN_OFF in terminal.shown
    assert terminal.has_echo


def test_more_signals_do_not_kill_what_is_leaving() -> None:
    terminal = Terminal(str(SMALL), is_verb=True)
    terminal.wait_for("? help")
    while terminal.process.poll() is None:
        terminal.process.send_signal(signal.SIGTERM)
        terminal._read()
    assert terminal.finish()[0] == 143
    assert terminal.has_echo


def test_a_terminal_that_is_gone_ends_the_app() -> None:
    terminal = Terminal(str(SMALL), is_verb=True)
    terminal.wait_for("? help")
    assert terminal.hang_up() == 129


@pytest.mark.parametrize(
    "keys", [b"\xff", b"\xff\xfe", b"\xc3", b"\x1b[200~\xff\xe4b\x1b[201~", b"\xed\xa0\x80\xc2\x80\x00"]
)
def test_keys_that_are_no_text_are_passed_over(keys: bytes) -> None:
    terminal = Terminal(str(SMALL), is_verb=True)
    terminal.wait_for("? help")
    terminal.press(keys)
    time.sleep(0.3)
    terminal.press("?")
    terminal.wait_for("esc closes")
    terminal.press(b"\x11")
    assert terminal.finish()[0] == 0


def test_the_verb_takes_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nfunction = "."\ncategory = "optimizer_state"\n', encoding="utf-8")
    terminal = Terminal(str(SMALL), "--rules", str(path), is_verb=True)
    terminal.wait_for("? help")
    terminal.press("q")
    assert terminal.finish()[0] == 0


def test_bad_rules_are_refused_before_the_screen_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("", encoding="utf-8")
    terminal = Terminal(str(SMALL), "--rules", str(path), is_verb=True)
    assert terminal.finish()[0] == 2
    assert terminal.shown.count("\n") == 1
    assert "holds no rules" in terminal.shown
    assert "\x1b" not in terminal.shown


def test_the_verb_takes_a_snapshot_through_a_pipe() -> None:
    with SMALL.open("rb") as stream:
        terminal = Terminal("-", stdin=stream.fileno(), is_verb=True)
        terminal.wait_for("snapscope  stdin")
        terminal.press("q")
        assert terminal.finish()[0] == 0


def test_a_pipe_without_a_controlling_terminal_is_refused() -> None:
    master, slave = pty.openpty()
    with SMALL.open("rb") as stream:
        ran = subprocess.run(
            [sys.executable, "-m", "snapscope", "open", "-"],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            stdin=stream,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            check=False,
            timeout=60,
        )
    os.close(slave)
    said = os.read(master, 1 << 16).decode()
    os.close(master)
    assert ran.returncode == 2
    assert said.count("\n") == 1
    assert "save it to a file first" in said
