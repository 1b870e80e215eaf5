"""Watches over a job on any target: budgets, completeness, and the name of the rank at fault.

A target supplies a Carrier, which tells what happens; everything that decides how a job ended is here, once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from seatrial import job as j
from seatrial.errors import LeakError
from seatrial.parse.events import EventReader
from seatrial.payload.events import SAMPLER

GRACE = 1.0
"""Seconds that the other ranks have for their last words once one has died, before they are ended."""

POLL = 0.02
"""Seconds between two looks at a job: far below the 1 s within which a rank's death must be seen."""


_Verdict = tuple[j.Ending, str, tuple[int, ...]]
"""How a job ended, why, and the ranks at fault."""


@dataclass
class _Rank:
    """What is known of one rank while it runs; times are monotonic seconds."""

    reader: EventReader
    events: list[j.Event] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    heard: float = 0.0
    moved: float = 0.0
    at: tuple[int, int] = (-1, 0)
    what: str = "start"
    exit: int | None = None

    def take(self, data: bytes, now: float) -> None:
        """Read what the rank said; ``moved`` is the last time that it told of progress."""
        for event in self.reader.feed(data):
            self.heard = now
            if event.name != "beat":
                self.events.append(event)
                self.said.add(event.name)
                self.moved = now
                continue
            at = (int(event.fields["step"]), int(event.fields["phase"]))
            if at != self.at:
                self.at, self.moved = at, now
            self.what = str(event.fields["what"])

    def fell(self) -> bool:
        """Whether it ended in another way than a rank that has done its work."""
        return self.exit is not None and (self.exit != 0 or "done" not in self.said)


class SupervisedJob:
    """A job on a target, watched until its end or until one of its five budgets is spent.

    Args:
        id: unique within the run.
        spec: what was asked for.
        carrier: the target's side.
        logs: the folder of the job's raw output.
        since: the trial's clock: seconds since its start.
    """

    def __init__(self, id: str, spec: j.JobSpec, carrier: j.Carrier, logs: Path, since: Callable[[], float]) -> None:  # noqa: A002
        self.id = id
        self.spec = spec
        self.on_change: Callable[[SupervisedJob], None] = lambda _: None
        self._carrier = carrier
        self._logs = logs
        self._since = since
        self._ranks = {rank: _Rank(EventReader(id, rank)) for rank in range(spec.ranks)}
        self._sampler = _Rank(EventReader(id, SAMPLER))
        self._timeline = j.Timeline(j.Moment(since(), "submitted by the harness"))
        self._submitted = time.monotonic()
        self._admitted: float | None = None
        self._started: float | None = None
        self._waiting = "no answer of the target yet"
        self._nodes: dict[int, str] = {}
        self._pids: dict[int, int] = {}
        self._exits: dict[int, float] = {}
        self._lost: str | None = None
        self._result: j.Result | None = None
        self._ended = False

    # What a Job can be asked.

    def state(self) -> j.JobState:
        """Where the job is now."""
        if self._result is not None or self._ended:
            return j.JobState.ENDED
        if self._started is not None:
            return j.JobState.STARTED
        return j.JobState.SUBMITTED if self._admitted is None else j.JobState.ADMITTED

    def timeline(self) -> j.Timeline:
        """Submitted, admitted, started, ended: each with its cause."""
        return self._timeline

    def events(self) -> Sequence[j.Event]:
        """All events that arrived so far, rank by rank."""
        return [event for rank in self._ranks.values() for event in rank.events]

    def pids(self) -> dict[int, int]:
        """The process of each rank that was started."""
        return dict(self._pids)

    def exits(self) -> dict[int, float]:
        """When each rank's end was seen, in seconds of time.monotonic()."""
        return dict(self._exits)

    def kill(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        self._carrier.kill(rank, number)

    def left(self, now: float | None = None) -> tuple[str, float]:
        """The budget that is running now, and how many seconds are left of it."""
        now, budget = time.monotonic() if now is None else now, self.spec.budget
        if self._admitted is None:
            return "queue", budget.queue - (now - self._submitted)
        if self._started is None:
            return "start", budget.start - (now - self._admitted)
        return "total", budget.total - (now - self._started)

    def since_submitted(self) -> float:
        """Seconds from submission until now, or until the end."""
        ended = self._timeline.ended
        return (self._since() if ended is None else ended.t) - self._timeline.submitted.t

    def doing(self) -> str:
        """What the job is at, in words: why it waits, who has joined, or how far its slowest rank has come."""
        if self._admitted is None:
            return self._waiting
        if self._started is None:
            joined = sum("ready" in known.said for known in self._ranks.values())
            return f"{joined} of {self.spec.ranks} ranks joined"
        slowest = min(self._ranks.values(), key=lambda known: known.at)
        return f"at {slowest.what}"

    def __enter__(self) -> SupervisedJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cancel()

    # The watch.

    def wait(self) -> j.Result:
        """Wait for the end, or until a budget is spent; then nothing of the job lives any more."""
        if self._result is None:
            verdict = None
            while verdict is None:
                self.advance()
                verdict = self._judge(time.monotonic())
                if verdict is None:
                    time.sleep(POLL)
            self._close(*verdict)
        assert self._result is not None
        return self._result

    def follow(self, wanted: Callable[[j.Event], bool]) -> j.Event | None:
        """Watch until a rank says what is wanted; None where the job ends, or spends a budget, before that."""
        while True:
            self.advance()
            found = next(filter(wanted, self.events()), None)
            if found is not None or self._judge(time.monotonic()) is not None:
                return found
            time.sleep(POLL)

    def advance(self) -> None:
        """Take in what happened since the last look."""
        now = time.monotonic()
        for sign in self._carrier.poll():
            self._take(sign, now)
        self.on_change(self)

    def cancel(self) -> None:
        """End the job and prove its absence.

        Raises:
            LeakError: something of it is still alive after the clean-up reserve.
        """
        if self._result is None:
            self._close(j.Ending.CANCELLED, "cancelled by the harness", ())
        assert self._result is not None
        if self._result.ending is j.Ending.LEAKED:
            raise LeakError(f"{self.id}: {self._result.cause}; run `seatrial cleanup {self._logs.parent.parent.name}`")

    def _take(self, sign: j.Sign, now: float) -> None:
        if isinstance(sign, j.Waiting):
            self._waiting = sign.cause
        elif isinstance(sign, j.Admitted):
            self._admitted = now
            self._timeline = replace(self._timeline, admitted=j.Moment(self._since(), sign.cause))
        elif isinstance(sign, j.Started):
            self._nodes[sign.rank], self._pids[sign.rank] = sign.node, sign.pid
            self._ranks[sign.rank].moved = now
        elif isinstance(sign, j.Output):
            self._stream(sign.rank).take(sign.data, now)
        elif isinstance(sign, j.Exited):
            self._exited(sign, now)
        else:
            self._lost = sign.cause
        if self._started is None and all("ready" in known.said for known in self._ranks.values()):
            self._started = now
            cause = f"all {self.spec.ranks} ranks joined the group"
            self._timeline = replace(self._timeline, started=j.Moment(self._since(), cause))

    def _stream(self, rank: int) -> _Rank:
        return self._sampler if rank == SAMPLER else self._ranks[rank]

    def _exited(self, sign: j.Exited, now: float) -> None:
        if sign.rank != SAMPLER:
            self._ranks[sign.rank].exit = sign.code
            self._exits[sign.rank] = now

    def _judge(self, now: float) -> _Verdict | None:
        """How the job ended, why, and whose fault it is; None while it goes on."""
        running = {rank: known for rank, known in self._ranks.items() if known.exit is None}
        fallen = [rank for rank in self._exits if self._ranks[rank].fell()]
        if fallen:
            is_over = not running or now - self._exits[fallen[0]] > GRACE
            return self._fall(fallen) if is_over else None
        if not running:
            return j.Ending.COMPLETED, f"all {self.spec.ranks} ranks told of their completion", ()
        if self._lost is not None:
            return j.Ending.INCOMPLETE, self._lost, ()
        return self._overdue(now) or self._silence(running, now)

    def _fall(self, fallen: Sequence[int]) -> _Verdict:
        """The first to fall is named, but a rank that a signal ended comes before those that failed because of it."""
        # SIGABRT is no sign of a cause: a backend aborts its own rank when a peer is gone.
        killed = [rank for rank in fallen if self._code(rank) < 0 and self._code(rank) != -signal.SIGABRT]
        first = (killed or fallen)[0]
        if self._code(first) != 0:
            return j.Ending.DIED, f"rank {first} {self._last_words(first)}", (first,)
        without = tuple(rank for rank in fallen if self._code(rank) == 0)
        return j.Ending.INCOMPLETE, f"{_ranks(without)} ended with status 0 but without a completion event", without

    def _code(self, rank: int) -> int:
        return self._ranks[rank].exit or 0

    def _last_words(self, rank: int) -> str:
        known, code = self._ranks[rank], self._code(rank)
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        failed = [event for event in known.events if event.name == "failed"]
        why = f": {failed[-1].fields['type']}: {failed[-1].fields['message']}" if failed else ""
        return f"{how} at {known.what!r}{why}"

    def _overdue(self, now: float) -> _Verdict | None:
        """Whether the budget of the stretch that runs now is spent: queue, start or total."""
        if self.left(now)[1] >= 0:
            return None
        budget = self.spec.budget
        if self._admitted is None:
            return j.Ending.QUEUE_TIMEOUT, f"not admitted within {budget.queue:g} s: {self._waiting}", ()
        if self._started is None:
            return self._start_overdue()
        return j.Ending.OVERTIME, f"still at work after {budget.total:g} s, {self.doing()}", ()

    def _start_overdue(self) -> _Verdict:
        mute = tuple(rank for rank, known in self._ranks.items() if "hello" not in known.said)
        late = mute or tuple(rank for rank, known in self._ranks.items() if "ready" not in known.said)
        missing = "no first event" if mute else "did not join the group"
        cause = f"{_ranks(late)}: {missing} within {self.spec.budget.start:g} s"
        return j.Ending.START_TIMEOUT, cause, late

    def _silence(self, running: dict[int, _Rank], now: float) -> _Verdict | None:
        """A hang: a rank without a word, or no progress of any rank; the rank that did not arrive is named."""
        if self._started is None:
            return None
        budget = self.spec.budget.silence
        mute = tuple(rank for rank, known in running.items() if now - known.heard > budget)
        if mute:
            where = "; ".join(f"rank {rank} at {running[rank].what!r}" for rank in mute)
            return j.Ending.SILENT, f"{_ranks(mute)}: no word for {budget:g} s ({where})", mute
        if any(now - known.moved <= budget for known in running.values()):
            return None
        first = min(known.at for known in running.values())
        behind = tuple(rank for rank, known in running.items() if known.at == first)
        what = running[behind[0]].what
        if len(behind) == len(self._ranks) > 1:
            return j.Ending.SILENT, f"no progress for {budget:g} s; all ranks wait alike at {what!r}", ()
        return j.Ending.SILENT, f"no progress for {budget:g} s; {_ranks(behind)} did not arrive ({what!r})", behind

    # The end.

    def _close(self, ending: j.Ending, cause: str, culprits: tuple[int, ...]) -> None:
        """End what is left of the job, prove its absence, and fix the result."""
        self._ended = True
        left = self._carrier.end(self.spec.budget.cleanup)
        now = time.monotonic()
        for sign in self._carrier.poll():
            if isinstance(sign, j.Output):
                self._stream(sign.rank).take(sign.data, now)
            elif isinstance(sign, j.Exited):
                self._exited(sign, now)
        if left:
            alive = f"still alive after {self.spec.budget.cleanup:g} s: {'; '.join(left)}"
            ending, cause = j.Ending.LEAKED, f"{cause}; {alive}"
        self._timeline = replace(self._timeline, ended=j.Moment(self._since(), cause))
        for known in (*self._ranks.values(), self._sampler):
            known.reader.close()
        self._result = self._fix(ending, cause, culprits)
        self.on_change(self)

    def _fix(self, ending: j.Ending, cause: str, culprits: tuple[int, ...]) -> j.Result:
        faults = tuple(fault for known in self._ranks.values() for fault in known.reader.faults)
        return j.Result(
            job=self.id,
            spec=self.spec,
            ending=ending,
            cause=cause,
            culprits=culprits,
            exits={rank: known.exit for rank, known in self._ranks.items() if known.exit is not None},
            events={rank: tuple(known.events) for rank, known in self._ranks.items()},
            faults=faults,
            timeline=self._timeline,
            nodes=self._nodes,
            pids=self._pids,
            logs=self._logs,
            samples=tuple(self._sampler.events),
            sampler_faults=tuple(self._sampler.reader.faults),
            clock=time.monotonic() - self._since(),
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # A real-time signal has no name of its own.
