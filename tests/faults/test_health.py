"""A device that is slow, tires, or gives wrong results is named; the same trial without the fault is accepted."""

from __future__ import annotations

from pathlib import Path

from tests.faults.harness import Finished, SmallTrial, missed


def trial(folder: Path, plant: str | None = None) -> Finished:
    """The health suite on two cores, one of them with a fault."""
    return SmallTrial(folder, suite="health", plant=plant).run()


def outcomes(done: Finished, check: str, **where: str) -> tuple[str, str]:
    """What was said of rank 0, which is sound, and of rank 1."""
    sound, planted = (done.check(check, rank=rank, **where).outcome for rank in "01")
    return sound, planted


def test_sound_devices_are_accepted(tmp_path: Path) -> None:
    done = trial(tmp_path)
    assert done.status == 0, done.output
    assert done.verdict == "accepted"
    assert done.outcomes() == {"pass", "skip"}
    assert outcomes(done, "health.gemm.tflops", dtype="float32") == ("pass", "pass")


def test_a_slow_device_is_the_odd_one_out(tmp_path: Path) -> None:
    done = trial(tmp_path, "health_slow")
    assert done.verdict != "accepted", done.output
    assert missed(done.check("health.gemm.tflops", dtype="float32", rank="1"))
    assert done.check("health.gemm.tflops", dtype="float32", rank="0").outcome == "pass"
    assert missed(done.check("health.device.share", rank="1"))
    assert "rank 1: core" in done.check("health.device.share", rank="1").detail


def test_a_wrong_product_is_found_with_its_element(tmp_path: Path) -> None:
    done = trial(tmp_path, "health_wrong")
    assert done.verdict == "rejected", done.output
    assert outcomes(done, "health.gemm.correct", dtype="float32") == ("pass", "fail")
    assert outcomes(done, "health.soak.correct") == ("pass", "fail")
    assert outcomes(done, "health.memory.correct") == ("pass", "pass")
    detail = done.check("health.gemm.correct", rank="1").detail
    assert "rank 1: core" in detail
    assert "row 3, column 5: got" in detail


def test_a_device_that_tires_is_named(tmp_path: Path) -> None:
    done = trial(tmp_path, "health_tires")
    assert done.verdict != "accepted", done.output
    assert missed(done.check("health.soak.retained", rank="1"))
    assert not missed(done.check("health.soak.retained", rank="0"))
    assert "rank 1: core" in done.check("health.soak.retained", rank="1").detail


def test_a_wrong_copy_is_found_with_its_element(tmp_path: Path) -> None:
    done = trial(tmp_path, "health_memory")
    assert done.verdict == "rejected", done.output
    assert outcomes(done, "health.memory.correct") == ("pass", "fail")
    assert outcomes(done, "health.gemm.correct", dtype="float32") == ("pass", "pass")
    detail = done.check("health.memory.correct", rank="1").detail
    assert "memory triad" in detail
    assert "element" in detail
