"""A recording that ships with the package, for `snapscope open --demo`.

`oom.pickle.gz` is a small GPT that runs out of memory in its first AdamW step; where it
comes from stands in `fixtures/README.md` of the source (`torch-2.14/oom_optimizer_step`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

DEMO_NAME: Final = "oom.pickle.gz"
"""File name of the recording, as reports show it."""


@contextmanager
def demo_path() -> Iterator[Path]:
    """Give the path of the demo recording, good until the context ends.

    A package inside a zip archive has no such file: it is unpacked for the time being.
    """
    with as_file(files(__name__) / DEMO_NAME) as path:
        yield path
