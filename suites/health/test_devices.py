"""Each device works alone: every result is exact, none is behind its peers, and none tires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seatrial.check import Place, Planned
from seatrial.fixtures import Check, Launch, Telemetry
from seatrial.site import Site
from seatrial.suites import completion, window

from . import condition, devices, plan
from .devices import Compared, Device, Health, Share, Work

ALONE = "the only device of its kind on its node: it has no peer"

OUTLIER_DISTANCE, OUTLIER_EFFECT, OUTLIER_FLEET = 3.0, 0.035, 5
"""Azure/ai-infrastructure-on-azure (commit a01b0731): z < -3 drains a node, -3.5% warns. With fewer than five devices
the median absolute deviation is a matter of two of them."""


@pytest.fixture(scope="module")
def health(launch: Launch, site: Site) -> Iterator[Health]:
    with launch(plan.checkup(site)) as job:
        yield Health(job.wait())


@pytest.mark.trial(job=plan.checkup, checks=plan.completion)
def test_every_device_completes(health: Health, check: Check) -> None:
    completion.judge(check, "health.job.complete", health.result, completion.rows_done)


def at(check: str, device: Device, **where: str) -> Planned:
    """A planned check of one device."""
    return Planned(check, Place({"rank": str(device.rank), **where}))


@pytest.mark.trial(job=plan.checkup, checks=plan.products)
def test_products(health: Health, site: Site, check: Check) -> None:
    completion.sound(health.result)
    for dtype in plan.DTYPES[site.device]:
        lacking, work = health.unsupported("gemm", dtype), devices.gemm(dtype)
        for device in health.devices():
            right, fast = (at(f"health.gemm.{what}", device, dtype=dtype) for what in ("correct", "tflops"))
            if lacking is None:
                judge_results(health, check, right, [health.samples(device, work).compared])
                judge_rate(health, check, fast, "TFLOP/s", device, work)
            else:
                check.skip(right, lacking)
                check.skip(fast, lacking)


@pytest.mark.trial(job=plan.checkup, checks=plan.memory)
def test_memory(health: Health, check: Check) -> None:
    completion.sound(health.result)
    works = {kind: devices.memory(kind) for kind in plan.KINDS}
    for device in health.devices():
        compared = [health.samples(device, work).compared for work in works.values()]
        judge_results(health, check, at("health.memory.correct", device), compared)
        for kind, work in works.items():
            judge_rate(health, check, at("health.memory.bandwidth", device, kind=kind), "GB/s", device, work)


@pytest.mark.trial(job=plan.checkup, checks=plan.copies)
@pytest.mark.needs(feature="cuda")
def test_copies_between_host_and_device(health: Health, check: Check) -> None:
    completion.sound(health.result)
    works = {direction: devices.copies(direction) for direction in plan.DIRECTIONS}
    for device in health.devices():
        compared = [health.samples(device, work).compared for work in works.values()]
        judge_results(health, check, at("health.copy.correct", device), compared)
        for direction, work in works.items():
            judge_rate(health, check, at(f"health.copy.{direction}", device), "GB/s", device, work)


def judge_results(health: Health, check: Check, planned: Planned, compared: list[Compared]) -> None:
    elements = sum(one.elements for one in compared)
    check(
        planned,
        sum(one.wrong for one in compared) if elements else None,
        unit="wrong elements",
        result=health.result,
        n=elements,
        why="no element was compared",
        detail=next((one.first_wrong for one in compared if one.wrong), f"{elements} elements compared"),
    )


def judge_rate(health: Health, check: Check, planned: Planned, unit: str, device: Device, work: Work) -> None:
    samples, best = health.samples(device, work), health.best_peer(device, work)
    check(
        planned,
        samples.median,
        unit=unit,
        result=health.result,
        n=len(samples.rates),
        interval=samples.interval,
        references={"best peer": best},
        detail=f"{device}; {ALONE if best is None else f'{samples.median / best:.1%} of its best peer'}",
    )


@pytest.mark.trial(job=plan.checkup, checks=plan.soak)
def test_no_device_tires(health: Health, check: Check) -> None:
    completion.sound(health.result)
    for device in health.devices():
        soak = health.soak(device)
        judge_results(health, check, at("health.soak.correct", device), [soak.compared])
        judge_share(health, check, at("health.soak.retained", device), device, soak.retained())


@pytest.mark.trial(job=plan.checkup, checks=plan.peers)
@pytest.mark.needs(ranks=2)
def test_no_device_is_the_odd_one_out(health: Health, check: Check) -> None:
    completion.sound(health.result)
    for device in health.devices():
        planned = at("health.device.share", device)
        weakest = min(health.shares(device), key=lambda share: share.value, default=None)
        if weakest is None:
            check.skip(planned, ALONE)
        else:
            judge_share(health, check, planned, device, weakest)


def judge_share(health: Health, check: Check, planned: Planned, device: Device, share: Share) -> None:
    check(
        planned,
        share.value,
        unit="share",
        result=health.result,
        n=int(health.result.spec.settings["repeats"]),
        interval=share.interval,
        detail=f"{device}: {share.of}",
    )


@pytest.mark.trial(job=plan.checkup, checks=plan.fleet)
@pytest.mark.needs(gpus=OUTLIER_FLEET)
def test_no_device_stands_apart_from_the_fleet(health: Health, check: Check) -> None:
    completion.sound(health.result)
    found = health.devices()
    if len({device.name for device in found}) > 1:
        check.skip("health.device.outlier", "the pool has GPUs of more than one product, which are no fleet")
        return
    far = health.outliers(OUTLIER_DISTANCE, OUTLIER_EFFECT)
    told = "; ".join(f"{device}: {', '.join(map(str, works))}" for device, works in far.items())
    check("health.device.outlier", len(far), unit="devices", result=health.result, n=len(found), detail=told)


@pytest.mark.trial(job=plan.checkup, checks=plan.condition)
@pytest.mark.needs(feature="cuda")
def test_condition(health: Health, site: Site, check: Check) -> None:
    completion.sound(health.result)
    told = condition.conditions(health.result, health.devices())
    for device in health.devices():
        own, peers = told[device.rank], [told[peer.rank] for peer in health.peers(device)]
        findings = {
            **condition.judge_memory(own),
            **condition.judge_pcie(own),
            **condition.judge_nvlink(own, peers, promised="nvlink" in site.selectors["topology"]),
        }
        for id_, finding in findings.items():
            planned = at(id_, device)
            if finding.skip:
                check.skip(planned, finding.skip)
                continue
            check(
                planned,
                finding.value,
                unit=condition.UNITS[id_],
                result=health.result,
                references=finding.references,
                why=finding.why,
                detail=str(device),
            )


@pytest.mark.trial(job=plan.checkup, checks=plan.quiet)
def test_the_window_was_quiet(health: Health, site: Site, telemetry: Telemetry, check: Check) -> None:
    window.judge(check, site, health.result, telemetry(health.result))
