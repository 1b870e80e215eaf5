"""Inline SVG: a canvas, scales and axes, small enough to read and to print, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from seatrial.reports import words

WIDTH = 360
"""The width of every plot in its own units: about one CSS pixel each, on a phone and in three columns."""
CHARACTER = 7.0
"""The width of a character at the plots' font size, in the widest of the common fonts."""

CROSS = -1
"""The shape of a legend's entry for values that did not pass."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Maps values from ``low`` to ``high`` onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        zero: bool = False,
        air: float = 0.08,
    ) -> Scale:
        """A scale that holds all ``values``, and zero if asked, with a share of ``air`` around them."""
        if log:
            low, high = min(values), max(values)
            return cls(low / 1.25, min(high, 1e308) * 1.25, start, end, log=True)
        low, high = min([*values, 0.0] if zero else values), max([*values, 0.0] if zero else values)
        span = high / 2 - low / 2 or abs(high) / 4 or 0.5
        room = 2 * air * span
        return cls(low if zero and low == 0 else max(low, -1e308) - room, min(high, 1e308) + room, start, end)

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside stays at the edge."""
        if self.log:
            share = _share(math.log2(max(value, self.low)), math.log2(self.low), math.log2(self.high))
        else:
            share = _share(value, self.low, self.high)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def shrunk(self, factor: float) -> Scale:
        """The same scale for values in a unit that is ``factor`` times larger."""
        return replace(self, low=self.low / factor, high=self.high / factor)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values on the scale, ``most`` of them or a few less."""
        return self._log_ticks(most) if self.log else self._linear_ticks(most)

    def _linear_ticks(self, most: int) -> list[float]:
        raw = (self.high / 2 - self.low / 2) / most * 2
        power = 10.0 ** math.floor(math.log10(raw)) if raw > 1e-300 else raw
        step = next((power * factor for factor in (1, 2, 5) if power * factor >= raw), power * 10)
        first = math.ceil(self.low / step)
        return [tick for tick in ((first + at) * step for at in range(most + 2)) if self.low <= tick <= self.high]

    def _log_ticks(self, most: int) -> list[float]:
        low, high = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if math.log10(self.high) - math.log10(self.low) < 2.2:
            factors = (1, 2, 5)
            candidates = [factor * 10.0**power for power in range(low - 1, high + 1) for factor in factors]
        else:
            candidates = [10.0**power for power in range(low, high + 1, max((high - low) // most + 1, 1))]
        return [tick for tick in candidates if self.low <= tick <= self.high]


def _share(value: float, low: float, high: float) -> float:
    return (value / 2 - low / 2) / (high / 2 - low / 2)


@dataclass(frozen=True)
class Axis:
    """A scale with its title (see ``titled``) and its labelled ticks."""

    scale: Scale
    title: str
    ticks: Sequence[tuple[float, str]]

    @classmethod
    def of(cls, scale: Scale, title: str, most: int = 5) -> Axis:
        """An axis with round ticks."""
        return cls(scale, title, [(tick, words.short(tick)) for tick in scale.ticks(most)])


class Canvas:
    """Collects shapes; everything that is text passes through ``text``, which escapes it."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width = width
        self.height = height
        self._parts: list[Markup] = []

    def line(self, start: Point, end: Point, css: str) -> None:
        """A straight line."""
        self.path([start, end], css)

    def path(self, points: Sequence[Point], css: str, *, closed: bool = False) -> None:
        """A line through all points; ``closed`` makes it an area."""
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._parts.append(Markup('<path class="{}" d="M{}{}"/>').format(css, steps, "Z" if closed else ""))

    def box(self, corner: Point, opposite: Point, css: str) -> None:
        """A rectangle between two corners."""
        (left, top), (right, bottom) = corner, opposite
        self.path([(left, top), (right, top), (right, bottom), (left, bottom)], css, closed=True)

    def mark(self, shape: int, at: Point, css: str) -> None:
        """A marker: one of four shapes, so that curves differ without colour."""
        x, y = at
        outline = _SHAPES[shape % len(_SHAPES)]
        self.path([(x + dx, y + dy) for dx, dy in outline], f"mark {css}", closed=True)

    def cross(self, at: Point, css: str = "") -> None:
        """The sign of a value that did not pass."""
        x, y = at
        steps = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        self._parts.append(Markup('<path class="cross {}" d="{}"/>').format(css, steps))

    def text(self, at: Point, content: str, css: str = "", anchor: str = "start") -> None:
        """A line of text."""
        x, y = at
        shown = words.clean(content)
        form = Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>')
        self._parts.append(form.format(x, y, css, anchor, shown))

    def render(self, title: str, description: str) -> Markup:
        """The whole drawing, with its text alternative."""
        head = Markup('<svg class="plot" role="img" viewBox="0 0 {:g} {:g}"><title>{}</title><desc>{}</desc>')
        texts = (escape(words.clean(title)), escape(words.clean(description)))
        return head.format(self.width, self.height, *texts) + Markup("").join(self._parts) + Markup("</svg>")


def _polygon(corners: int, radius: float, turn: float) -> list[Point]:
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for angle in angles]


_SHAPES = (_polygon(12, 3.2, 0), _polygon(4, 4.0, math.pi / 4), _polygon(3, 4.4, 0), _polygon(4, 4.4, 0))


def clip(text: str, most: int) -> str:
    """The text, cut with an ellipsis where it is longer than ``most`` characters."""
    text = words.clean(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def titled(name: str, unit: str) -> str:
    """An axis title that names its unit and fits its axis."""
    return f"{clip(name, 28)} ({clip(unit, 16) or '1'})"


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    name: str
    css: str
    shape: int | None = None


@dataclass(frozen=True)
class Area:
    """Where the data are drawn: the pixels of its four edges."""

    left: float
    top: float
    right: float
    bottom: float


LEFT, RIGHT, BOTTOM, ROW = 48.0, WIDTH - 24.0, 44.0, 15.0


def legend_rows(keys: Sequence[Key]) -> list[list[Key]]:
    """The keys in rows that fit the width."""
    rows: list[list[Key]] = [[]]
    used = 0.0
    for key in keys:
        wide = _key_width(key)
        if rows[-1] and used + wide > WIDTH - 8:
            rows.append([])
            used = 0.0
        rows[-1].append(key)
        used += wide
    return [row for row in rows if row]


def _key_width(key: Key) -> float:
    return 26 + CHARACTER * len(clip(key.name, 40)) + 8


def area(rows: int, height: float = 150.0) -> Area:
    """The area under the title of the y axis and so many rows of legend or labels."""
    top = 22 + rows * ROW
    return Area(LEFT, top, RIGHT, top + height)


def canvas(space: Area) -> Canvas:
    """A canvas that holds an area and its axes."""
    return Canvas(space.bottom + BOTTOM)


def draw_legend(canvas: Canvas, rows: Sequence[Sequence[Key]]) -> None:
    """The legend, below the title of the y axis."""
    for number, row in enumerate(rows):
        x, y = 4.0, 12 + (number + 1) * ROW
        for key in row:
            if key.shape == CROSS:
                canvas.cross((x + 9, y - 4), key.css)
            else:
                canvas.line((x, y - 4), (x + 18, y - 4), key.css)
            if key.shape is not None and key.shape != CROSS:
                canvas.mark(key.shape, (x + 9, y - 4), key.css)
            canvas.text((x + 23, y), clip(key.name, 40))
            x += _key_width(key)


def draw_axes(canvas: Canvas, space: Area, x: Axis, y: Axis) -> None:
    """Grid, tick labels that never touch, and both titles."""
    canvas.text((4, 12), y.title, "axis")
    canvas.text(((space.left + space.right) / 2, space.bottom + 37), x.title, "axis", "middle")
    above = math.inf
    for tick, label in y.ticks:
        at = y.scale(tick)
        canvas.line((space.left, at), (space.right, at), "grid")
        if above - at >= ROW:
            canvas.text((space.left - 6, at + 4), clip(label, 6), anchor="end")
            above = at
    after = 0.0
    for tick, label in x.ticks:
        at, half = x.scale(tick), CHARACTER * len(label) / 2
        if at - half >= after and at + half <= canvas.width:
            canvas.line((at, space.bottom), (at, space.bottom + 4), "edge")
            canvas.text((at, space.bottom + 20), label, anchor="middle")
            after = at + half + 6
    canvas.line((space.left, space.bottom), (space.right, space.bottom), "edge")
