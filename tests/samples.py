"""Records as real runs leave them, made without a cluster: the same call writes the same bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.record import Writer

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
DTYPES = ("float32", "bfloat16")
SIZES = {"4 KiB": 4096, "256 KiB": 262144, "1 MiB": 1048576, "8 MiB": 8388608}
SOURCE = "share of the loopback bandwidth measured in the same run"
NEXT = "run the op alone between pairs: pytest --cluster=NAME suites/nccl -k pairs, then look at the slow pair's link"
HOSTILE = "<script>alert('x')</script>&\"'\x1b[31m\x00\u202egnp.exe"

Where = Mapping[str, str]
Fields = dict[str, Any]


def wobble(seed: int) -> float:
    """A number in [-1, 1] that looks random and is not."""
    return math.sin(seed * 12.9898) * math.cos(seed * 78.233)


class Trial:
    """Writes one run, with the places that a plan of a small or a large cluster has."""

    def __init__(self, path: Path, name: str, nodes: Sequence[str], ranks: int, gpus_per_node: int = 0) -> None:
        self.writer = Writer(path)
        self.nodes = nodes
        self.ranks = ranks
        self.gpus_per_node = gpus_per_node
        self.t = 0.0
        self.checks: list[Fields] = []
        self.name = name

    def open(self, argv: Sequence[str] = ("--cluster=local",)) -> None:
        """The run, the cluster and its nodes."""
        started = "2026-12-01T17:27:33+00:00"
        run_id = "20261201-172733-5f3a"
        versions: Fields = {"seatrial": "0.1.0", "python": "3.11.2", "host": "login-1"}
        self.writer.write("run", 0.0, schema=1, id=run_id, argv=["pytest", *argv], started=started, **versions)
        kind = "slurm" if self.gpus_per_node else "local"
        accelerator = "h100-80gb" if self.gpus_per_node else "cpu"
        pool = {"name": "train", "accelerator": accelerator, "sharing": "full-gpu", "nodes": len(self.nodes)}
        profile = {"name": self.name, "target": {"kind": kind}, "pools": [pool], "prices": {"currency": "USD"}}
        self.writer.write("cluster", 0.02, profile=profile, kind=kind, features=["cpu", "gloo"])
        for index, node in enumerate(self.nodes):
            self._node(index, node, accelerator)
        self.t = 0.1

    def _node(self, index: int, node: str, accelerator: str) -> None:
        gpus = [
            {
                "index": gpu,
                "uuid": f"GPU-{index:04x}{gpu:04x}-5c1d-4f6e",
                "name": "NVIDIA H100 80GB HBM3",
                "memory": 85_520_809_984,
                "pci": f"00000000:{0x18 + gpu:02X}:00.0",
            }
            for gpu in range(self.gpus_per_node)
        ]
        host: Fields = {"name": node, "hostname": f"{node}.example", "cpus": 2, "memory": 25_232_932_864}
        system = {"kernel": "6.1.0-38-cloud-amd64", "accelerator": accelerator, "versions": {"torch": "2.15.0"}}
        driver = {"driver": "575.57.08", "cuda": "12.9"} if gpus else {}
        self.writer.write("node", 0.05, gpus=gpus, **host, **system, **driver)

    def plan(self, checks: Sequence[Fields], notes: Sequence[str] = ()) -> None:
        """The plan of all checks that will be judged, and of those that only the plan has."""
        planned = [
            {"id": c["id"], "where": dict(c["where"]), "test": c.get("test", ""), "bound": c.get("bound") is not None}
            for c in checks
        ]
        armed = sum(item["bound"] for item in planned)
        self.writer.write("plan", 0.1, checks=planned, armed=armed, record_only=len(planned) - armed, notes=list(notes))

    def job(self, job_id: str, seconds: float, **changes: object) -> None:
        """One job of ``seconds``, with its timeline and telemetry."""
        start = self.t
        moments = {
            "submitted": {"t": start, "cause": "launched"},
            "admitted": {"t": start + 0.2, "cause": "the node is free"},
            "started": {"t": start + 2.4, "cause": "every rank joined"},
            "ended": {"t": start + seconds, "cause": "every rank completed"},
        }
        budget = {"queue": 600.0, "start": 120.0, "silence": 60.0, "total": 900.0, "cleanup": 20.0}
        placement = {str(rank): self.nodes[rank * len(self.nodes) // self.ranks] for rank in range(self.ranks)}
        fields: Fields = {
            "id": job_id,
            "payload": "collectives",
            "settings": {"dtype": "float32", "sizes": list(SIZES.values())},
            "nodes": list(self.nodes),
            "ranks": self.ranks,
            "gpus": self.ranks if self.gpus_per_node else 0,
            "queue": None,
            "budget": budget,
            "timeline": moments,
            "state": "completed",
            "cause": "every rank completed",
            "culprits": [],
            "exit": dict.fromkeys(map(str, range(self.ranks)), 0),
            "faults": [],
            "placement": placement,
            "logs": f"logs/{job_id}",
        }
        self.t = start + seconds
        self.writer.write("job", self.t, **(fields | changes))

    def telemetry(self, job_id: str, start: float, seconds: float, gap: bool = False) -> None:
        """Host series at 10 Hz over a job's window; with ``gap``, 2 s of the CPU series are missing."""
        times = [round(start + step / 10, 3) for step in range(int(seconds * 10))]
        hole = (start + seconds / 2, start + seconds / 2 + 2.0)
        for number, node in enumerate(self.nodes):
            for metric, unit, level in (
                ("host.cpu", "%", 88.0),
                ("host.memory", "GB", 6.2),
                ("net.receive", "MB/s", 3),
            ):
                kept = [t for t in times if not (gap and metric == "host.cpu" and hole[0] < t < hole[1])]
                values = [round(level * (1 + 0.08 * wobble(int(t * 10) + 7 * number)), 3) for t in kept]
                gaps = int(len(kept) < len(times))
                at: Fields = {"job": job_id, "node": node, "metric": metric, "unit": unit, "gaps": gaps}
                self.writer.write("series", kept, v=values, **at)
        for rank in range(min(self.ranks, 64)):
            values = [round(91 + 8 * wobble(rank * 1000 + step), 2) for step in range(len(times))]
            place: Fields = {"job": job_id, "node": self.nodes[0], "rank": rank, "metric": "rank.cpu", "unit": "%"}
            self.writer.write("series", times, v=values, gaps=0, **place)

    def gpu_telemetry(self, job_id: str, start: float, seconds: float) -> None:
        """Power and utilisation of every GPU, at 1 Hz."""
        times = [start + step for step in range(int(seconds))]
        for index, node in enumerate(self.nodes):
            for gpu in range(self.gpus_per_node):
                for metric, unit, level in (("gpu.power", "W", 640.0), ("gpu.utilisation", "%", 97.0)):
                    values = [round(level * (1 + 0.03 * wobble(index * 100 + gpu + int(t))), 1) for t in times]
                    at: Fields = {"job": job_id, "node": node, "gpu": f"GPU-{index:04x}{gpu:04x}-5c1d-4f6e"}
                    self.writer.write("series", times, metric=metric, unit=unit, v=values, gaps=0, **at)

    def event(self, job_id: str, rank: int, seq: int, name: str, **said: object) -> None:
        """One event of a rank."""
        self.writer.write("event", self.t, job=job_id, rank=rank, seq=seq, clock=100.0 + seq, name=name, said=said)

    def check(self, fields: Fields) -> None:
        """One check's outcome."""
        self.checks.append(fields)
        self.writer.write("check", self.t, **fields)

    def close(self, verdict: str, reason: str, missing: Sequence[str] = ()) -> None:
        """The verdict over all checks so far."""
        order = ("fail", "error", "inconclusive", "uncalibrated", "waived")
        bad = sorted((c for c in self.checks if c["outcome"] in order), key=lambda c: order.index(c["outcome"]))
        self.writer.write(
            "verdict",
            self.t + 0.3,
            verdict=verdict,
            reason=reason,
            counts=dict(Counter(check["outcome"] for check in self.checks)),
            worst=[check["id"] for check in bad[:3]],
            missing=list(missing),
            gpu_hours=round(self.ranks * self.t / 3600, 3) if self.gpus_per_node else 0.0,
            cost=round(2.1 * self.ranks * self.t / 3600, 2) if self.gpus_per_node else None,
            seconds=self.t + 0.3,
        )

    def abandon(self) -> None:
        """Leave the record as a killed run does."""
        self.writer.close()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.close()


def ratio(low: float, of: str = "nccl.loopback.bandwidth") -> Fields:
    """A ratio bound that asks for at least ``low`` in the check's unit."""
    conditions = "2 ranks on one host, gloo over loopback"
    described = {"source": SOURCE, "date": "2026-11-20", "confidence": "med", "conditions": conditions}
    return {"kind": "ratio", "value": 0.5, "of": of, "limits": [low, None], **described}


def limit(kind: str, value: float) -> Fields:
    """An absolute bound: min, max or equal."""
    limits = {"min": [value, None], "max": [None, value], "equal": [value, value]}[kind]
    described = {"source": "seatrial's own runs on an idle host", "date": "2026-11-20", "confidence": "high"}
    return {"kind": kind, "value": value, "of": None, "limits": limits, "conditions": "idle host", **described}


def busbw(op: str, dtype: str, size: str, seed: int, job: str = "nccl-1", **where: str) -> Fields:
    """A passing bus bandwidth in GB/s that grows with the message."""
    peak = 1.4 if dtype == "float32" else 1.1
    value = peak * SIZES[size] / (SIZES[size] + 150_000) * (1 + 0.05 * wobble(seed))
    return {
        "id": f"nccl.{op}.busbw",
        "outcome": "pass",
        "observed": value,
        "unit": "GB/s",
        "n": 20,
        "interval": [value * 0.96, value * 1.05],
        "bound": ratio(value * 0.62),
        "where": {"dtype": dtype, "size": size, "nodes": "1", **where},
        "test": f"suites/nccl/test_collectives.py::test_bandwidth[{op}-{dtype}]",
        "job": job,
        "reason": "inside its bound",
        "next": NEXT,
        "qualified": [],
    }


def counted(check_id: str, unit: str, where: Where, job: str = "nccl-1", value: float = 0.0) -> Fields:
    """A passing equality."""
    return {
        "id": check_id,
        "outcome": "pass",
        "observed": value,
        "unit": unit,
        "n": 20,
        "bound": limit("equal", value),
        "where": dict(where),
        "test": "suites/nccl/test_collectives.py::test_correct",
        "job": job,
        "reason": "inside its bound",
        "next": "read the first wrong element's rank and offset, then swap that rank's GPU",
    }


def lateness(rank: int, value: float, **where: str) -> Fields:
    """How much of the time a rank lets the others wait."""
    outcome = "pass" if value <= 0.25 else "fail"
    return {
        "id": "nccl.rank.lateness",
        "outcome": outcome,
        "observed": value,
        "unit": "share",
        "n": 40,
        "interval": [value * 0.9, value * 1.1],
        "bound": limit("max", 0.25),
        "where": {"rank": str(rank), **where},
        "test": "suites/nccl/test_lateness.py::test_lateness",
        "job": "nccl-1",
        "reason": "inside its bound" if outcome == "pass" else "outside its bound",
        "next": f"look at the host of rank {rank}: clocks, other processes on its cores, its link's error counters",
    }


def clean(ranks: int) -> Iterator[Fields]:
    """Every check of a small clean trial."""
    for number, op in enumerate(OPS):
        for dtype in DTYPES:
            for place, size in enumerate(list(SIZES)[1:]):
                yield busbw(op, dtype, size, number * 10 + place)
            yield counted(f"nccl.{op}.correct", "wrong elements", {"dtype": dtype})
    for rank in range(ranks):
        yield lateness(rank, 0.06 + 0.03 * abs(wobble(rank + 3)))
    yield counted("nccl.job.complete", "missing ranks", {})
    yield counted("telemetry.host.gaps", "samples", {"node": "node-0"})


def accepted(path: Path) -> Path:
    """A clean run of two CPU ranks: 52 checks, all passed, one of them near its bound."""
    with Trial(path, "local", ["node-0"], ranks=2) as trial:
        trial.open()
        checks = list(clean(2))
        checks[0] |= {"near": True, "bound": ratio(checks[0]["observed"] * 0.955)}
        trial.plan(checks, ["thresholds/cpu.yaml: nccl.gather.busbw is used by no check of this run"])
        _jobs(trial)
        for check in checks:
            trial.check(check)
        trial.close("accepted", "every required check passed")
    return path


def _jobs(trial: Trial) -> None:
    for number, seconds in enumerate((14.0, 11.5), start=1):
        start = trial.t
        trial.event(f"nccl-{number}", 0, 0, "yardstick", loopback=2.6)
        trial.job(f"nccl-{number}", seconds)
        trial.telemetry(f"nccl-{number}", start, seconds)


def rejected(path: Path) -> Path:
    """A run with every outcome: a slow rank, a wrong element, a lost metric, a waiver, an error, a missing check."""
    with Trial(path, "lab-hosts", ["node-0", "node-1"], ranks=8) as trial:
        trial.open(["--cluster=lab-hosts", "--run-dir=runs/a b"])
        checks = [_spoilt(check) for check in clean(8)]
        checks += [busbw("all_reduce", "float32", "1 MiB", 7, pair="node-0:node-1")]
        trial.plan([*checks, counted("nccl.all_gather.correct", "wrong elements", {"dtype": "float16"})])
        trial.writer.write(
            "waiver",
            0.1,
            check="nccl.broadcast.busbw",
            owner="j.doe",
            reason="switch firmware due in week 51",
            expires="2026-12-31",
        )
        start = trial.t
        trial.job("nccl-1", 14.0)
        trial.telemetry("nccl-1", start, 14.0, gap=True)
        _died(trial)
        for check in checks:
            trial.check(check)
        missing = ["nccl.all_gather.correct [dtype=float16]"]
        trial.close("rejected", "3 checks are outside their bounds", missing)
    return path


def _died(trial: Trial) -> None:
    start = trial.t
    timeline = {
        "submitted": {"t": start, "cause": "launched"},
        "admitted": {"t": start + 0.1, "cause": "the nodes are free"},
        "started": {"t": start + 1.9, "cause": "every rank joined"},
        "ended": {"t": start + 6.0, "cause": "rank 5 was ended by SIGKILL"},
    }
    exits: dict[str, int | None] = dict.fromkeys(map(str, range(8)), -15)
    exits |= {"5": -9, "7": None}
    faults = ["rank 5, event line 41: truncated (the stream ends inside a line)"]
    ended = {"state": "a rank died", "cause": "rank 5 was ended by SIGKILL", "culprits": [5], "exit": exits}
    trial.job("nccl-2", 6.0, timeline=timeline, faults=faults, **ended)


def _spoilt(check: Fields) -> Fields:
    """The check as the faulty cluster leaves it."""
    for check_id, where, spoil in SPOILT:
        if check["id"] == check_id and where.items() <= check["where"].items():
            return check | spoil(check)
    return check


UNMEASURED: Fields = {"observed": None, "interval": None, "n": 0}
UNBOUND: Fields = {"outcome": "uncalibrated", "bound": None, "reason": "no bound with a source exists for this place"}
UNABLE: Fields = {"outcome": "skip", "bound": None, "reason": "gloo of torch 1.13 has no all_to_all"}
REFUSED: Fields = {"outcome": "error", "reason": "the target refused us: permission denied", "next": ""}
SILENT: Fields = {"outcome": "inconclusive", "reason": "the sampler of node-1 fell silent after 7.0 s", "next": ""}
THROTTLED = "node-1: CPU 0 throttled for 3.1 s"


def _missed(check: Fields, by: float, outcome: str = "fail", reason: str = "outside its bound") -> Fields:
    return {"outcome": outcome, "reason": reason, "bound": ratio(check["observed"] * by)}


def _wrong(_: Fields) -> Fields:
    detail = "rank 3: first wrong element at offset 70144, expected 12.0, observed 12.5"
    return {"outcome": "fail", "observed": 128.0, "reason": "outside its bound", "detail": detail}


def _disturbed(check: Fields) -> Fields:
    reason = f"outside its bound, in a disturbed window: {THROTTLED}"
    return _missed(check, 1.2, "inconclusive", reason) | {"qualified": [THROTTLED]}


SPOILT: Sequence[tuple[str, Where, Callable[[Fields], Fields]]] = (
    ("nccl.rank.lateness", {"rank": "5"}, lambda _: lateness(5, 0.61)),
    ("nccl.all_to_all.correct", {"dtype": "bfloat16"}, _wrong),
    ("nccl.all_reduce.busbw", {"dtype": "float32", "size": "1 MiB"}, lambda check: _missed(check, 1.4)),
    ("nccl.sendrecv.busbw", {"size": "8 MiB"}, _disturbed),
    ("nccl.broadcast.busbw", {"size": "256 KiB"}, lambda check: _missed(check, 1.1, "waived", "waived by j.doe")),
    ("nccl.reduce_scatter.busbw", {"dtype": "bfloat16"}, lambda _: UNBOUND),
    ("nccl.all_to_all.busbw", {"dtype": "bfloat16"}, lambda _: UNMEASURED | UNABLE),
    ("telemetry.host.gaps", {}, lambda _: UNMEASURED | SILENT),
    ("nccl.job.complete", {}, lambda _: UNMEASURED | REFUSED),
)


def unfinished(path: Path) -> Path:
    """A run that was killed: half of the checks, no verdict, the last line torn."""
    with Trial(path, "local", ["node-0"], ranks=2) as trial:
        trial.open()
        checks = list(clean(2))
        trial.plan(checks)
        trial.job("nccl-1", 14.0)
        for check in checks[:20]:
            trial.check(check)
        trial.abandon()
    with path.open("ab") as file:
        file.write(b'{"type":"check","t":25.4,"id":"nccl.broad')
    return path


def hostile(path: Path) -> Path:
    """A run whose every name tries to break out of the report."""
    with Trial(path, HOSTILE, [HOSTILE], ranks=2) as trial:
        trial.open([HOSTILE])
        check = busbw("all_reduce", HOSTILE, "1 MiB", 1, node=HOSTILE)
        hurt = {"outcome": "fail", "unit": HOSTILE, "reason": HOSTILE, "next": HOSTILE, "qualified": [HOSTILE]}
        late = lateness(0, 0.7) | {"unit": HOSTILE}
        trial.plan([check, late], [HOSTILE])
        start = trial.t
        trial.job(HOSTILE, 5.0, state=HOSTILE, cause=HOSTILE, faults=[HOSTILE])
        trial.telemetry(HOSTILE, start, 5.0)
        times = [start, start + 1]
        at: Fields = {"job": HOSTILE, "node": HOSTILE, "metric": HOSTILE, "unit": HOSTILE}
        trial.writer.write("series", times, v=[1.0, 2.0], gaps=0, **at)
        trial.writer.write("waiver", trial.t, check=HOSTILE, owner=HOSTILE, reason=HOSTILE, expires=HOSTILE)
        trial.check(check | hurt | {"id": f"nccl.{HOSTILE}.busbw"})
        trial.check(late)
        trial.close("rejected", HOSTILE, [HOSTILE])
    return path


def large(path: Path, ranks: int = 1000) -> Path:
    """A cluster of 125 nodes and 1,000 GPUs: 5,000 checks, one slow node, GPU telemetry of every device."""
    nodes = [f"gpu-{index:03d}" for index in range(ranks // 8)]
    with Trial(path, "acme-h100", nodes, ranks=ranks, gpus_per_node=8) as trial:
        trial.open(["--cluster=acme-h100"])
        checks = list(_fleet(nodes, ranks))
        trial.plan(checks)
        start = trial.t
        trial.job("nccl-1", 300.0)
        trial.gpu_telemetry("nccl-1", start, 300.0)
        for check in checks:
            trial.check(check)
        trial.close("rejected", "checks are outside their bounds")
    return path


def _fleet(nodes: Sequence[str], ranks: int) -> Iterator[Fields]:
    for rank in range(ranks):
        yield lateness(rank, 0.4 if rank // 8 == 17 else 0.08 + 0.04 * abs(wobble(rank)), node=nodes[rank // 8])
    for seed, node in enumerate(nodes):
        for op in OPS[:4]:
            for size in SIZES:
                for dtype in DTYPES:
                    yield _slow_on(nodes[17], busbw(op, dtype, size, seed, node=node))


def _slow_on(bad: str, check: Fields) -> Fields:
    if check["where"]["node"] != bad:
        return check
    low = check["observed"] * 1.3
    return check | {"outcome": "fail", "bound": ratio(low), "reason": "outside its bound"}
