"""Each planted fault is caught with the right outcome and the right rank; the same trial without it is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import Finished, SmallTrial, missed


def test_a_clean_trial_is_accepted(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path).run()
    assert done.status == 0, done.output
    assert done.verdict == "accepted"
    assert done.outcomes() == {"pass", "skip"}


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, plant="slow").run()
    assert done.verdict != "accepted", done.output
    slow = done.check("nccl.rank.lateness", rank="1")
    assert missed(slow)
    assert "rank 1" in slow.detail
    assert done.check("nccl.rank.lateness", rank="0").outcome == "pass"


def test_one_flipped_element_is_found(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, plant="flip").run()
    assert done.verdict == "rejected", done.output
    wrong = done.check("nccl.all_reduce.correct")
    assert wrong.outcome == "fail"
    assert "rank 1: 65536 bytes" in wrong.detail
    assert "element 1234" in wrong.detail
    assert done.check("nccl.all_gather.correct").outcome == "pass"


def test_two_swapped_blocks_are_found(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, plant="swap").run()
    assert done.verdict == "rejected", done.output
    wrong = done.check("nccl.all_gather.correct")
    assert wrong.outcome == "fail"
    assert "rank 1" in wrong.detail
    assert "element 0 (the block of rank 0)" in wrong.detail
    assert done.check("nccl.all_reduce.correct").outcome == "pass"


def assert_rank_1_kept_the_job(done: Finished) -> None:
    """The job's own check fails and names rank 1; what hangs on the job's numbers is inconclusive, never a pass."""
    complete = done.check("nccl.job.complete")
    assert complete.outcome == "fail", done.output
    assert "rank 1" in complete.detail
    (job,) = done.record.jobs
    assert job.culprits == (1,)
    assert {check.outcome for check in done.checks("nccl.all_reduce.busbw")} == {"inconclusive"}
    assert done.verdict == "rejected"


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, plant="die").run()
    assert_rank_1_kept_the_job(done)
    (job,) = done.record.jobs
    assert job.exit[1] == -9
    assert "SIGKILL" in job.cause


@pytest.mark.parametrize("plant", ["stop", "hang"])
def test_a_rank_that_hangs_is_named(tmp_path: Path, plant: str) -> None:
    done = SmallTrial(tmp_path, plant=plant, budgets={"silence": "3 s"}).run()
    assert_rank_1_kept_the_job(done)
    assert done.record.jobs[0].state == "silence budget spent"


def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, wrapper="never_starts", budgets={"start": "6 s"}).run()
    complete = done.check("nccl.job.complete")
    assert complete.outcome == "inconclusive", done.output
    assert "rank 1: no first event within 6 s" in complete.reason
    assert done.record.jobs[0].culprits == (1,)
    assert done.verdict != "accepted"


@pytest.mark.parametrize(
    ("damage", "kind"), [("cut", "truncated"), ("garble", "garbled"), ("double", "duplicate"), ("drop", "gap")]
)
def test_damaged_output_is_no_measurement(tmp_path: Path, damage: str, kind: str) -> None:
    done = SmallTrial(tmp_path, wrapper=damage).run()
    complete = done.check("nccl.job.complete")
    assert complete.outcome == "inconclusive", done.output
    assert "rank 1" in complete.reason
    assert kind in complete.reason
    assert "pass" not in {check.outcome for check in done.checks("nccl.all_reduce.busbw")}
    assert done.verdict != "accepted"


def test_telemetry_that_stops_is_no_quiet_window(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, plant="mute_telemetry").run()
    coverage = done.check("telemetry.window.coverage")
    assert coverage.outcome in ("fail", "inconclusive"), done.output
    assert done.verdict in ("rejected", "not accepted")
