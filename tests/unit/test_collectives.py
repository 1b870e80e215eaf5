"""The payload as it runs on a cluster: its zip, real ranks over gloo, and faults planted in torch from outside."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import seatrial.payload
from seatrial.job import Event
from seatrial.parse.events import EventReader
from seatrial.parse.nccl_log import transport_of
from seatrial.parse.nccl_tests import parse
from seatrial.payload import collectives, group, main, nccl_tests, transport, yardstick
from seatrial.payload.events import MAX_LINE_BYTES, Emitter
from seatrial.payload.settings import SettingsError, settled
from seatrial.shipping import pack
from seatrial.target.lease import Port
from seatrial.wait import until

PAYLOAD = Path(seatrial.payload.__file__).parent
ADDRESS = "127.0.0.1"
PATIENCE = 120.0
"""Seconds that a busy machine is given for one small job."""
DEBIAN_PYTHON = "/usr/bin/python3"
"""Debian's own interpreter, whose python3-torch is the oldest torch that is supported."""


@dataclass(frozen=True)
class Rank:
    """One rank after its end."""

    code: int
    events: Sequence[Event]
    log: str

    def of(self, name: str) -> list[Mapping[str, Any]]:
        """The fields of all events of one name."""
        return [event.fields for event in self.events if event.name == name]

    def one(self, name: str) -> Mapping[str, Any]:
        """The fields of the only event of one name."""
        (fields,) = self.of(name)
        return fields

    def row(self, op: str, dtype: str = "float32") -> Mapping[str, Any]:
        """The only row of an operation."""
        (fields,) = [row for row in self.of("row") if (row["op"], row["dtype"]) == (op, dtype)]
        return fields


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("payload") / "payload.pyz"
    pack(path)
    return path


def environment(rank: int, world: int, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """What torchrun sets, and the loopback for gloo."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SEATRIAL", "NCCL"))},
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }


def run(argv: Sequence[str], world: int = 1, **more: str) -> list[Rank]:
    """Run a job to its end."""
    port = Port(ADDRESS)
    with ExitStack() as stack:
        stack.callback(port.release)
        children = []
        for rank in range(world):
            env = environment(rank, world, port.number, more)
            child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        ends: list[tuple[bytes, bytes] | None] = [None] * world
        readers = [threading.Thread(target=_collect, args=(ends, at, child)) for at, child in enumerate(children)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(PATIENCE)
    said = [end for end in ends if end is not None]
    assert len(said) == world, "a rank did not end in time"
    return [_read(rank, children[rank].returncode, *said[rank]) for rank in range(world)]


def _collect(ends: list[tuple[bytes, bytes] | None], at: int, child: subprocess.Popen[bytes]) -> None:
    ends[at] = child.communicate()


def _read(rank: int, code: int, out: bytes, err: bytes) -> Rank:
    reader = EventReader("by-hand", rank)
    events = reader.feed(out)
    reader.close()
    assert reader.faults == []
    return Rank(code, events, err.decode())


def sweep(
    payload: Path, world: int, python: str = sys.executable, plant: Path | None = None, **settings: Any
) -> list[Rank]:
    """Run the ``collectives`` command on small sizes."""
    small = {"dtypes": ["float32"], "sizes": [4096], "warmup": 1, "iterations": 2, "timeout_s": 60}
    argv = [python, str(payload), "collectives", json.dumps({**small, **settings})]
    return run(argv, world, **({} if plant is None else {"PYTHONPATH": str(plant)}))


def planted(folder: Path, text: str) -> Path:
    """A folder whose ``sitecustomize`` does ``text`` in every Python that has it on its path."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(text))
    return folder


def assert_complete(ranks: Sequence[Rank]) -> None:
    pids = [rank.one("hello")["pid"] for rank in ranks]
    for rank in ranks:
        assert rank.code == 0, rank.log
        done = rank.one("done")
        assert done["world_size"] == len(ranks)
        assert [int(peer.rpartition(":")[2]) for peer in done["peers"]] == pids
        assert done["rows_done"] == len(rank.of("row"))
        assert done["rows_asked"] == done["rows_done"] + done["rows_unsupported"]
        assert done["elements_checked"] == sum(row["checked"] for row in rank.of("row")) > 0
        told = [event.name for event in rank.events if event.name != "beat"]
        assert (told[0], told[-1]) == ("hello", "done")
        assert not rank.of("failed")


def test_all_collectives_of_two_ranks_are_right(payload: Path) -> None:
    ranks = sweep(payload, 2, dtypes=["float32", "bfloat16"], sizes=[4096, 9999])
    assert_complete(ranks)
    for number, rank in enumerate(ranks):
        ready = rank.one("ready")
        assert (ready["world_size"], ready["backend"], ready["device"], ready["uuid"]) == (2, "gloo", "cpu", None)
        assert ready["transport"] == "gloo over TCP, interface lo"
        assert len(rank.of("row")) == 2 * 2 * len(collectives.OPS), rank.of("unsupported")
        for row in rank.of("row"):
            assert (row["wrong"], row["first_wrong"]) == (0, None)
            assert row["warmup"] == 1
            assert [len(row[key]) for key in ("time_us", "wait_us", "align_us")] == [2, 2, 2]
            assert all(0 < wait <= whole for wait, whole in zip(row["wait_us"], row["time_us"], strict=True))
            assert row["size"] <= row["asked"] < row["size"] + 8
        yard = [(mark["kind"], mark["size"], len(mark["time_us"])) for mark in rank.of("yardstick")]
        assert yard == [("memory", 64 << 20, 10), ("ring", 4096, 10), ("ring", 9999, 10)]
        assert rank.of("yardstick")[1]["over"] == "TCP 127.0.0.1 -> 127.0.0.1"
        assert all(time > 0 for mark in rank.of("yardstick") for time in mark["time_us"])
        shapes = {row["op"]: (row["count"], row["checked"]) for row in rank.of("row") if row["size"] == 9992}
        assert shapes == {
            "all_gather": (1249, 3 * 2498),
            "reduce_scatter": (1249, 3 * 1249),
            "all_to_all": (1249, 3 * 2498),
        }, f"rank {number}"


def test_one_rank_alone_says_what_it_cannot_do(payload: Path) -> None:
    (rank,) = sweep(payload, 1, sizes=[4096, 1 << 50, 3], iterations=100)
    assert_complete([rank])
    lacking = {(why["op"], why["size"]): why["why"] for why in rank.of("unsupported")}
    assert lacking["ring", None] == lacking["sendrecv", None] == "a ring needs at least 2 ranks"
    assert lacking["all_reduce", 3] == "3 bytes are less than 1 blocks of one element"
    assert "needs 3072 TiB for its buffers, the rank with the least has" in lacking["all_reduce", 1 << 50]
    assert len(rank.row("all_reduce")["time_us"]) == 100
    assert rank.one("done")["rows_unsupported"] == 3 + 2 * 5


FAULTS = """
    import os, time
    import torch.distributed as dist

    RANK = os.environ["RANK"]

    class Later:
        def __init__(self, work, tamper):
            self.work, self.tamper = work, tamper

        def wait(self):
            self.work.wait()
            self.tamper()

    def plant(name, around):
        real = getattr(dist, name)
        setattr(dist, name, lambda *args, **kwargs: around(real, *args, **kwargs))

    calls = []

    def flip(real, tensor, **kwargs):
        calls.append(tensor.numel())
        time.sleep(0.03 * (RANK == "1"))
        work = real(tensor, **kwargs)
        def tamper():
            if calls.count(1024) == 3:
                tensor[777] += 1
        return Later(work, tamper) if tensor.numel() == 1024 and RANK == "1" else work

    def swap(real, output, given, **kwargs):
        def tamper():
            first, second, _ = output.chunk(3)
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)
        work = real(output, given, **kwargs)
        return Later(work, tamper) if output.numel() > 3 and RANK == "2" else work

    def forget(real, tensor, *args, **kwargs):
        before = tensor.clone()
        work = real(tensor, *args, **kwargs)
        return Later(work, lambda: tensor.copy_(before)) if RANK == "2" else work

    def double(real, output, given, **kwargs):
        work = real(output, given, **kwargs)
        def tamper():
            output[682:1023] = output[341:682]
        return Later(work, tamper) if output.numel() > 3 and RANK == "0" else work

    def nan(real, output, given, **kwargs):
        work = real(output, given, **kwargs)
        return Later(work, lambda: output[5].fill_(float("nan"))) if output.numel() > 3 and RANK == "0" else work

    for name, around in {"all_reduce": flip, "all_gather_into_tensor": swap, "broadcast": forget,
                         "all_to_all_single": double, "reduce_scatter_tensor": nan}.items():
        plant(name, around)
"""


def first_wrong(rank: Rank, op: str) -> tuple[Any, ...]:
    first = rank.row(op)["first_wrong"]
    return tuple(first[key] for key in ("iteration", "offset", "block", "got"))


def test_planted_faults_are_found_where_they_are(payload: Path, tmp_path: Path) -> None:
    ranks = sweep(payload, 3, plant=planted(tmp_path, FAULTS))
    assert_complete(ranks)
    wrong = {(op, at): rank.row(op)["wrong"] for op in collectives.OPS for at, rank in enumerate(ranks)}
    assert {place for place, count in wrong.items() if count} == {
        ("all_reduce", 1),
        ("all_gather", 2),
        ("broadcast", 2),
        ("all_to_all", 0),
        ("reduce_scatter", 0),
    }

    # A rank beats while it works, and tells how far it has come.
    for rank in ranks:
        steps = [beat["step"] for beat in rank.of("beat")]
        assert len(set(steps)) > 1
        assert steps == sorted(steps)
        assert any(" #" in beat["what"] for beat in rank.of("beat")), rank.of("beat")

    # One element of rank 1's last result is off by one.
    expected = ranks[1].row("all_reduce")["first_wrong"]["expected"]
    assert wrong["all_reduce", 1] == 1
    assert first_wrong(ranks[1], "all_reduce") == (2, 777, None, expected + 1)

    # Two ranks' blocks stand in each other's place, in the warm-up too.
    assert wrong["all_gather", 2] == 3 * 2 * 341
    assert first_wrong(ranks[2], "all_gather")[:3] == (0, 0, 0)

    # A result that was never written is poison, not the right one of the iteration before.
    assert wrong["broadcast", 2] == 3 * 1024
    assert first_wrong(ranks[2], "broadcast") == (0, 0, 0, -1)

    # A block that came twice stands where another was lost.
    assert wrong["all_to_all", 0] == 3 * 341
    assert first_wrong(ranks[0], "all_to_all")[:3] == (0, 682, 2)

    # JSON has no NaN.
    assert wrong["reduce_scatter", 0] == 3
    assert first_wrong(ranks[0], "reduce_scatter") == (0, 5, None, "nan")

    # Rank 1 comes 30 ms late to each meeting: it waits least, the others wait for it.
    waits = [median(rank.row("sendrecv")["align_us"]) for rank in ranks]
    assert waits[1] < 15_000 < min(waits[0], waits[2])


LACKING = """
    import os
    import torch.distributed as dist

    def lacking(*args, **kwargs):
        raise RuntimeError("ProcessGroupGloo does not support this")

    dist.all_gather_into_tensor = lacking
    dist.all_to_all_single = dist.all_to_all = lacking

    def broken(*args, **kwargs):
        raise RuntimeError("Connection closed by peer")

    if os.environ["RANK"] == "1":
        dist.broadcast = broken
"""


def test_what_is_lacking_is_unsupported_and_what_breaks_is_a_failure(payload: Path, tmp_path: Path) -> None:
    ops = ["all_gather", "all_to_all", "broadcast"]
    ranks = sweep(payload, 2, plant=planted(tmp_path, LACKING), ops=ops)
    for rank in ranks:
        assert rank.row("all_gather")["wrong"] == 0, "the list form stands in for the tensor form"
        lacking = rank.one("unsupported")
        assert (lacking["op"], lacking["dtype"], lacking["size"]) == ("all_to_all", "float32", None)
        assert "does not support this; list form: ProcessGroupGloo does not support this" in lacking["why"]
        assert rank.one("failed")["type"] in ("RuntimeError", "DistBackendError")
        assert rank.code == 1
        assert "Traceback" in rank.log
        assert not rank.of("done")
    failed = ranks[1].one("failed")
    assert failed["message"] == "Connection closed by peer"
    assert failed["where"].startswith("group.py:") or failed["where"].startswith("exercises.py:")


class Disagreement:
    """Stands in for a group in which the other rank answers otherwise."""

    rank, size, backend, device = 0, 2, "gloo", torch.device("cpu")

    def timed(self, what: str, launch: Any) -> None:
        """Succeeds."""

    def share(self, number: int, what: str) -> list[int]:  # noqa: ARG002
        """Every rank's number: the other one's is the opposite."""
        return [number, 1 - number]


def test_ranks_of_which_only_some_can_do_an_operation_are_named() -> None:
    settings = {**collectives.DEFAULTS, "ops": ["broadcast"]}
    trial = collectives.Trial(Disagreement(), None, settings)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"ranks \[1\] cannot do broadcast of float32 .* but the others can"):
        trial.run()


def test_ranks_of_different_releases_are_refused() -> None:
    group._refuse_mixture(["2.9.0"] * 3)
    with pytest.raises(RuntimeError, match=r"torch 1\.13\.0: ranks \[1\]; torch 2\.9\.0: ranks \[0, 2\]"):
        group._refuse_mixture(["2.9.0", "1.13.0", "2.9.0"])


def test_only_the_backends_own_words_make_an_operation_unsupported() -> None:
    for words in (
        "Invalid scalar type",
        "no support for _allgather_base",
        "ProcessGroup gloo does not support alltoall",
    ):
        assert collectives._lacks(RuntimeError(words))
    for words in ("Connection closed by peer", "Timed out waiting 1800000ms", "CUDA error: out of memory", ""):
        assert not collectives._lacks(RuntimeError(words))


def test_an_image_without_torch_fails_by_name(payload: Path, tmp_path: Path) -> None:
    plant = planted(tmp_path, "import sys\nsys.modules['torch'] = None\n")
    (rank,) = sweep(payload, 1, plant=plant)
    assert [event.name for event in rank.events] == ["hello", "failed"], "hello comes before torch"
    assert rank.one("failed")["type"] == "ModuleNotFoundError"
    assert "torch" in rank.one("failed")["message"]
    assert rank.code == 1


def test_the_oldest_torch_runs_what_it_has(payload: Path) -> None:
    has_torch = [DEBIAN_PYTHON, "-c", "import torch"]
    if not Path(DEBIAN_PYTHON).exists() or subprocess.run(has_torch, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{DEBIAN_PYTHON} has no torch: install python3-torch")
    ranks = sweep(payload, 2, python=DEBIAN_PYTHON, dtypes=["float32", "bfloat16"])
    assert_complete(ranks)
    for rank in ranks:
        assert {row["wrong"] for row in rank.of("row")} == {0}
        told = {(fields["op"], fields["dtype"]) for fields in [*rank.of("row"), *rank.of("unsupported")]}
        assert told == {(op, dtype) for op in collectives.OPS for dtype in ("float32", "bfloat16")}
        assert {"all_reduce", "all_gather", "broadcast", "sendrecv"} <= {row["op"] for row in rank.of("row")}


def test_all_wrong_settings_are_told_at_once() -> None:
    wrong = {"ops": ["all_reduc"], "dtypes": ["fp8"], "sizes": [0], "iterations": 101, "device": "tpu", "warmup": -1}
    with pytest.raises(SettingsError) as caught:
        collectives._settle(wrong)
    for words in ("op 'all_reduc'", "dtype 'fp8'", "size 0", "iterations 101", "device 'tpu'", "warmup"):
        assert words in str(caught.value)
    with pytest.raises(SettingsError, match="'sizes' must not be empty"):
        collectives._settle({"sizes": []})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"iteration": 3}, "did you mean 'iterations'"),
        ({"colour": 3}, "known: device, dtypes"),
        ({"iterations": "3"}, "'iterations' must be int, not '3'"),
        ({"iterations": True}, "'iterations' must be int, not True"),
        ({"iterations": 3.5}, "'iterations' must be int, not 3.5"),
        ({"sizes": 1024}, "'sizes' must be a list of int, not 1024"),
        ({"sizes": [1, "2"]}, "'sizes' must be a list of int"),
        ({"ops": [None]}, "'ops' must be a list of str"),
    ],
)
def test_a_setting_of_another_kind_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=r"^collectives: ") as caught:
        settled("collectives", collectives.DEFAULTS, given)
    assert told in str(caught.value)


def command(payload: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user meets it: no rank, no launcher."""
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "SEATRIAL_LAUNCHER")}
    argv = [sys.executable, str(payload), *words]
    return subprocess.run(argv, env={**clean, **env}, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_help_names_every_command(payload: Path) -> None:
    done = command(payload, "--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(main.COMMANDS)
    assert {"collectives", "nccl-tests", "launch", "sample"} <= main.COMMANDS.keys()
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no command; known commands: "),
        (("colectives",), "unknown command 'colectives'; known commands: "),
        (("collectives", "{"), "the settings are not JSON"),
        (("collectives", "[1]"), "the settings must be a JSON object, not [1]"),
        (("collectives", "{}", "{}"), "one argument with settings is read, not 2"),
        (("collectives",), "the environment has RANK=None, WORLD_SIZE=None"),
        (("launch", "{}"), "launch: takes no settings"),
        (("sample",), "sample: needs settings"),
    ],
)
def test_a_wrong_command_line_is_one_clear_message(payload: Path, words: tuple[str, ...], told: str) -> None:
    done = command(payload, *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_payload_without_its_launcher_ends_at_once(payload: Path) -> None:
    done = command(payload, "collectives", SEATRIAL_LAUNCHER="1")
    assert done.returncode == 1
    assert "the launcher, process 1, is gone" in done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with a program that stands in for one of nccl-tests."""
    path = tmp_path / "all_reduce_perf"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return tmp_path


def perf(payload: Path, folder: Path, script: str, python: str = sys.executable, **settings: Any) -> Rank:
    (folder / "all_reduce_perf").write_text(f"#!/bin/sh\n{script}\n")
    argv = [python, str(payload), "nccl-tests", json.dumps(settings)]
    (rank,) = run(argv, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    return rank


def test_a_programs_lines_and_exit_code_are_passed_on(payload: Path, program: Path) -> None:
    rank = perf(
        payload, program, 'echo "# size $1 $2"; echo; printf "%1300s|\\n" x; printf "no end"; exit 3', args=["-b", "8"]
    )
    assert rank.code == 0, rank.log
    lines = rank.of("line")
    assert [(line["n"], line.get("part"), line.get("parts")) for line in lines] == [
        (1, None, None),
        (2, None, None),
        (3, 1, 3),
        (3, 2, 3),
        (3, 3, 3),
        (4, None, None),
    ]
    assert [lines[0]["text"], lines[1]["text"], lines[5]["text"]] == ["# size -b 8", "", "no end"]
    assert "".join(line["text"] for line in lines[2:5]) == "x".rjust(1300) + "|"
    done = rank.one("done")
    assert (done["exit"], done["lines"], done["world_size"]) == (3, 4, 1)
    assert rank.one("ready")["program"] == str(program / "all_reduce_perf")
    assert "no table" in parse("\n".join(line["text"] for line in lines)).problems


def test_a_line_of_any_bytes_fits_into_events(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "events", os.O_WRONLY | os.O_CREAT)
    emitter = Emitter("by-hand", 0, fd)
    for character in ("\U0001f600", "\x00", '"', "ä"):
        nccl_tests._tell(emitter, 1, character * 5000)
    os.close(fd)
    data = (tmp_path / "events").read_bytes()
    assert max(map(len, data.splitlines(keepends=True))) <= MAX_LINE_BYTES
    reader = EventReader("by-hand", 0)
    assert "".join(event.fields["text"] for event in reader.feed(data))[:5000] == "\U0001f600" * 5000


def test_an_image_without_the_program_says_so(payload: Path, tmp_path: Path) -> None:
    argv = [sys.executable, str(payload), "nccl-tests", '{"program": "all_gather_perf"}']
    (rank,) = run(argv, PATH=str(tmp_path))
    assert rank.code == 0
    assert f"no all_gather_perf in PATH ({tmp_path})" in rank.one("unsupported")["why"]
    assert (rank.one("done")["exit"], rank.one("done")["lines"]) == (None, 0)


def test_a_program_that_does_not_end_is_ended(payload: Path, program: Path) -> None:
    rank = perf(payload, program, "echo $$; exec sleep 1000", timeout_s=1)
    assert rank.code == 1
    assert rank.one("failed")["type"] == "TimeoutError"
    assert not Path(f"/proc/{rank.one('line')['text']}").exists()


def test_a_program_of_several_ranks_is_refused(payload: Path, program: Path) -> None:
    argv = [sys.executable, str(payload), "nccl-tests", "{}"]
    for rank in run(argv, 2, PATH=f"{program}{os.pathsep}{os.environ['PATH']}"):
        assert rank.code == 2
        assert "runs as 1 rank, not 2" in rank.one("failed")["message"]
        assert "runs as 1 rank, not 2" in rank.log
        assert "Traceback" not in rank.log, "wrong settings are no defect of the payload"


PARENT = """
import os, subprocess, sys
env = dict(os.environ, SEATRIAL_LAUNCHER=str(os.getpid()))
subprocess.run([sys.executable, sys.argv[1], "nccl-tests"], env=env)
"""


def test_a_killed_launcher_takes_the_rank_and_its_program_with_it(payload: Path, program: Path) -> None:
    told = program / "pids"
    (program / "all_reduce_perf").write_text(
        f'#!/bin/sh\necho "$PPID $$" > {told}.part\nmv {told}.part {told}\nexec sleep 1000\n'
    )
    env = environment(0, 1, 1, {"PATH": f"{program}{os.pathsep}{os.environ['PATH']}"})
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(payload)], env=env, stdout=subprocess.DEVNULL)
    pids: list[str] = []
    try:
        until(told.exists, what="the program to start", timeout=PATIENCE, state=lambda: "not started")
        pids = told.read_text().split()
        assert all(map(alive, pids))
        parent.kill()
        parent.wait()
        until(
            lambda: not any(map(alive, pids)),
            what="rank and program to end",
            timeout=10.0,
            state=lambda: f"alive: {[pid for pid in pids if alive(pid)]}",
        )
    finally:
        parent.kill()
        parent.wait()
        for pid in filter(alive, pids):
            os.kill(int(pid), signal.SIGKILL)


def alive(pid: str) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


LOG = """\
node-07:4000:4000 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>
node-07:4000:4000 [0] NCCL INFO NCCL version 2.28.7+cuda13.0
node-07:4000:4100 [0] NCCL INFO Using network IB
node-07:4000:4100 [0] NCCL INFO comm 0x8ec0ac0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
""" + "".join(
    f"node-07:4000:4100 [0] NCCL INFO Channel {channel:02}/0 : 0[0] -> {peer} via {way}\n"
    for channel in range(24)
    for peer, way in (("1[1]", "P2P/CUMEM"), ("8[0] [send]", "NET/IB/0/GDRDMA"))
)


def test_the_telling_lines_of_a_log_tell_the_same_as_the_log() -> None:
    lines = transport.telling(LOG)
    assert transport_of("\n".join(lines)) == transport_of(LOG)
    assert transport_of(LOG).kinds == {"P2P", "NET/IB"}
    assert len(lines) < 10


def heard(folder: Path, log: transport.NcclLog) -> Event:
    """What the log's reader says, through a real event stream."""
    fd = os.open(folder / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    log.tell(Emitter("by-hand", 0, fd))
    os.close(fd)
    (event,) = EventReader("by-hand", 0).feed((folder / "events").read_bytes())
    return event


def test_the_log_is_asked_for_and_told(tmp_path: Path) -> None:
    environ = {"SEATRIAL_SCRATCH": str(tmp_path)}
    log = transport.NcclLog(3, environ)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert environ["NCCL_DEBUG_FILE"] == log.path
    assert Path(log.path).parent == tmp_path
    assert "nothing about a transport in" in str(heard(tmp_path, log).fields["why"])
    Path(log.path).write_text(LOG + "\x1b\ufffd" * 500 + " via SHM\n")
    told = heard(tmp_path, log)
    assert told.fields["why"] is None
    assert transport_of("\n".join(told.fields["lines"])).kinds == {"P2P", "NET/IB"}


def test_a_log_that_fills_every_line_fits_into_one_event(tmp_path: Path) -> None:
    log = transport.NcclLog(3, {"SEATRIAL_SCRATCH": str(tmp_path)})
    for filler in ('"', "\x1b", "\ufffd"):
        Path(log.path).write_text("".join(f"via NET/{chr(65 + at)} {filler * 400}\n" for at in range(26)))
        assert len(heard(tmp_path, log).fields["lines"]) == transport.MAX_LINES


def test_the_users_own_log_settings_stay(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%p")}
    log = transport.NcclLog(0, environ)
    assert environ["NCCL_DEBUG"] == "WARN"
    assert log.path == str(tmp_path / f"nccl.{os.getpid()}")
    Path(log.path).write_text("")
    assert "NCCL_DEBUG=WARN" in str(heard(tmp_path, log).fields["why"])
    log.remove()
    assert Path(log.path).exists(), "the user's file is the user's"


def test_a_log_by_hand_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEATRIAL_SCRATCH", raising=False)
    log = transport.NcclLog(0, {"TMPDIR": str(tmp_path)})
    log.remove()
    Path(log.path).write_text(LOG)
    log.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 2, 300, 4096])
def test_the_peers_of_any_world_fit_into_events(size: int) -> None:
    peers = [f"a-rather-long-host-name-{rank:05}:4194304" for rank in range(size)]
    parts = group._parts(peers)
    assert [peer for part in parts for peer in part] == peers
    assert all(len(json.dumps(part)) < MAX_LINE_BYTES - 1000 for part in parts)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1 << 10, "1 KiB"), (3 << 20, "3 MiB"), (1 << 52, "4096 TiB")],
)
def test_sizes_are_told_in_whole_units(count: int, text: str) -> None:
    assert group.binary_size(count) == text


class Table:
    """Stands in for a group of two threads: what each says is heard by both."""

    def __init__(self, between: threading.Barrier, said: list[dict[int, str]], rank: int) -> None:
        self.rank, self.size = rank, 2
        self._between, self._said, self._turn = between, said, 0

    def share_text(self, text: str, what: str) -> list[str]:  # noqa: ARG002
        """Every rank's text, by rank."""
        self._said[self._turn][self.rank] = text
        self._between.wait(10)
        self._turn += 1
        return [self._said[self._turn - 1][rank] for rank in range(self.size)]


def ring(rank: int, table: Table, ends: dict[int, Any], timeout_s: float) -> None:
    try:
        with yardstick.Ring(table, timeout_s) as built:  # type: ignore[arg-type]
            built.exchange(3_000_000)()
            ends[rank] = built.over
    except (OSError, RuntimeError) as error:
        ends[rank] = error


def both(monkeypatch: pytest.MonkeyPatch, timeout_s: float = 10.0) -> dict[int, Any]:
    """Build the ring of two ranks and move 3 MB round it; how it went, by rank."""
    monkeypatch.setenv("MASTER_ADDR", ADDRESS)
    between, ends = threading.Barrier(2), {}  # type: ignore[var-annotated]
    said: list[dict[int, str]] = [{}, {}]
    threads = [
        threading.Thread(target=ring, args=(rank, Table(between, said, rank), ends, timeout_s), daemon=True)
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ends) == 2, f"only {sorted(ends)} came to an end"
    return ends


def test_the_ring_moves_more_than_its_buffers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert both(monkeypatch) == {0: "TCP 127.0.0.1 -> 127.0.0.1", 1: "TCP 127.0.0.1 -> 127.0.0.1"}


def test_a_stranger_in_the_ring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = yardstick._connected

    def wrong_token(door: list[str], timeout_s: float) -> Any:
        return real([door[0], door[1], "00" * 16], timeout_s)

    monkeypatch.setattr(yardstick, "_connected", wrong_token)
    ends = both(monkeypatch)
    assert all("without its token" in str(end) for end in ends.values())


def test_a_neighbour_that_leaves_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick.Ring, "_send", lambda self, data: self._to.close() or len(data))
    assert all(
        "closed its ring connection with 3000000 bytes to come" in str(end) for end in both(monkeypatch).values()
    )


def test_a_neighbour_that_stalls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick.Ring, "_send", lambda _, data: len(data))
    start = time.monotonic()
    ends = [str(end) for end in both(monkeypatch, 0.2).values()]
    assert any("did not go on within 0.2 s" in end for end in ends), ends
    assert all("TCP" not in end for end in ends), ends
    assert time.monotonic() - start < 10


SOURCES = sorted(PAYLOAD.glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_syntax_is_that_of_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_nothing_newer_than_python_3_8_is_called() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    # procs.py asks for these two before it calls them.
    asked_for = ["--exclude", "os.pidfd_open", "--exclude", "signal.pidfd_send_signal"]
    argv = [str(vermin), "-t=3.8-", "--no-tips", "--violations", *asked_for, *map(str, SOURCES)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def python_3_8() -> str | None:
    """A Python 3.8 of this machine that really starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = [shutil.which("python3.8"), *map(str, pyenv.glob("versions/3.8.*/bin/python3.8"))]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.skipif(python_3_8() is None, reason="no python3.8 on this machine")
def test_the_zip_runs_on_python_3_8(payload: Path, program: Path) -> None:
    python = str(python_3_8())
    for path in SOURCES:
        compiled = subprocess.run([python, "-c", f"compile(open({str(path)!r}).read(), 'x', 'exec')"], check=False)
        assert compiled.returncode == 0, path
    rank = perf(payload, program, "echo one line", python=python)
    assert rank.code == 0, rank.log
    assert rank.one("hello")["python"].startswith("3.8.")
    assert rank.one("line")["text"] == "one line"


def test_the_payload_is_a_command_of_the_package_too() -> None:
    argv = [sys.executable, "-m", "seatrial.payload", "--help"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.startswith("usage: ")
