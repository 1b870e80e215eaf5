"""What a rank tells the harness: one JSON object a line, numbered and checksummed.

A line is ``{"seatrial":1,"job":J,"stream":R,"seq":N,"t":S,"event":E,...,"crc":"xxxxxxxx"}``. ``stream`` is the rank
that writes, or LAUNCHER, or SAMPLER; ``seq`` counts from 0 in each stream; ``t`` is seconds on the writer's own
monotonic clock (compare it within one stream only); ``crc`` is the CRC-32 of the line's bytes before ``,"crc"``. The
reader, which finds gaps, doubles and damage, is ``seatrial.parse.events``.
"""

import json
import os
import sys
import threading
import time
import zlib
from typing import Any, Dict, Optional

VERSION = 1
MAX_LINE_BYTES = 8192
MARK = b'{"seatrial":'

LAUNCHER = -1
"""The rank number of the launcher's own stream."""
SAMPLER = -2
"""The rank number of the sampler's stream."""


class Emitter:
    """Writes the events of one rank to a file descriptor that nothing else writes to.

    Args:
        job: the job's id.
        rank: the rank, or LAUNCHER, or SAMPLER.
        fd: an open descriptor; each event is one write of one whole line.
    """

    def __init__(self, job: str, rank: int, fd: int) -> None:
        self._job = job
        self._rank = rank
        self._fd = fd
        self._seq = 0
        self._lock = threading.Lock()

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event.

        Raises:
            ValueError: a field is not finite, or has a name that the line itself uses, or the line would be longer than
                MAX_LINE_BYTES.
        """
        with self._lock:
            head: Dict[str, Any] = {
                "seatrial": VERSION,
                "job": self._job,
                "stream": self._rank,
                "seq": self._seq,
                "t": round(time.monotonic(), 6),
                "event": event,
            }
            taken = sorted(set(fields) & {*head, "crc"})
            if taken:
                raise ValueError(f"event {event!r}: the line itself has the names {taken}")
            head.update(fields)
            body = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()[:-1]
            line = body + b',"crc":"%08x"}\n' % zlib.crc32(body)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"event {event!r} has {len(line)} bytes, more than {MAX_LINE_BYTES}")
            self._seq += 1
            while line:
                line = line[os.write(self._fd, line) :]


def take_stdout(job: str, rank: int) -> Emitter:
    """Keep standard output for events alone: whatever else prints to it from now on goes to standard error."""
    sys.stdout.flush()
    events_fd = os.dup(1)
    os.dup2(2, 1)
    return Emitter(job, rank, events_fd)


class Position:
    """How far a rank has come, so that a hang can name the rank that did not arrive.

    ``step`` counts the collectives that the rank has entered; ``phase`` is 0 on entering, 1 when the call has handed
    its work to the backend, 2 when the work is done.
    """

    def __init__(self) -> None:
        self.step = 0
        self.phase = 0
        self.what = "start"


class Heartbeat:
    """Emits a ``beat`` event every ``period`` seconds with the rank's position, until stopped."""

    def __init__(self, emitter: Emitter, position: Position, period: float = 0.5) -> None:
        self._emitter = emitter
        self._position = position
        self._period = period
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            at = self._position
            self._emitter.emit("beat", step=at.step, phase=at.phase, what=at.what)

    def __enter__(self) -> "Heartbeat":
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
