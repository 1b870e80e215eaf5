"""The plots of the report: a measured curve with its bound, bars with their bound, telemetry over time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from seatrial.record import Check, Series, Timeline
from seatrial.reports import svg, words

BUCKETS = 120
"""A time series is drawn as so many steps at most, each with its least, middle and greatest value."""
BARS = 64
"""With more bars than this, neighbours share one that shows the worst of them."""
CURVES = 4
"""With more curves than this, a plot shows their band, their middle and the worst of them."""


@dataclass(frozen=True)
class Figure:
    """A plot with its title and the sentence that says what to see in it."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class Curve:
    """Checks of one kind over a quantity ``x``, in its order."""

    name: str
    points: Sequence[tuple[float, Check]]


def _measured(check: Check) -> list[float]:
    """Every number that a check puts on the value axis."""
    limits = check.bound.limits if check.bound is not None else ()
    return [value for value in (check.observed, *(check.interval or ()), *limits) if value is not None]


def _limits(check: Check) -> list[float]:
    return [limit for limit in (check.bound.limits if check.bound is not None else ()) if limit is not None]


def _cross_keys(checks: Iterable[Check]) -> list[svg.Key]:
    """A key for each outcome that is marked by a cross."""
    outcomes = {check.outcome for check in checks}
    return [svg.Key(name, name, svg.CROSS) for name in words.SEVERITY[:-1] if name in outcomes]


def _value_axis(checks: Iterable[Check], title: str, space: svg.Area) -> svg.Axis:
    """An axis over all values and bounds: logarithmic where they span more than a factor of 30."""
    values = [value for check in checks for value in _measured(check)]
    observed = [value for value in values if value > 0]
    log = len(observed) == len(values) and max(values) / min(values) > 30
    scale = svg.Scale.over(values, space.bottom, space.top, log=log, zero=not log)
    return svg.Axis.of(scale, title)


def curves(
    title: str, over: tuple[str, str], of: tuple[str, str], lines: Sequence[Curve], label: Callable[[float], str]
) -> Figure:
    """Values with their intervals and bounds over a size, on a log2 axis.

    Args:
        title: what the plot shows.
        over: name and unit of the x axis.
        of: name and unit of the y axis.
        lines: one curve each; every check in them has been measured.
        label: how a size is written.
    """
    shown, rest = _worst_curves(lines)
    keys = [svg.Key(line.name, f"curve c{at}", at) for at, line in enumerate(shown)]
    keys += [svg.Key(f"the other {len(rest)}: least to greatest", "band-key")] if rest else []
    checks = [check for line in lines for _, check in line.points]
    keys += [svg.Key("bound", "bound")] if any(map(_limits, checks)) else []
    keys += _cross_keys(checks)
    rows = svg.legend_rows(keys)
    space = svg.area(len(rows))
    canvas = svg.canvas(space)
    sizes = sorted({x for line in lines for x, _ in line.points})
    x = svg.Axis(svg.Scale.over(sizes, space.left, space.right, log=True), svg.titled(*over), _sizes(sizes, label))
    y = _value_axis(checks, svg.titled(*of), space)
    svg.draw_axes(canvas, space, x, y)
    svg.draw_legend(canvas, rows)
    if rest:
        _draw_band(canvas, rest, x.scale, y.scale)
    for at, line in enumerate(shown):
        _draw_curve(canvas, line, at, x.scale, y.scale)
    for line in shown:
        _draw_crosses(canvas, line, x.scale, y.scale)
    caption = _closest(checks)
    return Figure(title, caption, canvas.render(title, caption))


def _worst_curves(lines: Sequence[Curve]) -> tuple[Sequence[Curve], Sequence[Curve]]:
    """The curves to draw one by one, and those to draw as a band."""
    if len(lines) <= CURVES:
        return lines, ()
    ranked = sorted(lines, key=lambda line: min(map(margin, (check for _, check in line.points))))
    return ranked[:2], ranked[2:]


def _sizes(sizes: Sequence[float], label: Callable[[float], str]) -> list[tuple[float, str]]:
    return [(size, label(size)) for size in sizes[:: math.ceil(len(sizes) / 5)]]


def _draw_band(canvas: svg.Canvas, lines: Sequence[Curve], x: svg.Scale, y: svg.Scale) -> None:
    values: dict[float, list[float]] = {}
    for line in lines:
        for size, check in line.points:
            values.setdefault(size, []).append(check.observed or 0.0)
    sizes = sorted(values)
    low = [(x(size), y(min(values[size]))) for size in sizes]
    high = [(x(size), y(max(values[size]))) for size in sizes]
    canvas.path([*low, *reversed(high)], "band", closed=True)
    canvas.path([(x(size), y(statistics.median(values[size]))) for size in sizes], "band-key")


def _draw_curve(canvas: svg.Canvas, line: Curve, number: int, x: svg.Scale, y: svg.Scale) -> None:
    css = f"c{number}"
    canvas.path([(x(size), y(check.observed or 0.0)) for size, check in line.points], f"curve {css}")
    for size, check in line.points:
        at = (x(size), y(check.observed or 0.0))
        if check.interval is not None:
            _draw_interval(canvas, at[0], check.interval, y, css)
        for limit in _limits(check):
            canvas.line((at[0] - 9, y(limit)), (at[0] + 9, y(limit)), f"bound {css}")
        canvas.mark(number, at, css)


def _draw_crosses(canvas: svg.Canvas, line: Curve, x: svg.Scale, y: svg.Scale) -> None:
    for size, check in line.points:
        if check.outcome != "pass":
            canvas.cross((x(size), y(check.observed or 0.0)), check.outcome)


def _draw_interval(canvas: svg.Canvas, x: float, interval: tuple[float, float], y: svg.Scale, css: str) -> None:
    low, high = y(interval[0]), y(interval[1])
    canvas.line((x, low), (x, high), f"interval {css}")
    for end in (low, high):
        canvas.line((x - 3, end), (x + 3, end), f"interval {css}")


def margin(check: Check) -> float:
    """How far inside its bound a check is, as a share of the bound; negative outside, infinite where there is none."""
    if check.observed is None or check.bound is None:
        return math.inf
    low, high = check.bound.limits
    margins = [
        # Halves, so that no difference overflows; the half of the smallest number there is, is nothing.
        sign * (check.observed / 2 - limit / 2) / (abs(limit) / 2) if limit / 2 else _beyond(sign * check.observed)
        for sign, limit in ((1, low), (-1, high))
        if limit is not None
    ]
    return min(margins, default=math.inf)


def _beyond(excess: float) -> float:
    return math.copysign(math.inf, excess) if excess else 0.0


def _closest(checks: Sequence[Check]) -> str:
    """The check nearest to its bound, or the farthest outside, in words."""
    worst = min(checks, key=margin)
    if not any(map(_limits, checks)):
        return "None of these has a bound."
    where = f" at {worst.place}" if worst.place else ""
    side = "Farthest outside its bound" if margin(worst) < 0 else "Nearest to its bound"
    return f"{side}{where}: {words.observed(worst)}, bound {words.bound(worst)}."


def bars(title: str, over: tuple[str, str], of: tuple[str, str], checks: Sequence[tuple[str, Check]]) -> Figure:
    """A bar a place, with interval and bound; the worst of several neighbours where there are more than ``BARS``."""
    shown = _worst_bars(checks)
    limits = sorted({limit for _, check in checks for limit in _limits(check)})
    keys = [svg.Key(f"bound {words.number(limit)}", "bound") for limit in limits] if len(limits) <= 2 else []
    keys += _cross_keys([check for _, check in checks])
    rows = svg.legend_rows(keys)
    space = svg.area(len(rows))
    canvas = svg.canvas(space)
    wide = (space.right - space.left) / len(shown)
    ticks = [(at + 0.5, svg.clip(name, 12)) for at, (name, _) in enumerate(shown)]
    x = svg.Axis(svg.Scale(0, len(shown), space.left, space.right), svg.titled(*over), ticks)
    y = _value_axis([check for _, check in checks], svg.titled(*of), space)
    svg.draw_axes(canvas, space, x, y)
    svg.draw_legend(canvas, rows)
    for at, (_, check) in enumerate(shown):
        _draw_bar(canvas, check, space.left + at * wide, wide, y.scale)
    for limit in limits if len(limits) <= 2 else ():
        canvas.line((space.left, y.scale(limit)), (space.right, y.scale(limit)), "bound")
    caption = _closest([check for _, check in checks])
    if len(shown) < len(checks):
        caption += f" Each bar is the worst of {math.ceil(len(checks) / len(shown))} neighbours."
    return Figure(title, caption, canvas.render(title, caption))


def _worst_bars(checks: Sequence[tuple[str, Check]]) -> list[tuple[str, Check]]:
    each = math.ceil(len(checks) / BARS)
    groups = [checks[at : at + each] for at in range(0, len(checks), each)]
    return [min(group, key=lambda item: margin(item[1])) for group in groups]


def _draw_bar(canvas: svg.Canvas, check: Check, left: float, wide: float, y: svg.Scale) -> None:
    air = max(wide * 0.15, (wide - 44) / 2)
    base = y(y.low if y.log else 0)
    top = y(check.observed or 0.0)
    canvas.box((left + air, top), (left + wide - air, base), f"bar {check.outcome}")
    middle = left + wide / 2
    if check.interval is not None and wide > 8:
        _draw_interval(canvas, middle, check.interval, y, "ink")
    if check.outcome != "pass":
        canvas.cross((middle, (top + base) / 2), f"{check.outcome} on-bar")


@dataclass(frozen=True)
class Step:
    """One step of a drawn series: its place in time, and the least, middle and greatest value there."""

    t: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Track:
    """A drawn series: stretches of steps, and gaps between them."""

    name: str
    stretches: Sequence[Sequence[Step]]


def over_time(title: str, series: Sequence[Series], timeline: Timeline) -> Figure:
    """One metric over a job's window, with the moments of the job; series beyond ``CURVES`` become one band.

    Args:
        title: what the plot shows.
        series: of one metric and unit, each with at least one sample.
        timeline: the job's moments.
    """
    tracks = _tracks(series)
    keys = [svg.Key(track.name, f"curve c{at}") for at, track in enumerate(tracks)]
    moments = _moments(timeline)
    times = [t for one in series for t in (one.t[0], one.t[-1])] + [t for t, _ in moments]
    rows = svg.legend_rows(keys)
    room = svg.Scale.over(times, svg.LEFT, svg.RIGHT, air=0.02)
    labels = _staggered([(room(t), name) for t, name in moments])
    space = svg.area(len(rows) + max((row + 1 for _, _, row in labels), default=0), height=110)
    canvas = svg.canvas(space)
    values = [value for one in series for value in (min(one.v), max(one.v))]
    factor, unit = words.scaled(series[0].unit, max(values))
    scale = svg.Scale.over(values, space.bottom, space.top)
    ticks = [(tick * factor, words.short(tick)) for tick in scale.shrunk(factor).ticks(4)]
    y = svg.Axis(scale, svg.titled(series[0].metric, unit), ticks)
    svg.draw_axes(canvas, space, svg.Axis.of(room, svg.titled("time since the start", "s")), y)
    svg.draw_legend(canvas, rows)
    for at, track in enumerate(tracks):
        _draw_gaps(canvas, track, space, room)
        _draw_track(canvas, track, at, room, y.scale)
    _draw_moments(canvas, space, [(x, name, 12 + (len(rows) + row + 1) * svg.ROW) for x, name, row in labels])
    caption = _spread(series)
    return Figure(title, caption, canvas.render(title, caption))


def _moments(timeline: Timeline) -> list[tuple[float, str]]:
    named = {
        "submitted": timeline.submitted,
        "admitted": timeline.admitted,
        "started": timeline.started,
        "ended": timeline.ended,
    }
    return [(moment.t, name) for name, moment in named.items() if moment is not None]


def _staggered(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str, int]]:
    """Each label with the first row in which it touches no other."""
    ends: list[float] = []
    placed = []
    for x, name in labels:
        left = _label_left(x, name)
        row = next((at for at, end in enumerate(ends) if left >= end), len(ends))
        ends[row : row + 1] = [left + svg.CHARACTER * len(name) + 6]
        placed.append((x, name, row))
    return placed


def _label_left(x: float, name: str) -> float:
    wide = svg.CHARACTER * len(name)
    return min(max(x - wide / 2, 2), svg.WIDTH - wide - 2)


def _draw_moments(canvas: svg.Canvas, space: svg.Area, labels: Sequence[tuple[float, str, float]]) -> None:
    for x, _, y in labels:
        canvas.line((x, y + 3), (x, space.bottom), "moment")
    for x, name, y in labels:
        canvas.text((_label_left(x, name) + svg.CHARACTER * len(name) / 2, y), name, "moment-name", "middle")


def _draw_gaps(canvas: svg.Canvas, track: Track, space: svg.Area, x: svg.Scale) -> None:
    for before, after in pairwise(track.stretches):
        canvas.box((x(before[-1].t), space.top), (x(after[0].t), space.bottom), "gap")


def _draw_track(canvas: svg.Canvas, track: Track, number: int, x: svg.Scale, y: svg.Scale) -> None:
    for steps in track.stretches:
        if any(step.low != step.high for step in steps):
            low = [(x(step.t), y(step.low)) for step in steps]
            high = [(x(step.t), y(step.high)) for step in reversed(steps)]
            canvas.path([*low, *high], f"band c{number}", closed=True)
        middle = [(x(step.t), y(step.middle)) for step in steps]
        canvas.path(middle if len(middle) > 1 else middle * 2, f"curve c{number}")


def _tracks(series: Sequence[Series]) -> list[Track]:
    if len(series) <= CURVES:
        return [_track(source(one), [one]) for one in series]
    return [_track(f"{len(series)} series: least, median, greatest", series)]


def source(series: Series) -> str:
    """Where a series was sampled."""
    rank = f"rank {series.rank}" if series.rank is not None else ""
    return " ".join(part for part in (series.node, series.gpu or "", rank) if part)


def _track(name: str, series: Sequence[Series]) -> Track:
    """All samples of ``series`` in time buckets; where every one of them is silent, a gap."""
    samples = sorted((t, v) for one in series for t, v in zip(one.t, one.v, strict=True))
    pause = 3 * max(map(_period, series))
    width = (samples[-1][0] - samples[0][0]) / BUCKETS if len(samples) > 2 * BUCKETS else 0.0
    stretches: list[list[list[tuple[float, float]]]] = [[[samples[0]]]]
    for before, sample in pairwise(samples):
        if sample[0] - before[0] > pause:
            stretches.append([[sample]])
        elif sample[0] - stretches[-1][-1][0][0] >= width:
            stretches[-1].append([sample])
        else:
            stretches[-1][-1].append(sample)
    return Track(name, [[_step(bucket) for bucket in stretch] for stretch in stretches])


def _period(series: Series) -> float:
    """The usual time between two samples, in seconds; unknown, and so infinite, with fewer than three."""
    steps = [after - before for before, after in pairwise(series.t)]
    return statistics.median(steps) if len(steps) > 1 else math.inf


def _step(bucket: Sequence[tuple[float, float]]) -> Step:
    values = [v for _, v in bucket]
    return Step(bucket[0][0], min(values), statistics.median(values), max(values))


def _spread(series: Sequence[Series]) -> str:
    """Where the least and the greatest sample are, and how many are missing."""
    least = min(series, key=lambda one: min(one.v))
    greatest = max(series, key=lambda one: max(one.v))
    unit = series[0].unit
    ends = [f"{words.quantity(min(least.v), unit)} ({source(least)})"]
    ends += [f"{words.quantity(max(greatest.v), unit)} ({source(greatest)})"]
    if len(series) == 1:
        ends = [words.quantity(min(least.v), unit), words.quantity(max(greatest.v), unit)]
    gaps = sum(one.gaps for one in series)
    holes = [f"{source(one)}: {one.gaps:,}" for one in series if one.gaps][:3]
    missing = f"{words.counted(gaps, 'gap')} ({'; '.join(holes)})" if gaps else "no gap"
    count = sum(len(one.t) for one in series)
    return f"From {ends[0]} to {ends[1]}; {words.counted(count, 'sample')}, {missing}."
