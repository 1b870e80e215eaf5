"""The ledger, and the clean-up after a harness that was killed: exactly what it left, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seatrial import ledger
from seatrial.errors import LeakError, UsageError
from seatrial.ledger import FILE, Ledger, cleanup, read
from seatrial.payload import procs

RUN = "20261201-120000-ab12"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
SLEEPER = [sys.executable, "-c", STUBBORN]
HARNESS = textwrap.dedent("""
    import subprocess, sys
    from pathlib import Path
    from seatrial.ledger import Ledger
    from seatrial.payload import procs

    folder, moment, run, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]

    def here(name):
        if name == moment:
            print("here", flush=True)
            sys.stdin.read()

    book = Ledger(folder, run)
    book.begin()
    here("begun")
    for job in ("one", "two"):
        scratch, tag = folder / f"seatrial-{run}-{job}", f"{run}/{job}"
        book.intend(job, tag, scratch)
        here(f"{job} intended")
        scratch.mkdir()
        scratch.joinpath("file").write_text("data")
        here(f"{job} has its scratch folder")
        pipe = subprocess.PIPE
        rank = subprocess.Popen(command, env={procs.TAG: tag}, stdout=pipe, start_new_session=True)
        rank.stdout.readline()
        here(f"{job} runs")
    rank.kill()
    rank.wait()
    scratch.joinpath("file").unlink()
    scratch.rmdir()
    book.gone("two")
    here("two is gone")
""")
"""Starts two jobs as a harness does, ends the second, and stops at a named moment to be killed there."""

ONE = [f"{RUN}/one: ended", "one: removed"]
TWO = [f"{RUN}/two: ended", "two: removed"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / RUN
    folder.mkdir()
    return folder


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a sleeper with these variables, and ends it with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**env: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(SLEEPER, env=env, stdout=subprocess.PIPE, start_new_session=True)
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def kill_harness(run: Path, moment: str) -> None:
    """Let a harness come to a moment of its life, and kill it there."""
    command = [sys.executable, "-c", HARNESS, str(run), moment, RUN, *SLEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"here\n"
        harness.kill()


def told(lines: list[str]) -> list[str]:
    """What was removed, without the pids."""
    return [line.split(" /")[0].split(" pid ")[0] for line in lines]


@pytest.mark.parametrize(
    ("moment", "removed"),
    [
        ("begun", []),
        ("one intended", []),
        ("one has its scratch folder", ONE[1:]),
        ("one runs", ONE),
        ("two has its scratch folder", [*ONE, TWO[1]]),
        ("two runs", [ONE[0], TWO[0], ONE[1], TWO[1]]),
        ("two is gone", ONE),
    ],
)
def test_after_a_kill_exactly_what_was_left_is_removed(
    run: Path, start: Start, moment: str, removed: list[str]
) -> None:
    bystanders = [
        start(SEATRIAL_TAG=f"{RUN}0/one"),
        start(SEATRIAL_TAG=f"other-{RUN}/one"),
        start(SEATRIAL_TAG=RUN),
        start(NOTE=f"SEATRIAL_TAG={RUN}/one"),
    ]
    decoys = [run / f"seatrial-{RUN}-one.keep", run / f"seatrial-{RUN}-three"]
    for decoy in decoys:
        decoy.mkdir()
    kill_harness(run, moment)
    assert told(list(cleanup(run))) == removed
    assert procs.tagged(f"{RUN}/one") == procs.tagged(f"{RUN}/two") == []
    assert sorted(path.name for path in run.iterdir()) == [FILE, *(decoy.name for decoy in decoys)]
    assert [child.poll() for child in bystanders] == [None] * len(bystanders)
    assert read(run).open == {}
    assert list(cleanup(run)) == []


def test_a_command_that_was_run_on_a_node_belongs_to_the_run_too(run: Path, start: Start) -> None:
    kill_harness(run, "begun")
    start(SEATRIAL_TAG=f"{RUN}/run-main-3")
    assert told(list(cleanup(run))) == [f"{RUN}/run-main-3: ended"]


def test_a_stopped_rank_is_ended_too(run: Path) -> None:
    kill_harness(run, "one runs")
    (rank,) = procs.tagged(f"{RUN}/one")
    assert procs.kill(rank, signal.SIGSTOP)
    assert told(list(cleanup(run))) == ONE
    assert not procs.alive(rank)


def test_a_run_that_is_alive_is_refused_and_keeps_everything(run: Path, start: Start) -> None:
    scratch, rank = run / f"seatrial-{RUN}-job", start(SEATRIAL_TAG=f"{RUN}/job")
    scratch.mkdir()
    book = Ledger(run, RUN)
    book.begin()
    book.intend("job", f"{RUN}/job", scratch)
    with pytest.raises(UsageError, match=rf"still alive \(pid {os.getpid()} .*stop it first"):
        list(cleanup(run))
    assert scratch.is_dir()
    assert rank.poll() is None


def test_another_boot_kills_nothing_and_still_removes_the_folders(
    run: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_harness(run, "one has its scratch folder")
    rank = start(SEATRIAL_TAG=f"{RUN}/one")
    monkeypatch.setattr(ledger, "boot_id", lambda: "another")
    assert told(list(cleanup(run))) == ONE[1:]
    assert rank.poll() is None


def test_a_harness_of_another_boot_is_not_taken_for_a_process_of_this_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "boot_id", lambda: "another")
    Ledger(run, RUN).begin()
    monkeypatch.undo()
    assert list(cleanup(run)) == []


def test_another_host_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_harness(run, "one has its scratch folder")
    monkeypatch.setattr("socket.gethostname", lambda: "node-2")
    with pytest.raises(UsageError, match="this is 'node-2'; clean up there"):
        list(cleanup(run))
    assert (run / f"seatrial-{RUN}-one").is_dir()


def test_what_does_not_go_away_is_a_leak_and_stays_in_the_ledger(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_harness(run, "one has its scratch folder")
    monkeypatch.setattr(ledger, "sweep", lambda tag, **_: ([], [f"pid 7 of {tag}"]))
    with pytest.raises(LeakError, match=f"still alive after 20 s: pid 7 of {RUN}/one"):
        list(cleanup(run))
    assert list(read(run).open) == ["one"]


def test_a_link_in_place_of_the_folder_is_not_followed(run: Path, tmp_path: Path) -> None:
    kill_harness(run, "one intended")
    precious = tmp_path / "precious"
    precious.mkdir()
    (run / f"seatrial-{RUN}-one").symlink_to(precious)
    with pytest.raises(LeakError, match="cannot be removed"):
        list(cleanup(run))
    assert precious.is_dir()


# The file.


def test_what_was_entered_is_read_again(run: Path) -> None:
    book = Ledger(run, RUN)
    book.begin()
    book.intend("one", f"{RUN}/one", Path("/scratch/one"))
    book.intend("two", f"{RUN}/two", Path("/scratch/two"))
    book.gone("one")
    account = read(run)
    assert (account.run_id, account.boot, account.damage) == (RUN, ledger.boot_id(), [])
    assert account.harness == [procs.identify(os.getpid())]
    assert list(account.open.values()) == [ledger.Entry("two", f"{RUN}/two", Path("/scratch/two"))]


def test_a_torn_last_line_is_told_and_takes_no_other_with_it(run: Path) -> None:
    book = Ledger(run, RUN)
    book.begin()
    with (run / FILE).open("ab") as file:
        file.write(b'{"do":"intend","job":"on')
    (damage,) = read(run).damage
    assert damage.startswith(f"{run / FILE}:2: not a ledger entry")
    book.intend("two", f"{RUN}/two", Path("/scratch/two"))
    assert list(read(run).open) == ["two"]


@pytest.mark.parametrize("line", ["[]", "7", '{"do":"explode"}', '{"do":"intend"}', '{"do":"begin","run":"x"}', "\xff"])
def test_a_line_that_is_no_entry_is_told(run: Path, line: str) -> None:
    (run / FILE).write_bytes(line.encode("latin-1") + b"\n")
    account = read(run)
    assert len(account.damage) == 1
    assert (account.open, account.harness) == ({}, [])


def test_a_ledger_that_does_not_say_who_ran_is_not_acted_upon(run: Path) -> None:
    scratch = run / f"seatrial-{RUN}-job"
    scratch.mkdir()
    Ledger(run, RUN).intend("one", f"{RUN}/one", scratch)
    with pytest.raises(UsageError, match="no entry says who ran it"):
        list(cleanup(run))
    assert scratch.is_dir()


def test_a_ledger_that_was_killed_before_its_first_entry_has_nothing_to_clean(run: Path) -> None:
    (run / FILE).touch()
    assert list(cleanup(run)) == []


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger there"):
        list(cleanup(tmp_path))


def test_several_processes_write_one_ledger(run: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from seatrial.ledger import Ledger\n"
        "book = Ledger(Path(sys.argv[1]), 'run')\n"
        "[book.intend(f'{sys.argv[2]}-{n}', 'tag', Path('/scratch')) for n in range(50)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(run), name]) for name in "abc"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    account = read(run)
    assert account.damage == []
    assert len(account.open) == 150
