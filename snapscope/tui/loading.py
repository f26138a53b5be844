"""Loading in a thread: the file is read while the screen is already there.

The thread is a daemon and no worker of Textual's, because the interpreter waits for those
at its end: leaving must not wait for a file of gigabytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from snapscope.history import DeviceHistory
from snapscope.load import Input, RawSnapshot, paused_gc, read_snapshot
from snapscope.model import Snapshot
from snapscope.normalise import normalise
from snapscope.sites import Sites
from snapscope.tui.state import OpenRequest, ViewState, first_state, open_device

_FREED_AT_ONCE: Final = 10_000


class Stage(Enum):
    """What the loading is at, in order."""

    READING = "reading"
    NORMALISING = "normalising"
    REPLAYING = "replaying blocks"
    CLASSIFYING = "classifying"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the loading is.

    Attributes:
        stage: what it is at.
        bytes_read: bytes of the file so far, as stored.
        total_bytes: bytes of the file; None for a pipe.
    """

    stage: Stage
    bytes_read: int = 0
    total_bytes: int | None = None


class _CancelledError(Exception):
    """The user has left; nobody waits for the result."""


class Loader:
    """Loads what was asked for, and reports.

    Args:
        request: what to open.
        source: what to read it from.
        on_progress, on_done, on_error: called in the loader's thread; none of them once
            `cancel` was called.
    """

    def __init__(
        self,
        request: OpenRequest,
        source: Input,
        *,
        on_progress: Callable[[Progress], None],
        on_done: Callable[[ViewState], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._request = request
        self._source = source
        self._on_progress = on_progress
        self._on_done = on_done
        self._on_error = on_error
        self._is_cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapscope-loader", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop at the next chance, and report nothing any more."""
        self._is_cancelled.set()

    def _run(self) -> None:
        # One of the two tops: whatever happens here must end the app, not vanish in a thread.
        try:
            state = self._load()
        except _CancelledError:
            return
        except Exception as error:
            if not self._is_cancelled.is_set():
                self._on_error(error)
            return
        if not self._is_cancelled.is_set():
            self._on_done(state)

    def _load(self) -> ViewState:
        request = self._request
        with paused_gc():
            snapshot = self._read()
        self._report(Progress(stage=Stage.REPLAYING))
        history = DeviceHistory(snapshot, request.device, sites=Sites(snapshot.stacks), rules=request.rules)
        opened = open_device(
            history,
            capacity_bytes=request.capacity_bytes,
            on_classify=lambda: self._report(Progress(stage=Stage.CLASSIFYING)),
        )
        return first_state(request, opened)

    def _read(self) -> Snapshot:
        self._report(Progress(stage=Stage.READING))
        raw = read_snapshot(
            self._source,
            progress=lambda done, total: self._report(
                Progress(stage=Stage.READING, bytes_read=done, total_bytes=total)
            ),
            as_columns=True,
        )
        self._report(Progress(stage=Stage.NORMALISING, bytes_read=raw.source.size_bytes))
        snapshot = normalise(raw)
        _free_piecemeal(raw)
        return snapshot

    def _report(self, progress: Progress) -> None:
        if self._is_cancelled.is_set():
            raise _CancelledError
        self._on_progress(progress)


def _free_piecemeal(raw: RawSnapshot) -> None:
    """Let go of what was read by pieces, because freeing millions of objects at once stalls all threads."""
    value = raw.value if isinstance(raw.value, dict) else {}
    traces = value.get("device_traces")
    for trace in traces if isinstance(traces, list) else []:
        while isinstance(trace, list) and trace:
            del trace[-_FREED_AT_ONCE:]
