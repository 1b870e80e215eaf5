"""How a job ends, why, and whose fault it is: five budgets, every death, every silence, on a scripted carrier."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial import job as j
from seatrial import supervise
from seatrial.errors import LeakError
from seatrial.payload.events import SAMPLER, Emitter
from seatrial.supervise import GRACE, SupervisedJob
from tests.clock import Clock

JOB = "collectives-main-1"
BUDGET = j.Budget(queue=10, start=20, silence=5, total=60, cleanup=7)
BEAT = 0.5


class Voice:
    """One rank's event stream, written by the payload's own emitter."""

    def __init__(self, rank: int) -> None:
        self._fd = os.memfd_create(f"rank-{rank}")
        self._emitter = Emitter(JOB, rank, self._fd)

    def say(self, event: str, **fields: Any) -> bytes:
        """The bytes of one event."""
        before = os.lseek(self._fd, 0, os.SEEK_CUR)
        self._emitter.emit(event, **fields)
        return os.pread(self._fd, 1 << 16, before)

    def close(self) -> None:
        """Let go of the stream."""
        os.close(self._fd)


class Play:
    """A job whose carrier reports what a script says, each sign at its second.

    It is a carrier itself: ``ended`` is the reserve with which it was ended, ``kills`` the signals that were asked for,
    ``left`` what stays alive, ``last`` what is heard only after the end.
    """

    def __init__(self, clock: Clock, logs: Path, ranks: int = 2) -> None:
        self.clock = clock
        self.ended: list[float] = []
        self.kills: list[tuple[int, int]] = []
        self.left: list[str] = []
        self.last: list[j.Sign] = []
        self._script: list[tuple[float, j.Sign]] = []
        self._voices = {rank: Voice(rank) for rank in (*range(ranks), SAMPLER)}
        self._began = clock.now
        spec = j.JobSpec("collectives", "collectives", {}, ranks=ranks, budget=BUDGET)
        self.job = SupervisedJob(JOB, spec, self, logs, lambda: clock.now - self._began)

    # The carrier.

    def poll(self) -> Sequence[j.Sign]:
        """The signs that are due."""
        if self.ended:
            signs, self.last = self.last, []
            return signs
        now = self.clock.now - self._began
        due = [sign for at, sign in sorted(self._script, key=lambda line: line[0]) if at <= now]
        self._script = [(at, sign) for at, sign in self._script if at > now]
        return due

    def kill(self, rank: int, signal: int) -> None:
        """Note it."""
        self.kills.append((rank, signal))

    def end(self, reserve: float) -> Sequence[str]:
        """Note it."""
        self.ended.append(reserve)
        return self.left

    # The script; ``at`` is seconds since the submission.

    def sign(self, at: float, *signs: j.Sign) -> Play:
        """These signs are reported."""
        self._script += [(at, sign) for sign in signs]
        return self

    def says(self, at: float, rank: int, event: str, **fields: Any) -> Play:
        """A rank says one event."""
        return self.sign(at, j.Output(rank, self.voice(rank, event, **fields)))

    def voice(self, rank: int, event: str, **fields: Any) -> bytes:
        """The bytes with which a rank would say an event."""
        return self._voices[rank].say(event, **fields)

    def begins(self, *ranks: int) -> Play:
        """Admitted at 1; these ranks (all, where none is named) exist at 2 and have joined at 3."""
        self.sign(1, j.Admitted("the host is free"))
        for rank in ranks or [rank for rank in self._voices if rank != SAMPLER]:
            self.sign(2, j.Started(rank, "node-1", 1000 + rank)).says(2, rank, "hello").says(3, rank, "ready")
        return self

    def works(self, rank: int, since: float, until: float) -> Play:
        """A rank tells of progress, a step a beat."""
        for beat in range(int((until - since) / BEAT) + 1):
            self.beats(rank, since + beat * BEAT, step=beat, phase=2, what="training")
        return self

    def hangs(self, rank: int, since: float, until: float, step: int, phase: int = 0, what: str = "broadcast") -> Play:
        """A rank still beats, but at one place."""
        for beat in range(int((until - since) / BEAT) + 1):
            self.beats(rank, since + beat * BEAT, step, phase, what)
        return self

    def beats(self, rank: int, at: float, step: int, phase: int, what: str) -> Play:
        """A rank tells where it is."""
        return self.says(at, rank, "beat", step=step, phase=phase, what=what)

    def ends(self, at: float, *ranks: int) -> Play:
        """These ranks complete."""
        for rank in ranks:
            self.says(at, rank, "done").sign(at, j.Exited(rank, 0))
        return self

    def dies(self, at: float, rank: int, code: int) -> Play:
        """A rank's process ends like this."""
        return self.sign(at, j.Exited(rank, code))

    def result(self) -> j.Result:
        """Wait for the job's end."""
        return self.job.wait()

    @property
    def now(self) -> float:
        """Seconds since the submission."""
        return self.clock.now - self._began

    def close(self) -> None:
        """Let go of the streams."""
        for voice in self._voices.values():
            voice.close()


@pytest.fixture
def play(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """A job of two ranks, or of as many as the test's parameter says."""
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)
    play = Play(clock, tmp_path / "20261201-run" / "logs" / JOB, ranks=getattr(request, "param", 2))
    yield play
    play.close()


# The good end.


def test_a_job_is_complete_when_every_rank_says_so(play: Play) -> None:
    result = play.begins().works(0, 4, 9).works(1, 4, 9).ends(10, 0, 1).result()
    assert (result.ending, result.culprits, result.faults) == (j.Ending.COMPLETED, (), ())
    assert result.exits == {0: 0, 1: 0}
    assert (result.nodes, result.pids) == ({0: "node-1", 1: "node-1"}, {0: 1000, 1: 1001})
    assert [event.name for event in result.events[1]] == ["hello", "ready", "done"]
    assert play.ended == [BUDGET.cleanup]


def test_the_timeline_tells_each_moment_with_its_cause(play: Play) -> None:
    timeline = play.begins().ends(7, 0, 1).result().timeline
    assert timeline.submitted.t == 0
    for moment, t, cause in (
        (timeline.admitted, 1, "the host is free"),
        (timeline.started, 3, "all 2 ranks joined the group"),
        (timeline.ended, 7, "all 2 ranks told of their completion"),
    ):
        assert moment is not None
        assert moment.t == pytest.approx(t, abs=0.05)
        assert moment.cause == cause


def test_the_state_follows_the_job(play: Play) -> None:
    play.begins().ends(6, 0, 1)
    seen = [play.job.state()]
    play.job.on_change = lambda job: seen.append(job.state())
    play.result()
    assert list(dict.fromkeys(seen)) == list(j.JobState)


def test_progress_can_be_asked_for_at_every_moment(play: Play) -> None:
    play.sign(0.5, j.Waiting("leased by run 7")).begins().works(0, 4, 5).works(1, 4, 6).ends(6.5, 0, 1)
    told: dict[str, str] = {}
    play.job.on_change = lambda job: told.update({job.left()[0]: job.doing()})
    play.result()
    assert told == {"queue": "leased by run 7", "start": "0 of 2 ranks joined", "total": "at training"}


def test_last_words_that_come_with_the_end_are_kept(play: Play) -> None:
    play.begins().ends(5, 0, 1)
    play.last = [j.Output(SAMPLER, play.voice(SAMPLER, "sample", cpu=1.0)), j.Exited(SAMPLER, 0)]
    assert [event.name for event in play.result().samples] == ["sample"]


# The five budgets, each with an ending of its own.


def test_the_queue_budget(play: Play) -> None:
    result = play.sign(2, j.Waiting("leased by run 7")).result()
    assert (result.ending, result.culprits) == (j.Ending.QUEUE_TIMEOUT, ())
    assert result.cause == "not admitted within 10 s: leased by run 7"
    assert play.now == pytest.approx(10, abs=0.1)
    assert result.timeline.admitted is None


def test_the_start_budget_names_the_ranks_without_a_first_event(play: Play) -> None:
    play.sign(1, j.Admitted("free")).sign(2, j.Started(0, "node-1", 1000), j.Started(1, "node-1", 1001))
    result = play.says(2, 0, "hello").result()
    assert (result.ending, result.culprits) == (j.Ending.START_TIMEOUT, (1,))
    assert result.cause == "rank 1: no first event within 20 s"
    assert play.now == pytest.approx(21, abs=0.1)


def test_the_start_budget_names_the_ranks_that_did_not_join(play: Play) -> None:
    result = play.begins(0).says(2, 1, "hello").works(0, 4, 30).result()
    assert (result.ending, result.culprits) == (j.Ending.START_TIMEOUT, (1,))
    assert result.cause == "rank 1: did not join the group within 20 s"


def test_the_silence_budget(play: Play) -> None:
    result = play.begins().works(0, 3, 20).result()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, (1,))
    assert play.now == pytest.approx(8, abs=0.1)


def test_the_total_budget(play: Play) -> None:
    result = play.begins().works(0, 4, 100).works(1, 4, 100).result()
    assert (result.ending, result.culprits) == (j.Ending.OVERTIME, ())
    assert result.cause == "still at work after 60 s, at training"
    assert play.now == pytest.approx(63, abs=0.1)


def test_the_clean_up_budget(play: Play) -> None:
    play.left = ["pid 7 (started at tick 9): sleep 600"]
    result = play.begins().ends(5, 0, 1).result()
    assert result.ending is j.Ending.LEAKED
    assert result.cause.endswith("still alive after 7 s: pid 7 (started at tick 9): sleep 600")
    assert play.ended == [BUDGET.cleanup]


def test_every_job_is_ended_once_and_only_once(play: Play) -> None:
    with play.begins().ends(5, 0, 1).job as job:
        assert job.wait() is job.wait()
    job.cancel()
    assert play.ended == [BUDGET.cleanup]


# Deaths.


def test_a_death_names_its_rank_and_gives_the_others_a_moment_for_their_last_words(play: Play) -> None:
    play.begins().works(0, 4, 60).works(1, 4, 7).dies(8, 1, -signal.SIGKILL)
    result = play.result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))
    assert result.cause == "rank 1 was ended by SIGKILL at 'training'"
    assert play.now == pytest.approx(8 + GRACE, abs=0.1)


def test_the_first_to_die_is_named(play: Play) -> None:
    result = play.begins().dies(5, 1, 3).dies(5.5, 0, 1).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))
    assert result.cause == "rank 1 ended with status 3 at 'start'"
    assert result.exits == {1: 3, 0: 1}


def test_a_signal_comes_before_those_that_failed_because_of_it(play: Play) -> None:
    result = play.begins().dies(5, 0, 1).dies(5, 1, -signal.SIGKILL).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))


def test_a_rank_that_its_backend_aborted_is_not_taken_for_the_cause(play: Play) -> None:
    result = play.begins().dies(5, 1, 1).dies(5.5, 0, -signal.SIGABRT).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))


def test_what_a_rank_said_of_its_failure_is_told(play: Play) -> None:
    play.begins().hangs(1, 4, 4, step=9, what="all_reduce float32 1 MiB")
    result = play.says(5, 1, "failed", type="RuntimeError", message="ring broken").dies(5, 1, 1).result()
    assert result.cause == "rank 1 ended with status 1 at 'all_reduce float32 1 MiB': RuntimeError: ring broken"


def test_a_real_time_signal_has_a_number(play: Play) -> None:
    assert "was ended by signal 40" in play.begins().dies(5, 0, -40).result().cause


def test_a_death_during_the_start_is_a_death(play: Play) -> None:
    result = play.begins(0).dies(4, 1, -signal.SIGSEGV).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))
    assert play.now < 6


def test_a_death_after_the_completion_event_is_a_death(play: Play) -> None:
    result = play.begins().says(5, 0, "done").dies(5, 0, -signal.SIGSEGV).ends(5, 1).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (0,))


def test_a_budget_that_ends_within_the_grace_does_not_hide_the_death(play: Play) -> None:
    result = play.begins().works(0, 4, 70).works(1, 4, 62).dies(62.5, 1, -signal.SIGKILL).result()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))


# Incomplete: an exit status alone is no evidence.


def test_an_exit_status_of_zero_without_a_completion_event_is_incomplete(play: Play) -> None:
    result = play.begins().ends(5, 0).dies(5, 1, 0).result()
    assert (result.ending, result.culprits) == (j.Ending.INCOMPLETE, (1,))
    assert result.cause == "rank 1 ended with status 0 but without a completion event"


def test_a_world_that_ends_well_and_says_nothing_is_incomplete(play: Play) -> None:
    result = play.sign(1, j.Admitted("free")).dies(2, 0, 0).dies(2, 1, 0).result()
    assert (result.ending, result.culprits) == (j.Ending.INCOMPLETE, (0, 1))


def test_a_rank_that_left_early_does_not_keep_the_others_until_a_budget_is_spent(play: Play) -> None:
    result = play.begins().works(1, 4, 60).dies(5, 0, 0).result()
    assert (result.ending, result.culprits) == (j.Ending.INCOMPLETE, (0,))
    assert play.now < 7


def test_a_job_that_the_target_lost_sight_of_is_incomplete(play: Play) -> None:
    result = play.begins().works(0, 4, 9).works(1, 4, 9).sign(6, j.Lost("the node went away")).result()
    assert (result.ending, result.cause) == (j.Ending.INCOMPLETE, "the node went away")


# Silence.


def test_a_mute_rank_is_named_though_the_others_do_not_move_either(play: Play) -> None:
    play.begins().hangs(0, 4, 20, step=5, phase=1).hangs(1, 4, 4, step=4, what="all_gather")
    result = play.result()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, (1,))
    assert result.cause == "rank 1: no word for 5 s (rank 1 at 'all_gather')"


@pytest.mark.parametrize(("late", "step", "phase"), [(0, 4, 2), (1, 4, 2), (1, 5, 0)])
def test_the_rank_that_did_not_arrive_is_named_not_those_that_wait(
    play: Play, late: int, step: int, phase: int
) -> None:
    play.begins().hangs(1 - late, 4, 20, step=5, phase=1).hangs(late, 4, 20, step=step, phase=phase, what="loading")
    result = play.result()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, (late,))
    assert result.cause == f"no progress for 5 s; rank {late} did not arrive ('loading')"


def test_nobody_is_named_where_all_wait_alike(play: Play) -> None:
    result = play.begins().hangs(0, 4, 20, step=5, phase=1).hangs(1, 4, 20, step=5, phase=1).result()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, ())
    assert result.cause == "no progress for 5 s; all ranks wait alike at 'broadcast'"


@pytest.mark.parametrize(("play", "hanging"), [(1, (0,)), (2, (1,)), (3, (1, 2))], indirect=["play"])
def test_ranks_that_hang_when_no_other_is_left_to_wait_for_are_named(play: Play, hanging: tuple[int, ...]) -> None:
    play.begins()
    for rank in range(play.job.spec.ranks):
        play.hangs(rank, 4, 20, step=5) if rank in hanging else play.ends(4, rank)
    result = play.result()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, hanging)


def test_one_rank_that_moves_is_progress(play: Play) -> None:
    result = play.begins().hangs(0, 4, 20, step=5, phase=1).works(1, 4, 20).ends(21, 0, 1).result()
    assert result.ending is j.Ending.COMPLETED


# Damage.


def test_damage_in_a_stream_is_told_with_its_rank_and_changes_no_ending(play: Play) -> None:
    play.begins()
    play.voice(1, "row", size=1)
    result = play.says(4, 0, "row", size=2).says(4, 1, "row", size=2).ends(5, 0, 1).result()
    assert result.ending is j.Ending.COMPLETED
    ((rank, kind),) = [(fault.rank, fault.kind) for fault in result.faults]
    assert (rank, kind) == (1, "gap")


def test_a_stream_that_breaks_off_within_a_line_is_told(play: Play) -> None:
    play.begins().sign(4, j.Output(0, play.voice(0, "row", size=1)[:-9])).dies(5, 0, -signal.SIGKILL)
    result = play.result()
    assert [(fault.rank, fault.kind) for fault in result.faults] == [(0, "truncated")]


def test_a_completion_event_that_is_damaged_is_none(play: Play) -> None:
    done = play.begins().voice(1, "done").replace(b"done", b"dOne")
    result = play.ends(5, 0).sign(5, j.Output(1, done)).dies(5, 1, 0).result()
    assert (result.ending, result.culprits) == (j.Ending.INCOMPLETE, (1,))
    assert [fault.kind for fault in result.faults] == ["garbled"]


def test_damage_in_the_samplers_stream_is_kept_apart(play: Play) -> None:
    play.begins().sign(4, j.Output(SAMPLER, b"what is this\n"))
    result = play.ends(5, 0, 1).result()
    assert result.faults == ()
    assert [fault.kind for fault in result.sampler_faults] == ["foreign"]


# Following.


def test_a_job_is_followed_until_a_rank_says_what_is_wanted(play: Play) -> None:
    play.begins().says(4, 1, "saved", step=3).ends(6, 0, 1)
    event = play.job.follow(lambda event: event.name == "saved")
    assert event is not None
    assert (event.rank, event.fields["step"]) == (1, 3)
    assert play.now == pytest.approx(4, abs=0.1)
    assert play.result().ending is j.Ending.COMPLETED


@pytest.mark.parametrize("end", ["completion", "death", "budget"])
def test_following_ends_with_the_job(play: Play, end: str) -> None:
    play.begins()
    if end == "completion":
        play.ends(5, 0, 1)
    if end == "death":
        play.dies(5, 0, -signal.SIGKILL)
    assert play.job.follow(lambda event: event.name == "saved") is None
    assert play.now < 10


def test_when_each_rank_ended_is_known(play: Play) -> None:
    play.begins().dies(5, 1, 3).dies(5.5, 0, 1).result()
    seen = {rank: at - 100 for rank, at in play.job.exits().items()}
    assert seen == {1: pytest.approx(5, abs=0.05), 0: pytest.approx(5.5, abs=0.05)}


# Cancelling.


def test_leaving_the_context_cancels_a_job_that_still_runs(play: Play) -> None:
    with play.begins().works(0, 4, 60).job as job:
        job.advance()
    result = job.wait()
    assert (result.ending, result.cause) == (j.Ending.CANCELLED, "cancelled by the harness")
    assert job.state() is j.JobState.ENDED


def test_a_leak_is_raised_with_the_command_that_cleans_up(play: Play) -> None:
    play.left = ["pid 7 (started at tick 9): sleep 600"]
    with pytest.raises(LeakError, match=r"pid 7 .*; run `seatrial cleanup 20261201-run`"), play.job:
        pass
    assert play.job.wait().ending is j.Ending.LEAKED


def test_an_error_in_the_block_still_ends_the_job(play: Play) -> None:
    with pytest.raises(KeyboardInterrupt), play.begins().job:
        raise KeyboardInterrupt
    assert play.ended == [BUDGET.cleanup]


def test_a_signal_goes_through_the_carrier(play: Play) -> None:
    play.job.kill(1, signal.SIGSTOP)
    assert play.kills == [(1, signal.SIGSTOP)]
