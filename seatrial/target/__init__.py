"""The targets: one file a kind, each the six methods of seatrial.job.Target, imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.errors import UsageError

if TYPE_CHECKING:
    from seatrial.config import Cluster
    from seatrial.job import Target
    from seatrial.target.local import Workshop


def open_target(cluster: Cluster, workshop: Workshop) -> Target:
    """Open the target that a profile describes.

    Raises:
        UsageError: its kind cannot be launched on.
        seatrial.errors.AccessError: it cannot be reached.
    """
    target = cluster.target
    if target.kind == "local":
        from seatrial.target.local import LocalTarget  # noqa: PLC0415

        return LocalTarget(workshop, target.python, target.env)
    raise UsageError(f"{cluster.name}: target kind {target.kind!r} cannot be launched on yet; use 'local'")
