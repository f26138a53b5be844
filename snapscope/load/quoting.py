"""Text from an untrusted file, made safe for one line of a message."""

from __future__ import annotations

from typing import Final

from snapscope.escaping import escape

_LIMIT: Final = 80


def quote_text(text: str, *, limit: int = _LIMIT) -> str:
    """Return `text` with everything unprintable escaped, cut at `limit` characters.

    Control characters, line breaks, bidirectional marks and lone surrogates could otherwise
    rewrite the line, or the terminal, that an error message is printed on.
    """
    return escape(text, limit=limit + 1)


def quote_bytes(head: bytes, *, limit: int = 16) -> str:
    """Return the first bytes as ASCII text with escapes, to say what a file starts with."""
    return quote_text(repr(head[:limit])[2:-1])
