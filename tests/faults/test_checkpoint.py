"""Each fault of storage, restore or engine that is planted in a training job must be caught, with its rank and file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Finished, SmallTrial


def trial(folder: Path, chains: str, plant: str | None = None, **also: object) -> Finished:
    """A trial of the checkpoint suite with the chains of kills that a fault needs."""
    options, env = ("-p", "tests.faults.chains"), {"SEATRIAL_CHAINS": chains}
    return SmallTrial(folder, suite="checkpoint", plant=plant, options=options, also=also, env=env).run(timeout=300)


def test_a_clean_trial_is_accepted(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, suite="checkpoint").run()
    assert done.status == 0, done.output
    assert done.outcomes() == {"pass"}


# The storage.


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Five kills, and between each and its restore another harm to rank 1's newest checkpoint, that of step 8."""
    return trial(tmp_path_factory.mktemp("damaged"), "damage", plant="checkpoint_damage")


@pytest.mark.parametrize(
    ("harm", "rank", "said"),
    [
        ("truncated", 1, "truncated or overwritten"),
        ("flipped", 1, "its bytes are not those that were written"),
        ("missing", 1, "missing"),
        ("foreign", 0, "run 'another', expected"),
        ("unsynced", 1, "4096 bytes, expected"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(damaged: Finished, harm: str, rank: int, said: str) -> None:
    lost = damaged.check("checkpoint.restore.lost_steps", kill=harm)
    assert (lost.outcome, lost.observed) == ("fail", 6), damaged.output
    assert "went on from step 4" in lost.detail
    assert f"rank {rank}: " in lost.detail
    assert "step-00000008" in lost.detail
    assert said in lost.detail
    assert damaged.check("checkpoint.restore.equal", kill=harm).outcome == "pass"


def test_a_damaged_checkpoint_is_never_loaded(damaged: Finished) -> None:
    assert damaged.check("checkpoint.torn.loaded").outcome == "pass"
    assert damaged.verdict == "rejected"


def test_a_forged_manifest_is_found(tmp_path: Path) -> None:
    done = trial(tmp_path, "forge", plant="checkpoint_forge")
    torn = done.check("checkpoint.torn.loaded")
    assert (torn.outcome, torn.observed) == ("fail", 2), done.output
    assert "rank 0 loaded step 8" in torn.detail


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint, and not two."""
    if os.geteuid() != 0:
        pytest.skip("left out: only root may mount a tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named(tmp_path: Path, small_disk: Path) -> None:
    disk = {"name": "disk", "kind": "node-local", "path": str(small_disk)}
    done = trial(tmp_path, "full", storage=[disk])
    complete = done.check("checkpoint.job.complete")
    assert complete.outcome == "fail", done.output
    assert "No space left on device while writing" in complete.detail
    assert f"{small_disk}/seatrial-" in complete.detail
    assert "step-00000008/rank-0000" in complete.detail
    assert done.check("checkpoint.restore.equal").outcome == "inconclusive"
    assert done.verdict == "rejected"
    assert not list(small_disk.iterdir())


# The restore.


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Four restores by rank 1, each without another part of its state."""
    return trial(tmp_path_factory.mktemp("forgetful"), "forget", plant="checkpoint_forget")


@pytest.mark.parametrize(
    ("lost", "part"),
    [("optimizer", "optimizer"), ("torch", "rng.torch"), ("python", "rng.python"), ("place", "data")],
)
def test_a_forgotten_part_of_the_state_is_named(forgetful: Finished, lost: str, part: str) -> None:
    equal = forgetful.check("checkpoint.restore.equal", kill=lost)
    assert equal.outcome == "fail", forgetful.output
    assert f"first step 4, rank 1: digest of loaded {part} " in equal.detail
    assert equal.observed is not None
    assert equal.observed > 2, "the steps after it must differ too"


def test_an_asynchronous_save_of_live_tensors_is_found(tmp_path: Path) -> None:
    done = trial(tmp_path, "late", plant="checkpoint_late")
    equal = done.check("checkpoint.restore.equal")
    assert equal.outcome == "fail", done.output
    assert "first step 4, rank 0: digest of loaded" in equal.detail
    assert done.verdict == "rejected"
