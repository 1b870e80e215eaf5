"""A training job is killed at its worst moments, restored, and must be bit for bit the one that was never killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import pytest

from seatrial.check import Planned
from seatrial.errors import InconclusiveError
from seatrial.fixtures import Check, Launch, Telemetry
from seatrial.job import Result
from seatrial.site import Site
from seatrial.stats import median_interval
from seatrial.suites import completion, window
from seatrial.suites.completion import sound
from seatrial.trial import Trial

from . import goodput, plan
from .chain import Chain, Home
from .trace import Comparison, Trace, compare, spread

Chains = Callable[[str], Chain]


@pytest.fixture(scope="module")
def home(trial: Trial, site: Site) -> Iterator[Home]:
    place = plan.storage(site)
    with trial.scratch("checkpoint", "" if place is None else place.path) as folder:
        yield Home(folder, trial.ticket.id)


@pytest.fixture(scope="module")
def uninterrupted(launch: Launch, site: Site, home: Home) -> Result:
    return _run(launch, site, home, "uninterrupted")


@pytest.fixture(scope="module")
def again(launch: Launch, site: Site, home: Home) -> Result | None:
    """The same run once more, where the same bits twice are not a matter of course."""
    return _run(launch, site, home, "again") if site.device == "cuda" else None


def _run(launch: Launch, site: Site, home: Home, name: str) -> Result:
    spec = {"uninterrupted": plan.uninterrupted, "again": plan.again}[name](site)
    with launch(replace(spec, settings={**spec.settings, **home.of(name)})) as job:
        return job.wait()


@pytest.fixture(scope="module")
def chains(trial: Trial, launch: Launch, site: Site, home: Home) -> Chains:
    made = {name: Chain(name, site, launch, home, trial.write) for name in plan.CHAINS}
    return made.__getitem__


@pytest.mark.trial(job=plan.uninterrupted, checks=plan.completion)
@pytest.mark.needs(ranks=2)
def test_the_uninterrupted_run_completes(uninterrupted: Result, check: Check) -> None:
    completion.judge(check, "checkpoint.job.complete", uninterrupted, _steps_done)


def _steps_done(done: completion.Done) -> str:
    return "" if done["steps_done"] == plan.STEPS else f"did {done['steps_done']} of {plan.STEPS} steps"


@pytest.mark.needs(ranks=2)
@pytest.mark.parametrize(
    ("chain", "number"),
    [
        pytest.param(
            chain,
            number,
            id=kill.name,
            marks=pytest.mark.trial(job=partial(plan.link, chain=chain, number=number), checks=plan.restore),
        )
        for chain, kills in plan.CHAINS.items()
        for number, kill in enumerate(kills)
    ],
)
def test_a_killed_job_is_restored(
    uninterrupted: Result, again: Result | None, chains: Chains, site: Site, check: Check, chain: str, number: int
) -> None:
    links = chains(chain)
    equal, lost, detection = plan.restore(site, chain, number)
    dead = links.link(number)
    if dead.unsupported:
        pytest.skip(dead.unsupported)
    check(
        detection,
        links.detected(number),
        unit="s",
        result=dead.result,
        detail=f"{_point(links, number)}: {dead.result.cause}",
    )
    restored = links.link(number + 1)
    steps = dead.trace.reached - restored.trace.loaded
    check(lost, steps, unit="steps", references={"checkpoint interval": plan.EVERY}, detail=_told(links, number))
    judge_equality(check, equal, uninterrupted, again, restored.result)


def judge_equality(
    check: Check, planned: Planned, uninterrupted: Result, again: Result | None, restored: Result
) -> None:
    sound(uninterrupted)
    reference, other = Trace(uninterrupted), Trace(restored)
    if other.reached == plan.STEPS:
        sound(restored)
    allowed, proof = _proof(reference, again)
    found = compare(reference, other, allowed)
    first = f"first {found.differences[0]}" if found.differences else f"from step {other.loaded} to {other.reached}"
    detail = f"{proof}{len(found.differences)} of {found.compared} items differ: {first}"
    check(planned, len(found.differences), unit="differing items", n=found.compared, detail=detail)


def _proof(reference: Trace, again: Result | None) -> tuple[float | None, str]:
    """How far losses may differ, and in words how strong the proof is: None where every bit is compared."""
    if again is None:
        return None, ""
    sound(again)
    other = Trace(again)
    both: Comparison = compare(reference, other)
    if not both.differences:
        return None, "two uninterrupted runs agree in every bit; "
    allowed = spread(reference, other)
    return allowed, (
        f"the weaker proof: two uninterrupted runs differ in {len(both.differences)} of {both.compared} items, so "
        f"losses are held against the largest difference between theirs, {allowed:g}; "
    )


def _point(chain: Chain, number: int) -> str:
    kill, ranks = chain.kills[number], chain.link(number).result.spec.ranks
    return f"SIGKILL to {len(kill.victims(ranks))} of {ranks} ranks in {kill.where} {kill.step}"


def _told(chain: Chain, number: int) -> str:
    """Where the job was, where it went on, what was refused, and how long it all took."""
    dead, restored = chain.link(number), chain.link(number + 1)
    loads = [event.fields["seconds"] for event in restored.result.of("loaded")]
    read = f" in {max(loads):.3f} s" if loads else ""
    rejected = restored.rejected()
    return (
        f"killed at step {dead.trace.reached}, went on from step {restored.trace.loaded}{read}, first new step "
        f"{chain.restart(number):.1f} s after the kill; rejected: {'; '.join(rejected) or 'nothing'}"
    )


@pytest.mark.needs(ranks=2)
@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(
            chain, marks=pytest.mark.trial(job=partial(plan.link, chain=chain, number=len(kills)), checks=plan.torn)
        )
        for chain, kills in plan.CHAINS.items()
    ],
)
def test_no_torn_checkpoint_is_loaded(chains: Chains, check: Check, chain: str) -> None:
    links = chains(chain)
    if links.link(0).unsupported:
        pytest.skip(links.link(0).unsupported)
    torn, whole, loads, refused = [], set[int](), 0, 0
    for link in links.links():
        refused += len(link.rejected())
        for number, rank in link.trace.ranks.items():
            loads += len(rank.loaded)
            torn += [f"{link.result.job}: rank {number} loaded step {s}" for s in rank.loaded if s not in whole]
        whole |= link.trace.saved()
    check(
        "checkpoint.torn.loaded",
        len(torn) if loads else None,
        unit="torn checkpoints",
        n=loads,
        why="no checkpoint was ever loaded",
        detail="; ".join(torn[:3]) or f"{loads} loads of whole checkpoints, {refused} others refused",
        chain=chain,
    )


@pytest.mark.trial(job=plan.uninterrupted, checks=plan.rates)
@pytest.mark.needs(ranks=2)
def test_storage_sets_the_pace(uninterrupted: Result, site: Site, check: Check) -> None:
    promised = plan.promises(site)
    for way in ("write", "read"):
        shards, plain, size = _rates(uninterrupted, way)
        # Neighbours in time share what else the machine was at, so that their ratio is of the shard alone.
        ratios = [shard / beside for shard, beside in zip(shards, plain, strict=True)]
        together = f"{size} bytes a rank, {uninterrupted.spec.ranks} ranks at once: {median(shards):.3g} GB/s"
        check(
            f"checkpoint.{way}.rate",
            median(ratios),
            unit="of plain",
            result=uninterrupted,
            n=len(ratios),
            interval=median_interval(ratios),
            detail=f"{together}, plainly {median(plain):.3g} GB/s",
        )
        if way in promised:
            check(
                f"checkpoint.{way}.promised",
                median(shards),
                unit="GB/s",
                result=uninterrupted,
                n=len(shards),
                interval=median_interval(shards),
                references={"promise": promised[way]},
                detail=together,
            )


def _rates(result: Result, way: str) -> tuple[list[float], list[float], int]:
    """All ranks' rate together in each repeat, in GB/s: of shards, and plain; and the bytes a rank.

    A repeat's time is its slowest rank's, as in MLPerf Storage's rules for checkpoints.

    Raises:
        InconclusiveError: a rank's part is missing.
    """
    sound(result)
    events = [event for event in result.of("rate") if event.fields["way"] == way]
    if [event.rank for event in events] != list(range(result.spec.ranks)):
        raise InconclusiveError(f"job {result.job}: {way} rates from ranks {[event.rank for event in events]}")
    size = int(events[0].fields["bytes"])
    together = size * len(events) / 1e9

    def rates(kind: str) -> list[float]:
        return [together / (max(own) / 1e6) for own in zip(*(event.fields[kind] for event in events), strict=True)]

    return rates("shard_us"), rates("plain_us"), size


@pytest.mark.trial(job=plan.uninterrupted, checks=plan.goodput)
@pytest.mark.needs(ranks=2)
def test_goodput(uninterrupted: Result, chains: Chains, site: Site, check: Check) -> None:
    sound(uninterrupted)
    links = chains(next(iter(plan.CHAINS)))
    stalls = _stalls(Trace(uninterrupted))
    restarts = [links.restart(number) for number in range(len(links.kills))]
    costs = goodput.Costs(stall=median(stalls), restart=max(restarts))
    mean = goodput.mean_time_between_failures(site.nodes, max(goodput.FAILURES_PER_1000_NODE_DAYS.values()))
    share = goodput.goodput(costs, goodput.daly(costs.stall, mean), mean)
    detail = (
        f"training stands still for {costs.stall:.3g} s a checkpoint ({_stall_share(uninterrupted, stalls):.1%} of "
        f"this run's time), and for {costs.restart:.1f} s from a kill to the first new step; "
        f"{goodput.told(costs, site.nodes)}"
    )
    check("checkpoint.goodput.share", share, unit="share", n=len(stalls), result=uninterrupted, detail=detail)


def _stalls(trace: Trace) -> list[float]:
    """How long training stood still for each checkpoint: its slowest rank."""
    ranks = trace.ranks.values()
    return [max(float(rank.saved[step]["stall_seconds"]) for rank in ranks) for step in sorted(trace.saved())]


def _stall_share(result: Result, stalls: list[float]) -> float:
    steps = [event.t for event in result.events[0] if event.name == "step"]
    return sum(stalls) / (steps[-1] - steps[0])


@pytest.mark.trial(job=plan.uninterrupted, checks=plan.window)
@pytest.mark.needs(ranks=2)
def test_the_window_was_quiet(uninterrupted: Result, site: Site, telemetry: Telemetry, check: Check) -> None:
    window.judge(check, site, uninterrupted, telemetry(uninterrupted))
