"""What a suite needs to know of a cluster to plan its jobs: read once, before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.config import Cluster
from seatrial.errors import UsageError
from seatrial.job import Budget

MIN_RANKS, MAX_CPU_RANKS = 2, 8
"""A collective needs two ranks; more CPU ranks than eight measure the scheduler, not the cluster."""


@dataclass(frozen=True)
class Site:
    """A pool of a cluster, with ``auto`` resolved.

    ``memory_per_rank`` is bytes of the device that a rank works on: a GPU's memory, or its share of the host's.
    """

    cluster: Cluster
    selectors: Mapping[str, str]
    device: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    memory_per_rank: int
    seed: int

    @property
    def ranks(self) -> int:
        """Ranks of a job on the whole pool."""
        return self.nodes * self.ranks_per_node

    def context(self, **place: str) -> dict[str, str]:
        """What bounds are looked up by: the pool's selectors, the size of the job, the check's own place."""
        return {**self.selectors, "device": self.device, "nodes": str(self.nodes), "ranks": str(self.ranks), **place}

    def budget(self, default: Budget) -> Budget:
        """A job's budgets: the suite's, overridden by the profile's."""
        return self.cluster.budget(default)


def survey(cluster: Cluster, seed: int) -> Site:
    """Resolve a profile's pool against what is there.

    Raises:
        UsageError: the kind of target is not available.
        seatrial.errors.AccessError: this machine has a GPU that cannot be opened.
    """
    if cluster.target.kind != "local":
        raise UsageError(f"{cluster.name}: target kind {cluster.target.kind!r} cannot be launched on yet; use 'local'")
    from seatrial.target.local import find_node  # noqa: PLC0415  (the target's own imports are paid when it is used)

    node, pool = find_node(), cluster.pools[0]
    gpus = len(node.gpus) if pool.gpus_per_node == "auto" else pool.gpus_per_node
    gpus = 0 if pool.accelerator == "cpu" else gpus
    ranks = gpus or max(MIN_RANKS, min(node.cpus, MAX_CPU_RANKS))
    accelerator = node.accelerator if pool.accelerator == "auto" else pool.accelerator
    return Site(
        cluster=cluster,
        selectors={
            "accelerator": accelerator,
            "topology": pool.topology,
            "fabric": pool.fabric,
            "workload": pool.workload,
            "sharing": pool.sharing,
        },
        device="cuda" if gpus else "cpu",
        nodes=pool.nodes,
        ranks_per_node=ranks,
        gpus_per_node=gpus,
        memory_per_rank=node.gpus[0].memory if gpus and node.gpus else node.memory // ranks,
        seed=seed,
    )
