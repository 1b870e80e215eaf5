"""What a waiting user sees: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from seatrial.job import JobState
from seatrial.quantity import format_seconds
from seatrial.supervise import SupervisedJob

LIVE_PERIOD, PLAIN_PERIOD = 0.5, 15.0
"""Seconds between two updates of the same job."""


class Progress:
    """Tells what runs, since when, and what budget is left.

    Args:
        stream: where the lines go.
        live: whether one line may be rewritten in place.
        clock: monotonic seconds.
    """

    def __init__(self, stream: TextIO, *, live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._live = live
        self._clock = clock
        self._seen: dict[str, JobState] = {}
        self._last = 0.0

    def __call__(self, job: SupervisedJob) -> None:
        """Look at a job; speaks when its state changed or the period is over."""
        state, now = job.state(), self._clock()
        changed = self._seen.get(job.id) is not state
        period = LIVE_PERIOD if self._live else PLAIN_PERIOD
        if not changed and (state is JobState.ENDED or now - self._last < period):
            return
        self._seen[job.id], self._last = state, now
        text = self._ended(job) if state is JobState.ENDED else self._running(job)
        self._write(text, keep=state is JobState.ENDED)

    def _running(self, job: SupervisedJob) -> str:
        budget, left = job.left()
        since = job.since_submitted()
        return (
            f"{job.id}: {job.state().value}, {format_seconds(round(since))} since submission, "
            f"{format_seconds(max(0, round(left)))} left of the {budget} budget; {job.doing()}"
        )

    def _ended(self, job: SupervisedJob) -> str:
        ended = job.timeline().ended
        cause = ended.cause if ended is not None else "no longer watched"
        return f"{job.id}: ended after {format_seconds(round(job.since_submitted(), 1))}: {cause}"

    def _write(self, text: str, *, keep: bool) -> None:
        # What a rank said of its failure may hold several lines, or moves of the cursor.
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        if not self._live:
            self._stream.write(f"seatrial: {text}\n")
        else:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[2K{text[: width - 1]}" + ("\n" if keep else ""))
        self._stream.flush()
