"""Run a terminal program as a person would, and fail unless it shows what it should.

    main_job.py --expect TEXT… -- COMMAND…

The command gets a terminal of 80 × 24. Once every TEXT stands on its screen, `q` is pressed; the
command must then end with exit code 0 and leave the terminal as it was. Standard library only: it runs
without the test tools.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from typing import NoReturn

ROWS, COLUMNS = 24, 80
SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[(?P<numbers>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI: cursor, colours, modes
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, clipboard
    r"|[P_^X][^\x1b]*\x1b\\"  # DCS and the like
    r"|[ -/]*[0-~])"
)


def screen_after(output: str) -> list[str]:
    """Say what a terminal shows after so much output; enough of a terminal for full-screen programs."""
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    row = column = at = 0
    while at < len(output):
        char = output[at]
        if char == "\x1b":
            match = SEQUENCE.match(output, at)
            if match is None:  # cut off in the middle
                break
            at = match.end()
            given = re.findall(r"\d+", match["numbers"] or "")
            first = int(given[0]) if given else 0
            final = match["final"]
            if final in ("H", "f"):
                row = max(first, 1) - 1
                column = int(given[1]) - 1 if len(given) > 1 else 0
            elif final == "A":
                row -= max(first, 1)
            elif final == "B":
                row += max(first, 1)
            elif final == "C":
                column += max(first, 1)
            elif final == "D":
                column -= max(first, 1)
            elif final == "G":
                column = max(first, 1) - 1
            elif final == "J" and first == 2:
                cells = [[" "] * COLUMNS for _ in range(ROWS)]
            elif final == "K" and row < ROWS:
                cells[row][column:] = [" "] * (COLUMNS - column)
            row, column = max(row, 0), max(column, 0)
            continue
        at += 1
        if char == "\n":
            row += 1
        elif char == "\r":
            column = 0
        elif char == "\b":
            column = max(column - 1, 0)
        elif char >= " ":
            if row < ROWS and column < COLUMNS:
                cells[row][column] = char
            column += 1
        while row >= ROWS:
            cells = [*cells[1:], [" "] * COLUMNS]
            row -= 1
    return ["".join(line).rstrip() for line in cells]


class Program:
    """A running command and all that it has written to its terminal."""

    def __init__(self, command: list[str]) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            exec_at_80x24(command)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.output = ""
        self.ended = False

    def read(self, seconds: float) -> None:
        """Take what the program writes within so many seconds."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return
        try:
            chunk = os.read(self.terminal, 1 << 16)
        except OSError:  # Linux: the other end is closed
            chunk = b""
        self.ended = not chunk
        self.output += self.decoder.decode(chunk)

    def screen(self) -> str:
        """Say what stands on the screen now."""
        return "\n".join(screen_after(self.output))

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self.terminal, keys.encode())

    def exit_code(self) -> int:
        """Wait for the end; a program killed by a signal has a negative code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def exec_at_80x24(command: list[str]) -> NoReturn:
    """Become the command, in a terminal of 80 × 24."""
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        os.environ.pop(name, None)
    os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
    os.execvp(command[0], command)


def main() -> None:
    """Run the command named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--expect", action="append", default=[], help="text that the screen must show")
    parser.add_argument("--seconds", type=float, default=60, help="how long it may take to show it, and to quit")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    program = Program(options.command)

    def fail(why: str) -> NoReturn:
        if not program.ended:
            os.kill(program.pid, signal.SIGKILL)
        sys.exit(f"{program.screen()}\n\n{' '.join(options.command)}: {why}")

    deadline = time.monotonic() + options.seconds
    missing: list[str] = options.expect
    while missing:
        if program.ended:
            fail(f"ended with exit code {program.exit_code()} before it showed {missing}")
        if time.monotonic() > deadline:
            fail(f"did not show {missing} within {options.seconds:g} s")
        program.read(0.2)
        shown = program.screen().lower()
        missing = [text for text in options.expect if text.lower() not in shown]
    screen = program.screen()
    program.press("q")
    deadline = time.monotonic() + options.seconds
    while not program.ended:
        if time.monotonic() > deadline:
            fail(f"still ran {options.seconds:g} s after q was pressed")
        program.read(0.2)
    code = program.exit_code()
    if code != 0:
        fail(f"ended with exit code {code} after q was pressed")
    if program.output.rfind("\x1b[?1049l") < program.output.rfind("\x1b[?1049h"):
        fail("left the terminal in its alternate screen")
    print(screen)


if __name__ == "__main__":
    main()
