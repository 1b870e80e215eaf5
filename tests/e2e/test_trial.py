"""The trial as its user meets it: the command line, the run directory, interruptions, and what is left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from seatrial import record, shipping
from seatrial.payload import procs
from seatrial.wait import until
from tests.faults.harness import Finished, SmallTrial

PYTEST = [sys.executable, "-m", "pytest"]
SEATRIAL = [sys.executable, "-m", "seatrial"]


def call(argv: list[str], cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A small trial that was accepted, with Allure results."""
    folder = tmp_path_factory.mktemp("accepted")
    done = SmallTrial(folder, options=("--alluredir", str(folder / "allure"))).run()
    assert done.status == 0, done.output
    return folder, done


# The command line.


def test_pytest_alone_names_the_profiles(request: pytest.FixtureRequest) -> None:
    done = call(PYTEST, request.config.rootpath)
    assert done.returncode == 4
    assert "--cluster=local" in done.stderr


def test_an_unknown_cluster_is_a_usage_error_with_the_nearest_word(tmp_path: Path) -> None:
    done = call([*PYTEST, "--pyargs", "seatrial.suites", "--cluster=locl"], tmp_path)
    assert done.returncode == 4
    assert "local" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_every_mistake_of_a_profile_is_listed_with_its_line(tmp_path: Path) -> None:
    lines = [
        "name: Ten Mistakes",
        "target: {kind: locl}",
        "pools:",
        "  - {name: a, acelerator: cpu}",
        "  - {name: a, sharing: halved}",
        "limits: {gpus: none}",
        "prices: {currency: dollars, gpu_hour: -1}",
        "require: [ncl]",
        "budgets: {total: 90}",
        "waivers: [{check: nccl.all_reduce.busbw, owner: me, reason: because, expires: never}]",
        "colour: blue",
    ]
    profile = tmp_path / "bad.yaml"
    profile.write_text("\n".join(lines) + "\n")
    done = call([*PYTEST, "--pyargs", "seatrial.suites", f"--cluster={profile}"], tmp_path)
    assert done.returncode == 4
    named = {int(line) for line in re.findall(r"bad\.yaml:(\d+):", done.stderr)}
    assert named >= {1, 2, 4, 5, 6, 7, 8, 9, 10, 11}, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_directory_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    trial = SmallTrial(tmp_path)
    done = call([*trial.argv(), "--run-dir", str(tmp_path / "file" / "run")], tmp_path)
    assert done.returncode == 4
    assert "expected a writable directory" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_is_never_overwritten(accepted: tuple[Path, Finished]) -> None:
    folder, _ = accepted
    before = (folder / "run" / "record.jsonl").read_bytes()
    done = call(SmallTrial(folder).argv(), folder)
    assert done.returncode == 4
    assert "already holds a run" in done.stderr
    assert (folder / "run" / "record.jsonl").read_bytes() == before


def test_the_plan_starts_no_process_and_writes_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    work = tmp_path / "work"
    work.mkdir()
    strace = ["strace", "-f", "-e", "trace=execve,mkdir,mkdirat,unlink,unlinkat,rename,openat", "-o", str(trace)]
    argv = [*PYTEST, "--pyargs", "seatrial.suites", "--cluster=local", "--plan"]
    done = call([*strace, *argv], work)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    assert "job collectives" in done.stdout
    assert list(work.iterdir()) == []
    calls = trace.read_text().splitlines()
    started = [line for line in calls if "execve(" in line and " = 0" in line]
    assert len(started) == 1, started
    written = [line for line in calls if re.search(r"O_WRONLY|O_RDWR|mkdir|rename|unlink", line) and "= -1" not in line]
    outside = [line for line in written if "/dev/" not in line and tempfile.gettempdir() not in line]
    assert outside == []


# What a run leaves.


def test_the_run_directory_is_whole(accepted: tuple[Path, Finished]) -> None:
    folder, done = accepted
    run = folder / "run"
    names = {path.name for path in run.iterdir()}
    assert {"record.jsonl", "report.html", "junit.xml", "ledger.jsonl", "logs"} <= names
    assert done.record.damage == ()
    assert done.record.plan is not None
    assert {check.key() for check in done.record.plan.checks} == {check.key() for check in done.record.checks}


def test_junit_has_a_test_case_for_every_check(accepted: tuple[Path, Finished]) -> None:
    folder, done = accepted
    cases = ElementTree.parse(folder / "run" / "junit.xml").getroot().iter("testcase")
    assert len(list(cases)) == len(done.record.checks)


def test_allure_has_a_step_for_every_judged_check(accepted: tuple[Path, Finished]) -> None:
    folder, done = accepted
    results = [json.loads(path.read_text()) for path in (folder / "allure").glob("*-result.json")]
    steps = [step["name"] for result in results for step in result.get("steps", [])]
    assert len(steps) == sum(check.outcome == "pass" for check in done.record.checks)
    (verdict,) = (result for result in results if result["fullName"] == "seatrial.verdict")
    plots = [folder / "allure" / plot["source"] for plot in verdict["attachments"] if plot["type"] == "image/svg+xml"]
    assert len(plots) >= len({check.id for check in done.record.checks if check.id.endswith(".busbw")})
    assert all(ElementTree.parse(plot).getroot().tag.endswith("svg") for plot in plots)
    assert {"categories.json", "environment.properties"} <= {path.name for path in (folder / "allure").iterdir()}


def test_the_report_is_drawn_again_from_the_record_alone(accepted: tuple[Path, Finished], tmp_path: Path) -> None:
    folder, _ = accepted
    copy = tmp_path / "record.jsonl"
    copy.write_bytes((folder / "run" / "record.jsonl").read_bytes())
    done = call([*SEATRIAL, "report", str(copy)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_bytes() == (folder / "run" / "report.html").read_bytes()


def test_deselected_checks_that_are_required_are_no_acceptance(tmp_path: Path) -> None:
    trial = SmallTrial(tmp_path, options=("-k", "all_gather"))
    profile = trial.profile()
    profile.write_text(profile.read_text() + "require: [nccl]\n")
    trial.profile = lambda: profile  # type: ignore[method-assign]
    done = trial.run()
    assert done.status == 1, done.output
    assert done.verdict == "not accepted"
    assert "deselected" in done.output


def test_xdist_gives_the_same_verdict_one_record_one_report(tmp_path: Path) -> None:
    done = SmallTrial(tmp_path, options=("-n", "2")).run()
    assert done.status == 0, done.output
    assert done.verdict == "accepted"
    assert [path.name for path in (tmp_path / "run").glob("record*.jsonl")] == ["record.jsonl"]
    assert done.record.plan is not None
    assert {check.key() for check in done.record.plan.checks} == {check.key() for check in done.record.checks}


def test_without_a_checkout_the_suites_run_from_the_package(tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel")]
    root = Path(__file__).parents[2]
    assert call(wheel, root).returncode == 0
    site = tmp_path / "site"
    (package,) = (tmp_path / "wheel").glob("*.whl")
    call([sys.executable, "-m", "zipfile", "-e", str(package), str(site)], tmp_path)
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"seatrial"}
    argv = [*PYTEST, "--pyargs", "seatrial.suites", "--cluster=local", "--plan"]
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "job collectives" in done.stdout, done.stdout + done.stderr


# Interruptions.


def start(trial: SmallTrial) -> subprocess.Popen[str]:
    return subprocess.Popen(
        trial.argv(),
        cwd=trial.folder,
        env=trial.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def rank_log(folder: Path) -> Path | None:
    return next((folder / "run" / "logs").glob("*/rank-1.events"), None)


def test_ctrl_c_leaves_a_whole_record_and_a_report(tmp_path: Path) -> None:
    trial = SmallTrial(tmp_path, plant="hang")
    child = start(trial)
    until(lambda: rank_log(tmp_path), what="rank 1 to start", timeout=30, state=lambda: str(child.poll()))
    os.kill(child.pid, signal.SIGINT)
    output, _ = child.communicate(timeout=40)
    assert child.returncode == 2, output
    known = record.read(tmp_path / "run" / "record.jsonl")
    assert known.verdict is not None
    assert known.verdict.verdict == "not accepted"
    assert "interrupted" in known.verdict.reason
    assert known.damage == ()
    assert "NOT ACCEPTED: interrupted" in output
    assert (tmp_path / "run" / "report.html").is_file()
    assert left_of(tmp_path / "run") == []


def left_of(run: Path) -> list[str]:
    """Every process that carries a tag of the run, and every scratch folder of it."""
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines() if line.endswith(b"}")]
    jobs = [entry for entry in ledger if entry["do"] == "intend"]
    processes = [procs.describe(process) for job in jobs for process in procs.tagged(job["tag"])]
    return processes + [job["scratch"] for job in jobs if Path(job["scratch"]).exists()]


def test_after_kill_9_cleanup_removes_what_was_left_and_nothing_else(tmp_path: Path) -> None:
    moments = random.Random(20).sample(range(100), 20)
    decoy = Path(tempfile.mkdtemp(prefix="seatrial-decoy-"))
    bystander = subprocess.Popen(["sleep", "300"], env={**os.environ, procs.TAG: "another-run/job"})
    try:
        for number, moment in enumerate(moments):
            folder = tmp_path / str(number)
            folder.mkdir()
            kill_at(folder, seconds=0.2 + moment * 0.04)
        assert decoy.is_dir()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        decoy.rmdir()


def kill_at(folder: Path, seconds: float) -> None:
    """Kill a trial's pytest after so many seconds, clean up, and look for anything of it."""
    child = start(SmallTrial(folder))
    time.sleep(seconds)  # The moment is the test's subject, not a wait for something.
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=30)
    run = folder / "run"
    if not (run / "ledger.jsonl").exists():
        return  # Killed before it had anything to clean up.
    done = call([*SEATRIAL, "cleanup", str(run)], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_of(run) == []
    assert list(Path(tempfile.gettempdir()).glob(f"seatrial-{run_id(run)}-*")) == []


def run_id(run: Path) -> str:
    first = json.loads((run / "ledger.jsonl").read_bytes().splitlines()[0])
    return str(first["run"])


# The payload by hand.


def test_the_payload_runs_by_hand_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = tmp_path / "payload.pyz"
    shipping.pack(payload)
    settings = json.dumps({"sizes": [4096], "ops": ["all_reduce"], "dtypes": ["float32"]})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    monkeypatch.setenv(procs.TAG, f"by-hand/{os.getpid()}")
    try:
        done = call([*torchrun, str(payload), "collectives", settings], tmp_path, timeout=120)
    finally:
        # torchrun puts its ranks into sessions of their own: where it is killed, they would stay.
        for process in procs.tagged(f"by-hand/{os.getpid()}"):
            procs.kill(process)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seatrial"')]
    assert {(event["stream"], event["event"]) for event in events} >= {(rank, "done") for rank in (0, 1)}
