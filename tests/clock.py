"""A clock for tests of what waits: time passes only by sleeping."""

from __future__ import annotations


class Clock:
    """Stands in for the module ``time``; ``sleeps`` are the pauses that were asked for, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        """Seconds, as ``time.monotonic``."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.sleeps.append(seconds)
        self.now += seconds
