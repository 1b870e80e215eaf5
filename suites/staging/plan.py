"""What the suite launches and which checks it means to judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.check import Place, Planned
from seatrial.config import NodeLocal, ObjectStorage, SharedFilesystem
from seatrial.job import Budget, JobSpec
from seatrial.site import Site
from seatrial.suites import window

KIB, MIB = 2**10, 2**20
STATES = ("cold", "warm")
STREAMS = (1, 2, 4, 8)
JUDGED_STREAMS = 4
"""The streams whose throughput is held against cp; the others show how it scales."""

ROUNDS, SCALING_ROUNDS = 9, 3
"""Nine copies in turns with cp: the median's 95% interval is then from the second to the eighth of them."""

SIZES: Mapping[str, Mapping[str, int]] = {
    "cpu": {"shards": 4, "shard_bytes": 8 * MIB, "small": 200, "small_bytes": 16 * KIB, "weights_bytes": 32 * MIB},
    "cuda": {
        "shards": 4,
        "shard_bytes": 512 * MIB,
        "small": 2000,
        "small_bytes": 64 * KIB,
        "weights_bytes": 4096 * MIB,
    },
}
"""The seeded data set and the weights: on a GPU node large enough to leave the storage's own caches behind."""

FEED: Mapping[str, Mapping[str, int]] = {
    "cpu": {"batch": 16, "sample_bytes": 16 * KIB, "step_ms": 50, "steps": 25, "workers": 1},
    "cuda": {"batch": 400, "sample_bytes": 147 * KIB, "step_ms": 224, "steps": 25, "workers": 8},
}
"""The training loop. On cuda MLPerf Storage's resnet50 on an H100: batches of 400 samples of 147 KiB, 0.224 s each
(mlcommons/storage, commit caa90c9c, configs/dlio/workload)."""


def staging(site: Site) -> JobSpec:
    """One process a node does all phases."""
    cluster = site.cluster
    return JobSpec(
        name="staging",
        payload="staging",
        settings={
            "seed": site.seed,
            "source": next((one.path for one in cluster.storage if isinstance(one, SharedFilesystem)), ""),
            "target": next((one.path for one in cluster.storage if isinstance(one, NodeLocal)), ""),
            "streams": list(STREAMS),
            "judged_streams": JUDGED_STREAMS,
            "rounds": ROUNDS,
            "scaling_rounds": SCALING_ROUNDS,
            "datasets": {one.name: {"uri": one.uri, "manifest": one.manifest or ""} for one in cluster.datasets},
            "objects": {one.name: _bucket(one) for one in cluster.storage if isinstance(one, ObjectStorage)},
            "promised": {name: path for name, path, _, _ in promises(site)},
            **SIZES[site.device],
            **FEED[site.device],
        },
        ranks=site.nodes,
        gpus_per_rank=1 if site.device == "cuda" else 0,
        nodes=site.nodes,
        budget=site.budget(Budget()),
    )


def _bucket(one: ObjectStorage) -> dict[str, Any]:
    return {
        "uri": one.uri,
        "endpoint": one.endpoint or "",
        "region": one.region or "",
        "credentials": one.credentials,
    }


def promises(site: Site) -> Iterator[tuple[str, str, str, float]]:
    """What the profile's storages promise: name, path, ``read`` or ``write``, and the rate in GB/s."""
    for one in site.cluster.storage:
        if isinstance(one, ObjectStorage) or one.minimum is None:
            continue
        for op, rate in (("write", one.minimum.write), ("read", one.minimum.read)):
            if rate is not None:
                yield one.name, one.path, op, rate / 1e9


def _each(site: Site, check: str, **place: str) -> list[Planned]:
    """A check on every node, which its rank names."""
    return [Planned(check, Place({"rank": str(rank), **place})) for rank in range(site.nodes)]


def completion(site: Site) -> list[Planned]:  # noqa: ARG001  (every plan takes the site)
    """The job itself."""
    return [Planned("staging.job.complete")]


def space(site: Site) -> list[Planned]:
    """Room for what is staged."""
    return _each(site, "staging.space.enough")


def copies(site: Site) -> list[Planned]:
    """Every copy of the seeded data set."""
    return _each(site, "staging.copy.complete")


def throughput(site: Site, state: str) -> list[Planned]:
    """Held against cp."""
    return _each(site, f"staging.{state}.throughput")


def scaling(site: Site, state: str) -> list[Planned]:
    """Each number of streams, held against one."""
    counts = [str(streams) for streams in STREAMS if streams > 1]
    return [one for count in counts for one in _each(site, "staging.scaling.throughput", state=state, streams=count)]


def resume(site: Site) -> list[Planned]:
    """The staging that is killed."""
    checks = ("staging.resume.recopied", "staging.resume.half_files", "staging.resume.complete")
    return [one for check in checks for one in _each(site, check)]


def weights(site: Site) -> list[Planned]:
    """A model's weights."""
    return [*_each(site, "staging.weights.complete"), *_each(site, "staging.weights.second_start")]


def loader(site: Site) -> list[Planned]:
    """The training loop."""
    return _each(site, "staging.loader.wait")


def own(site: Site) -> list[Planned]:
    """The user's own data sets."""
    return [
        planned
        for one in site.cluster.datasets
        for check in ("staging.dataset.space", "staging.dataset.complete")
        for planned in _each(site, check, dataset=one.name)
    ]


def buckets(site: Site) -> list[Planned]:
    """Object storages."""
    names = [one.name for one in site.cluster.storage if isinstance(one, ObjectStorage)]
    checks = ("complete", "multipart", "ranges", "refusals")
    return [
        planned
        for name in names
        for check in checks
        for planned in _each(site, f"staging.object.{check}", storage=name)
    ]


def promised(site: Site) -> list[Planned]:
    """The rates of the profile, of all nodes together."""
    return [Planned(f"staging.promised.{op}", Place({"storage": name})) for name, _, op, _ in promises(site)]


def quiet(site: Site) -> list[Planned]:
    """The job's window."""
    return window.planned(site, staging(site))
