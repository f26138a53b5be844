"""Collecting notices: one per code, with counts and bytes added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from snapscope.model import Notice

# Sums over a contradictory file may exceed what JSON and columns can hold.
_MAX_INT64: Final = (1 << 63) - 1


class NoticeLog:
    """Notices in order of first appearance; the same code and message is counted up."""

    def __init__(self, notices: Iterable[Notice] = ()) -> None:
        self._notices: dict[tuple[str, str], Notice] = {}
        for notice in notices:
            self.add(notice.code, notice.message, count=notice.count, num_bytes=notice.bytes)

    def add(self, code: str, message: str, *, count: int = 1, num_bytes: int = 0) -> None:
        """Note something, or nothing where `count` is 0."""
        if count <= 0:
            return
        before = self._notices.get((code, message))
        if before is not None:
            count += before.count
            num_bytes += before.bytes
        self._notices[code, message] = Notice(code=code, message=message, count=count, bytes=min(num_bytes, _MAX_INT64))

    def freeze(self) -> tuple[Notice, ...]:
        """Return what was noted."""
        return tuple(self._notices.values())
