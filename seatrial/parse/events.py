"""Reads one rank's event stream and finds every damage to it.

The stream is what ``seatrial.payload.events.Emitter`` writes. Whatever a reader accepts as an event is, by its number
and checksum, the event that the rank wrote; everything else is a fault that names its line. One loss cannot be seen
here: the cut of whole lines at the very end, which only a missing ``done`` event tells.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any

from seatrial.job import Event, StreamFault
from seatrial.payload.events import MARK, MAX_LINE_BYTES, VERSION

_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_CHECKSUM_BYTES = len(b',"crc":"00000000"}')
_HEAD = frozenset({"seatrial", "job", "stream", "seq", "t", "event", "crc"})
_SHOWN_BYTES = 80


class _DamageError(Exception):
    """A line that is not a good event of this stream."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class EventReader:
    """Turns the bytes of one stream into events, in whatever pieces they come.

    Args:
        job: the job's id; an event of another one is foreign.
        rank: the rank, or ``payload.events.LAUNCHER`` or ``SAMPLER``.

    Attributes:
        faults: the damage so far, in the order of the lines. Its kinds are gap, duplicate, out of order, truncated,
            foreign, interleaved and garbled.
        lines: how many lines have been read, good or bad.
    """

    def __init__(self, job: str, rank: int) -> None:
        self.faults: list[StreamFault] = []
        self.lines = 0
        self._job = job
        self._rank = rank
        self._rest = b""
        self._overlong = False
        self._next = 0
        self._missing: list[range] = []
        self._late: set[int] = set()
        self._closed = False

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the good events that they complete.

        Raises:
            ValueError: the stream has been closed.
        """
        if self._closed:
            raise ValueError(f"rank {self._rank}: the event stream is closed")
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) >= MAX_LINE_BYTES:
            self._drop_overlong()
        return events

    def close(self) -> None:
        """The stream has ended: what is left without the end of its line was cut."""
        if self._closed:
            return
        self._closed = True
        if self._rest and not self._overlong:
            self.lines += 1
            self._report("truncated", f"the stream ends within the line {_shown(self._rest)}")
        self._rest = b""

    def _take(self, line: bytes) -> Event | None:
        if self._overlong:
            self._overlong = False
            return None
        self.lines += 1
        try:
            return self._in_order(self._event(line))
        except _DamageError as damage:
            self._report(damage.kind, str(damage))
            return None

    def _drop_overlong(self) -> None:
        """Let go of a line that is too long for an event, without keeping it in memory."""
        if not self._overlong:
            self.lines += 1
            self._report("truncated", f"no end of the line within {MAX_LINE_BYTES} bytes: {_shown(self._rest)}")
            self._overlong = True
        self._rest = b""

    def _report(self, kind: str, detail: str) -> None:
        self.faults.append(StreamFault(self._rank, self.lines, kind, detail))

    def _event(self, line: bytes) -> Event:
        """The event of a line that is sound by itself."""
        if len(line) >= MAX_LINE_BYTES:
            raise _DamageError("truncated", f"{len(line) + 1} bytes, an event has at most {MAX_LINE_BYTES}")
        _refuse_mixture(line)
        fields = _checked(line)
        _refuse_shape(fields)
        if (fields["job"], fields["stream"]) != (self._job, self._rank):
            whose = f"an event of job {fields['job']!r}, rank {fields['stream']}"
            raise _DamageError("foreign", f"{whose} in the stream of job {self._job!r}, rank {self._rank}")
        told = {key: value for key, value in fields.items() if key not in _HEAD}
        return Event(fields["stream"], fields["seq"], float(fields["t"]), fields["event"], told)

    def _in_order(self, event: Event) -> Event:
        """The event, where its number is the next one; a gap before it is reported, and the event is good."""
        if event.seq < self._next:
            raise self._behind(event.seq)
        if event.seq > self._next:
            self._missing.append(range(self._next, event.seq))
            self._report("gap", f"seq {self._next} expected, {event.seq} came: {event.seq - self._next} events missing")
        self._next = event.seq + 1
        return event

    def _behind(self, seq: int) -> _DamageError:
        if seq in self._late or not any(seq in gap for gap in self._missing):
            return _DamageError("duplicate", f"seq {seq} again, {self._next} expected")
        self._late.add(seq)
        return _DamageError("out of order", f"seq {seq} came late, {self._next} expected")


def _refuse_mixture(line: bytes) -> None:
    """An event's mark stands once, at the start; within an event it cannot stand, because JSON escapes its quotes."""
    marks = line.count(MARK)
    if marks == 0:
        raise _DamageError("foreign", f"not an event: {_shown(line)}")
    if marks > 1:
        raise _DamageError("interleaved", f"{marks} events in one line: {_shown(line)}")
    if not line.startswith(MARK):
        raise _DamageError("interleaved", f"an event after other output: {_shown(line)}")


def _checked(line: bytes) -> dict[str, Any]:
    """The fields of a line whose checksum is right."""
    body, end = line[:-_CHECKSUM_BYTES], _CHECKSUM.fullmatch(line[-_CHECKSUM_BYTES:])
    if end is None:
        raise _DamageError("garbled", f"the line does not end with its checksum: {_shown(line[-_SHOWN_BYTES:])}")
    told, found = end[1].decode(), f"{zlib.crc32(body):08x}"
    if told != found:
        raise _DamageError("garbled", f"checksum {found}, the line says {told}: {_shown(line)}")
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise _DamageError("garbled", f"not JSON: {error}: {_shown(line)}") from error
    assert isinstance(fields, dict), "a line with a mark and a checksum that is JSON is an object"
    return fields


def _refuse_shape(fields: dict[str, Any]) -> None:
    """What a sound writer of this version always puts into an event."""
    if fields["seatrial"] != VERSION:
        raise _DamageError("garbled", f"version {fields['seatrial']!r}, this reader knows {VERSION}")
    stream, seq, t = fields.get("stream"), fields.get("seq"), fields.get("t")
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (stream, seq))
    timed = isinstance(t, int | float) and not isinstance(t, bool) and math.isfinite(t)
    named = all(isinstance(fields.get(key), str) for key in ("job", "event"))
    if not (whole and timed and named):
        heads = {key: fields.get(key) for key in sorted(_HEAD)}
        raise _DamageError("garbled", f"not the shape of an event: {str(heads)[:_SHOWN_BYTES]}")
    if isinstance(seq, int) and seq < 0:
        raise _DamageError("garbled", f"seq {seq} is below 0")


def _shown(line: bytes) -> str:
    """The start of a line as it can be printed."""
    return repr(line[:_SHOWN_BYTES].decode(errors="backslashreplace"))
