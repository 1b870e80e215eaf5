"""What the checkpoint suite's reader would draw: each kill and its restart on a line of time, over the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from seatrial.record import Event, Record
from seatrial.reports import svg, words
from seatrial.reports.plots import Figure

Point = tuple[float, float]


TOLD = {"kill", "restored_by", "where", "killed", "seen", "loaded", "first_step"}
"""What an event of a kill says."""


@dataclass(frozen=True)
class Restart:
    """A kill and what came of it; times are seconds since the trial's start, None where it never came to that."""

    name: str
    job: str
    restored_by: str
    where: str
    killed: float
    seen: float
    loaded: float | None
    first_step: float | None

    @classmethod
    def of(cls, event: Event) -> Restart:
        """The restart that a line ``killed`` tells of."""
        said: Mapping[str, Any] = event.said
        return cls(
            name=str(said["kill"]),
            job=event.job,
            restored_by=str(said["restored_by"]),
            where=str(said["where"]),
            killed=float(said["killed"]),
            seen=float(said["seen"]),
            loaded=said["loaded"],
            first_step=said["first_step"],
        )

    def moments(self) -> list[float]:
        """The kill, and what came of it as far as it came, in seconds since the kill."""
        reached = [moment for moment in (self.seen, self.loaded, self.first_step) if moment is not None]
        return [0.0, *(moment - self.killed for moment in reached)]

    def told(self) -> str:
        """In words: what was killed, and how long each stretch took."""
        stretches = [("seen", self.seen), ("loaded", self.loaded), ("first new step", self.first_step)]
        took = [
            f"{name} after {words.seconds(moment - self.killed)}" if moment is not None else f"{name}: never"
            for name, moment in stretches
        ]
        return f"{self.name} (killed in {self.where}): {', '.join(took)}"


UNINTERRUPTED = "checkpoint-uninterrupted-"
"""What the name of the job begins with that is never killed."""
ROW = 12.0
"""The height of a job's line under the loss."""
BAR = 26.0
"""The height of a restart's bar with its name."""


def figures(record: Record) -> list[Figure]:
    """Two plots a chain of kills: the steps that each job made, and where the time of each restart went."""
    known = [event for event in record.events if event.name == "killed" and event.said.keys() >= TOLD]
    restarts = [Restart.of(event) for event in known]
    chains = _chains(restarts)
    return [figure for chain in chains for figure in (_over_steps(record, chain), _over_time(chain))]


def _chains(restarts: Sequence[Restart]) -> list[list[Restart]]:
    """The restarts in their chains: each job but the first is the one that the last restart began."""
    chains: list[list[Restart]] = []
    for restart in restarts:
        if chains and chains[-1][-1].restored_by == restart.job:
            chains[-1].append(restart)
        else:
            chains.append([restart])
    return chains


def _losses(record: Record) -> dict[str, list[Point]]:
    """The loss of rank 0 over the steps, by job."""
    jobs: dict[str, list[Point]] = {}
    for event in record.events:
        if event.name == "step" and event.rank == 0:
            point = float(event.said["step"]), float.fromhex(str(event.said["loss"]))
            jobs.setdefault(event.job, []).append(point)
    return jobs


def _over_steps(record: Record, chain: Sequence[Restart]) -> Figure:
    """The loss of all jobs over the steps, and under it the steps of each job: where lines overlap, steps were lost."""
    losses = _losses(record)
    whole = next((points for job, points in losses.items() if job.startswith(UNINTERRUPTED)), [])
    jobs = [losses.get(job, []) for job in (chain[0].job, *(restart.restored_by for restart in chain))]
    keys = [
        svg.Key("never killed", "curve c1"),
        svg.Key("killed and restored", "mark c0", 0),
        svg.Key("killed", "fail", svg.CROSS),
    ]
    rows = svg.legend_rows(keys)
    space = svg.area(len(rows), height=110.0 + ROW * len(jobs))
    canvas = svg.canvas(space)
    points = [*whole, *(point for job in jobs for point in job)] or [(0.0, 0.0)]
    x = svg.Scale.over([step for step, _ in points], space.left, space.right)
    y = svg.Scale.over([loss for _, loss in points], space.bottom - ROW * (len(jobs) + 1), space.top)
    svg.draw_axes(
        canvas, space, svg.Axis.of(x, svg.titled("step", "number")), svg.Axis.of(y, svg.titled("loss", "nats a token"))
    )
    svg.draw_legend(canvas, rows)
    if len(whole) > 1:
        canvas.path([(x(step), y(loss)) for step, loss in whole], "curve c1")
    for number, job in enumerate(jobs):
        height = space.bottom - ROW * (len(jobs) - number) + ROW / 2
        _draw_job(canvas, job, height, x, y, was_killed=number < len(chain))
    steps = [f"{len(job)} steps to {job[-1][0]:g}" for job in jobs if job]
    caption = f"The loss of rank 0, and below it a line for each job: {', '.join(steps)}."
    title = f"Killed and restored: {_named(chain)}"
    return Figure(title, caption, canvas.render(title, caption))


def _named(chain: Sequence[Restart]) -> str:
    return chain[0].name if len(chain) == 1 else f"{chain[0].name} to {chain[-1].name}"


def _draw_job(
    canvas: svg.Canvas, job: Sequence[Point], height: float, x: svg.Scale, y: svg.Scale, *, was_killed: bool
) -> None:
    for step, loss in job:
        canvas.mark(0, (x(step), y(loss)), "c0")
    if job:
        canvas.line((x(job[0][0]), height), (x(job[-1][0]), height), "curve c0")
        if was_killed:
            canvas.cross((x(job[-1][0]), height), "fail")


STRETCHES = ("kill to detection", "to the loaded state", "to the first new step")


def _over_time(chain: Sequence[Restart]) -> Figure:
    """A bar a restart: what passed before its death was seen, its state was loaded, its first new step was made."""
    keys = [svg.Key(name, f"curve c{at}") for at, name in enumerate(STRETCHES)]
    rows = svg.legend_rows(keys)
    space = svg.area(len(rows), height=BAR * len(chain))
    canvas = svg.canvas(space)
    x = svg.Scale.over([restart.moments()[-1] for restart in chain], space.left, space.right, zero=True)
    svg.draw_axes(
        canvas,
        space,
        svg.Axis.of(x, svg.titled("time since the kill", "s")),
        svg.Axis(x, svg.titled("kill", "name"), []),
    )
    svg.draw_legend(canvas, rows)
    for number, restart in enumerate(chain):
        top = space.top + BAR * number
        canvas.text((space.left, top + 11), restart.name)
        for at, (begin, end) in enumerate(pairwise(restart.moments())):
            canvas.box((x(begin), top + 14), (x(end), top + BAR - 2), f"band c{at}")
            canvas.line((x(end), top + 13), (x(end), top + BAR - 1), f"curve c{at}")
    caption = ". ".join(restart.told() for restart in chain) + "."
    title = f"From kill to first new step: {_named(chain)}"
    return Figure(title, caption, canvas.render(title, caption))
