"""Making untrusted text safe to show: the only place that escapes strings of the file.

A file, function or key name may hold terminal escapes, newlines, bidirectional overrides
or lone surrogates (pickle allows them); none may reach a terminal or break a table.
"""

from __future__ import annotations

import json
import re
from typing import Final

_BEYOND_ASCII: Final = re.compile("[^\\0-~]+")


def escape(text: str, limit: int = 500) -> str:
    r"""Return text with everything unprintable written as an escape, such as `\x1b`.

    Args:
        text: any text of the file.
        limit: at most so many characters of it are shown, with `…` in place of the rest.
    """
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    if shown.isprintable():
        return shown
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in shown
    )


def escape_json(content: bytes) -> bytes:
    r"""Return a JSON text, or a piece of one, with everything unprintable as `\uXXXX`; it parses to the same.

    Serialisers escape what lies below a blank, and leave C1 and bidirectional controls to the terminal.
    """
    if content.isascii() and b"\x7f" not in content:
        return content
    return _BEYOND_ASCII.sub(_escape_run, content.decode()).encode()


def _escape_run(match: re.Match[str]) -> str:
    run = match[0]
    if run.isprintable():
        return run
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in run)
