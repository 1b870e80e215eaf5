"""What the health suite's reader would draw: the devices as a map, and the rate of each over the soak."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from seatrial.record import Check, Event, Record, Series, Timeline
from seatrial.reports import svg, words
from seatrial.reports.plots import Figure, over_time

COLUMNS = 4
"""Cells in a row of the map."""
CELLS = 64
"""With more devices than this, the map shows the weakest of them."""
CELL_WIDTH, CELL_HEIGHT, AIR = 84.0, 46.0, 4.0


def figures(record: Record) -> list[Figure]:
    """The plots of this suite."""
    return [*_map(record), *_soak(record)]


def _map(record: Record) -> Iterator[Figure]:
    """A cell a device, filled to its share of the best peer's rate and coloured by what was judged of it."""
    shares = [check for check in record.checks if check.id == "health.device.share" and "rank" in check.where]
    measured = [check for check in shares if check.observed is not None]
    if not measured:
        return
    shown = sorted(sorted(measured, key=_share)[:CELLS], key=_rank)
    rows = math.ceil(len(shown) / COLUMNS)
    canvas = svg.Canvas(rows * (CELL_HEIGHT + AIR) + AIR)
    for number, check in enumerate(shown):
        row, column = divmod(number, COLUMNS)
        _draw_cell(canvas, check, (AIR + column * (CELL_WIDTH + AIR), AIR + row * (CELL_HEIGHT + AIR)))
    caption = _weakest(measured, len(shown))
    title = "Devices: the weakest measure of each against its best peer"
    yield Figure(title, caption, canvas.render(title, caption))


def _draw_cell(canvas: svg.Canvas, check: Check, corner: svg.Point) -> None:
    left, top = corner
    right, bottom = left + CELL_WIDTH, top + CELL_HEIGHT
    full = bottom - min(max(_share(check), 0.0), 1.0) * CELL_HEIGHT
    canvas.box((left, full), (right, bottom), f"band {check.outcome}")
    canvas.box((left, top), (right, bottom), f"edge {check.outcome}")
    glyph = words.GLYPHS[check.outcome]
    canvas.text((left + 6, top + 18), svg.clip(f"{glyph} rank {check.where['rank']}", 11), "axis")
    canvas.text((left + 6, top + 35), f"{words.number(100 * _share(check), 3)}%", "axis")


def _share(check: Check) -> float:
    return check.observed or 0.0


def _rank(check: Check) -> tuple[int, str]:
    rank = check.where["rank"]
    return len(rank), rank


def _weakest(checks: Sequence[Check], shown: int) -> str:
    least = min(checks, key=_share)
    told = f"{svg.clip(least.detail, 160)} at " if least.detail else ""
    rest = f" Only the weakest {shown} of {len(checks)} are shown." if shown < len(checks) else ""
    return f"Weakest: {told}{words.number(100 * _share(least), 3)}% of its best peer.{rest}"


def _soak(record: Record) -> Iterator[Figure]:
    """The rate of each device over each soak."""
    by_job: dict[str, dict[int, list[Event]]] = {}
    for event in record.events:
        if event.name == "soak" and _is_slice(event):
            by_job.setdefault(event.job, {}).setdefault(event.rank, []).append(event)
    for job, by_rank in by_job.items():
        series = [_over_time(job, rank, slices) for rank, slices in sorted(by_rank.items())]
        yield over_time("Products under load, since the soak's start", series, Timeline())


def _is_slice(event: Event) -> bool:
    """Whether an event tells of a slice as the payload does: a record may come from anywhere."""
    said = event.said
    times, numbers = said.get("time_us"), (said.get("since_s"), said.get("flop"))
    if not isinstance(times, list) or not times or not all(isinstance(number, (int, float)) for number in numbers):
        return False
    return all(isinstance(time, (int, float)) and time > 0 for time in times)


def _over_time(job: str, rank: int, slices: Sequence[Event]) -> Series:
    """The median rate of each slice."""
    ordered = sorted(slices, key=lambda event: float(event.said["since_s"]))
    return Series(
        type="series",
        t=tuple(float(event.said["since_s"]) for event in ordered),
        job=job,
        node="",
        rank=rank,
        metric="product rate",
        unit="TFLOP/s",
        v=tuple(event.said["flop"] / median(event.said["time_us"]) / 1e6 for event in ordered),
        gaps=0,
    )
