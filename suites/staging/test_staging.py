"""Data arrives on every node: whole, as fast as a plain copy, resumed where it was killed, read without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from seatrial.check import Planned
from seatrial.errors import AccessError
from seatrial.fixtures import Check, Launch, Telemetry
from seatrial.site import Site
from seatrial.stats import median_interval
from seatrial.suites import window

from . import plan
from .staged import Staged, needed_space, wait_share


@pytest.fixture(scope="module")
def staged(launch: Launch, site: Site) -> Iterator[Staged]:
    with launch(plan.staging(site)) as job:
        yield Staged(job.wait())


def rank_of(planned: Planned) -> int:
    return int(planned.place.where["rank"])


@pytest.mark.trial(job=plan.staging, checks=plan.completion)
def test_every_node_completes(staged: Staged, check: Check) -> None:
    result = staged.result
    measured = staged.ended_itself
    why = "; ".join(map(str, result.faults[:3])) or f"{result.ending.value}: {result.cause}"
    missing = staged.missing_ranks() if measured else None
    check(
        "staging.job.complete",
        None if missing is None else missing.count,
        unit="missing ranks",
        n=result.spec.ranks,
        why=why,
        detail=result.cause if missing is None or not missing.detail else f"{missing.detail} ({result.cause})",
    )


@pytest.mark.trial(job=plan.staging, checks=plan.space)
def test_there_is_space(staged: Staged, site: Site, check: Check) -> None:
    for planned in plan.space(site):
        judge_space(staged, check, planned, "seeded")


def judge_space(staged: Staged, check: Check, planned: Planned, name: str) -> None:
    staged.only(rank_of(planned), "space", name=name)
    found = staged.of(rank_of(planned), "space", name=name)
    short = sum(max(0, one["needed"] - one["free"]) for one in found)
    check(planned, short, unit="bytes short", result=staged.result, detail="; ".join(map(needed_space, found)))


@pytest.mark.trial(job=plan.staging, checks=plan.copies)
def test_every_copy_is_whole(staged: Staged, site: Site, check: Check) -> None:
    for planned in plan.copies(site):
        judge_copies(staged, check, planned, "seeded", len(plan.STATES) * sum(map(rounds, plan.STREAMS)))


def judge_copies(staged: Staged, check: Check, planned: Planned, name: str, expected: int) -> None:
    rank = rank_of(planned)
    wrong = staged.wrong_files(rank, name, expected)
    data, copies = staged.only(rank, "dataset", name=name), staged.of(rank, "copy", name=name, tool="streams")
    others = f"; left out: {'; '.join(data['others'])}" if data["others"] else ""
    whole = f"{len(copies)} copies of {data['files']} files, every file's sha256 as in the manifest"
    detail = (wrong.detail or whole) + others
    check(planned, wrong.count, unit="wrong files", result=staged.result, n=len(copies) * data["files"], detail=detail)


@pytest.mark.trial(job=plan.staging, checks=plan.throughput)
@pytest.mark.parametrize("state", plan.STATES)
def test_throughput(staged: Staged, site: Site, check: Check, state: str) -> None:
    for planned in plan.throughput(site, state):
        rank = rank_of(planned)
        own = staged.rates(rank, state, "streams", plan.JUDGED_STREAMS, plan.ROUNDS)
        cp = staged.rates(rank, state, "cp", 1, plan.ROUNDS)
        value = None if cp.why else own.median
        check(
            planned,
            value,
            unit="GB/s",
            result=staged.result,
            n=len(own.samples),
            interval=None if value is None else median_interval(own.samples),
            references={"cp": cp.median},
            why=own.why or cp.why,
            detail=f"{plan.JUDGED_STREAMS} streams: {own.detail}",
        )


@pytest.mark.trial(job=plan.staging, checks=plan.scaling)
@pytest.mark.parametrize("state", plan.STATES)
def test_scaling(staged: Staged, site: Site, check: Check, state: str) -> None:
    for planned in plan.scaling(site, state):
        rank, streams = rank_of(planned), int(planned.place.where["streams"])
        many = staged.rates(rank, state, "streams", streams, rounds(streams))
        one = staged.rates(rank, state, "streams", 1, rounds(1))
        check(
            planned,
            None if one.why else many.median,
            unit="GB/s",
            result=staged.result,
            n=len(many.samples),
            references={"one stream": one.median},
            why=many.why or one.why,
            detail=many.detail,
        )


def rounds(streams: int) -> int:
    return plan.ROUNDS if streams == plan.JUDGED_STREAMS else plan.SCALING_ROUNDS


@pytest.mark.trial(job=plan.staging, checks=plan.resume)
def test_a_killed_staging_resumes(staged: Staged, site: Site, check: Check) -> None:
    fields = {
        "staging.resume.recopied": ("again_bytes", "bytes", "again_files"),
        "staging.resume.half_files": ("half_named", "half files", "half_named_files"),
        "staging.resume.complete": ("wrong_files", "wrong files", "wrong"),
    }
    for planned in plan.resume(site):
        said = staged.only(rank_of(planned), "resume")
        field, unit, names = fields[planned.id]
        value = None if said["why"] else said[field]
        if value is not None and planned.id.endswith("recopied"):
            value += abs(said["copied_bytes"] - said["missing_bytes"])
        detail = "" if said["why"] else resumed_in_words(said) + "; ".join(["", *said[names]])
        check(planned, value, unit=unit, result=staged.result, why=said["why"], detail=detail)


def resumed_in_words(said: Mapping[str, Any]) -> str:
    return (
        f"killed when {said['whole_files']} files ({said['whole_bytes']} bytes) were whole and files of {said['half']} "
        f"bytes on their way; {said['missing_bytes']} bytes were missing, {said['copied_bytes']} were copied after that"
    )


@pytest.mark.trial(job=plan.staging, checks=plan.weights)
def test_weights_start_a_second_time(staged: Staged, site: Site, check: Check) -> None:
    for planned in plan.weights(site):
        said = staged.only(rank_of(planned), "weights")
        faults = said["faults"]
        if planned.id.endswith("complete"):
            named = "; ".join(f"{path} ({why})" for kind in ("missing", "changed") for path, why in faults[kind])
            detail = said["stopped"] or named or f"{said['bytes']} bytes"
            check(planned, faults["count"], unit="wrong files", result=staged.result, detail=detail)
            continue
        why = "the weights did not arrive" if faults["count"] else ""
        if said["second_copied"]:
            why = f"the second start copied {said['second_copied']} bytes again"
        check(
            planned,
            None if why else said["second_s"],
            unit="s",
            result=staged.result,
            references={"first start": said["first_s"]},
            why=why,
            detail=f"first start {said['first_s']:.3f} s with {said['first_copied']} bytes fetched, read cold from the "
            f"node's own storage {said['warm_s']:.3f} s, second start {said['second_s']:.3f} s with none fetched",
        )


@pytest.mark.trial(job=plan.staging, checks=plan.loader)
def test_training_does_not_wait(staged: Staged, site: Site, check: Check) -> None:
    for planned in plan.loader(site):
        lacking = staged.lacking(rank_of(planned), "loader")
        if lacking:
            check.skip(planned, lacking)
            continue
        said = staged.only(rank_of(planned), "loader")
        share, words = wait_share(said)
        check(
            planned, share, unit="share", result=staged.result, n=len(said.get("wait_us", ())), why=words, detail=words
        )


@pytest.mark.trial(job=plan.staging, checks=plan.own)
def test_own_data_sets(staged: Staged, site: Site, check: Check) -> None:
    planned = plan.own(site)
    if not planned:
        pytest.skip("the profile names no data set of your own")
    judge_each(planned, lambda one: judge_own(staged, check, one))


def judge_own(staged: Staged, check: Check, planned: Planned) -> None:
    name = planned.place.where["dataset"]
    staged.refused(rank_of(planned), f"data set {name}")
    if planned.id.endswith("space"):
        judge_space(staged, check, planned, name)
    else:
        judge_copies(staged, check, planned, name, 1)


def judge_each(planned: Sequence[Planned], judge: Callable[[Planned], None]) -> None:
    """Judge all that can be, then tell of every storage that did not let us in."""
    refusals: dict[str, None] = {}
    for one in planned:
        try:
            judge(one)
        except AccessError as error:
            refusals[str(error)] = None
    if refusals:
        raise AccessError("; ".join(refusals))


OBJECT_CHECKS = {
    "staging.object.complete": ("wrong_files", "wrong objects"),
    "staging.object.multipart": ("single", "single uploads"),
    "staging.object.ranges": ("wrong_ranges", "wrong ranges"),
    "staging.object.refusals": ("unseen", "faults let through"),
}


@pytest.mark.trial(job=plan.staging, checks=plan.buckets)
def test_object_storage(staged: Staged, site: Site, check: Check) -> None:
    planned = plan.buckets(site)
    if not planned:
        pytest.skip("the profile names no object storage")
    judge_each(planned, lambda one: judge_bucket(staged, check, one))


def judge_bucket(staged: Staged, check: Check, planned: Planned) -> None:
    rank, name = rank_of(planned), planned.place.where["storage"]
    lacking = staged.lacking(rank, "object")
    if lacking:
        check.skip(planned, lacking)
        return
    staged.refused(rank, f"storage {name}")
    said = staged.only(rank, "object", name=name)
    values = {
        "wrong_files": (said["wrong_files"], [said["stopped"], *said["wrong"]]),
        "single": (said["multipart_asked"] - said["multipart"], [f"{said['multipart']} objects put in parts"]),
        "wrong_ranges": (len(said["wrong_ranges"]), said["wrong_ranges"] or [f"{said['ranges']} ranges read"]),
        "unseen": (len(said["unseen"]), said["unseen"] or [f"provoked and seen: {', '.join(said['provoked'])}"]),
    }
    field, unit = OBJECT_CHECKS[planned.id]
    value, words = values[field]
    if planned.id.endswith("complete") and not said["wrong"]:
        words = [
            f"{said['files']} objects, {said['bytes']} bytes: put at {said['bytes'] / said['upload_s'] / 1e9:.3f} "
            f"GB/s, staged at {said['bytes'] / said['seconds'] / 1e9:.3f} GB/s"
        ]
    check(planned, value, unit=unit, result=staged.result, detail="; ".join(filter(None, words)))


@pytest.mark.trial(job=plan.staging, checks=plan.promised)
def test_promised_rates(staged: Staged, site: Site, check: Check) -> None:
    promises = {(name, op): rate for name, _, op, rate in plan.promises(site)}
    if not promises:
        pytest.skip("no storage of the profile has a minimum")
    for planned in plan.promised(site):
        name, op = planned.place.where["storage"], planned.id.rpartition(".")[2]
        for rank in range(site.nodes):
            staged.refused(rank, f"storage {name}")
        found = [staged.only(rank, "rate", name=name, op=op) for rank in range(site.nodes)]
        warm = [one for one in found if op == "read" and one["resident"] > 0.01 * one["pages"]]
        slowest = max(found, key=lambda one: float(one["seconds"]))
        check(
            planned,
            None if warm else sum(one["bytes"] for one in found) / slowest["seconds"] / 1e9,
            unit="GB/s",
            result=staged.result,
            references={"the profile": promises[name, op]},
            why=f"cold is not proven: {warm[0]['resident']} of {warm[0]['pages']} pages stayed" if warm else "",
            detail=f"{len(found)} node(s) with {found[0]['streams']} streams; slowest {slowest['seconds']:.3f} s",
        )


@pytest.mark.trial(job=plan.staging, checks=plan.quiet)
def test_the_window_was_quiet(staged: Staged, site: Site, telemetry: Telemetry, check: Check) -> None:
    window.judge(check, site, staged.result, telemetry(staged.result))
