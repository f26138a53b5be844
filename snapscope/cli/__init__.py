"""The command line: one module a verb, loaded only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from snapscope.cli.options import STDOUT_CLOSED, ReaderGoneError, discard, discard_stdout
from snapscope.cli.root import root
from snapscope.errors import ExitCode, SnapscopeError


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    stdout = sys.stdout
    try:
        # What a verb exits with comes back as a value; verbs that end by themselves return None.
        code = root.main(args=arguments, prog_name="snapscope", standalone_mode=False)
    except SystemExit as stop:
        # click ends so in two places: shell completion, and --help whose reader is gone, which it tells by
        # another stdout.
        if sys.stdout is not stdout:
            discard_stdout()
            return ExitCode.OK
        return stop.code if isinstance(stop.code, int) else ExitCode.OK
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        _write_error(f"{error.format_message()}\n")
        return ExitCode.USAGE
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        _complain(f"{error.format_message()}{hint}")
        return ExitCode.USAGE
    except SnapscopeError as error:
        if debug:
            _traceback()
        _complain(str(error))
        return error.exit_code
    except ReaderGoneError:
        discard_stdout()
        return ExitCode.OK
    except MemoryError:
        _complain("not enough memory to read this file")
        return ExitCode.INPUT
    except Exception as error:
        if isinstance(error, OSError) and _is_from_click(error):
            if isinstance(error.__context__, KeyboardInterrupt):
                # click ends the line of ^C on stderr, which fails.
                discard(sys.stderr)
                return ExitCode.INTERRUPTED
            # --help and --version are written by click, not by `write`.
            discard_stdout()
            _complain(f"can't write to stdout: {error.strerror}")
            return ExitCode.USAGE
        if debug:
            _traceback()
        _complain(f"a bug in snapscope: {type(error).__name__}: {error} (--debug for more)")
        return ExitCode.BUG
    if code is not None and sys.stdout is None and code == ExitCode.OK:
        # --help and --version, which click writes nowhere without a word.
        _complain(STDOUT_CLOSED)
        return ExitCode.USAGE
    return code if isinstance(code, int) else ExitCode.OK


def _complain(message: str) -> None:
    from snapscope.escaping import escape

    _write_error(f"snapscope: {escape(message, limit=1000)}\n")


def _traceback() -> None:
    import traceback

    _write_error(traceback.format_exc())


def _write_error(text: str) -> None:
    """Write to stderr where there is one: the exit code tells even if nobody can read why."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # What stays in its buffer would fail once more at exit, and change the exit code.
        discard(sys.stderr)


def _is_from_click(error: OSError) -> bool:
    import traceback

    return any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


__all__ = ["run"]
