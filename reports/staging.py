"""What the staging suite's reader would draw: throughput over streams, cold and warm, with cp beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from seatrial.record import Event, Record
from seatrial.reports import svg, words
from seatrial.reports.plots import Figure

STATES = ("cold", "warm")
SEEDED = "seeded"
"""The data set whose copies are drawn; a user's own is copied once."""


@dataclass(frozen=True)
class Curve:
    """The rates of one state in GB/s: of every copy by its number of streams, and of every copy by cp."""

    state: str
    streams: Mapping[int, Sequence[float]]
    cp: Sequence[float]


def figures(record: Record) -> list[Figure]:
    """The plots of this suite: one, of the node whose cold copies were slowest."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for event in record.events:
        if event.name == "copy" and _is_copy(event) and event.said["name"] == SEEDED:
            by_rank.setdefault(event.rank, []).append(event.said)
    drawn = {rank: curves for rank, copies in by_rank.items() if (curves := list(_curves(copies)))}
    if not drawn:
        return []
    slowest = min(drawn, key=lambda rank: _least(drawn[rank]))
    return [_over_streams(drawn[slowest], slowest, len(drawn))]


def _is_copy(event: Event) -> bool:
    """Whether an event tells of a copy as the payload does: a record may come from anywhere."""
    said = event.said
    numbers = [said.get(key) for key in ("bytes", "seconds", "streams")]
    positive = all(isinstance(number, (int, float)) and 0 < number < math.inf for number in numbers)
    return positive and said.get("state") in STATES and said.get("tool") in ("streams", "cp") and "name" in said


def _curves(copies: Sequence[Mapping[str, Any]]) -> Iterator[Curve]:
    for state in STATES:
        streams: dict[int, list[float]] = {}
        cp = []
        for copy in copies:
            if copy["state"] != state:
                continue
            rate = copy["bytes"] / copy["seconds"] / 1e9
            if copy["tool"] == "cp":
                cp.append(rate)
            else:
                streams.setdefault(int(copy["streams"]), []).append(rate)
        if streams:
            yield Curve(state, dict(sorted(streams.items())), cp)


def _least(curves: Sequence[Curve]) -> float:
    return min(median(rates) for rates in curves[0].streams.values())


def _over_streams(curves: Sequence[Curve], rank: int, ranks: int) -> Figure:
    keys = [svg.Key(curve.state, f"curve c{at}", at) for at, curve in enumerate(curves)]
    keys += [svg.Key(f"cp {curve.state}", f"bound c{at}") for at, curve in enumerate(curves) if curve.cp]
    rows = svg.legend_rows(keys)
    space = svg.area(len(rows))
    canvas = svg.canvas(space)
    counts = sorted({count for curve in curves for count in curve.streams})
    values = [rate for curve in curves for rates in (*curve.streams.values(), curve.cp) for rate in rates]
    ticks = [(float(count), str(count)) for count in counts]
    x = svg.Axis(svg.Scale.over(counts, space.left, space.right, log=True), svg.titled("streams", "number"), ticks)
    y = svg.Axis.of(svg.Scale.over(values, space.bottom, space.top, zero=True), svg.titled("throughput", "GB/s"))
    svg.draw_axes(canvas, space, x, y)
    svg.draw_legend(canvas, rows)
    for at, curve in enumerate(curves):
        _draw(canvas, curve, at, x.scale, y.scale, space)
    title = "Staging: throughput over streams"
    caption = _caption(curves, rank, ranks)
    return Figure(title, caption, canvas.render(title, caption))


def _draw(canvas: svg.Canvas, curve: Curve, at: int, x: svg.Scale, y: svg.Scale, space: svg.Area) -> None:
    css = f"c{at}"
    if curve.cp:
        level = y(median(curve.cp))
        canvas.line((space.left, level), (space.right, level), f"bound {css}")
    points = [(x(count), y(median(rates))) for count, rates in curve.streams.items()]
    canvas.path(points if len(points) > 1 else points * 2, f"curve {css}")
    for point, rates in zip(points, curve.streams.values(), strict=True):
        low, high = y(min(rates)), y(max(rates))
        canvas.line((point[0], low), (point[0], high), f"interval {css}")
        canvas.mark(at, point, css)


def _caption(curves: Sequence[Curve], rank: int, ranks: int) -> str:
    told = []
    for curve in curves:
        best = max(curve.streams, key=lambda count: median(curve.streams[count]))
        rate = words.quantity(median(curve.streams[best]), "GB/s")
        beside = f", cp {words.quantity(median(curve.cp), 'GB/s')}" if curve.cp else ""
        told.append(f"{curve.state} at most {rate} with {words.counted(best, 'stream')}{beside}")
    which = "" if ranks == 1 else f" Rank {rank}, the slowest of {ranks}."
    return f"Medians of all copies, each with its least and greatest; {'; '.join(told)}.{which}"
