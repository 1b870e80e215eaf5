"""What every suite asks of the window in which its job ran: that it was seen, and that it was quiet."""

from __future__ import annotations

from seatrial.check import Place, Planned
from seatrial.fixtures import Check
from seatrial.job import JobSpec, Result
from seatrial.site import Site
from seatrial.telemetry.measure import UNITS, does_not_apply, measurements
from seatrial.telemetry.window import Window


def planned(site: Site, job: JobSpec) -> list[Planned]:
    """The checks of a job's window; the devices' own where there are devices."""
    checks = [check for check in UNITS if site.device == "cuda" or not check.startswith("telemetry.gpu.")]
    return [Planned(check, Place({"job": job.name})) for check in checks]


def judge(check: Check, site: Site, result: Result, window: Window) -> None:
    """Judge what telemetry says of a job's window."""
    job, gpus = result.spec.name, site.device == "cuda"
    for measurement in measurements(window, job, gpus=gpus):
        check.measured(measurement, result=result)
    if gpus:
        for lacking, reason in does_not_apply(window, job, gpus=gpus).items():
            check.skip(lacking, reason)
