"""What every target must do, with real processes: one suite over the list of targets that this machine can hold."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial import job as j
from seatrial import ledger, shipping
from seatrial.errors import LeakError
from seatrial.ledger import Ledger
from seatrial.payload import procs
from seatrial.supervise import GRACE, SupervisedJob
from seatrial.target import local
from seatrial.target.lease import Lease
from seatrial.target.local import LocalTarget, Workshop, accelerator_slug
from seatrial.wait import until

ACTOR = textwrap.dedent("""\
    #!{python}
    # Stands in for an interpreter with torch: called as one, it plays the rank that the settings describe.
    import json, os, subprocess, sys, time

    sys.path.insert(0, sys.argv[1])
    from payload.events import take_stdout

    emitter = take_stdout(os.environ["SEATRIAL_JOB"], int(os.environ["RANK"]))
    acts = json.loads(sys.argv[3])
    for act in acts.get(os.environ["RANK"], acts["all"]):
        if act == "sleep":
            time.sleep(60)
        elif act == "fail":
            sys.exit(3)
        elif act == "orphan":
            child = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
            orphan = subprocess.Popen(child, start_new_session=True, stdout=subprocess.PIPE)
            orphan.stdout.readline()
        elif act == "scratch":
            open(os.path.join(os.environ["TMPDIR"], "data"), "w").close()
        elif act == "environment":
            emitter.emit("environment", **{{key: value for key, value in os.environ.items() if len(value) < 200}})
        else:
            emitter.emit(act)
    """)
JOINED = ["hello", "ready"]
WELL = [*JOINED, "done"]


class Yard:
    """A target that is ready to be used, and the run that uses it."""

    def __init__(self, folder: Path) -> None:
        self.run_id = f"contract-{secrets.token_hex(4)}"
        self.folder = folder / self.run_id
        self.folder.mkdir()
        self.actor = folder / "actor"
        self.actor.write_text(ACTOR.format(python=sys.executable))
        self.actor.chmod(0o755)
        self.payload = folder / shipping.NAME
        shipping.pack(self.payload)
        self.ledger = Ledger(self.folder, self.run_id)
        self.ledger.begin()
        self._began = time.monotonic()
        self.target = self.open()

    def open(self, python: str | None = None, worker: str = "main") -> j.Target:
        """The target as one process of the run opens it; its ranks are actors unless an interpreter is named."""
        workshop = Workshop(self.folder, self.payload, self.ledger, self._since, worker)
        return LocalTarget(workshop, python or str(self.actor), {"FROM_PROFILE": "yes"})

    def _since(self) -> float:
        return time.monotonic() - self._began

    def spec(self, acts: Sequence[str] = WELL, ranks: int = 2, **more: Any) -> j.JobSpec:
        """A job in which every rank does this; ``of`` says what single ranks do instead."""
        settings = {"all": list(acts), **more.pop("of", {})}
        budget = j.Budget(queue=20, start=10, silence=10, total=30, cleanup=10)
        return j.JobSpec("play", "acts", settings, ranks, **{"budget": budget, **more})

    def open_jobs(self) -> list[str]:
        """The jobs whose absence is not proven."""
        return list(ledger.read(self.folder).open)

    def alive(self) -> list[str]:
        """Every process of the run."""
        return [f"{tag} {process}" for process, tag in procs.tags() if tag.startswith(self.run_id)]

    def scratch(self) -> list[Path]:
        """Every scratch folder of the run."""
        return list(Path(tempfile.gettempdir()).glob(f"seatrial-{self.run_id}*"))


@pytest.fixture(params=["local"])
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """The target of each kind; on this host its jobs wait for each other, but for no job of another run."""
    own = f"contract-{secrets.token_hex(4)}"
    monkeypatch.setattr(local, "Lease", lambda name: Lease(f"{own}-{name}"))
    yard = Yard(tmp_path)
    yield yard
    assert yard.alive() == []
    assert yard.scratch() == []


def submit(yard: Yard, spec: j.JobSpec, target: j.Target | None = None) -> SupervisedJob:
    job = (target or yard.target).submit(spec)
    assert isinstance(job, SupervisedJob)
    return job


def advance(job: SupervisedJob, condition: Callable[[], object], what: str) -> None:
    """Watch a job until something holds."""

    def holds() -> bool:
        job.advance()
        return bool(condition())

    until(holds, what=what, timeout=15, state=job.doing)


def joined(job: SupervisedJob) -> None:
    """Watch a job until its ranks have joined."""
    advance(job, lambda: job.state() is j.JobState.STARTED, "the ranks to join")


# What it is.


def test_it_says_what_its_nodes_are(yard: Yard) -> None:
    nodes = yard.target.nodes()
    assert len({node.name for node in nodes}) == len(nodes) > 0
    for node in nodes:
        assert min(node.cpus, node.memory) > 0
        assert node.kernel
        assert (node.accelerator == "cpu") == (node.gpus == ())


def test_it_says_what_it_can_do(yard: Yard) -> None:
    target = yard.target
    has_gpus = any(node.gpus for node in target.nodes())
    assert target.features() == {"cuda" if has_gpus else "cpu"}


# A command on a node.


def on_a_node(yard: Yard, script: str, timeout: float = 20) -> j.Completed:
    target = yard.target
    return target.run(target.nodes()[0].name, [sys.executable, "-c", textwrap.dedent(script)], timeout)


def test_a_command_has_its_status_and_its_output(yard: Yard) -> None:
    done = on_a_node(yard, "import sys; print('out'); sys.stderr.write('err'); sys.exit(7)")
    assert (done.code, done.stdout, done.stderr) == (7, "out\n", "err")


def test_output_that_is_no_text_does_not_hide_the_rest(yard: Yard) -> None:
    done = on_a_node(yard, r"import sys; sys.stdout.buffer.write(b'caf\xe9 ok')")
    assert done.stdout == "caf\ufffd ok"


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(yard: Yard) -> None:
    script = """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        time.sleep(60)
    """
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"still running after 0.5 s on "):
        on_a_node(yard, script, timeout=0.5)
    assert time.monotonic() - began < 5
    assert yard.alive() == []


def test_a_command_leaves_nothing_behind(yard: Yard) -> None:
    script = """
        import subprocess, sys
        devnull = subprocess.DEVNULL
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=devnull, stderr=devnull)
    """
    assert on_a_node(yard, script).code == 0
    assert yard.alive() == []


# A job.


def test_a_job_runs_to_its_end(yard: Yard) -> None:
    with submit(yard, yard.spec()) as job:
        result = job.wait()
    assert (result.ending, result.cause) == (j.Ending.COMPLETED, "all 2 ranks told of their completion")
    assert result.exits == {0: 0, 1: 0}
    assert [event.name for event in result.events[1]] == WELL
    assert (result.faults, result.sampler_faults) == ((), ())
    assert set(result.nodes.values()) <= {node.name for node in yard.target.nodes()}
    assert yard.open_jobs() == []


def test_the_real_payload_does_its_work(yard: Yard) -> None:
    settings = {"ops": ["all_reduce"], "dtypes": ["float32"], "sizes": [4096], "warmup": 1, "iterations": 6}
    spec = j.JobSpec("collectives", "collectives", settings, ranks=2, budget=j.Budget(start=60, total=60))
    with submit(yard, spec, yard.open(sys.executable)) as job:
        result = job.wait()
    assert result.ending is j.Ending.COMPLETED, result.cause
    assert [event.rank for event in result.of("row")] == [0, 1]
    assert result.samples
    assert result.faults == ()


def test_every_rank_has_torchruns_environment(yard: Yard) -> None:
    with submit(yard, yard.spec(["hello", "ready", "environment", "done"], env={"FROM_SUITE": "yes"})) as job:
        said: list[Mapping[str, str]] = [event.fields for event in job.wait().of("environment")]
    assert [(env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) for env in said] == [("0", "0", "2"), ("1", "1", "2")]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in said}) == 1
    for env in said:
        assert (env["FROM_PROFILE"], env["FROM_SUITE"]) == ("yes", "yes")
        assert not [key for key in env if key.startswith("PYTEST_")]


def test_a_job_has_a_scratch_folder_of_its_own_that_goes_with_it(yard: Yard) -> None:
    with submit(yard, yard.spec([*JOINED, "scratch", "sleep"])) as job:
        joined(job)
        (scratch,) = yard.scratch()
        until(lambda: list(scratch.iterdir()), what="data", timeout=5, state=lambda: str(scratch))
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert yard.scratch() == []


def test_jobs_of_two_workers_do_not_share_a_name(yard: Yard) -> None:
    names = [yard.open(worker=worker).submit(yard.spec()).id for worker in ("gw0", "gw1")]
    assert len(set(names)) == 2


def test_the_ledger_knows_a_job_before_it_exists(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[list[str]] = []
    popen = subprocess.Popen

    def started(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        known.append(yard.open_jobs())
        return popen(*args, **more)

    monkeypatch.setattr(subprocess, "Popen", started)
    with submit(yard, yard.spec()) as job:
        job.wait()
    assert known == [[job.id]]


# Deaths and hangs.


def test_a_killed_rank_is_named_at_once(yard: Yard) -> None:
    with submit(yard, yard.spec([*JOINED, "sleep"])) as job:
        joined(job)
        job.kill(1, signal.SIGKILL)
        killed = time.monotonic()
        result = job.wait()
    assert (result.ending, result.culprits) == (j.Ending.DIED, (1,))
    assert job.exits()[1] - killed < 1.0
    assert time.monotonic() - killed < 1.0 + GRACE + 1.0
    assert result.exits == {0: -signal.SIGKILL, 1: -signal.SIGKILL}


def test_a_rank_that_fails_is_named(yard: Yard) -> None:
    with submit(yard, yard.spec([*JOINED, "sleep"], of={"0": [*JOINED, "fail"]})) as job:
        result = job.wait()
    assert (result.ending, result.culprits, result.exits[0]) == (j.Ending.DIED, (0,), 3)


def test_a_rank_that_never_starts_is_named(yard: Yard) -> None:
    budget = j.Budget(start=1.5, cleanup=10)
    with submit(yard, yard.spec(["hello", "sleep"], of={"1": ["sleep"]}, budget=budget)) as job:
        result = job.wait()
    assert (result.ending, result.culprits) == (j.Ending.START_TIMEOUT, (1,))


def test_a_rank_that_falls_silent_is_named(yard: Yard) -> None:
    budget = j.Budget(start=10, silence=1, cleanup=10)
    with submit(yard, yard.spec(WELL, of={"1": [*JOINED, "sleep"]}, budget=budget)) as job:
        result = job.wait()
    assert (result.ending, result.culprits) == (j.Ending.SILENT, (1,))


def test_a_stopped_job_is_ended_all_the_same(yard: Yard) -> None:
    with submit(yard, yard.spec([*JOINED, "sleep"])) as job:
        joined(job)
        job.kill(0, signal.SIGSTOP)
    assert yard.alive() == []


# Nothing is left behind.


@pytest.mark.parametrize("last", ["done", "sleep", "fail"])
def test_nothing_outlives_a_job(yard: Yard, last: str) -> None:
    with submit(yard, yard.spec(["orphan", *JOINED, last])) as job:
        joined(job)
        assert yard.target.leftovers(yard.run_id)
    assert yard.alive() == []
    assert yard.target.leftovers(yard.run_id) == []
    assert yard.open_jobs() == []


def test_leftovers_are_those_of_this_run_alone(yard: Yard) -> None:
    env = {procs.TAG: f"{yard.run_id}-2/job"}
    with subprocess.Popen(["sleep", "60"], env=env) as other:
        try:
            assert yard.target.leftovers(yard.run_id) == []
            (left,) = yard.target.leftovers(f"{yard.run_id}-2")
            assert (left.kind, left.identity.split()[1]) == ("process", str(other.pid))
        finally:
            other.kill()


def launchers(yard: Yard) -> list[procs.Process]:
    """The job's processes that are children of this one."""
    mine = procs.descendants(os.getpid())
    ranks = {process for child in mine for process in procs.descendants(child.pid)}
    return [process for process, tag in procs.tags() if tag.startswith(yard.run_id) and process not in ranks]


def test_nothing_outlives_a_launcher_that_is_killed(yard: Yard) -> None:
    with submit(yard, yard.spec(["orphan", *JOINED, "sleep"])) as job:
        joined(job)
        (launcher,) = launchers(yard)
        procs.kill(launcher)
        result = job.wait()
    assert result.ending is j.Ending.INCOMPLETE
    assert result.cause.startswith("the launcher ended with status -9")
    assert yard.open_jobs() == []


def test_an_interpreter_that_does_not_exist_is_told(yard: Yard) -> None:
    with submit(yard, yard.spec(), yard.open("/no/such/python")) as job:
        result = job.wait()
    assert result.ending is j.Ending.INCOMPLETE
    assert "No such file or directory: '/no/such/python'" in result.cause


def test_a_launch_that_fails_gives_everything_back(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise OSError(f"no port on {address}")

    with monkeypatch.context() as broken:
        broken.setattr(local, "Port", refuse)
        with pytest.raises(OSError, match="no port"), submit(yard, yard.spec()) as job:
            job.wait()
    assert (yard.scratch(), yard.open_jobs()) == ([], [])
    with submit(yard, yard.spec()) as job:
        assert job.wait().ending is j.Ending.COMPLETED


def test_a_scratch_folder_that_stays_is_a_leak(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(f"{path}: device or resource busy")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", refuse)
        leak = f"busy; run `seatrial cleanup {yard.run_id}`"
        with pytest.raises(LeakError, match=leak), submit(yard, yard.spec()) as job:
            job.wait()
    (left,) = yard.open_jobs()
    assert left == job.id
    yard.scratch()[0].rmdir()


# The hardware is not shared.


def test_a_second_job_waits_for_the_first_and_says_for_what(yard: Yard) -> None:
    first, second = submit(yard, yard.spec([*JOINED, "sleep"])), submit(yard, yard.spec())
    with second:
        with first:
            joined(first)
            advance(second, lambda: "leased by" in second.doing(), "the second job to say why it waits")
            assert f"pid {os.getpid()} " in second.doing()
            assert second.state() is j.JobState.SUBMITTED
        result = second.wait()
    assert result.ending is j.Ending.COMPLETED
    assert first.wait().timeline.ended is not None


def test_the_queue_budget_ends_the_waiting(yard: Yard) -> None:
    first = submit(yard, yard.spec([*JOINED, "sleep"]))
    with first:
        joined(first)
        with submit(yard, yard.spec(budget=j.Budget(queue=0.3))) as second:
            result = second.wait()
    assert result.ending is j.Ending.QUEUE_TIMEOUT
    assert "leased by" in result.cause


def test_a_job_that_was_cancelled_in_the_queue_never_starts(yard: Yard) -> None:
    first, second = submit(yard, yard.spec([*JOINED, "sleep"])), submit(yard, yard.spec())
    with first:
        joined(first)
        second.advance()
    second.cancel()
    result = second.wait()
    assert (result.ending, result.timeline.admitted, result.pids) == (j.Ending.CANCELLED, None, {})


def test_a_signal_to_a_job_that_does_not_run_is_an_error(yard: Yard) -> None:
    job = submit(yard, yard.spec())
    with pytest.raises(ProcessLookupError, match="the job is not running"):
        job.kill(0, signal.SIGKILL)
    with job:
        job.wait()
    with pytest.raises(ProcessLookupError, match="the job is not running"):
        job.kill(0, signal.SIGKILL)


# Names of this target alone.


@pytest.mark.parametrize(
    ("name", "mebibytes", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb"),
        ("NVIDIA H200", 143771, "h200-141gb"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("NVIDIA B200", 183359, "b200-180gb"),
        ("Tesla V100-SXM2-16GB", 16384, "v100-16gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "nvidia-geforce-rtx-4090-24gb"),
        ("", 1000, "gpu-1gb"),
    ],
)
def test_an_accelerator_is_named_by_its_model_and_memory(name: str, mebibytes: int, slug: str) -> None:
    assert accelerator_slug(name, mebibytes * 2**20) == slug
