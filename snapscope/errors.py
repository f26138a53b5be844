"""The whole exception tree; nothing else is raised on purpose.

    SnapscopeError
    ├── UsageError            exit 2: the user asked for something that can't be
    └── InputError            exit 3: the file can't be read, or can't be trusted
        ├── EmptyFileError        0 bytes
        ├── TruncatedError        ends in the middle
        ├── HostileError          names a global, or asks for absurd memory
        ├── NotASnapshotError     readable, but something else
        └── MalformedError        a snapshot whose values make no sense

A message says what, where, and what to do next, in one line.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of the command line (a public contract)."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    INPUT = 3
    BUG = 70
    INTERRUPTED = 130


class SnapscopeError(Exception):
    """Base of every error that snapscope raises on purpose."""

    exit_code: ExitCode = ExitCode.BUG


class UsageError(SnapscopeError):
    """The request makes no sense for this file or this terminal."""

    exit_code = ExitCode.USAGE


class InputError(SnapscopeError):
    """The input can't be read as a snapshot."""

    exit_code = ExitCode.INPUT


class EmptyFileError(InputError):
    """The input has no bytes at all."""


class TruncatedError(InputError):
    """The input ends before the snapshot does."""


class HostileError(InputError):
    """The input asks for code to run, or for memory out of proportion to its size."""


class NotASnapshotError(InputError):
    """The input is well formed but is no memory snapshot."""


class MalformedError(InputError):
    """The input looks like a snapshot but holds impossible values."""
