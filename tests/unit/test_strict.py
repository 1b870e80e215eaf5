"""Strict reading: every mistake at once, in our words, at its line; and no file, however odd, gives a traceback."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from seatrial import strict
from seatrial.errors import UsageError
from seatrial.strict import MAX_BYTES, MAX_DEPTH, Finding, Mistake, Strict, load, mistakes


class Disc(Strict):
    """One branch of a union."""

    kind: Literal["disc"]
    path: str


class Bucket(Strict):
    """The other branch."""

    kind: Literal["object"]
    uri: str


class Ship(Strict):
    """A model with a field of each sort."""

    name: Annotated[str, Field(min_length=1)]
    masts: Annotated[int, Field(ge=1, le=5)] | Literal["auto"] = "auto"
    speed: float = 0.0
    armed: bool = False
    launched: datetime.date | None = None
    flag: Literal["red", "white"] = "red"
    crew: tuple[str, ...] = ()
    holds: tuple[Annotated[Disc | Bucket, Field(discriminator="kind")], ...] = ()
    home: Annotated[Disc | Bucket, Field(discriminator="kind")] | None = None
    tags: Mapping[str, str] = {}

    @classmethod
    def cross_check(cls, data: Any) -> list[Finding]:
        """A ship called Vasa is refused, whatever else is wrong with it."""
        if isinstance(data, dict) and data.get("name") == "Vasa":
            return [Finding(("name",), "a ship that floats", "'Vasa'")]
        return []


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file to write into."""
    return tmp_path / "ship.yaml"


def read(path: Path, text: str | bytes) -> list[Mistake]:
    """The mistakes of a text."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    value, found = mistakes(path, Ship)
    assert (value is None) == bool(found)
    return found


def only(path: Path, text: str | bytes) -> Mistake:
    """The one mistake of a text."""
    found = read(path, text)
    assert len(found) == 1, found
    return found[0]


def test_a_sound_file_becomes_a_frozen_model(written: Path) -> None:
    written.write_text(
        "# a ship\n"
        "name: Kalmar Nyckel\n"
        "masts: 3\nspeed: 1e1\narmed: true\nlaunched: 1997-09-28\ncrew: [a, 'b']\n"
        "holds:\n  - {kind: disc, path: /a}\n  - kind: object\n    uri: s3://b\n"
        "home:\ntags: {a: 'no', b: on, c: 1:30}\n"
    )
    ship = load(written, Ship)
    assert ship == Ship(
        name="Kalmar Nyckel",
        masts=3,
        speed=10.0,
        armed=True,
        launched=datetime.date(1997, 9, 28),
        crew=("a", "b"),
        holds=(Disc(kind="disc", path="/a"), Bucket(kind="object", uri="s3://b")),
        tags={"a": "no", "b": "on", "c": "1:30"},
    )
    with pytest.raises(ValueError, match="frozen"):
        ship.name = "Vasa"


@pytest.mark.parametrize(
    ("line", "where", "told"),
    [
        ("mast: 3", "mast", "expected a known key, observed mast; nearest valid word 'masts'"),
        ("zzz: 3", "zzz", "observed zzz; the keys here are name, masts"),
        ("masts: 9", "masts", "expected a whole number (at least 1, at most 5) or 'auto', observed 9"),
        ("masts: '3'", "masts", "or 'auto', observed '3'"),
        ("masts: 3.0", "masts", "or 'auto', observed 3.0"),
        ("masts: atuo", "masts", "observed 'atuo'; nearest valid word 'auto'"),
        ("speed: fast", "speed", "expected a number, observed 'fast'"),
        ("speed: .nan", "speed", "expected a number, observed '.nan'"),
        ("speed: 1e999", "speed", "expected a number, observed '1e999'"),
        ("armed: yes", "armed", "expected true or false, observed 'yes'; nearest valid word 'true'"),
        ("armed: 1", "armed", "expected true or false, observed 1"),
        ("launched: 1997", "launched", "expected a date such as 2026-12-31, observed 1997"),
        ("launched: 1997-13-01", "launched", "observed '1997-13-01'"),
        ("flag: whit", "flag", "expected one of red, white, observed 'whit'; nearest valid word 'white'"),
        ("flag:", "flag", "observed nothing"),
        ("crew: a", "crew", "expected a list, observed 'a'"),
        ("crew: [a, 1]", "crew[1]", "expected text, observed 1; put it in quotes to make it text"),
        ("tags: {a: no, b: true}", "tags.b", "observed true; put it in quotes to make it text"),
        ("tags: [a]", "tags", "expected a mapping, observed a list of 1"),
        ("holds: [{kind: object}]", "holds[0].uri", "expected text, observed nothing"),
        (
            "holds: [disc]",
            "holds[0]",
            "expected a mapping with the keys kind, path or a mapping with the keys kind, uri",
        ),
        ("holds: [{path: a}]", "holds[0].kind", "expected one of disc, object, observed nothing"),
        ("home: {kind: tin, path: a}", "home.kind", "expected one of disc, object, observed 'tin'"),
        ("home: {kind: disc, path: 1}", "home.path", "expected text, observed 1"),
        ("crew: *boat", "crew", "a reference to another place (*boat)"),
        ("crew: &boat [a]", "crew", "an anchor (&boat)"),
        ("&boat crew: [a]", "crew", "an anchor (&boat)"),
        ("crew: !!python/object:os.system [a]", "crew", "a tag"),
    ],
)
def test_a_mistake_is_told_in_our_words(written: Path, line: str, where: str, told: str) -> None:
    found = only(written, f"name: Argo\n\n{line}\n")
    assert (found.line, found.where) == (3, where)
    assert told in str(found)
    assert not any(jargon in str(found) for jargon in ("Input", "http", "pydantic", "type="))


def test_the_message_says_file_line_where_expected_observed_and_hint(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written.parent)
    written.write_text("name: Argo\nflag: whit\nmasts: 0\n")
    with pytest.raises(UsageError) as raised:
        load(written, Ship)
    assert str(raised.value) == (
        "2 mistakes to mend:\n"
        "  ship.yaml:2: flag: expected one of red, white, observed 'whit'; nearest valid word 'white'\n"
        "  ship.yaml:3: masts: expected a whole number (at least 1, at most 5) or 'auto', observed 0"
    )


def test_a_misspelt_key_is_one_mistake_although_the_right_one_is_missing(written: Path) -> None:
    found = only(written, "nmae: Argo\n")
    assert found.where == "nmae"
    assert found.hint == "nearest valid word 'name'"


def test_a_misspelt_kind_does_not_hide_the_mistakes_behind_it(written: Path) -> None:
    found = read(written, "name: Argo\nholds:\n  - kind: dics\n    pth: a\n  - kind: objct\n    uri: 5\n")
    assert [(m.line, m.where) for m in found] == [
        (3, "holds[0].kind"),
        (4, "holds[0].pth"),
        (5, "holds[1].kind"),
        (6, "holds[1].uri"),
    ]


def test_a_key_that_is_called_like_its_kind_keeps_its_place(written: Path) -> None:
    found = read(written, "name: Argo\nhome:\n  kind: object\n  object: {uri: a}\n")
    assert {(m.line, m.where) for m in found} == {(4, "home.object"), (2, "home.uri")}


def test_a_key_given_twice_names_the_first_line_and_both_values_are_looked_at(written: Path) -> None:
    found = only(written, "name: Argo\nflag: red\nflag: {a: [b]}\n")
    assert (found.line, found.where, found.hint) == (3, "flag", "it stands in line 2 already")


def test_the_cross_check_speaks_beside_other_mistakes(written: Path) -> None:
    assert next(m.expected for m in read(written, "name: Vasa\nmasts: 0\n")) == "a ship that floats"
    assert len(read(written, "name: Vasa\nmasts: 0\n")) == 2
    assert len(read(written, "name: Vasa\n")) == 1


def test_a_mistake_of_a_validator_keeps_its_words(written: Path) -> None:
    class Bound(BaseModel):
        """A model that is not strict, with a check of its own."""

        model_config = ConfigDict(extra="forbid")
        low: float
        high: float

        @model_validator(mode="after")
        def _ordered(self) -> Bound:
            if self.low > self.high:
                raise ValueError(f"expected low <= high, found {self.low} > {self.high}")
            return self

    written.write_text("- {low: 0, high: 1}\n- {low: 2, high: 1}\n- {low: 2}\n")
    _, found = mistakes(written, RootModel[list[Bound]])
    assert [(m.line, m.where, m.expected) for m in found] == [
        (2, "[1]", "low <= high, found 2.0 > 1.0"),
        (3, "[2].high", "a number"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 1, "expected a mapping with the keys name, masts"),
        ("# only a comment\n", 1, "observed an empty file"),
        ("- name: Argo\n", 1, "observed a list of 1"),
        ("Argo", 1, "observed 'Argo'"),
        ("name: Argo\ncrew:\n\t- a\n", 3, "expected spaces as indentation, observed a tab"),
        ("name: Argo\ncrew: [a\n\n\n", 2, "a bracket that is not closed"),
        ("name: 'Argo\n", 1, "a quote that is not closed"),
        ("name: Argo: the ship\n", 1, "a ': ' where no key can stand"),
        ("name: @Argo\n", 1, "a character that starts no value"),
        ('name: "\\q"\n', 1, "an escape that does not exist"),
        ("name: Argo\n---\nname: Vasa\n", 2, "a second one after '---'"),
        ("name: Argo\n? [a]\n: b\n", 2, "another kind of key"),
        ("name: Argo\n<<: *base\n", 2, "a reference to another place (*base)"),
        ('name: Argo\ntags: {a: "\\x1b[2J"}\n', 2, "the character '\\x1b'"),
        ('name: Argo\ntags: {"\\x1b[2J": a}\n', 2, "another kind of key"),
        ("name: Argo\x00\n", 1, "the character '\\x00'"),
        (b"name: Argo\nflag: \xe9\n", 2, "the byte 0xe9; save the file as UTF-8"),
        ("name: Argo\n".encode("utf-16"), 1, "UTF-16; save the file as UTF-8"),
        (b"#" * (MAX_BYTES + 1), 0, "a larger file"),
        ("name: " + "[" * (MAX_DEPTH + 2), 1, "deeper nesting"),
        ("? " * 3000 + "a", 1, "deeper nesting"),
    ],
)
@pytest.mark.parametrize("loader", ["SafeLoader", "CSafeLoader"])
def test_what_is_no_readable_yaml_is_told_with_its_line(
    written: Path, text: str | bytes, line: int, told: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict, "_LOADER", getattr(yaml, loader, yaml.SafeLoader))
    found = read(written, text)
    assert told in "\n".join(map(str, found))
    assert found[0].line == line


def test_a_byte_order_mark_is_no_mistake(written: Path) -> None:
    assert read(written, "\ufeffname: Argo\n") == []


def test_a_reference_bomb_is_refused_unexploded(written: Path) -> None:
    layers = "".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 9))
    found = read(written, f"name: Argo\ntags:\n  l0: &l0 [a]\n{layers}")
    assert len([m for m in found if "a reference" in m.observed]) == 72


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, observed in [
        ("none", "no such file"),
        (".", "not a file"),
        ("pipe", "not a file"),
        ("x" * 300, "name too long"),
    ]:
        _, found = mistakes(tmp_path / name, Ship)
        assert [m.line for m in found] == [0]
        assert observed in str(found[0])


@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "https://user:hunter2@host/x",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
def test_a_mistake_never_repeats_a_secret(written: Path, secret: str) -> None:
    found = only(written, f"name: Argo\nflag: '{secret}'\n")
    assert secret not in str(found)
    assert "not shown" in found.observed


def test_a_value_under_a_secret_name_is_not_shown() -> None:
    assert strict.show("hunter2", ("login", "password")) == "a literal value (not shown)"
    assert strict.show("hunter2", ("login", "user")) == "'hunter2'"


def test_a_number_for_one_of_several_words_is_not_helped_by_quotes(written: Path) -> None:
    assert only(written, "name: Argo\nflag: 5\n").hint == ""


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
keys = st.sampled_from([*Ship.model_fields, "kind", "path", "uri", "disc", "object"]) | st.text(max_size=8)
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5))
quiet = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load_or_refuse(path: Path, content: bytes) -> None:
    """Read; the only way to fail is a usage error with a mistake of this file in each line."""
    path.write_bytes(content)
    try:
        load(path, Ship)
    except UsageError as error:
        head, *lines = str(error).splitlines()
        assert head.endswith("to mend:")
        assert lines
        assert all(line.startswith(f"  {path}") for line in lines)


@quiet
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_without_a_traceback(written: Path, content: bytes) -> None:
    load_or_refuse(written, content)


@quiet
@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,? \n\t\\0", max_size=60))
def test_random_yaml_is_refused_without_a_traceback(written: Path, text: str) -> None:
    load_or_refuse(written, text.encode())


@quiet
@given(junk)
def test_random_data_is_refused_without_a_traceback(written: Path, data: object) -> None:
    load_or_refuse(written, yaml.safe_dump(data).encode())


@quiet
@given(st.dictionaries(st.sampled_from(list(Ship.model_fields)), junk, max_size=6))
def test_random_fields_are_refused_without_a_traceback(written: Path, data: object) -> None:
    load_or_refuse(written, yaml.safe_dump(data, default_flow_style=True).encode())
