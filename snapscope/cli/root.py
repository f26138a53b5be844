"""The command group: knows the verbs by name, loads their modules on demand."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

import click

from snapscope import __version__
from snapscope.native import reader_name

VERBS: Final = {
    "open": "Explore a snapshot in the terminal UI.",
    "summary": "What this file is, what it covers, and what fills the memory.",
    "ledger": "Who holds the bytes at one moment.",
    "oom": "Why an allocation failed, and what would have helped.",
    "fragmentation": "Free memory, and which blocks pin it.",
    "timeline": "Bytes over the events of the history.",
    "lifetimes": "One row per allocation, from birth to death.",
    "steps": "One row per step of the run, and its phases.",
    "leaks": "Whether live bytes grow with the steps, and whose stay.",
    "explain": "One allocation: its life, its stack, its neighbours.",
    "diff": "Why the peak of one snapshot differs from another's.",
    "check": "Fail a build where a snapshot passes a limit.",
    "baseline": "A small file to commit, which stands in for a snapshot.",
    "ranks": "Which rank of a job holds more than the others, and why.",
    "graph": "The graph of what reuses whose memory.",
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are run, not for `--help`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command = import_module(f"snapscope.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if os.path.exists(args[0]):
                raise click.UsageError(f"say what to do with {args[0]}: snapscope open {args[0]}", ctx) from None
            known = ", ".join(VERBS)
            raise click.UsageError(f"no verb {args[0]!r}: there are {known}", ctx) from None


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: snapscope open snap.pickle. Every verb has its own --help.",
)
@click.version_option(
    __version__, "--version", prog_name="snapscope", message=f"%(prog)s %(version)s ({reader_name()} reader)"
)
def root() -> None:
    """Read a PyTorch memory snapshot: what filled the GPU, when, and whose code asked for it.

    FILE is what torch.cuda.memory._dump_snapshot() wrote: a pickle, also gzipped, zstd-compressed or as
    JSON, a page of torch.cuda._memory_viz, or - for stdin. Nothing in it is ever executed.
    """
