"""Making untrusted text safe to show: the only place that escapes strings of the file.

A file, function or key name may hold terminal escapes, newlines, bidirectional overrides
or lone surrogates (pickle allows them); none may reach a terminal or break a table.
"""

from __future__ import annotations


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
