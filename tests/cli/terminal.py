"""Run the command line on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

from tests.cli.running import environment
from tests.conftest import ROOT


def run_on_terminal(*arguments: str, columns: int = 80, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run `python -m snapscope` with a terminal as stdout and stderr; return its code and what it showed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "snapscope", *arguments],
        cwd=ROOT, env=environment(**(env or {})), stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    shown = bytearray()
    # Reading the other end fails once the last process has closed it.
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 1 << 16):
            shown += chunk
    os.close(master)
    return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")
