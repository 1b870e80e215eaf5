"""What the suite launches and which checks it means to judge."""

from __future__ import annotations

from seatrial.check import Place, Planned
from seatrial.job import Budget, JobSpec
from seatrial.quantity import format_bytes
from seatrial.site import Site
from seatrial.suites import window

OPS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
DTYPES: tuple[str, ...] = ("float32", "bfloat16")
KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES: dict[str, tuple[int, ...]] = {
    "cpu": (64 * KIB, 4 * MIB, 16 * MIB),
    "cuda": (1 * MIB, 64 * MIB, 1 * GIB, 8 * GIB, 16 * GIB),
}
"""Message sizes in bytes, as nccl-tests counts them: the smallest shows latency, the largest bandwidth."""

WARMUP, ITERATIONS = 2, 20
"""Twenty timed iterations, as nccl-tests' default; fixed in advance, all kept."""


def sizes(site: Site) -> tuple[int, ...]:
    """The sweep's sizes on this site, in bytes."""
    return SIZES[site.device]


def sweep(site: Site) -> JobSpec:
    """All collectives at all sizes in one job of the whole pool."""
    return JobSpec(
        name="collectives",
        payload="collectives",
        settings={
            "ops": list(OPS),
            "dtypes": list(DTYPES),
            "sizes": list(sizes(site)),
            "warmup": WARMUP,
            "iterations": ITERATIONS,
            "seed": site.seed,
            "device": site.device,
        },
        ranks=site.ranks,
        gpus_per_rank=1 if site.device == "cuda" else 0,
        nodes=site.nodes,
        budget=site.budget(Budget()),
    )


def engine(site: Site) -> JobSpec:
    """The image's own all_reduce_perf over all GPUs of one node."""
    largest = sizes(site)[-1]
    arguments = ["-b", str(sizes(site)[0]), "-e", str(largest), "-f", "2", "-g", str(site.gpus_per_node), "-w", "5"]
    return JobSpec(
        name="all_reduce_perf",
        payload="nccl-tests",
        settings={"program": "all_reduce_perf", "args": [*arguments, "-n", str(ITERATIONS), "-c", "1"]},
        ranks=1,
        gpus_per_rank=site.gpus_per_node,
        budget=site.budget(Budget()),
    )


def completion(site: Site) -> list[Planned]:  # noqa: ARG001  (every plan takes the site)
    """The job itself."""
    return [Planned("nccl.job.complete")]


def collective(site: Site, op: str, dtype: str) -> list[Planned]:
    """One collective in one dtype: right at all sizes, fast at all but the smallest, which is latency."""
    judged = [Place({"dtype": dtype, "size": format_bytes(size)}) for size in sizes(site)[1:]]
    speed = [Planned(f"nccl.{op}.busbw", place) for place in judged]
    return [Planned(f"nccl.{op}.correct", Place({"dtype": dtype})), *speed]


def size_of(planned: Planned, site: Site) -> int:
    """The size in bytes that a planned check names."""
    return next(size for size in sizes(site) if format_bytes(size) == planned.place.where["size"])


def lateness(site: Site) -> list[Planned]:
    """Every rank."""
    return [Planned("nccl.rank.lateness", Place({"rank": str(rank)})) for rank in range(site.ranks)]


def transport(site: Site) -> list[Planned]:  # noqa: ARG001
    """What NCCL chose."""
    return [Planned("nccl.transport.kind")]


def expected_transports(site: Site) -> frozenset[str]:
    """The transports that a pool's topology and fabric promise, as NCCL's log names them."""
    promised = {"SHM", "P2P"} if "nvlink" not in site.selectors["topology"] else {"P2P", "NVLS"}
    if site.nodes > 1:
        fabric = site.selectors["fabric"]
        promised |= {"NET/IB"} if "infiniband" in fabric or "roce" in fabric else set()
        promised |= {"NET/OFI"} if "efa" in fabric else set()
        promised |= {"NET/Socket"} if "ethernet" in fabric or "socket" in fabric else set()
    return frozenset(promised)


def quiet(site: Site) -> list[Planned]:
    """What telemetry must say of the sweep's window."""
    return window.planned(site, sweep(site))


def perf(site: Site) -> list[Planned]:
    """The largest size of the other engine."""
    return [Planned("nccl.all_reduce_perf.busbw", Place({"size": format_bytes(sizes(site)[-1])}))]
