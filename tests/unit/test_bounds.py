"""Bounds and the catalogue: every mistake is told before anything runs, and the most specific bound wins."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.bounds import Bound, Bounds, Kind, load, load_package
from seatrial.errors import UsageError

CHECKS = (
    {"id": "nccl.{op}.busbw", "unit": "GB/s", "better": "higher", "where": ["dtype", "size"]},
    {"id": "nccl.{op}.correct", "unit": "wrong elements", "better": "equal", "where": ["dtype"]},
    {"id": "nccl.rank.lateness", "unit": "share", "better": "lower", "where": ["rank"]},
)


def bound(check: str = "nccl.all_reduce.busbw", **fields: Any) -> dict[str, Any]:
    """A sound bound of the busbw, changed by ``fields``; a field that is None is left out."""
    evidence = {"source": "the datasheet", "date": "2026-01-01", "conditions": "one quiet node", "confidence": "high"}
    limit = {} if {"at_most", "equals"} & fields.keys() else {"at_least": 1}
    whole = {"check": check, "unit": "GB/s", **evidence, **limit, **fields}
    return {key: value for key, value in whole.items() if value is not None}


class Folder:
    """Writes catalogues and thresholds, and loads them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count()

    def write(self, key: str, items: list[dict[str, Any]]) -> Path:
        """A file of one list."""
        path = self.path / f"{key}-{next(self._numbers)}.yaml"
        path.write_text(yaml.safe_dump({key: items}, sort_keys=False))
        return path

    def catalogue(self, *checks: Mapping[str, Any]) -> Path:
        """A catalogue: of CHECKS, or of these."""
        words = {"proves": "something", "cannot": "say more", "next": "look"}
        return self.write("checks", [{**words, **check} for check in checks or CHECKS])

    def load(self, *bounds: dict[str, Any]) -> Bounds:
        """These bounds, held against CHECKS."""
        return load([self.catalogue()], [self.write("bounds", list(bounds))])

    def refusal(self, *bounds: dict[str, Any]) -> list[str]:
        """The mistakes of one file of bounds, a line each."""
        with pytest.raises(UsageError) as refused:
            self.load(*bounds)
        return str(refused.value).splitlines()[1:]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_everything_in_this_package_loads_without_a_mistake() -> None:
    known = load_package()
    assert known.entry("nccl.all_reduce.busbw") is not None
    assert known.find("nccl.all_reduce.correct", {}) is not None


def test_every_bound_of_this_package_has_a_check_to_decide() -> None:
    known = load_package()
    used = {str(bound) for entry in known.entries for bound in known.of(entry)}
    assert used == set(map(str, known.bounds))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"source": "TODO: measure"}, "bounds[0].source: expected text (at least 8 characters long)"),
        ({"source": "tbd, see the wiki"}, "a placeholder proves nothing"),
        ({"conditions": "placeholder"}, "bounds[0].conditions"),
        ({"source": "short"}, "bounds[0].source"),
        ({"source": None}, "bounds[0].source"),
        ({"date": None}, "bounds[0].date"),
        ({"confidence": "hig"}, "bounds[0].confidence: expected one of high, med, low, observed 'hig'"),
        ({"at_least": 1, "equals": 1}, "either equals, or at_least and/or at_most"),
        ({"at_least": None}, "either equals, or at_least and/or at_most"),
        ({"at_least": 2, "at_most": 1}, "at_least <= at_most"),
        ({"equals": 1, "of": "ring"}, "an equality has no ratio"),
        ({"at_least": float("nan")}, "bounds[0].at_least: expected a number"),
        ({"at_least": float("inf")}, "bounds[0].at_least: expected a number"),
        ({"samples": 0}, "bounds[0].samples"),
        ({"of": ""}, "bounds[0].of"),
        ({"unit": "GB"}, "bounds[0].unit: expected 'GB/s', the unit of nccl.{op}.busbw, observed 'GB'"),
        ({"when": {"acelerator": "h100"}}, "bounds[0].when.acelerator"),
        ({"when": {"rank": "1"}}, "bounds[0].when.rank"),
        ({"at_most": 9}, "expected at_least, because nccl.{op}.busbw is better higher"),
        ({"minimum": 3}, "bounds[0].minimum: expected a known key"),
        (
            {"check": "nccl.all_reduce.bus"},
            "observed 'nccl.all_reduce.bus'; nearest valid word 'nccl.all_reduce.busbw'",
        ),
        ({"check": "nccl.busbw"}, "bounds[0].check: expected a check that some checks.yaml describes"),
        ({"check": "nccl.all*.busbw"}, "where * stands for any one word, observed 'nccl.all*.busbw'"),
        ({"check": "busbw"}, "where * stands for any one word, observed 'busbw'"),
    ],
)
def test_each_mistake_is_told_with_its_file_and_line(folder: Folder, fields: dict[str, Any], told: str) -> None:
    (mistake,) = folder.refusal(bound(**fields))
    place, _, text = mistake.strip().partition(": ")
    assert told in text
    file, _, line = place.rpartition(":")
    assert Path(file).is_file()
    assert line.isdigit()


def test_a_misspelt_key_is_told_with_the_nearest_word(folder: Folder) -> None:
    (mistake,) = folder.refusal(bound(when={"acelerator": "h100"}))
    assert "nearest valid word 'accelerator'" in mistake


def test_all_mistakes_of_all_files_are_told_at_once(folder: Folder) -> None:
    catalogue = folder.catalogue()
    files = [
        folder.write("bounds", [bound(source="TODO later"), bound("nccl.rank.latenes", unit="share")]),
        folder.write("bounds", [bound(unit="GB", when={"sise": "1 MiB"}), bound(confidence="none")]),
    ]
    with pytest.raises(UsageError) as refused:
        load([catalogue], files)
    text = str(refused.value)
    assert text.startswith("5 mistakes to mend:")
    assert all(told in text for told in ("source", "'nccl.rank.lateness'", "unit", "'size'", "confidence"))
    assert all(file.name in text for file in files)


def test_a_broken_catalogue_does_not_blame_the_bounds(folder: Folder) -> None:
    catalogue = folder.catalogue({"id": "nccl.all_reduce.busbw", "unit": "GB/s", "better": "hihger"})
    with pytest.raises(UsageError) as refused:
        load([catalogue], [folder.write("bounds", [bound()])])
    assert str(refused.value).startswith("1 mistake to mend:")
    assert "nearest valid word 'higher'" in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (bound(), bound(at_least=2)),
        (bound("nccl.*.busbw"), bound("nccl.*.busbw", at_least=2)),
        (bound("nccl.*.busbw"), bound("*.all_reduce.busbw")),
        (bound(when={"fabric": "infiniband"}), bound(when={"accelerator": "h100"})),
        (bound(when={"fabric": "infiniband", "ranks": 8}), bound(when={"fabric": "infiniband", "nodes": 1})),
    ],
)
def test_two_bounds_that_fit_one_place_equally_well_are_a_mistake(
    folder: Folder, one: dict[str, Any], other: dict[str, Any]
) -> None:
    (mistake,) = folder.refusal(one, other)
    assert "fits as well; keep one, or add a key to when" in mistake


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (bound(when={"accelerator": "a100"}), bound(when={"accelerator": "h100"})),
        (bound(), bound("nccl.all_gather.busbw")),
        (bound(), bound("nccl.*.busbw")),
        (bound(), bound(when={"accelerator": "h100"})),
    ],
)
def test_bounds_that_never_meet_or_differ_in_rank_stand_side_by_side(
    folder: Folder, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert len(folder.load(one, other).bounds) == 2


def test_two_files_that_describe_one_check_are_a_mistake(folder: Folder) -> None:
    with pytest.raises(UsageError, match="each check once"):
        load([folder.catalogue(), folder.catalogue(CHECKS[2])], [])


def test_the_most_specific_bound_wins(folder: Folder) -> None:
    known = folder.load(
        bound("nccl.*.busbw", at_least=1),
        bound("nccl.all_reduce.busbw", at_least=2),
        bound("nccl.*.busbw", at_least=3, when={"accelerator": "h100"}),
        bound("nccl.all_reduce.busbw", at_least=4, when={"accelerator": "h100", "ranks": 8}),
    )
    h100 = {"accelerator": "h100"}

    def least(check: str, context: Mapping[str, str]) -> float | None:
        found = known.find(check, context)
        return None if found is None else found.at_least

    assert least("nccl.broadcast.busbw", {}) == 1
    assert least("nccl.all_reduce.busbw", {}) == 2
    assert least("nccl.all_reduce.busbw", h100) == 3
    assert least("nccl.all_reduce.busbw", {**h100, "ranks": "8", "size": "1 MiB"}) == 4
    assert least("nccl.all_reduce.busbw", {**h100, "ranks": "16"}) == 3


def test_a_bound_for_another_place_is_not_used(folder: Folder) -> None:
    known = folder.load(bound(when={"accelerator": "h100"}))
    assert known.find("nccl.all_reduce.busbw", {"accelerator": "a100"}) is None
    assert known.find("nccl.all_reduce.busbw", {}) is None
    assert known.find("nccl.all_gather.busbw", {"accelerator": "h100"}) is None


def test_a_wildcard_stands_for_one_word_only(folder: Folder) -> None:
    known = folder.load(bound("nccl.*.busbw"))
    assert known.find("nccl.all_reduce.raw.busbw", {}) is None
    assert known.entry("nccl.all_reduce.raw.busbw") is None


def test_an_entry_that_names_the_check_comes_before_a_pattern(folder: Folder) -> None:
    perf = {"id": "nccl.all_reduce_perf.busbw", "unit": "GB/s", "better": "higher"}
    known = load([folder.catalogue(*CHECKS, perf)], [])
    named, general = known.entry("nccl.all_reduce_perf.busbw"), known.entry("nccl.broadcast.busbw")
    assert (named and named.id, general and general.id) == ("nccl.all_reduce_perf.busbw", "nccl.{op}.busbw")
    assert known.entry("nccl.all_reduce.latency") is None


@pytest.mark.parametrize(
    ("limits", "kind", "value", "words"),
    [
        ({"at_least": 2}, Kind.MIN, 2, "at least 2 GB/s"),
        ({"at_least": None, "at_most": 3}, Kind.MAX, 3, "at most 3 GB/s"),
        ({"at_least": 2, "at_most": 3}, Kind.WITHIN, [2, 3], "at least 2 and at most 3 GB/s"),
        ({"at_least": None, "equals": 0}, Kind.EQUAL, 0, "exactly 0 GB/s"),
        ({"at_least": 0.5, "of": "ring"}, Kind.RATIO, 0.5, "at least 0.5 of ring"),
    ],
)
def test_a_bound_tells_its_kind_its_value_and_its_words(
    limits: dict[str, Any], kind: Kind, value: object, words: str
) -> None:
    known = Bound.model_validate(bound(**limits))
    assert (known.kind, known.value, known.limits()) == (kind, value, words)


def test_a_bound_of_low_confidence_does_not_decide() -> None:
    assert Bound.model_validate(bound(confidence="med")).gates
    assert not Bound.model_validate(bound(confidence="low")).gates
