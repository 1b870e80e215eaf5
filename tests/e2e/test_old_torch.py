"""The payloads run in an image whose torch is old: Debian's, the oldest that is supported."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import config, shipping
from seatrial.job import Ending, JobSpec, Result
from seatrial.ledger import Ledger
from seatrial.site import survey
from seatrial.suites import completion
from seatrial.suites.checkpoint import plan
from seatrial.suites.checkpoint.trace import Trace, compare
from seatrial.suites.health import plan as health
from seatrial.suites.health.devices import Health
from seatrial.suites.staging import plan as staging
from seatrial.suites.staging.staged import Staged, wait_share
from seatrial.target.local import LocalTarget, Workshop

PYTHON = "/usr/bin/python3"

Submit = Callable[..., Result]


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    """This machine, with Debian's interpreter for the ranks."""
    has_torch = [PYTHON, "-c", "import torch"]
    if not Path(PYTHON).exists() or subprocess.run(has_torch, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"left out: {PYTHON} has no torch; install python3-torch")
    (tmp_path / "logs").mkdir()
    payload, begin = tmp_path / shipping.NAME, time.monotonic()
    shipping.pack(payload)
    ledger = Ledger(tmp_path, f"old-{time.time_ns()}")
    return LocalTarget(Workshop(tmp_path, payload, ledger, lambda: time.monotonic() - begin), python=PYTHON)


@pytest.fixture
def submit(target: LocalTarget, tmp_path: Path) -> Submit:
    """Run a job of the checkpoint suite in a folder, to its end or until its rank 1 is held and killed."""

    def run(spec: JobSpec, folder: str) -> Result:
        settings = {**spec.settings, "folder": str(tmp_path / folder), "run": folder}
        with target.submit(replace(spec, settings=settings)) as job:
            if job.follow(lambda event: event.name == "held") is not None:
                job.kill(1, signal.SIGKILL)
            return job.wait()

    return run


def test_training_is_restored_bit_for_bit(submit: Submit) -> None:
    site = survey(config.load_cluster("local", Path.cwd()), seed=11)
    site = replace(site, device="cpu", ranks_per_node=2)
    uninterrupted = submit(plan.training(site, "whole", rate_bytes=plan.MIB), "whole")
    assert uninterrupted.ending is Ending.COMPLETED, uninterrupted.cause
    (torch,) = {event.fields["torch"] for event in uninterrupted.of("ready")}
    killed = submit(plan.training(site, "killed", hold=plan.CHAINS["shards"][0].hold(2)), "chain")
    assert killed.culprits == (1,), killed.cause
    restored = submit(plan.training(site, "restored", restore=True), "chain")
    assert restored.ending is Ending.COMPLETED, f"torch {torch}: {restored.cause}"
    found = compare(Trace(uninterrupted), Trace(restored))
    assert found.compared > 100
    assert found.differences == ()
    assert len(uninterrupted.of("rate")) == 4


def test_the_other_engine_is_there_or_says_why_not(submit: Submit) -> None:
    site = replace(survey(config.load_cluster("local", Path.cwd()), seed=11), device="cpu", ranks_per_node=2)
    done = submit(plan.training(site, "dcp", engine="dcp-async"), "dcp")
    assert done.ending is Ending.COMPLETED, done.cause
    (torch,) = {event.fields["torch"] for event in done.of("ready")}
    if torch.startswith("1."):
        assert {event.fields["why"] for event in done.of("unsupported")} == {
            f"torch {torch} has no torch.distributed.checkpoint"
        }


def test_devices_are_measured(target: LocalTarget) -> None:
    site = replace(survey(config.load_cluster("local", Path.cwd()), seed=11), device="cpu", ranks_per_node=2)
    spec = health.checkup(site)
    # Debian's build multiplies float32 without a fast library, and float16 not at all.
    small = {"matrix": 256, "repeats": 16, "soak_s": 1.0, "dtypes": ["float32", "bfloat16", "float16"]}
    with target.submit(replace(spec, settings={**spec.settings, **small})) as job:
        found = Health(job.wait())
    completion.sound(found.result)
    assert completion.faults(found.result, completion.rows_done) == []
    for device in found.devices():
        compared = [found.samples(device, work).compared for work in found.works()]
        assert all(one.elements > 0 and one.wrong == 0 for one in [*compared, found.soak(device).compared])
    (torch,) = {event.fields["torch"] for event in found.result.of("ready")}
    if torch.startswith("1."):
        assert "not implemented for 'Half'" in (found.unsupported("gemm", "float16") or "")


def test_a_staged_data_set_is_read_under_training(target: LocalTarget) -> None:
    site = replace(survey(config.load_cluster("local", Path.cwd()), seed=11), device="cpu")
    spec = staging.staging(site)
    small = {"shard_bytes": 5 * staging.MIB, "small": 20, "rounds": 1, "scaling_rounds": 1, "steps": 5}
    with target.submit(replace(spec, settings={**spec.settings, **small})) as job:
        found = Staged(job.wait())
    assert found.missing_ranks().count == 0
    assert found.wrong_files(0, "seeded", len(staging.STATES) * len(staging.STREAMS)).count == 0
    assert found.only(0, "resume")["wrong_files"] == 0
    loader = found.only(0, "loader")
    share, _ = wait_share(loader)
    assert len(loader["wait_us"]) == 5
    assert share is not None
    assert 0 < share < 1
