"""`python -m snapscope`, and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from snapscope.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
