"""A staging is whole or says why not: the copier, the page cache, claimed folders, and what the events come to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.config import Cluster
from seatrial.errors import AccessError, InconclusiveError
from seatrial.job import Ending, Event, JobSpec, Moment, Result, Timeline
from seatrial.payload import copying, datasets, pagecache, scratch
from seatrial.payload.copying import Copier, Folder, Report
from seatrial.payload.datasets import Entry, Recipe
from seatrial.site import Site
from seatrial.suites.staging import plan
from seatrial.suites.staging.staged import Staged, wait_share

MIB = 2**20
RECIPE = Recipe(seed=3, shards=2, shard_bytes=5 * MIB + 7, small=70, small_bytes=1000)


class Set:
    """A data set, and the folder that it is copied to."""

    def __init__(self, folder: Path) -> None:
        self.source, self.target = folder / "source", folder / "target"
        self.source.mkdir()
        self.entries = datasets.make(RECIPE, str(self.source), lambda _: None)

    def copy(self, streams: int = 3, **options: Callable[[Any], None]) -> Report:
        """Copy it."""
        return Copier(Folder(str(self.source)), str(self.target), self.entries, streams, **options).run()

    def wrong(self) -> dict[str, str]:
        """What of it did not arrive."""
        return datasets.compare(str(self.target), self.entries, 2, lambda _: None).wrong


@pytest.fixture
def data(tmp_path: Path) -> Set:
    return Set(tmp_path)


@pytest.mark.parametrize("streams", [1, 4])
def test_every_file_arrives(data: Set, streams: int) -> None:
    moved: list[int] = []
    whole: list[Entry] = []
    report = data.copy(streams, moved=moved.append, whole=whole.append)
    assert data.wrong() == {}
    assert (report.copied_files, report.kept_files, report.stopped, report.failures) == (72, 0, "", {})
    assert report.copied_bytes == sum(moved) == RECIPE.total
    assert sorted(whole) == data.entries
    assert len(report.latencies) == 72


def test_a_large_file_is_shared_by_several_streams(data: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_BYTES", MIB)
    assert data.copy(4).copied_bytes == RECIPE.total
    assert data.wrong() == {}


def test_a_second_run_copies_only_what_is_missing(data: Set) -> None:
    data.copy()
    (data.target / "small/03/file-00003").unlink()
    (data.target / "shards/shard-0001").write_bytes(b"half")
    report = data.copy()
    sizes = {entry.path: entry.size for entry in data.entries}
    assert report.copied_bytes == sizes["small/03/file-00003"] + sizes["shards/shard-0001"]
    assert report.kept_files == 70
    assert data.wrong() == {}


def test_a_whole_file_that_the_journal_does_not_know_is_proven_by_its_digest(data: Set) -> None:
    data.copy()
    journal = Path(copying.staging_folder(str(data.target))) / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]) + lines[-2][:-5])
    shard = data.target / "shards/shard-0000"
    flipped = bytearray(shard.read_bytes())
    flipped[99] ^= 1
    shard.write_bytes(flipped)
    report = data.copy()
    assert report.copied_bytes == RECIPE.shard_bytes
    assert data.wrong() == {}


def test_what_the_source_lacks_is_told_by_file_and_the_rest_arrives(data: Set) -> None:
    (data.source / "small/00/file-00000").unlink()
    (data.source / "shards/shard-0000").write_bytes(b"short")
    report = data.copy()
    assert report.stopped == ""
    assert report.failures == {
        "small/00/file-00000": "source: No such file or directory",
        "shards/shard-0000": f"source: has 5 bytes, the manifest {RECIPE.shard_bytes}",
    }
    assert data.wrong() == {"small/00/file-00000": "missing", "shards/shard-0000": "missing"}


def test_a_source_that_is_gone_ends_the_copy(data: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "FAILURES", 5)
    data.source.rename(data.source.with_name("elsewhere"))
    report = data.copy()
    assert report.stopped == "5 files could not be read"
    assert report.copied_files == 0


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_ends_the_copy_and_leaves_no_half_file(
    data: Set, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, calls = getattr(os, call), iter(range(10**6))

    def failing(*args: Any) -> Any:
        if next(calls) >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        report = data.copy(2)
    assert report.stopped.endswith("No space left on device (ENOSPC)")
    assert set(data.wrong().values()) == {"missing"}
    assert data.copy().copied_bytes == RECIPE.total - report.copied_bytes
    assert data.wrong() == {}


def test_discard_removes_a_copy_and_its_journal(data: Set) -> None:
    data.copy()
    copying.discard(str(data.target))
    assert [path.name for path in data.source.parent.iterdir()] == ["source"]


# The page cache.


def test_pages_are_shown_absent_and_present(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * MIB + 1))
    pages = 3 * MIB // os.sysconf("SC_PAGE_SIZE") + 1
    pagecache.warm([str(path)], lambda _: None)
    assert pagecache.residency([str(path)]) == (pages, pages, "")
    pagecache.evict([str(path)])
    assert pagecache.residency([str(path)]) == (0, pages, "")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(MIB)
        file.read(1)
    assert 0 < pagecache.residency([str(path)]).resident < pages


def test_a_tmpfs_keeps_its_pages(tmp_path: Path) -> None:
    path = Path("/dev/shm") / f"seatrial-test-{os.getpid()}"
    path.write_bytes(bytes(MIB))
    try:
        pagecache.evict([str(path)])
        assert pagecache.residency([str(path)]).share == 1.0
    finally:
        path.unlink()
    assert pagecache.residency([]).share is None


def test_residency_of_a_file_that_the_kernel_would_not_tell_of_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"1")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    seen = pagecache.residency([str(tmp_path / "file")])
    assert seen.share is None
    assert "another user's" in seen.why


# Claimed folders.


def test_a_folder_elsewhere_is_on_the_list_before_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, storage = tmp_path / "scratch", tmp_path / "storage"
    home.mkdir()
    monkeypatch.setenv("SEATRIAL_SCRATCH", str(home))
    monkeypatch.setenv("SEATRIAL_TAG", "run/job")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(FileNotFoundError):
        scratch.claim(str(storage), "target")
    storage.mkdir()
    (storage / "theirs").mkdir()
    claimed = scratch.claim(str(storage), "target")
    assert claimed == str(storage / "seatrial-run-job-rank-3-target")
    assert set(scratch.elsewhere(str(home))) == {claimed}
    assert scratch.claim("", "source") == str(home / "rank-3-source")
    with (home / scratch.LIST).open("ab") as file:
        file.write(os.fsencode(storage / "theirs") + b"\0")
    assert scratch.remove(str(home)) == [claimed, str(home)]
    assert [path.name for path in storage.iterdir()] == ["theirs"]


# From events to numbers.


def staged(*events: tuple[str, dict[str, Any]], ending: Ending = Ending.COMPLETED) -> Staged:
    said = tuple(Event(0, seq, float(seq), name, fields) for seq, (name, fields) in enumerate(events))
    moment = Moment(0.0, "")
    return Staged(
        Result(
            job="staging-1",
            spec=JobSpec("staging", "staging", {}, ranks=1),
            ending=ending,
            cause="the cause",
            culprits=(),
            exits={0: 0},
            events={0: said},
            faults=(),
            timeline=Timeline(moment, moment, moment, moment),
            nodes={0: "n1"},
            pids={0: 5},
            logs=Path(),
        )
    )


def copy(**changes: Any) -> tuple[str, dict[str, Any]]:
    faults: dict[str, Any] = {"count": 0, "missing": [], "extra": [], "changed": []}
    fields = {
        "name": "seeded",
        "state": "cold",
        "tool": "streams",
        "streams": 4,
        "bytes": 2_000_000_000,
        "seconds": 2.0,
        "resident": 0,
        "pages": 1000,
        "unseen": "",
        "stopped": "",
        "device_bytes": 2_000_000_000,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "slowest": "a: 0.002 s",
        "faults": faults,
    }
    return "copy", {**fields, **changes}


def test_rates_are_bytes_over_seconds() -> None:
    rates = staged(copy(), copy(seconds=4.0), copy(seconds=1.0)).rates(0, "cold", "streams", 4, 3)
    assert (rates.why, rates.samples, rates.median) == ("", (1.0, 0.5, 2.0), 1.0)


@pytest.mark.parametrize(
    ("state", "changes", "why"),
    [
        ("cold", {"resident": 11}, "cold is not proven: 1.1% of the source's pages stayed"),
        ("cold", {"resident": 1000}, "cold is not proven: 100.0%"),
        ("warm", {"state": "warm", "resident": 989}, "warm is not proven: 98.9%"),
        ("cold", {"unseen": "another user's"}, "cold is not proven: another user's"),
        ("cold", {"pages": 0}, "cold is not proven: no page was looked at"),
        ("cold", {"stopped": "x: No space"}, "is not whole, so it has no rate: x: No space"),
        (
            "cold",
            {"faults": {"count": 1, "missing": [["a", "missing"]], "extra": [], "changed": []}},
            "is not whole, so it has no rate: missing: a",
        ),
    ],
)
def test_a_copy_that_proves_nothing_has_no_rate(state: str, changes: dict[str, Any], why: str) -> None:
    rates = staged(copy(**changes)).rates(0, state, "streams", 4, 1)
    assert why in rates.why
    assert rates.median is None


def test_fewer_copies_than_planned_are_no_measurement() -> None:
    assert staged(copy()).rates(0, "cold", "streams", 4, 2).why == "1 copies, expected 2"
    with pytest.raises(InconclusiveError, match="1 copies, expected 2"):
        staged(copy()).wrong_files(0, "seeded", 2)
    faults = {"count": 1, "missing": [], "extra": [], "changed": [["a", "has sha256 1"]]}
    assert staged(copy(faults=faults)).wrong_files(0, "seeded", 2).detail == "changed: a (has sha256 1)"


def test_why_a_phase_is_missing_is_told() -> None:
    short = ("space", {"name": "seeded", "path": "/s", "filesystem": "xfs", "needed": 2 * MIB, "free": MIB})
    with pytest.raises(InconclusiveError, match=r"too little space: /s \(xfs\) has 1 MiB free, the data needs 2 MiB"):
        staged(short).only(0, "copy")
    with pytest.raises(InconclusiveError, match="'weights' broke: disk gone"):
        staged(("broken", {"what": "weights", "why": "disk gone"})).only(0, "weights")
    with pytest.raises(InconclusiveError, match="a rank died: the cause"):
        staged(ending=Ending.DIED).only(0, "copy")
    with pytest.raises(AccessError, match="the source storage did not let us in: Permission denied"):
        staged(("refused", {"what": "the source storage", "why": "Permission denied"})).only(0, "copy")


def test_waiting_is_a_share_of_the_steps() -> None:
    loader = {"wait_us": [1000.0, 3000.0], "work_us": [9000.0, 7000.0], "device": "cpu", "warmup": 3}
    share, text = wait_share(loader)
    assert share == 0.2
    assert "2 steps of 10.0 ms on cpu" in text
    assert wait_share({"why": "no file has 5 bytes"}) == (None, "no file has 5 bytes")
    assert wait_share({"wait_us": [], "work_us": []})[0] is None


def test_the_profile_decides_where_and_what() -> None:
    cluster = Cluster.model_validate(
        {
            "name": "acme",
            "target": {"kind": "slurm", "login": "login.example"},
            "pools": [{"name": "p", "accelerator": "h100-80gb", "nodes": 2, "gpus_per_node": 8}],
            "storage": [
                {"name": "shared", "kind": "shared-filesystem", "path": "/mnt/s", "minimum": {"read": "40 GB/s"}},
                {"name": "scratch", "kind": "node-local", "path": "/scratch"},
                {"name": "bucket", "kind": "object", "uri": "s3://b/x"},
            ],
            "datasets": [{"name": "sample", "uri": "/mnt/s/sample", "manifest": "sample.manifest"}],
        }
    )
    site = Site(cluster, {}, "cuda", nodes=2, ranks_per_node=8, gpus_per_node=8, memory_per_rank=1, seed=1)
    spec = plan.staging(site)
    assert (spec.ranks, spec.nodes, spec.gpus) == (2, 2, 2)
    assert (spec.settings["source"], spec.settings["target"]) == ("/mnt/s", "/scratch")
    assert spec.settings["datasets"] == {"sample": {"uri": "/mnt/s/sample", "manifest": "sample.manifest"}}
    assert list(plan.promises(site)) == [("shared", "/mnt/s", "read", 40.0)]
    assert [str(one) for one in plan.promised(site)] == ["staging.promised.read [storage=shared]"]
    assert len(plan.own(site)) == 4
    assert len(plan.buckets(site)) == 8
