"""The command line: one module a verb, loaded only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from snapscope.cli.options import ReaderGoneError, discard_stdout
from snapscope.cli.root import root
from snapscope.errors import ExitCode, SnapscopeError


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        root.main(args=arguments, prog_name="snapscope", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
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
        if debug:
            _traceback()
        _complain(f"a bug in snapscope: {type(error).__name__}: {error} (--debug for more)")
        return ExitCode.BUG
    return ExitCode.OK


def _complain(message: str) -> None:
    from snapscope.escaping import escape

    sys.stderr.write(f"snapscope: {escape(message, limit=1000)}\n")


def _traceback() -> None:
    import traceback

    traceback.print_exc()


__all__ = ["run"]
