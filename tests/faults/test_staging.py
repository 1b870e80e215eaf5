"""Each fault planted in a staging has the right outcome and names the right file; without it the trial is accepted."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seatrial import cli
from tests.faults.harness import Finished, SmallTrial

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs is mounted, which only root may do")
MIB = 2**20


def staging(folder: Path, plant: str | None = None, **also: object) -> Finished:
    return SmallTrial(folder, suite="staging", plant=plant, also=dict(also)).run()


def test_a_clean_trial_is_accepted(tmp_path: Path) -> None:
    done = staging(tmp_path)
    assert done.status == 0, done.output
    assert done.verdict == "accepted"
    assert done.outcomes() == {"pass"}
    assert done.check("staging.copy.complete").detail.startswith("36 copies of 27 files")
    assert "100% of the bytes were read from a device" in done.check("staging.cold.throughput").detail
    assert "0% of the bytes were read from a device" in done.check("staging.warm.throughput").detail


def test_a_corrupted_shard_is_named(tmp_path: Path) -> None:
    done = staging(tmp_path, "staging_corrupt")
    wrong = done.check("staging.copy.complete")
    assert (wrong.outcome, wrong.observed) == ("fail", 1), done.output
    assert "changed: shards/shard-0001 (has sha256 " in wrong.detail
    assert done.verdict == "rejected"
    assert done.check("staging.resume.complete").outcome == "pass"


def test_a_slow_source_is_seen_and_its_file_named(tmp_path: Path) -> None:
    done = staging(tmp_path, "staging_slow")
    for state in ("cold", "warm"):
        slow = done.check(f"staging.{state}.throughput")
        # On a machine that others use meanwhile, a speed that misses its bound is inconclusive: still no pass.
        assert slow.outcome == "fail" or (slow.outcome == "inconclusive" and slow.qualified), done.output
        assert "slowest shards/shard-0001" in slow.detail
    assert done.check("staging.copy.complete").outcome == "pass"
    assert done.verdict in ("rejected", "not accepted")


def test_half_a_file_under_its_final_name_is_named(tmp_path: Path) -> None:
    done = staging(tmp_path, "staging_half")
    half = done.check("staging.resume.half_files")
    assert half.outcome == "fail", done.output
    assert "bytes on their way" in half.detail
    assert "shards/shard-000" in half.detail or "small/" in half.detail
    assert done.check("staging.resume.complete").outcome == "pass"
    assert done.verdict == "rejected"


def test_a_file_that_is_copied_twice_is_named(tmp_path: Path) -> None:
    done = staging(tmp_path, "staging_forget")
    again = done.check("staging.resume.recopied")
    assert again.outcome == "fail", done.output
    assert again.observed == 2 * 4 * MIB
    assert "shards/shard-0000" in again.detail
    assert done.check("staging.resume.half_files").outcome == "pass"
    assert done.verdict == "rejected"


@contextmanager
def meanwhile(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Tamper in a thread of the test while the trial runs."""
    over = threading.Event()
    thread = threading.Thread(target=act, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def until_there(folder: Path, pattern: str, over: threading.Event) -> Path | None:
    """The first path that fits a pattern; None where the trial ended before."""
    while not over.wait(0.001):
        found = next(folder.glob(pattern), None)
        if found is not None:
            return found
    return None


def test_a_source_that_goes_midway_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def lose(over: threading.Event) -> None:
        shard = until_there(source, "*/set/small/07/file-00023", over)
        if shard is not None:
            (shard.parents[2] / "shards" / "shard-0002").unlink()

    shared = {"name": "shared", "kind": "shared-filesystem", "path": str(source)}
    with meanwhile(lose):
        done = staging(tmp_path, storage=[shared])
    wrong = done.check("staging.copy.complete")
    assert wrong.outcome == "fail", done.output
    assert "missing: shards/shard-0002 (source: No such file or directory)" in wrong.detail
    assert done.check("staging.cold.throughput").outcome == "inconclusive"
    assert done.verdict == "rejected"
    assert os.listdir(source) == []


@pytest.fixture
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of so many MiB, as the node's own storage."""
    with tempfile.TemporaryDirectory(prefix="seatrial-disk-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def scratch(path: Path) -> list[dict[str, str]]:
    return [{"name": "scratch", "kind": "node-local", "path": str(path)}]


@needs_root
@pytest.mark.parametrize("small_disk", [100], indirect=True)
def test_a_disk_that_fills_midway_is_named(tmp_path: Path, small_disk: Path) -> None:
    def fill(over: threading.Event) -> None:
        until_there(small_disk, "*/copy/shards", over)
        with (small_disk / "filler").open("wb", buffering=0) as file:
            while not over.is_set():
                found = os.statvfs(small_disk)
                if found.f_bavail * found.f_frsize > 3 * MIB:
                    file.write(bytes(MIB))
                else:
                    over.wait(0.001)

    with meanwhile(fill):
        done = staging(tmp_path, storage=scratch(small_disk))
    wrong = done.check("staging.copy.complete")
    assert wrong.outcome == "fail", done.output
    assert "No space left on device (ENOSPC)" in wrong.detail
    assert "the copy stopped at shards/shard-000" in wrong.detail
    assert done.check("staging.warm.throughput").outcome == "inconclusive"
    assert done.verdict == "rejected"
    assert os.listdir(small_disk) == ["filler"]


@needs_root
@pytest.mark.parametrize("small_disk", [16], indirect=True)
def test_too_little_space_is_said_before_the_first_byte(tmp_path: Path, small_disk: Path) -> None:
    done = staging(tmp_path, storage=scratch(small_disk))
    short = done.check("staging.space.enough")
    assert short.outcome == "fail", done.output
    assert "(tmpfs) has 16 MiB free, the data needs" in short.detail
    copied = done.check("staging.copy.complete")
    assert copied.outcome == "inconclusive"
    assert "too little space" in copied.reason
    assert "pass" not in {check.outcome for check in done.checks("staging.cold.throughput")}
    assert done.record.jobs[0].state == "completed"
    assert not [event for event in done.record.events if event.name in ("dataset", "copy")]


@needs_root
@pytest.mark.parametrize("small_disk", [200], indirect=True)
def test_cold_on_a_tmpfs_is_not_cold(tmp_path: Path, small_disk: Path) -> None:
    shared = {"name": "shared", "kind": "shared-filesystem", "path": str(small_disk)}
    done = staging(tmp_path, storage=[shared])
    cold = done.check("staging.cold.throughput")
    assert cold.outcome == "inconclusive", done.output
    assert "cold is not proven: 100.0% of the source's pages stayed in memory" in cold.reason
    assert "not proven" not in done.check("staging.warm.throughput").reason
    assert done.verdict == "not accepted"


def own_set(folder: Path) -> list[dict[str, str]]:
    """A data set of a user's, with the manifest that the command writes."""
    for name in ("a/1", "a/2", "b/3", "b/4"):
        path = folder / "sample" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(50_000))
    assert cli.main(["manifest", str(folder / "sample")]) == 0
    return [{"name": "sample", "uri": str(folder / "sample"), "manifest": "sample.manifest"}]


def test_a_data_set_of_ones_own_is_staged(tmp_path: Path) -> None:
    done = staging(tmp_path, datasets=own_set(tmp_path))
    assert done.verdict == "accepted", done.output
    whole = done.check("staging.dataset.complete", dataset="sample")
    assert (whole.outcome, whole.detail) == ("pass", "1 copies of 4 files, every file's sha256 as in the manifest")


def test_missing_extra_and_changed_files_of_ones_own_are_each_named(tmp_path: Path) -> None:
    sets = own_set(tmp_path)
    sample = tmp_path / "sample"
    (sample / "a/1").unlink()
    (sample / "a/2").write_bytes(bytes(50_000))
    (sample / "b/3").write_bytes(b"shorter")
    (sample / "new").write_bytes(b"new")
    done = staging(tmp_path, datasets=sets)
    wrong = done.check("staging.dataset.complete", dataset="sample")
    assert (wrong.outcome, wrong.observed) == ("fail", 4), done.output
    assert "missing: a/1 (source: No such file or directory)" in wrong.detail
    assert "changed: a/2 (has sha256 " in wrong.detail
    assert "b/3 (source: has 7 bytes, the manifest 50000)" in wrong.detail
    assert "extra: new (not in the manifest)" in wrong.detail
    assert done.check("staging.copy.complete").outcome == "pass"
    assert done.verdict == "rejected"


def test_a_manifest_that_cannot_be_used_is_an_error_of_access(tmp_path: Path) -> None:
    sets = own_set(tmp_path)
    (tmp_path / "sample.manifest").write_text("what is this\n")
    done = staging(tmp_path, datasets=sets)
    refused = done.check("staging.dataset.complete", dataset="sample")
    assert refused.outcome == "error", done.output
    assert "expected the first line" in refused.reason
    assert done.verdict == "not accepted"


def test_rates_are_held_against_what_the_profile_promises(tmp_path: Path) -> None:
    minimum = {"write": "1 kB/s", "read": "9000 TB/s"}
    shared = {"name": "shared", "kind": "shared-filesystem", "path": str(tmp_path), "minimum": minimum}
    done = staging(tmp_path, storage=[shared])
    kept = done.check("staging.promised.write", storage="shared")
    assert (kept.outcome, kept.unit) == ("pass", "GB/s"), done.output
    broken = done.check("staging.promised.read", storage="shared")
    assert broken.outcome == "fail" or (broken.outcome == "inconclusive" and broken.qualified)
    assert broken.bound is not None
    assert broken.bound.limits == (9e6, None)
    assert "the profile" in broken.bound.source
    assert done.verdict in ("rejected", "not accepted")
