"""The seatrial command: each subcommand, its exit status, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial import cli
from seatrial.ledger import Ledger
from seatrial.payload import procs
from tests.samples import Trial


class Shell:
    """Runs the command in a folder, and keeps what it printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.out = self.err = ""
        self._capsys = capsys

    def __call__(self, *argv: str | Path) -> int:
        """The exit status."""
        try:
            status = cli.main([str(word) for word in argv])
        except SystemExit as end:
            status = int(end.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return status

    def killed_run(self, name: str, *, alive: bool = False) -> Path:
        """The directory of a run whose harness is gone (or is this process), with a scratch folder left."""
        run = self.folder / "runs" / name
        scratch = self.folder / f"seatrial-{name}-job"
        run.mkdir(parents=True)
        scratch.mkdir()
        book = Ledger(run, name)
        book.begin()
        if not alive:
            ledger = run / "ledger.jsonl"
            ledger.write_text(ledger.read_text().replace(f"[{os.getpid()},", "[4194305,"))
        book.intend("sweep", f"{name}/sweep", scratch)
        return scratch


@pytest.fixture
def seatrial(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


# Usage.


@pytest.mark.parametrize("argv", [[], ["repport"], ["cleanup", "a", "b"], ["payload"], ["report"]])
def test_a_usage_error_is_told_with_status_4(seatrial: Shell, argv: list[str]) -> None:
    assert seatrial(*argv) == 4
    assert seatrial.out == ""
    assert seatrial.err.startswith("usage: seatrial")


def test_help_names_every_command(seatrial: Shell) -> None:
    assert seatrial("--help") == 0
    assert all(command in seatrial.out for command in cli.COMMANDS)


def test_the_version(seatrial: Shell) -> None:
    assert seatrial("--version") == 0
    assert seatrial.out.startswith("seatrial ")


# Cleaning up.


def test_cleanup_of_a_killed_run_says_what_it_removed(seatrial: Shell) -> None:
    scratch = seatrial.killed_run("run-1")
    assert seatrial("cleanup", "run-1") == 0
    assert seatrial.out == f"runs/run-1: sweep: removed {scratch}\nruns/run-1: 1 removed\n"
    assert not scratch.exists()
    assert seatrial("cleanup", "run-1") == 0
    assert seatrial.out == "runs/run-1: nothing left\n"


def test_cleanup_takes_a_directory_too(seatrial: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = seatrial.killed_run("run-1")
    monkeypatch.chdir(seatrial.folder / "runs")
    assert seatrial("cleanup", seatrial.folder / "runs" / "run-1") == 0
    assert not scratch.exists()


def test_cleanup_of_one_run_leaves_the_others(seatrial: Shell) -> None:
    seatrial.killed_run("run-1")
    other = seatrial.killed_run("run-2")
    assert seatrial("cleanup", "run-1") == 0
    assert other.is_dir()


def test_cleanup_of_all_runs_is_not_kept_from_the_others_by_one_that_is_alive(seatrial: Shell) -> None:
    living = seatrial.killed_run("run-1", alive=True)
    killed = seatrial.killed_run("run-2")
    assert seatrial("cleanup") == 1
    assert "runs/run-1: the run is still alive" in seatrial.err
    assert seatrial.out.endswith("runs/run-2: 1 removed\n")
    assert (living.is_dir(), killed.is_dir()) == (True, False)


def test_what_was_removed_before_something_stayed_is_told(seatrial: Shell) -> None:
    seatrial.killed_run("run-1")
    env = {procs.TAG: "run-1/sweep"}
    (seatrial.folder / "seatrial-run-1-job").rmdir()
    (seatrial.folder / "seatrial-run-1-job").symlink_to(seatrial.folder)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as rank:
        assert seatrial("cleanup", "run-1") == 1
        assert seatrial.out.startswith(f"runs/run-1: run-1/sweep: ended pid {rank.pid} ")
    assert "cannot be removed" in seatrial.err


def test_damage_of_a_ledger_is_told_and_is_not_counted_as_removed(seatrial: Shell) -> None:
    seatrial.killed_run("run-1")
    with (seatrial.folder / "runs" / "run-1" / "ledger.jsonl").open("a") as file:
        file.write('{"do":"inte')
    assert seatrial("cleanup", "run-1") == 0
    assert seatrial.out.endswith("runs/run-1: 1 removed\n")
    assert "ledger.jsonl:3: not a ledger entry" in seatrial.err


def test_cleanup_without_any_run_is_a_usage_error(seatrial: Shell) -> None:
    assert seatrial("cleanup") == 4
    assert "no run with a ledger in" in seatrial.err


def test_cleanup_of_an_unknown_run_names_those_there_are(seatrial: Shell) -> None:
    seatrial.killed_run("run-1")
    assert seatrial("cleanup", "run-7") == 4
    assert seatrial.err == "seatrial cleanup: run-7: expected a run's id or directory; runs here: run-1\n"


# The others.


def test_report_draws_again_from_the_record_alone(seatrial: Shell) -> None:
    record = seatrial.folder / "record.jsonl"
    trial = Trial(record, "local", ["node-1"], ranks=2)
    trial.open()
    trial.writer.close()
    assert seatrial("report", seatrial.folder) == 0
    assert seatrial.out == f"report: {seatrial.folder / 'report.html'}\n"
    assert seatrial("report", record, "-o", seatrial.folder / "again.html") == 0
    assert (seatrial.folder / "again.html").read_bytes() == (seatrial.folder / "report.html").read_bytes()


def test_report_of_a_record_that_is_not_there_is_told(seatrial: Shell) -> None:
    assert seatrial("report", "nowhere.jsonl") != 0
    assert "nowhere.jsonl" in seatrial.err
    assert "Traceback" not in seatrial.err


def test_schema_is_json(seatrial: Shell) -> None:
    assert seatrial("schema") == 0
    assert json.loads(seatrial.out).keys() == {"profile", "record"}


def test_payload_writes_the_zip_and_tells_its_digest(seatrial: Shell) -> None:
    assert seatrial("payload", "payload.pyz") == 0
    assert seatrial.out.startswith("payload.pyz: sha256 ")
    assert (seatrial.folder / "payload.pyz").is_file()


def test_payload_into_a_folder_that_does_not_exist_is_told(seatrial: Shell) -> None:
    assert seatrial("payload", "nowhere/payload.pyz") == 4
    assert seatrial.err.startswith("seatrial payload: ")


def test_checks_tells_of_each_what_it_cannot_prove(seatrial: Shell) -> None:
    assert seatrial("checks") == 0
    assert "## nccl.{op}.busbw" in seatrial.out
    assert seatrial.out.count("- Proves: ") == seatrial.out.count("- Cannot: ") == seatrial.out.count("\n## ")


def test_a_report_is_never_drawn_over_its_record(seatrial: Shell, tmp_path: Path) -> None:
    copy = tmp_path / "record.jsonl"
    copy.write_text("not a record\n")
    assert seatrial("report", copy, "-o", copy) == 4
    assert copy.read_text() == "not a record\n"
    assert seatrial("report", copy) == 4
    assert "expected a run's record" in seatrial.err


def test_cleanup_removes_no_folder_that_no_run_makes(seatrial: Shell, tmp_path: Path) -> None:
    seatrial.killed_run("run-1")
    precious = tmp_path / "precious"
    precious.mkdir()
    with (seatrial.folder / "runs" / "run-1" / "ledger.jsonl").open("a") as file:
        file.write(f'{{"do":"intend","job":"x","tag":"run-1/x","scratch":"{precious}"}}\n')
    assert seatrial("cleanup", "run-1") == 1
    assert "not removed" in seatrial.err
    assert precious.is_dir()
