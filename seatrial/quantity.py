"""Quantities with units, as a profile writes them: sizes (``1.6 TiB``), rates (``20 GB/s``), durations (``90 s``).

Prefixes are decimal (k, M, G, T, P: powers of 1000) unless the name says otherwise (Ki ... Pi: powers of 1024), as
IEC 80000-13 has them. ``Bytes``, ``Rate`` and ``Seconds`` are field types for pydantic models; this module itself
imports nothing of pydantic, so that a program that only prints quantities stays light.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Dimension(enum.Enum):
    """What a quantity measures; the value is the unit of its base."""

    SIZE = "B"
    RATE = "B/s"
    TIME = "s"


@dataclass(frozen=True)
class _Unit:
    """A unit as an exact fraction of its dimension's base unit."""

    dimension: Dimension
    numerator: int
    denominator: int = 1


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SIZES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()} | {"KB": 10**3}

UNITS: dict[str, _Unit] = {
    **{name: _Unit(Dimension.SIZE, factor) for name, factor in _SIZES.items()},
    **{f"{name}/s": _Unit(Dimension.RATE, factor) for name, factor in _SIZES.items()},
    **{f"{prefix}bit/s": _Unit(Dimension.RATE, factor, 8) for prefix, factor in _DECIMAL.items()},
    "s": _Unit(Dimension.TIME, 1),
    "ms": _Unit(Dimension.TIME, 1, 10**3),
    "us": _Unit(Dimension.TIME, 1, 10**6),
    "min": _Unit(Dimension.TIME, 60),
    "h": _Unit(Dimension.TIME, 3600),
}
"""Every unit by its name; names are case-sensitive, because ``Mb`` and ``MB`` differ by eight."""

_COMMON = {
    Dimension.SIZE: ("MB", "GB", "TB", "MiB", "GiB", "TiB"),
    Dimension.RATE: ("MB/s", "GB/s", "GiB/s", "Gbit/s"),
    Dimension.TIME: ("us", "ms", "s", "min", "h"),
}
"""The units that a message names where none is near."""

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(\S*)\s*")
_BITS_OR_BYTES = re.compile(r"([kKMGTP]?)(?:b(?:/s|ps)|B?ps)")
_SPELLED_OUT = {
    "bytes": "B",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
}


def units(dimension: Dimension) -> list[str]:
    """The names of a dimension's units."""
    return [name for name, unit in UNITS.items() if unit.dimension is dimension]


def _such_as(dimension: Dimension | None) -> str:
    common = [unit for each in Dimension if dimension in (each, None) for unit in _COMMON[each]]
    return f"write a number and a unit such as {', '.join(common)}"


def _unknown(name: str, dimension: Dimension | None) -> ValueError:
    """An error that names the nearest valid unit, and both where bits and bytes cannot be told apart."""
    valid = list(UNITS) if dimension is None else units(dimension)
    told = f"unit {name[:20]!r} is not known"
    ambiguous = _BITS_OR_BYTES.fullmatch(name)
    if ambiguous and "B/s" in valid:
        prefix = ambiguous[1].replace("K", "k")
        return ValueError(f"{told}; nearest valid unit {prefix}B/s (bytes) or {prefix}bit/s (bits)")
    spelled = _SPELLED_OUT.get(name.casefold())
    if spelled in valid:
        return ValueError(f"{told}; nearest valid unit {spelled}")
    folded = {candidate.casefold(): candidate for candidate in reversed(valid)}
    near = difflib.get_close_matches(name[:20].casefold(), folded, n=1, cutoff=0.5)
    return ValueError(f"{told}; nearest valid unit {folded[near[0]]}" if near else f"{told}; {_such_as(dimension)}")


@dataclass(frozen=True)
class Quantity:
    """A finite number and its unit.

    Raises:
        ValueError: the unit is not known (the nearest valid one is named), or the number is not finite in base units.
    """

    value: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise _unknown(self.unit, None)
        if not math.isfinite(self.base):
            raise ValueError(f"{self.value!r} {self.unit} is not a finite number of {self.dimension.value}")

    @property
    def dimension(self) -> Dimension:
        """What it measures."""
        return UNITS[self.unit].dimension

    @property
    def base(self) -> float:
        """Its value in bytes, bytes per second or seconds."""
        unit = UNITS[self.unit]
        return float(self.value) * unit.numerator / unit.denominator

    def to(self, unit: str) -> Quantity:
        """The same quantity in another unit of its dimension.

        Raises:
            ValueError: no such unit, or one of another dimension.
        """
        if unit not in UNITS:
            raise _unknown(unit, self.dimension)
        if UNITS[unit].dimension is not self.dimension:
            raise ValueError(f"{self} cannot be told in {unit}; {_such_as(self.dimension)}")
        return Quantity(_in_unit(self.base, unit), unit)

    def __str__(self) -> str:
        return f"{repr(float(self.value)).removesuffix('.0')} {self.unit}"


def _in_unit(base: float, unit: str) -> float:
    return base * UNITS[unit].denominator / UNITS[unit].numerator


def parse(text: str, dimension: Dimension | None = None) -> Quantity:
    """Read a number with its unit.

    Args:
        text: such as ``20 GB/s``; the space may be missing.
        dimension: what it must measure; None for any.

    Raises:
        ValueError: no number, no unit, or a unit that is not one of the dimension's; the nearest valid one is named.
    """
    matched = _QUANTITY.fullmatch(text)
    if matched is None:
        raise ValueError(f"{text[:40]!r} is no quantity; {_such_as(dimension)}")
    number, unit = matched.groups()
    if not unit:
        raise ValueError(f"{number[:40]} lacks its unit; {_such_as(dimension)}")
    if unit not in UNITS or dimension not in (UNITS[unit].dimension, None):
        raise _unknown(unit, dimension)
    return Quantity(float(number), unit)


def exact(base: float, dimension: Dimension) -> str:
    """The most readable text that ``parse`` reads back as exactly this number of base units."""
    in_bytes = [unit for unit in units(dimension) if UNITS[unit].denominator != 8]
    told = (Quantity(value, unit) for unit in in_bytes if math.isfinite(value := _in_unit(base, unit)))
    faithful = [quantity for quantity in told if quantity.base == base]
    return str(min(faithful, key=_unreadability))


def _unreadability(quantity: Quantity) -> int:
    """Characters to read, two more where the number is outside 1 to 1000."""
    return len(str(quantity)) + (0 if 1 <= abs(quantity.value) < 1000 else 2)


def _readable(base: float, dimension: Dimension) -> str:
    """The exact text where that is short, else three digits in decimal units."""
    if not math.isfinite(base):
        return f"{base} {dimension.value}"
    faithful = exact(base, dimension)
    if len(faithful.split()[0]) <= 4:
        return faithful
    rounded = float(f"{base:.3g}")
    prefix = next((prefix for prefix in reversed(_DECIMAL) if abs(rounded) >= _DECIMAL[prefix]), "")
    return f"{rounded / _DECIMAL[prefix]:.12g} {prefix}{dimension.value}"


def format_bytes(count: float) -> str:
    """A size in a few characters: ``1 MiB`` for 1048576, ``20 GB`` for 2e10, ``1.23 MB`` for 1234567."""
    return _readable(count, Dimension.SIZE)


def format_rate(bytes_per_second: float) -> str:
    """A rate in a few characters: ``20 GB/s`` for 2e10."""
    return _readable(bytes_per_second, Dimension.RATE)


def format_seconds(seconds: float) -> str:
    """A duration in three digits: ``250 us``, ``1.5 ms``, ``90 s``, ``15 min``, ``2.5 h``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    rounded = float(f"{seconds:.3g}")
    size = abs(rounded)
    if size == 0:
        return "0 s"
    unit = "us" if size < 1e-3 else "ms" if size < 1 else "s" if size < 120 else "min" if size < 7200 else "h"
    return f"{float(f'{_in_unit(rounded, unit):.3g}'):.12g} {unit}"


@dataclass(frozen=True)
class _Field:
    """Makes a float field that is written as text with a unit and holds a positive number of base units."""

    dimension: Dimension
    noun: str
    example: str

    def _validate(self, written: object) -> float:
        quantity = parse(str(written), self.dimension)
        if quantity.base <= 0:
            raise ValueError("it must be more than zero")
        return quantity.base

    def _serialize(self, base: float) -> str:
        return exact(base, self.dimension)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # noqa: PLC0415

        written = core_schema.plain_serializer_function_ser_schema(self._serialize, when_used="json")
        return core_schema.no_info_plain_validator_function(self._validate, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names = "|".join(map(re.escape, units(self.dimension)))
        return {
            "type": "string",
            "pattern": rf"^\s*\+?{_NUMBER.removeprefix('[+-]?')}\s*({names})\s*$",
            "examples": [self.example],
            "x-expected": f"{self.noun} such as {self.example!r}",
        }


Bytes = Annotated[float, _Field(Dimension.SIZE, "a size", "1.6 TiB")]
"""A model's field: a size, written with its unit, held in bytes."""
Rate = Annotated[float, _Field(Dimension.RATE, "a rate", "20 GB/s")]
"""A model's field: a rate, written with its unit, held in bytes per second."""
Seconds = Annotated[float, _Field(Dimension.TIME, "a duration", "90 s")]
"""A model's field: a duration, written with its unit, held in seconds."""
