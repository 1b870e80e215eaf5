"""What the suite launches, where it kills, and which checks it means to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.check import Place, Planned
from seatrial.config import NodeLocal, SharedFilesystem
from seatrial.job import Budget, JobSpec
from seatrial.site import Site
from seatrial.suites import window as windows

STEPS, EVERY, KEEP = 16, 4, 2
"""A run's steps, a checkpoint each so many of them, and how many are kept."""

BATCHES_AN_EPOCH = 13
"""Prime to EVERY, so that every checkpoint falls into the middle of an epoch."""

MIB, GIB = 2**20, 2**30
RATE_BYTES = {"cpu": 16 * MIB, "cuda": 2 * GIB}
"""What is written and read against plain writes and reads, a rank: enough that opening and closing do not count."""
RATE_REPEATS = {"cpu": 20, "cuda": 10}
"""Each rate's repeats: 10 as MLPerf Storage's checkpoint workload has, twice as many where a page cache is shared."""

SMALL: Mapping[str, int] = {"layers": 2, "width": 128, "heads": 4, "context": 32, "vocabulary": 64, "batch": 2}
LARGE: Mapping[str, int] = {"width": 4096, "heads": 32, "context": 512, "vocabulary": 1024, "batch": 4}
MOST_LAYERS = 6
"""With LARGE, 1.2 billion weights: with both moments 14.6 GB a rank, as MLPerf Storage's 70B checkpoint has (14.3)."""
BYTES_A_WEIGHT = 24
"""On the device: weight, gradient, its bucket, two moments and some slack, of 4 bytes each."""


@dataclass(frozen=True)
class Kill:
    """A kill by SIGKILL: a rank waits at a known point, so that it falls there however fast the machine is.

    ``rank`` counts from the end where negative; ``whole`` kills all ranks, not only this one. The job that is killed
    writes its checkpoints with ``engine``.
    """

    name: str
    where: str
    step: int
    rank: int
    whole: bool = False
    engine: str = "shards"

    def victims(self, ranks: int) -> tuple[int, ...]:
        """The ranks that are killed, of so many."""
        return tuple(range(ranks)) if self.whole else (self.rank % ranks,)

    def hold(self, ranks: int) -> dict[str, Any]:
        """The payload's setting."""
        return {"where": self.where, "step": self.step, "rank": self.rank % ranks}


CHAINS: Mapping[str, tuple[Kill, ...]] = {
    "shards": (
        Kill("rank-in-step", "step", 7, -1),
        Kill("rank-in-write", "write", 8, -1),
        Kill("rank-0-in-step", "step", 11, 0),
        Kill("rank-0-before-manifest", "commit", 12, 0),
        Kill("whole-job", "step", 15, 0, whole=True),
    ),
    "dcp": (
        Kill("dcp-async", "step", 7, -1, engine="dcp-async"),
        Kill("dcp", "step", 11, -1, engine="dcp"),
    ),
}
"""Each job of a chain is restored from what the one before has left, and killed in its turn; the last runs to the end.

A wrong restore has nowhere to hide: all that follows must still equal the one run that was never killed.
"""


def model(site: Site) -> dict[str, int]:
    """The model and its steps, as large as the devices allow, up to what a rank of a large training has."""
    if site.device == "cpu":
        return dict(SMALL)
    weights = site.memory_per_rank // 2 // BYTES_A_WEIGHT
    fitting = next((width for width in (4096, 2048, 1024) if 12 * width**2 <= weights), 512)
    layers = max(1, min(MOST_LAYERS, weights // (12 * fitting**2)))
    return {**LARGE, "width": fitting, "layers": layers}


def training(site: Site, name: str, **settings: Any) -> JobSpec:
    """One job of the whole pool; its folder is set when it is launched."""
    sizes = model(site)
    return JobSpec(
        name=f"checkpoint-{name}",
        payload="checkpoint",
        settings={
            **sizes,
            "steps": STEPS,
            "every": EVERY,
            "keep": KEEP,
            "samples": BATCHES_AN_EPOCH * sizes["batch"] * site.ranks,
            "seed": site.seed,
            "device": site.device,
            **settings,
        },
        ranks=site.ranks,
        gpus_per_rank=1 if site.device == "cuda" else 0,
        nodes=site.nodes,
        budget=site.budget(Budget()),
    )


def uninterrupted(site: Site) -> JobSpec:
    """The run that all others are held against; it measures the storage too."""
    return training(site, "uninterrupted", rate_bytes=RATE_BYTES[site.device], rate_repeats=RATE_REPEATS[site.device])


def again(site: Site) -> JobSpec:
    """The same run once more, where it is not known beforehand that a device gives the same bits twice."""
    return training(site, "again")


def link(site: Site, chain: str, number: int) -> JobSpec:
    """A job of a chain: the last one is the one behind the last kill."""
    kills = CHAINS[chain]
    if number == len(kills):
        return training(site, f"{chain}-end", restore=True, engine=kills[-1].engine)
    kill = kills[number]
    return training(site, kill.name, restore=number > 0, engine=kill.engine, hold=kill.hold(site.ranks))


def storage(site: Site) -> SharedFilesystem | NodeLocal | None:
    """Where checkpoints go: the profile's shared file system first, else what each node has."""
    for kind in (SharedFilesystem, NodeLocal):
        for one in site.cluster.storage:
            if isinstance(one, kind):
                return one
    return None


# Checks.


def completion(site: Site) -> list[Planned]:  # noqa: ARG001  (every plan takes the site)
    """The uninterrupted run itself."""
    return [Planned("checkpoint.job.complete")]


def restore(site: Site, chain: str, number: int) -> list[Planned]:  # noqa: ARG001
    """One kill and what came after it."""
    place = Place({"kill": CHAINS[chain][number].name})
    return [
        Planned("checkpoint.restore.equal", place),
        Planned("checkpoint.restore.lost_steps", place),
        Planned("checkpoint.kill.detection", place),
    ]


def torn(site: Site, chain: str) -> list[Planned]:  # noqa: ARG001
    """All loads of a chain."""
    return [Planned("checkpoint.torn.loaded", Place({"chain": chain}))]


def rates(site: Site) -> list[Planned]:
    """Write and read, against plain ones and against what the profile promises."""
    plain = [Planned(f"checkpoint.{way}.rate") for way in ("write", "read")]
    return plain + [Planned(f"checkpoint.{way}.promised") for way in promises(site)]


def promises(site: Site) -> dict[str, float]:
    """The storage's promised rates by way, in GB/s."""
    place = storage(site)
    minimum = place.minimum if place is not None else None
    promised = {} if minimum is None else {"write": minimum.write, "read": minimum.read}
    return {way: rate / 1e9 for way, rate in promised.items() if rate is not None}


def goodput(site: Site) -> list[Planned]:  # noqa: ARG001
    """What all this comes to."""
    return [Planned("checkpoint.goodput.share")]


def window(site: Site) -> list[Planned]:
    """What telemetry must say of the run in which the rates are measured."""
    return windows.planned(site, uninterrupted(site))
