"""The checks that telemetry itself makes of a job's window (``checks.yaml``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from seatrial.check import Measurement, Place, Planned
from seatrial.telemetry.numbers import LEAST_COVERAGE, Count
from seatrial.telemetry.window import Window

UNITS = {
    "telemetry.window.coverage": "share",
    "telemetry.host.neighbour": "share",
    "telemetry.host.steal": "share",
    "telemetry.gpu.throttle": "s",
    "telemetry.gpu.xid": "count",
    "telemetry.gpu.ecc": "count",
    "telemetry.gpu.nvlink": "count",
    "telemetry.gpu.remap": "count",
}
"""Every check and its unit."""


def measurements(window: Window, job: str, *, gpus: bool | None = None) -> list[Measurement]:
    """One measurement for each check that applies to the node; ``does_not_apply`` has the others.

    Args:
        window: what telemetry says of the job's window.
        job: its id, which is the checks' place.
        gpus: whether the node has GPUs; None believes the sampler.
    """
    found = [_coverage(window, job), _neighbour(window, job), _steal(window, job)]
    if gpus is None:
        gpus = bool(window.gpus) or window.broken is not None
    return [*found, *_of_gpus(window, job)] if gpus else found


def does_not_apply(window: Window, job: str, *, gpus: bool | None = None) -> Mapping[Planned, str]:
    """The checks that ``measurements`` leaves out, each with the reason."""
    made = {measurement.planned.id for measurement in measurements(window, job, gpus=gpus)}
    reason = "no GPU of this node has NVLink" if "telemetry.gpu.xid" in made else "no GPU on this node"
    return {_planned(check, job): reason for check in UNITS if check not in made}


def _planned(check: str, job: str) -> Planned:
    return Planned(check, Place({"job": job}))


def _measurement(
    check: str, window: Window, job: str, value: float | None, why: str = "", detail: str = ""
) -> Measurement:
    planned = _planned(check, job)
    return Measurement(planned, value, UNITS[check], n=window.samples, why=why if value is None else "", detail=detail)


def _coverage(window: Window, job: str) -> Measurement:
    value = window.coverage or None
    detail = f"{window.samples} samples, {window.missing} missing" if value else ""
    return _measurement("telemetry.window.coverage", window, job, value, "no sample in the window", detail)


def _neighbour(window: Window, job: str) -> Measurement:
    detail = f"busiest: {window.neighbour_name}" if window.neighbour_name else ""
    return _measurement("telemetry.host.neighbour", window, job, window.neighbour, _too_little(window), detail)


def _steal(window: Window, job: str) -> Measurement:
    return _measurement("telemetry.host.steal", window, job, window.steal, _too_little(window))


def _too_little(window: Window) -> str:
    return f"CPU accounts cover less than {LEAST_COVERAGE:.0%} of the window's {window.seconds:.1f} s"


def _of_gpus(window: Window, job: str) -> Iterator[Measurement]:
    if not window.gpus:
        why = window.broken or "the sampler saw no GPU"
        for check in UNITS:
            if check.startswith("telemetry.gpu."):
                yield _measurement(check, window, job, None, why)
        return
    yield _throttle(window, job)
    yield _xid(window, job)
    yield _total("telemetry.gpu.ecc", window, job, window.ecc)
    yield _total("telemetry.gpu.remap", window, job, window.remap)
    if window.nvlink:
        yield _total("telemetry.gpu.nvlink", window, job, window.nvlink)


def _throttle(window: Window, job: str) -> Measurement:
    """Seconds of the GPU that was throttled longest."""
    unseen = {
        gpu: f"its clock event reasons were read for {throttle.seen:.1f} of {window.seconds:.1f} s"
        for gpu, throttle in window.throttle.items()
        if throttle.seen < LEAST_COVERAGE * window.seconds
    }
    failing = {gpu: throttle.fail for gpu, throttle in window.throttle.items() if throttle.fail}
    return _over_gpus("telemetry.gpu.throttle", window, job, max(failing.values(), default=0.0), failing, unseen)


def _xid(window: Window, job: str) -> Measurement:
    unseen = dict(window.xids_unseen)
    if (window.coverage or 0.0) < LEAST_COVERAGE:
        unseen["all GPUs"] = f"telemetry covers {window.coverage or 0.0:.0%} of the window"
    told = {f"{xid.uuid} Xid": xid.xid for xid in window.xids}
    return _over_gpus("telemetry.gpu.xid", window, job, len(window.xids), told, unseen)


def _total(check: str, window: Window, job: str, counts: Mapping[str, Count]) -> Measurement:
    unseen = {gpu: count.why for gpu, count in counts.items() if count.value is None}
    found = {gpu: count.value for gpu, count in counts.items() if count.value}
    return _over_gpus(check, window, job, sum(found.values()), found, unseen)


def _over_gpus(
    check: str, window: Window, job: str, value: float, found: Mapping[str, float], unseen: Mapping[str, str]
) -> Measurement:
    """A number over all GPUs; nothing found is a zero only where every GPU was seen."""
    blind = "; ".join(f"{gpu}: {why}" for gpu, why in unseen.items())
    told = "; ".join(f"{gpu}: {number:g}" for gpu, number in found.items())
    if blind and not found:
        return _measurement(check, window, job, None, f"not seen on {blind}")
    detail = "; ".join(part for part in (told, f"not seen on {blind}" if blind else "") if part)
    return _measurement(check, window, job, value, detail=detail)
