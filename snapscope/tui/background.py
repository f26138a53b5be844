"""Work that would hold up the screen, done in a thread; only the newest job counts.

The threads are daemons, so that leaving never waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.message import Message
from textual.message_pump import MessagePump

Job = TypeVar("Job")
Result = TypeVar("Result")


class Background(Generic[Job, Result]):
    """One thread for one kind of work.

    A job that is submitted while another runs waits for it, and takes the place of one
    that waits already: holding down a key never piles up work.

    Args:
        work: makes a result of a job; called in the thread.
        deliver: takes the result, unless a newer job came meanwhile; called in the thread.
        fail: takes what `work` raised; called in the thread.
    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        *,
        deliver: Callable[[Result], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._work = work
        self._deliver = deliver
        self._fail = fail
        self._wakes = threading.Condition()
        self._waiting: list[Job] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Do a job as soon as the running one is done, instead of any that waits."""
        with self._wakes:
            self._waiting[:] = [job]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snapscope-work", daemon=True)
                self._thread.start()
            self._wakes.notify()

    def close(self) -> None:
        """Take no more jobs, and drop the running one's result."""
        with self._wakes:
            self._is_closed = True
            self._waiting.clear()
            self._wakes.notify()

    def _run(self) -> None:
        while True:
            with self._wakes:
                while not self._waiting and not self._is_closed:
                    self._wakes.wait()
                if self._is_closed:
                    return
                job = self._waiting.pop()
            # The top of this thread: an error must reach the app, not vanish here.
            try:
                result = self._work(job)
            except Exception as error:
                if self._is_wanted():
                    self._fail(error)
                continue
            if self._is_wanted():
                self._deliver(result)

    def _is_wanted(self) -> bool:
        with self._wakes:
            return not self._waiting and not self._is_closed


def post_from_thread(target: MessagePump, message: Message) -> None:
    """Post a message from a thread that may outlive the app."""
    try:
        target.post_message(message)
    except RuntimeError:
        # The event loop was closed between the question and the answer: nobody listens.
        return
