"""What the suite launches and which checks it means to judge; one rank is one device."""

from __future__ import annotations

from seatrial.check import Place, Planned
from seatrial.job import Budget, JobSpec
from seatrial.site import Site
from seatrial.suites import window

MIB, GIB = 2**20, 2**30
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16", "float16", "tf32", "float32")}
MATRIX = {"cpu": 512, "cuda": 8192}
"""Rows of the square matrices: large enough that the arithmetic counts, not the memory; on a core, so small that what
the host does beside it falls between two repeats, not into each."""
MEMORY = {"cpu": 128 * MIB, "cuda": 2 * GIB}
"""Bytes of each buffer; the payload takes more where four times the last cache is more."""
PARTS = {"cpu": 8, "cuda": 1}
"""The pieces in which a buffer's traffic is timed, for the same reason."""
COPIES = 512 * MIB
"""Bytes of a copy between host and GPU, as nvbandwidth's default."""
WARMUP, REPEATS, COPY_REPEATS = 2, 96, 10
SOAK_SECONDS = {"cpu": 5.0, "cuda": 60.0}
SOAK_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}

KINDS = ("copy", "triad")
DIRECTIONS = ("h2d", "d2h")
CONDITIONS = (
    "health.ecc.uncorrected",
    "health.remap.pending",
    "health.remap.failure",
    "health.pages.pending",
    "health.pcie.width",
    "health.pcie.generation",
    "health.nvlink.down",
    "health.nvlink.speed",
)


def checkup(site: Site) -> JobSpec:
    """All devices of the pool in one job."""
    return JobSpec(
        name="health",
        payload="health",
        settings={
            "dtypes": list(DTYPES[site.device]),
            "matrix": MATRIX[site.device],
            "memory": MEMORY[site.device],
            "parts": PARTS[site.device],
            "copies": COPIES,
            "warmup": WARMUP,
            "repeats": REPEATS,
            "copy_repeats": COPY_REPEATS,
            "soak_s": SOAK_SECONDS[site.device],
            "soak_dtype": SOAK_DTYPE[site.device],
            "seed": site.seed,
            "device": site.device,
        },
        ranks=site.ranks,
        gpus_per_rank=1 if site.device == "cuda" else 0,
        nodes=site.nodes,
        budget=site.budget(Budget()),
    )


def completion(site: Site) -> list[Planned]:  # noqa: ARG001  (every plan takes the site)
    """The job itself."""
    return [Planned("health.job.complete")]


def _each(site: Site, *checks: str, **where: str) -> list[Planned]:
    return [Planned(check, Place({"rank": str(rank), **where})) for rank in range(site.ranks) for check in checks]


def products(site: Site) -> list[Planned]:
    """Every device in every dtype."""
    return [
        planned
        for dtype in DTYPES[site.device]
        for planned in _each(site, "health.gemm.correct", "health.gemm.tflops", dtype=dtype)
    ]


def memory(site: Site) -> list[Planned]:
    """Every device's memory."""
    rates = [planned for kind in KINDS for planned in _each(site, "health.memory.bandwidth", kind=kind)]
    return [*_each(site, "health.memory.correct"), *rates]


def copies(site: Site) -> list[Planned]:
    """Every GPU's way to its host and back."""
    return _each(site, "health.copy.correct", *(f"health.copy.{direction}" for direction in DIRECTIONS))


def soak(site: Site) -> list[Planned]:
    """Every device under load for a while."""
    return _each(site, "health.soak.correct", "health.soak.retained")


def peers(site: Site) -> list[Planned]:
    """Every device against those beside it."""
    return _each(site, "health.device.share")


def fleet(site: Site) -> list[Planned]:  # noqa: ARG001
    """All devices of a kind together."""
    return [Planned("health.device.outlier")]


def condition(site: Site) -> list[Planned]:
    """What each GPU says of itself."""
    return _each(site, *CONDITIONS)


def quiet(site: Site) -> list[Planned]:
    """What telemetry must say of the job's window."""
    return window.planned(site, checkup(site))
