"""Quantities: exact units, a round trip without loss, and errors that name the nearest valid unit."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from seatrial.quantity import (
    UNITS,
    Bytes,
    Dimension,
    Quantity,
    Rate,
    Seconds,
    exact,
    format_bytes,
    format_rate,
    format_seconds,
    parse,
    units,
)

finite = st.floats(min_value=-1e200, max_value=1e200, allow_nan=False)
positive = st.floats(min_value=1e-200, max_value=1e200)


class Promise(BaseModel):
    """A model with a field of each kind."""

    size: Bytes | None = None
    rate: Rate | None = None
    time: Seconds | None = None


@pytest.mark.parametrize(
    ("text", "base", "dimension"),
    [
        ("20 GB/s", 20e9, Dimension.RATE),
        ("1.6 TiB", 1.6 * 2**40, Dimension.SIZE),
        ("90 s", 90.0, Dimension.TIME),
        ("400 Gbit/s", 50e9, Dimension.RATE),
        ("1KB", 1000.0, Dimension.SIZE),
        ("  5e-1   ms ", 0.0005, Dimension.TIME),
        ("7 us", 7e-6, Dimension.TIME),
        ("+2 h", 7200.0, Dimension.TIME),
        (".5 PiB", 2**49, Dimension.SIZE),
    ],
)
def test_a_quantity_is_read_exactly(text: str, base: float, dimension: Dimension) -> None:
    quantity = parse(text)
    assert (quantity.base, quantity.dimension) == (base, dimension)


def test_prefixes_are_decimal_unless_the_name_says_otherwise() -> None:
    assert [UNITS[f"{p}B"].numerator for p in ("k", "M", "G", "T", "P")] == [1000**n for n in range(1, 6)]
    assert [UNITS[f"{p}iB"].numerator for p in ("K", "M", "G", "T", "P")] == [1024**n for n in range(1, 6)]


def test_conversion_keeps_the_dimension() -> None:
    assert parse("400 Gbit/s").to("GB/s") == Quantity(50.0, "GB/s")
    assert parse("90 s").to("min") == Quantity(1.5, "min")
    with pytest.raises(ValueError, match=r"20 GB/s cannot be told in s; .*MB/s"):
        parse("20 GB/s").to("s")
    with pytest.raises(ValueError, match="'GBs' is not known; nearest valid unit GB/s"):
        parse("20 GB/s").to("GBs")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("20 GBs", "nearest valid unit GB/s"),
        ("20 Gb/s", "nearest valid unit GB/s (bytes) or Gbit/s (bits)"),
        ("20 Gbps", "nearest valid unit GB/s (bytes) or Gbit/s (bits)"),
        ("20 Kbps", "nearest valid unit kB/s (bytes) or kbit/s (bits)"),
        ("3 gib", "nearest valid unit GiB"),
        ("5 kb", "nearest valid unit kB"),
        ("5 mins", "nearest valid unit min"),
        ("1 hour", "nearest valid unit h"),
        ("1 furlong", "write a number and a unit such as"),
        ("20", "20 lacks its unit"),
        ("GB/s", "'GB/s' is no quantity"),
        ("", "'' is no quantity"),
        ("1,5 GB", "is no quantity"),
        ("20 GB / s", "is no quantity"),
        ("nan s", "is no quantity"),
        ("1e999 GB", "not a finite number"),
        ("1e305 GB", "not a finite number"),
    ],
)
def test_a_mistake_names_the_nearest_unit(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(text)


def test_a_unit_of_another_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="nearest valid unit GB/s"):
        parse("20 GB", Dimension.RATE)


@given(finite, st.sampled_from(sorted(UNITS)))
def test_text_and_back_is_the_same_quantity(value: float, unit: str) -> None:
    quantity = Quantity(value, unit)
    assert parse(str(quantity)) == quantity


@given(finite, st.sampled_from(list(Dimension)))
def test_exact_text_loses_nothing(base: float, dimension: Dimension) -> None:
    assert parse(exact(base, dimension), dimension).base == base


@given(finite, st.sampled_from(sorted(UNITS)), st.data())
def test_conversion_keeps_the_value(value: float, unit: str, data: st.DataObject) -> None:
    quantity = Quantity(value, unit)
    other = data.draw(st.sampled_from(units(quantity.dimension)))
    assert quantity.to(other).base == pytest.approx(quantity.base, rel=1e-12, abs=1e-300)


@given(st.floats(min_value=1e-6, max_value=1e18))
def test_a_readable_text_is_short_and_within_half_a_percent(base: float) -> None:
    text = format_bytes(base)
    assert parse(text).base == pytest.approx(base, rel=0.005)
    assert len(text) <= 12
    assert format_rate(base) == f"{text}/s"


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_readable_duration_is_within_one_percent(seconds: float) -> None:
    assert parse(format_seconds(seconds)).base == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1000, "1 kB"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1048576, "1 MiB"),
        (1234567, "1.23 MB"),
        (999_999, "1 MB"),
        (20e9, "20 GB"),
        (float("nan"), "nan B"),
    ],
)
def test_sizes_read_well(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00025, "250 us"),
        (0.0015, "1.5 ms"),
        (0.99999, "1 s"),
        (90, "90 s"),
        (900, "15 min"),
        (9000, "2.5 h"),
        (-3.2, "-3.2 s"),
        (float("inf"), "inf s"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("written", [20, 20.5, True, "20", "20 GB", "0 GB/s", "-1 GB/s", ["20 GB/s"]])
def test_a_field_refuses_a_bare_number_and_what_is_not_a_positive_rate(written: object) -> None:
    with pytest.raises(ValidationError):
        Promise.model_validate({"rate": written})


@given(positive, st.sampled_from(["size", "rate", "time"]))
def test_a_field_survives_json(base: float, name: str) -> None:
    promise = Promise.model_construct(None, **{name: base})
    assert Promise.model_validate_json(promise.model_dump_json()) == promise


def test_a_field_tells_editors_its_form() -> None:
    told = Promise.model_json_schema()["properties"]["rate"]["anyOf"][0]
    assert told["type"] == "string"
    assert all(re.search(told["pattern"], text) for text in (*told["examples"], "1.5e3 KiB/s", "400Gbit/s"))
    assert not any(re.search(told["pattern"], text) for text in ("20", "20 GB", "-1 GB/s", "20 GB/sec"))


def test_a_field_is_written_back_with_its_unit() -> None:
    promise = Promise.model_validate({"size": "1.6 TiB", "rate": "20 GB/s", "time": "90 s"})
    assert (promise.size, promise.rate, promise.time) == (1.6 * 2**40, 20e9, 90.0)
    assert json.loads(promise.model_dump_json()) == {"size": "1.6 TiB", "rate": "20 GB/s", "time": "90 s"}
