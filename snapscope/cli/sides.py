"""One side of a comparison: a snapshot at a moment, or a baseline."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from snapscope.cli.options import Output, is_same_file, open_history
from snapscope.errors import UsageError

if TYPE_CHECKING:
    from snapscope.analyses.profile import MemoryProfile
    from snapscope.history import DeviceHistory

_SUFFIX: Final = re.compile(
    r"@(device:(?:\d{1,6}|host)|step:(?:\d{1,9}|init|rest)|event:-?\d{1,15}|oom(?::\d{1,9})?|start|end|"
    r"time:[0-9TZ:.+ -]{1,40}|"
    r"peak(?:-allocated|-active|-reserved)?)\Z"
)


def split_side(text: str) -> tuple[str, str | None, int | None]:
    """Split `FILE@step:3@device:1` into the file, its moment and its device.

    A file whose name is the whole text comes before any suffix.
    """
    at: str | None = None
    device: int | None = None
    while not os.path.exists(text) and (match := _SUFFIX.search(text)):
        text = text[: match.start()]
        if match[1].startswith("device:"):
            name = match[1].removeprefix("device:")
            device = -1 if name == "host" else int(name)
        else:
            at = match[1]
    return text, at, device


def open_side(
    text: str, *, at: str | None, device: int | None, output: Output | None, rules: str | None
) -> tuple[MemoryProfile, DeviceHistory | None]:
    """Read one side; the history is None for a baseline.

    Raises:
        UsageError: a moment or device is asked of a baseline, which is of one moment.
        InputError: the file can't be read, or is neither a snapshot nor a baseline.
    """
    path, own_at, own_device = split_side(text)
    wanted_at, wanted_device = own_at or at, device if own_device is None else own_device
    from snapscope.analyses.baseline import MARK, read_baseline
    from snapscope.load import read_marked_json

    document = read_marked_json(path, MARK)
    if document is not None:
        if own_at is not None or own_device is not None:
            raise UsageError(f"{path} is a baseline: it holds one moment of one device")
        if output is not None and output.path is not None and is_same_file(path, output.path):
            raise UsageError(f"-o {output.path} is the baseline itself: it would be lost")
        taken = read_baseline(document, path)
        if at is not None and at.strip() != taken.label:
            raise UsageError(f"{path} is a baseline at {taken.label}: it can't be compared at {at}")
        return taken, None
    from snapscope.analyses.moments import find_moment
    from snapscope.analyses.profile import profile

    history = open_history(path, wanted_device, output, rules)
    return profile(history, find_moment(history, wanted_at or "peak")), history
