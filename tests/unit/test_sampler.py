"""The sampler beside real processes and beside GPUs that the stand-in NVML describes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import nvml as standin
from lab.nvml import gpu
from seatrial.job import Event
from seatrial.payload import procfs
from seatrial.payload.devices import SLOW, Metric
from seatrial.payload.gpus import Gpus
from seatrial.payload.procfs import Rates, Session, Stat
from seatrial.payload.sampler import Schedule
from seatrial.telemetry.measure import measurements
from seatrial.telemetry.window import window

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from payload import events, sampler
raise SystemExit(sampler.main(json.loads(sys.argv[1]), events.take_stdout("job-1", events.SAMPLER)))
"""

BURN = "while True: pass"
IDLE = "import time; time.sleep(60)"

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in NVML needs gcc")


class Sampling:
    """A sampler process, what it has said so far, and the ranks that this test started."""

    def __init__(self, folder: Path, period: float = 0.1, env: dict[str, str] | None = None) -> None:
        settings = {"period": period, "harness": os.getpid(), "launcher": os.getpid(), "paths": [str(ROOT)]}
        self._out = folder / "sampler.events"
        self._ranks: list[subprocess.Popen[bytes]] = []
        argv = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=out)
        self.until(lambda: self.of("sampling"))

    def events(self) -> list[Event]:
        """Everything said so far, in whole lines."""
        found = []
        for line in self._out.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                fields = json.loads(line)
                known = [fields.pop(name) for name in ("seq", "t", "event")]
                found.append(Event(-2, known[0], known[1], known[2], fields))
        return found

    def of(self, name: str) -> list[Event]:
        """The events of one name."""
        return [event for event in self.events() if event.name == name]

    def samples(self) -> list[Any]:
        """The fields of each sample."""
        return [event.fields for event in self.of("sample")]

    def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait for something to be seen."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the sampler ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"not seen in {seconds} s; last: {self.events()[-3:]}"
            time.sleep(0.02)

    def more(self, count: int) -> None:
        """Wait for so many more samples."""
        goal = len(self.samples()) + count
        self.until(lambda: len(self.samples()) >= goal)

    def rank(self, code: str) -> subprocess.Popen[bytes]:
        """Start the next rank in a session of its own and name it to the sampler."""
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        self.say(f"{len(self._ranks)} {process.pid}\n")
        self._ranks.append(process)
        return process

    def say(self, text: str) -> None:
        """Write to the sampler's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def finish(self) -> Event:
        """End standard input and return the last word."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=10) == 0
        return self.events()[-1]

    def close(self) -> None:
        """End the ranks, with their children, and the sampler."""
        for process in self._ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=10)
        self.process.kill()
        self.process.wait(timeout=10)
        assert self.process.stdin is not None
        self.process.stdin.close()


Start = Callable[..., Sampling]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Sampling] = []

    def begin(**settings: Any) -> Sampling:
        running.append(Sampling(tmp_path, **settings))
        return running[-1]

    yield begin
    for sampling in running:
        sampling.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("nvml"))


# The clock.


def test_ticks_stand_still_however_late_a_sample_is() -> None:
    schedule = Schedule(0.1, 50.0)
    assert schedule.next(50.0, 50.0) == pytest.approx(50.1)
    assert schedule.next(50.101, 50.104) == pytest.approx(50.2)
    assert schedule.next(50.23, 50.24) == pytest.approx(50.3)
    assert schedule.missed == 0


def test_ticks_that_went_by_are_counted_and_not_made_up_for() -> None:
    schedule = Schedule(0.1, 50.0)
    schedule.next(50.0, 50.0)
    assert schedule.next(50.1, 50.43) == pytest.approx(50.5)
    assert schedule.missed == 3
    assert schedule.next(50.5, 50.51) == pytest.approx(50.6)
    assert schedule.missed == 3


def test_a_sample_that_is_nearly_a_period_late_stands_for_the_next_tick() -> None:
    schedule = Schedule(0.1, 50.0)
    schedule.next(50.0, 50.0)
    assert schedule.next(50.195, 50.197) == pytest.approx(50.3)
    assert schedule.missed == 1


# Counters.


def test_a_rate_needs_two_readings_of_a_counter_that_grows() -> None:
    rates = Rates()
    assert rates.of(1.0, {"a": 10, "b": 5}) == {"a": None, "b": None}
    assert rates.of(3.0, {"a": 30, "b": 5}) == {"a": 10.0, "b": 0.0}
    assert rates.of(4.0, {"a": 2, "b": 6}) == {"a": None, "b": 1.0}
    assert rates.of(5.0, {"a": 4, "c": 1}) == {"a": 2.0, "c": None}
    assert rates.of(5.0, {"a": 9}) == {"a": None}


@pytest.mark.parametrize(("parts", "sum_"), [([1.0, 2.0], 3.0), ([1.0, None], None), ([], None)])
def test_a_sum_with_an_unknown_part_is_unknown(parts: list[float | None], sum_: float | None) -> None:
    assert procfs.total(parts) == sum_


class Script:
    """Stands for procfs.Process: what each pid's stat says, reading after reading; None once it is gone."""

    readings: dict[int, list[Stat | None]]

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._left = iter(self.readings[pid])

    def read(self) -> Stat | None:
        """The next of them."""
        return next(self._left)

    def close(self) -> None:
        """Nothing is held."""


def stat(ticks: int, reaped: int = 0, state: str = "S") -> Stat:
    return Stat("rank", state, 7, ticks, reaped, threads=1, rss=1000)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> type[Script]:
    monkeypatch.setattr(procfs, "Process", Script)
    return Script


def test_a_ranks_past_is_not_counted(script: type[Script]) -> None:
    script.readings = {7: [stat(900), stat(910)]}
    usage = Session(7).read(0.1)
    assert usage is not None
    assert usage.cores == pytest.approx(10 / procfs.TICKS_PER_SECOND / 0.1)


def test_a_child_that_ended_keeps_its_work(script: type[Script]) -> None:
    script.readings = {7: [stat(0), stat(0), stat(0, reaped=30)], 8: [stat(10), None]}
    session = Session(7)
    session.adopt(8)
    first, second = session.read(1.0), session.read(1.0)
    assert first is not None
    assert second is not None
    assert first.cores == pytest.approx(10 / procfs.TICKS_PER_SECOND)
    assert second.cores == pytest.approx(20 / procfs.TICKS_PER_SECOND)


def test_a_child_that_another_reaped_takes_nothing_away(script: type[Script]) -> None:
    script.readings = {7: [stat(0), stat(5), stat(9)], 8: [stat(500), None]}
    session = Session(7)
    session.adopt(8)
    session.read(1.0)
    usage = session.read(1.0)
    assert usage is not None
    assert usage.cores == pytest.approx(4 / procfs.TICKS_PER_SECOND)


def test_an_account_that_goes_back_has_no_value(script: type[Script]) -> None:
    script.readings = {7: [stat(50), stat(10)]}
    usage = Session(7).read(1.0)
    assert usage is not None
    assert usage.cores is None


@pytest.mark.parametrize("last", [None, stat(10, state="Z")], ids=["gone", "zombie"])
def test_a_rank_that_has_ended_is_absent(script: type[Script], last: Stat | None) -> None:
    script.readings = {7: [stat(0), last]}
    assert Session(7).read(1.0) is None


def test_the_busiest_name_is_found_over_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {
        1: ("init", [0, 0]),
        2: ("cc1plus", [10, 60]),
        3: ("cc1plus", [0, 50]),
        4: ("make", [0, 70]),
        5: ("us", [0, 99]),
    }
    looks = dict.fromkeys(times, 0)

    def look_at(pid: int) -> Stat:
        looks[pid] += 1
        return Stat(times[pid][0], "R", 1, times[pid][1][looks[pid] - 1], 0, 1, 1)

    clock = iter([100.0, 100.0, 100.5, 101.0, 101.0])
    monkeypatch.setattr(procfs, "all_pids", lambda: set(times))
    monkeypatch.setattr(procfs, "look_at", look_at)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    neighbours = procfs.Neighbours()
    assert neighbours.busiest({5}) is None
    assert neighbours.busiest({5}) is None
    assert neighbours.busiest({5}) == ("cc1plus", 100 / procfs.TICKS_PER_SECOND)
    assert looks == {1: 2, 2: 2, 3: 2, 4: 2, 5: 0}


def test_a_folder_without_a_disk_is_named() -> None:
    disks = procfs.Disks(["/proc", "/no/such/folder"])
    assert (disks.names, disks.without) == ([], ["/no/such/folder", "/proc"])
    assert disks.read(1.0) == {"read": None, "write": None}


# Beside real processes.


def test_the_stream_is_whole_and_on_time(start: Start) -> None:
    sampling = start()
    sampling.more(10)
    last = sampling.finish()
    events = sampling.events()
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[0].name == "sampling"
    assert events[0].fields["cpus"] == os.cpu_count()
    assert last.name == "sampled"
    samples = sampling.samples()
    assert last.fields["samples"] == len(samples)
    ticks = sum(sample["dt"] for sample in samples[:-1]) / 0.1
    assert ticks == pytest.approx(len(samples) - 1 + last.fields["missed"], abs=0.6)


def test_a_rank_is_measured_with_its_children(start: Start) -> None:
    sampling = start()
    sampling.rank(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])")
    sampling.more(12)
    ranks = [sample["ranks"] for sample in sampling.samples() if sample["ranks"]["rank"]]
    cores = [rank["cores"][0] for rank in ranks[-8:]]
    assert sum(cores) / len(cores) > 0.25
    assert ranks[-1]["threads"] == [2]
    assert ranks[-1]["state"] == ["S"]
    assert ranks[-1]["rss"][0] > 5_000_000


def test_a_stopped_rank_shows_and_a_dead_one_is_absent(start: Start) -> None:
    sampling = start()
    sampling.rank(IDLE)
    second = sampling.rank(IDLE)
    sampling.more(1)
    sampling.until(lambda: sampling.samples()[-1]["ranks"]["rank"] == [0, 1])
    second.send_signal(signal.SIGSTOP)
    sampling.until(lambda: sampling.samples()[-1]["ranks"]["state"] == ["S", "T"])
    second.kill()
    second.wait(timeout=10)
    sampling.until(lambda: sampling.samples()[-1]["ranks"]["rank"] == [0])
    sampling.finish()
    events = sampling.events()
    assert any("rank 1 was stopped" in told for told in window(events, events[0].t, events[-1].t).disturbances)


def test_a_neighbour_is_told_from_the_ranks(start: Start) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        sampling = start()
        sampling.rank(IDLE)
        sampling.until(lambda: any(sample["neighbour"] for sample in sampling.samples()))
        sampling.more(3)
        sampling.finish()
    finally:
        neighbour.kill()
        neighbour.wait(timeout=10)
    events = sampling.events()
    found = window(events, events[0].t, events[-1].t)
    assert any("other processes used" in told for told in found.disturbances)
    assert found.neighbour is not None
    assert found.neighbour > 0.1


def test_a_sampler_that_is_stopped_counts_what_it_missed(start: Start) -> None:
    sampling = start()
    sampling.more(3)
    sampling.process.send_signal(signal.SIGSTOP)
    time.sleep(0.75)
    sampling.process.send_signal(signal.SIGCONT)
    sampling.more(3)
    last = sampling.finish()
    events = sampling.events()
    found = window(events, events[0].t, events[-1].t)
    assert last.fields["missed"] >= 6
    assert found.missing == pytest.approx(last.fields["missed"], abs=1)
    assert found.coverage is not None
    assert found.coverage < 0.8
    assert "telemetry covers" in found.disturbances[0]


def test_lines_that_name_no_rank_are_told(start: Start) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=10)
    sampling = start()
    sampling.say(f"zero 12\n5 {gone.pid}\n")
    sampling.more(2)
    sampling.finish()
    (misread,) = sampling.of("misread")
    (ghost,) = sampling.of("ghost")
    assert misread.fields["line"] == "zero 12"
    assert (ghost.fields["rank"], ghost.fields["pid"]) == (5, gone.pid)
    assert sampling.samples()[-2]["cores"]["others"] is None


def test_it_costs_little(start: Start) -> None:
    sampling = start()
    sampling.rank(IDLE)
    sampling.rank(IDLE)
    sampling.more(20)
    fields = sampling.finish().fields
    # 1% of a core is what bench/ holds it to; beside other tests it may be twice as slow.
    assert (fields["cpu_seconds"] - fields["start_cpu_seconds"]) / fields["wall"] < 0.02


def test_no_gpu_is_said_and_is_no_zero(start: Start, tmp_path: Path) -> None:
    sampling = start(env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    sampling.more(1)
    (head,) = sampling.of("sampling")
    assert head.fields["gpus"] == []
    assert head.fields["nvml"]["kind"] == "no library"
    assert "gpus" not in sampling.samples()[0]


# Beside GPUs.


@needs_gcc
def test_a_gpu_that_changes_is_followed_live(start: Start, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1, ecc__uncorrected=4)])
    sampling = start(env=standin.environment(library, file))
    sampling.more(3)
    hot: dict[str, str | int | None] = {"reasons": "0x44", "temperature": 91, "xids": "79", "ecc.uncorrected": 6}
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1, **hot)])
    sampling.more(12)
    sampling.finish()
    events = sampling.events()
    uuid = gpu(1)["uuid"]
    assert [event.fields for event in sampling.of("xid")] == [
        {**event.fields, "uuid": uuid, "xid": 79} for event in sampling.of("xid")[:1]
    ]
    assert sampling.samples()[-1]["gpus"]["temperature"] == [35, 91]
    found = window(events, events[0].t, events[-1].t)
    values = {made.planned.id: made.value for made in measurements(found, "job-1")}
    assert values["telemetry.gpu.throttle"] == pytest.approx(1.2, abs=0.35)
    assert (values["telemetry.gpu.xid"], values["telemetry.gpu.ecc"]) == (1, 2)
    assert (values["telemetry.gpu.nvlink"], values["telemetry.gpu.remap"]) == (0, 0)
    told = " | ".join(found.disturbances)
    assert f"{uuid}: HW thermal slowdown" in told
    assert f"Xid 79 (fallen off the bus) on {uuid}" in told
    assert "power cap" not in told
    assert str(gpu(0)["uuid"]) not in told


@needs_gcc
def test_what_a_gpu_lacks_is_said_once_and_left_out(start: Start, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, standin.MACHINE, [gpu(0, power=None, ecc__uncorrected=None), gpu(1)])
    sampling = start(env=standin.environment(library, file))
    sampling.more(5)
    sampling.finish()
    (told,) = sampling.of("unsupported")
    assert told.fields["uuid"] == gpu(0)["uuid"]
    assert sorted(told.fields["metrics"]) == ["ecc_uncorrected", "power"]
    assert {tuple(sample["gpus"]["power"]) for sample in sampling.samples()} == {(None, 70.0)}
    events = sampling.events()
    (ecc,) = [
        made
        for made in measurements(window(events, events[0].t, events[-1].t), "job-1")
        if made.planned.id == "telemetry.gpu.ecc"
    ]
    assert ecc.value is None
    assert "does not support" in ecc.why


@needs_gcc
def test_a_lost_gpu_is_told_and_the_others_go_on(start: Start, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, standin.MACHINE, [gpu(0), gpu(1)])
    sampling = start(env=standin.environment(library, file))
    sampling.more(2)
    standin.write(file, standin.MACHINE, [gpu(0)])
    sampling.more(3)
    sampling.finish()
    faults = sampling.of("nvml_fault")
    assert {fault.fields["uuid"] for fault in faults} == {gpu(1)["uuid"]}
    assert {fault.fields["error"] for fault in faults} == {"GPU is lost"}
    assert len({fault.fields["metric"] for fault in faults}) == len(faults)
    assert sampling.samples()[-1]["gpus"]["power"] == [70.0, None]


class Clock:
    """Time that only this test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class SlowDevice:
    """A device whose every answer takes so many seconds of the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.unsupported: list[str] = []
        self.faults: dict[str, str] = {}

    def read(self, metric: Metric) -> tuple[float, ...]:
        """One for each column, late."""
        self._clock.now += self._seconds
        return (1.0,) * len(metric.columns)


def gpus_of(device: SlowDevice, period: float) -> Gpus:
    """The sampler's part that reads this one device, and has nothing to say of it."""
    inventory = SimpleNamespace(gpus=[SimpleNamespace(uuid=A_UUID)])
    library: Any = SimpleNamespace(devices=[device], faults={}, inventory=inventory)
    emitter: Any = None
    return Gpus(emitter, library, list, period)


A_UUID = str(gpu(0)["uuid"])


def test_counters_that_take_too_long_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = gpus_of(SlowDevice(Clock(monkeypatch), 0.03), period=0.1)
    seen = []
    for tick in range(10, 17):
        counters = gpus.read(tick, every=False).get("counters", {"gpu": []})
        seen.append([name for name, values in counters.items() if name != "gpu" and values != [None]])
    assert seen == [*(list(metric.columns) for metric in SLOW), []]


def test_counters_that_were_due_at_a_missed_tick_are_read_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = gpus_of(SlowDevice(Clock(monkeypatch), 0.0), period=0.25)
    read = [tick for tick in (0, 1, 2, 3, 5, 6, 7, 8, 9, 15, 16) if "counters" in gpus.read(tick, every=False)]
    assert read == [0, 5, 8, 15, 16]


@needs_gcc
def test_slow_nvml_does_not_break_the_period(start: Start, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, {**standin.MACHINE, "delay": 2000}, [gpu(index, **{"field.52": index}) for index in range(8)])
    sampling = start(env=standin.environment(library, file))
    # 8 GPUs of 8 calls of 2 ms are more than a period; every column is read all the same, a part of it at each tick.
    wanted = {
        (column, index) for column in ("reasons", "memory_used", "nvlink_errors", "headroom") for index in range(8)
    }
    sampling.until(lambda: wanted <= read_after(sampling.samples(), 2))
    sampling.more(10)
    samples = sampling.samples()[2:]
    assert sum(sample["dt"] for sample in samples) / len(samples) == pytest.approx(0.1, abs=0.03)


def read_after(samples: list[Any], first: int) -> set[tuple[str, int]]:
    """The column and GPU of every value from a sample on."""
    return {
        (column, gpu)
        for sample in samples[first:]
        for columns in (sample["gpus"], sample.get("counters", {}))
        for column, values in columns.items()
        for gpu, value in zip(columns.get("gpu", range(8)), values, strict=True)
        if value is not None
    }


@needs_gcc
def test_a_broken_driver_is_said(start: Start, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    standin.write(file, {"init": "LIB_RM_VERSION_MISMATCH"}, [gpu(0)])
    sampling = start(env=standin.environment(library, file))
    sampling.more(1)
    (head,) = sampling.of("sampling")
    assert head.fields["nvml"]["kind"] == "library broken"
    assert "mismatch" in head.fields["nvml"]["absent"]
