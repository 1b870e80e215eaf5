"""What the nccl suite's reader would draw: bandwidth over message size with its bound, and how late each rank is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from seatrial.record import Check, Record
from seatrial.reports import words
from seatrial.reports.plots import Curve, Figure, bars, curves

_SIZE = re.compile(r"([\d.]+) ?(B|KiB|MiB|GiB|TiB)")
_POWERS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}

Place = tuple[tuple[str, str], ...]


def figures(record: Record) -> list[Figure]:
    """The plots of this suite, one an operation and one for the ranks."""
    measured = [check for check in record.checks if check.suite == "nccl" and check.observed is not None]
    return [*_bandwidth(measured), *_lateness(measured)]


def size_bytes(text: str) -> float | None:
    """The bytes of a size as a check's place names it, ``1 MiB``; None where it is not one."""
    match = _SIZE.fullmatch(text)
    try:
        size = float(match[1]) * 2.0 ** _POWERS[match[2]] if match else 0.0
    except ValueError:
        return None
    return size or None


def size_label(size: float) -> str:
    """A size in the unit that suits it."""
    unit = next((unit for unit in reversed(_POWERS) if size >= 2.0 ** _POWERS[unit]), "B")
    return f"{words.number(size / 2.0 ** _POWERS[unit], 3)} {unit}"


def _bandwidth(checks: Sequence[Check]) -> list[Figure]:
    by_id: dict[str, list[tuple[float, Check]]] = {}
    for check in checks:
        size = size_bytes(check.where.get("size", ""))
        if check.id.endswith(".busbw") and size is not None:
            by_id.setdefault(check.id, []).append((size, check))
    return [_over_size(check_id, points) for check_id, points in by_id.items()]


def _over_size(check_id: str, points: Sequence[tuple[float, Check]]) -> Figure:
    by_place: dict[Place, list[tuple[float, Check]]] = {}
    for size, check in points:
        place = tuple((key, value) for key, value in check.where.items() if key != "size")
        by_place.setdefault(place, []).append((size, check))
    ordered = {place: sorted(of, key=lambda point: point[0]) for place, of in by_place.items()}
    lines = [Curve(name, ordered[place]) for place, name in _told_apart(list(ordered)).items()]
    operation = check_id.removeprefix("nccl.").removesuffix(".busbw")
    unit = points[0][1].unit
    return curves(f"{operation}: bus bandwidth", ("message size", "bytes"), ("busbw", unit), lines, size_label)


def _told_apart(places: Sequence[Place]) -> Mapping[Place, str]:
    """A short name for each place: the values of those keys in which the places differ."""
    if len(places) == 1:
        return {places[0]: " ".join(f"{key}={value}" for key, value in places[0]) or "measured"}
    shared = set(places[0]).intersection(*places[1:])
    return {place: " ".join(value for key, value in place if (key, value) not in shared) or "all" for place in places}


def _lateness(checks: Sequence[Check]) -> list[Figure]:
    by_unit: dict[str, list[Check]] = {}
    for check in checks:
        if check.id == "nccl.rank.lateness" and "rank" in check.where:
            by_unit.setdefault(check.unit, []).append(check)
    return [_by_rank(unit, late) for unit, late in by_unit.items()]


def _by_rank(unit: str, late: Sequence[Check]) -> Figure:
    named = sorted(((check.where["rank"], check) for check in late), key=lambda item: (len(item[0]), item[0]))
    return bars("How late each rank arrives", ("rank", "number"), ("lateness", unit), named)
