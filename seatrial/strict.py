"""Reads a YAML file into a pydantic model, or lists every mistake in it: file, line, expected, observed, nearest word.

Scalars follow the YAML 1.2 core schema, so that ``no``, ``on``, ``010`` and ``1:30`` mean what they look like. Anchors,
aliases, tags and merge keys are refused: each value stands where its line says. What a mistake calls "expected" is
told from the model's JSON Schema; a field type puts it in its own words under the key ``x-expected``.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from seatrial.errors import UsageError

MAX_BYTES = 1 << 20
"""A larger file is refused unread."""
MAX_DEPTH = 32
"""Deeper nesting is refused."""

Where = tuple[str | int, ...]
"""The path of a value in its file: keys, and indices of list items."""
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Finding:
    """A mistake that a model's ``cross_check`` found in the data, before its line is looked up."""

    where: Where
    expected: str
    observed: str
    hint: str = ""


class Strict(BaseModel):
    """A frozen model that forbids unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def cross_check(cls, data: Any) -> Iterable[Finding]:  # noqa: ARG003
        """Mistakes between the fields of the top model.

        Args:
            data: the file's data as read; nothing is known of its shape, because all mistakes are told at once.
        """
        return ()


@dataclass(frozen=True)
class Mistake:
    """One mistake; ``line`` counts from 1 (0: the file as a whole), ``where`` is a path such as ``pools[0].nodes``."""

    file: Path
    line: int
    where: str
    expected: str
    observed: str
    hint: str = ""

    def __str__(self) -> str:
        here = Path.cwd()
        file = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        place = f"{file}:{self.line}" if self.line else f"{file}"
        told = f"expected {self.expected}, observed {self.observed}"
        return ": ".join(filter(None, (place, self.where, told))) + (f"; {self.hint}" if self.hint else "")


def load(path: Path, model: type[M]) -> M:
    """Read a file into a model.

    Raises:
        UsageError: the file has mistakes; its message lists all of them.
    """
    value, found = mistakes(path, model)
    if value is None:
        raise UsageError(listing(found))
    return value


def listing(found: Sequence[Mistake]) -> str:
    """One message that tells mistakes of one or several files, a line each."""
    count = "1 mistake" if len(found) == 1 else f"{len(found)} mistakes"
    return "\n  ".join([f"{count} to mend:", *map(str, found)])


def mistakes(path: Path, model: type[M]) -> tuple[M | None, list[Mistake]]:
    """Read a file into a model and collect its mistakes, in the order of their lines.

    Returns:
        The model and an empty list, or None and at least one mistake.
    """
    try:
        document = _compose(path)
    except _UnreadableError as unreadable:
        return None, [unreadable.mistake]
    value, found = _validate(document, model)
    if issubclass(model, Strict):
        found += model.cross_check(document.data)
    told = [Mistake(path, document.line(f.where), spell(f.where), f.expected, f.observed, f.hint) for f in found]
    told = sorted([*document.mistakes, *told], key=lambda mistake: mistake.line)
    return (None, told) if told else (value, [])


def spell(where: Where) -> str:
    """A path as a reader would write it: ``pools[0].gpus_per_node``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in where)
    return "".join(steps).removeprefix(".")


def nearest(word: object, valid: Iterable[str]) -> str:
    """The valid word most like this one, or an empty text."""
    folded = {candidate.casefold(): candidate for candidate in valid}
    return next((folded[near] for near in difflib.get_close_matches(str(word)[:80].casefold(), folded, n=1)), "")


def near_miss(word: object, valid: Iterable[str]) -> str:
    """A hint that names the nearest valid word, or an empty text."""
    near = nearest(word, valid)
    return f"nearest valid word {near!r}" if near else ""


# Secrets: what must never be repeated in a message.

_SECRET_NAME = re.compile(r"(?i)passw|secret|token|credential|(api|access|private|auth)_?key")
_SECRET_TEXT = re.compile(
    r"-----BEGIN|://[^/\s:@]*:[^/\s@]+@|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[opsur]_\w{20}|\bhf_\w{20}|\bsk-\w{20}"
    r"|\beyJ[\w-]+\.eyJ|\bxox[a-z]-\w{10}"
)


def names_secret(key: object) -> bool:
    """Whether a key is called as secrets are: password, token, access_key."""
    return _SECRET_NAME.search(str(key)) is not None


def holds_secret(text: object) -> bool:
    """Whether a text has the form of a literal secret: a private key, a password in an address, a known token."""
    return isinstance(text, str) and _SECRET_TEXT.search(text) is not None


def show(value: Any, where: Where = ()) -> str:
    """A value as a mistake shows it: short, on one line, and never a secret."""
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(_key(key) for key in value)}"[:120] if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or value == "":
        return "nothing" if value is None else "an empty text"
    if holds_secret(value) or any(names_secret(step) for step in where):
        return "a literal value (not shown)"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    return json.dumps(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]{1,60}", key) else repr(key[:60])


# Reading: from bytes to plain data, with the line of every entry.

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SYNTAX = (
    ("mapping values are not allowed", "a ': ' where no key can stand", "put a text that holds ': ' in quotes"),
    ("cannot start any token", "a character that starts no value", "put the text in quotes"),
    ("end of stream", "a quote that is not closed", ""),
    ("expected ',' or", "a bracket that is not closed, or a comma that is missing", ""),
    ("expected ':'", "a line that is neither a key with its ':' nor an item", ""),
    ("escape character", "an escape that does not exist", "put the text in single quotes"),
)


_UNCLOSED = ("end of stream", "expected ',' or")
"""Problems that are told where the quote or bracket was opened."""


class _UnreadableError(Exception):
    """Reading cannot go on after this mistake."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake


@dataclass
class _Document:
    """The data of a file, the line of each entry, and what was wrong while reading."""

    file: Path
    data: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    void: set[Where] = field(default_factory=set)
    """Entries whose value could not be read: a mistake tells it already."""

    def line(self, where: Where) -> int:
        """The line of an entry, or of the closest one around it."""
        known = (where[:length] for length in range(len(where), -1, -1))
        return next((self.lines[part] for part in known if part in self.lines), 1)

    def refuse(self, line: int, where: Where, expected: str, observed: str, hint: str = "") -> None:
        """Note a mistake and read on."""
        self.mistakes.append(Mistake(self.file, line, spell(where), expected, observed, hint))


def _compose(path: Path) -> _Document:
    """Read a file.

    Raises:
        _UnreadableError: it is not a file, not text, or not YAML.
    """
    text = _text(path)
    document = _Document(path)
    try:
        _Composer(document, yaml.parse(text, Loader=_LOADER)).compose()
    except yaml.MarkedYAMLError as error:
        raise _UnreadableError(_syntax(path, text, error)) from error
    except yaml.YAMLError as error:
        raise _UnreadableError(Mistake(path, 0, "", "YAML", str(error).splitlines()[0])) from error
    return document


def _text(path: Path) -> str:
    expected = "a YAML file in UTF-8"
    try:
        if path.exists() and not path.is_file():
            raise _UnreadableError(Mistake(path, 0, "", expected, "something that is not a file"))
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        observed = (error.strerror or str(error)).lower()
        raise _UnreadableError(Mistake(path, 0, "", expected, observed)) from error
    if len(content) > MAX_BYTES:
        raise _UnreadableError(Mistake(path, 0, "", f"at most {MAX_BYTES} bytes", "a larger file"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        observed = "UTF-16" if wide else f"the byte 0x{content[error.start]:02x}"
        line = content.count(b"\n", 0, error.start) + 1
        raise _UnreadableError(Mistake(path, line, "", expected, observed, "save the file as UTF-8")) from error
    unprintable = _UNPRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        raise _UnreadableError(Mistake(path, line, "", "printable text", f"the character {unprintable[0]!a}"))
    return text


def _syntax(path: Path, text: str, error: yaml.MarkedYAMLError) -> Mistake:
    """What is wrong with the YAML, without repeating the line: it may hold a secret."""
    problem = error.problem or "no YAML"
    unclosed = any(sign in problem for sign in _UNCLOSED)
    mark = error.context_mark if unclosed else error.problem_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    written = dict(enumerate(text.splitlines(), start=1)).get(line, "")
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return Mistake(path, line, "", "spaces as indentation", "a tab")
    told = ((observed, hint) for sign, observed, hint in _SYNTAX if sign in problem)
    observed, hint = next(told, (problem, ""))
    return Mistake(path, line, "", "YAML", f"{observed}, at column {column}", hint)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


class _Composer:
    """Builds plain data from YAML events and keeps the line of every entry."""

    def __init__(self, document: _Document, events: Iterator[yaml.Event]) -> None:
        self._document = document
        self._events = events

    def compose(self) -> None:
        """Fill the document with the stream's first and only document."""
        next(self._events)
        if isinstance(next(self._events), yaml.DocumentStartEvent):
            self._document.data = self._value(next(self._events), ())
            next(self._events)
            self._refuse_second(next(self._events))

    def _refuse_second(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            observed, hint = "a second one after '---'", "write it into its own file"
            self._document.refuse(_line(event), (), "one document", observed, hint)

    def _value(self, event: yaml.Event, where: Where) -> Any:
        line = _line(event)
        self._document.lines.setdefault(where, line)
        if len(where) > MAX_DEPTH:
            deep = Mistake(self._document.file, line, "", f"at most {MAX_DEPTH} levels", "deeper nesting")
            raise _UnreadableError(deep)
        self._refuse_indirection(event, where, line)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(where)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(where)
        return self._scalar(event, where, line) if isinstance(event, yaml.ScalarEvent) else None

    def _refuse_indirection(self, event: yaml.Event, where: Where, line: int) -> None:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            observed = f"a reference to another place (*{anchor})"
        elif anchor is not None:
            observed = f"an anchor (&{anchor})"
        elif getattr(event, "tag", None) is not None:
            observed = "a tag ('!')"
        else:
            return
        self._document.void.add(where)
        self._document.refuse(line, where, "a plain value", observed, "write the value itself here")

    def _sequence(self, where: Where) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*where, len(items))))
        return items

    def _mapping(self, where: Where) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._entry(event, where, entries)
        return entries

    def _entry(self, event: yaml.Event, where: Where, entries: dict[str, Any]) -> None:
        line = _line(event)
        if not isinstance(event, yaml.ScalarEvent) or _UNPRINTABLE.search(event.value):
            self._document.refuse(line, where, "a key that is a plain word", "another kind of key")
            self._skip(event, where)
            self._skip(next(self._events), where)
        elif event.value in entries:
            at = (*where, event.value)
            first = f"it stands in line {self._document.lines[at]} already"
            self._document.refuse(line, at, "each key once", "the key again", first)
            self._skip(next(self._events), where)
        else:
            at = (*where, event.value)
            self._document.lines[at] = line
            self._refuse_indirection(event, at, line)
            entries[event.value] = self._value(next(self._events), at)

    def _skip(self, event: yaml.Event, where: Where) -> None:
        """Read past a value of which a mistake tells already."""
        _Composer(_Document(self._document.file), self._events)._value(event, (*where, 0))

    def _scalar(self, event: yaml.ScalarEvent, where: Where, line: int) -> str | int | float | bool | None:
        text: str = event.value
        unprintable = _UNPRINTABLE.search(text)
        if unprintable:
            self._document.void.add(where)
            self._document.refuse(line, where, "printable text", f"the character {unprintable[0]!a}")
        return _resolve(text) if event.implicit[0] else text


def _resolve(plain: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar; what has no finite value stays text."""
    if plain in _NOTHING:
        return None
    if plain in _TRUTH:
        return _TRUTH[plain]
    if _WHOLE.fullmatch(plain):
        return int(plain)
    if _DECIMAL.fullmatch(plain) and math.isfinite(float(plain)):
        return float(plain)
    return plain


# Validating: from pydantic's errors to findings in our words.

_TYPO_OF_TRUTH = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def _validate(document: _Document, model: type[M]) -> tuple[M | None, list[Finding]]:
    """Validate; a misspelt kind is taken for its nearest word, so that the mistakes behind it are told as well."""
    data = document.data
    found: list[Finding] = []
    while True:
        try:
            return model.model_validate_json(json.dumps(data), strict=True), found
        except ValidationError as invalid:
            errors = invalid.errors(include_url=False)
        explainer = _Explainer(model, data, document.void)
        kinds = explainer.misspelt_kinds(errors)
        found += explainer.findings(errors if not kinds else [error for error in errors if _is_kind(error)])
        if not kinds:
            return None, found
        data = copy.deepcopy(data)
        for where, word in kinds.items():
            _at(data, where[:-1])[where[-1]] = word


def _is_kind(error: ErrorDetails) -> bool:
    return error["type"] in ("union_tag_invalid", "union_tag_not_found")


def _child(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(str(step))
    inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
    return value[step] if inside else None


def _has(value: object, step: str | int) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _at(data: Any, where: Where) -> Any:
    for step in where:
        data = _child(data, step)
    return data


@functools.cache
def _schema(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema()


class _Explainer:
    """Puts pydantic's errors into our words, with the help of the model's JSON Schema."""

    def __init__(self, model: type[BaseModel], data: Any, void: set[Where]) -> None:
        self._schema = _schema(model)
        self._data = data
        self._void = void

    def misspelt_kinds(self, errors: Sequence[ErrorDetails]) -> dict[Where, str]:
        """The discriminators with an invalid word that is near a valid one, and that one."""
        places = [self._where(error) for error in errors if error["type"] == "union_tag_invalid"]
        near = {where: nearest(_at(self._data, where), self._words(where)) for where in places}
        return {where: word for where, word in near.items() if word}

    def findings(self, errors: Sequence[ErrorDetails]) -> list[Finding]:
        """One finding a place; errors of a union's branches at one place are one mistake."""
        grouped: dict[Where, list[ErrorDetails]] = {}
        for error in errors:
            grouped.setdefault(self._where(error), []).append(error)
        meant = {self._near_key(where) for where, group in grouped.items() if group[0]["type"] == "extra_forbidden"}
        # A place around a deeper one is the branch of a union that was not meant.
        around = {where[:length] for where in grouped for length in range(len(where))}
        misspelt = {where for where in meant if where in grouped and grouped[where][0]["type"] == "missing"}
        told_elsewhere = self._void | around | misspelt
        return [self._finding(where, group) for where, group in grouped.items() if where not in told_elsewhere]

    def _where(self, error: ErrorDetails) -> Where:
        """The place in the file: pydantic's location without the names of union branches."""
        where: Where = ()
        value, nodes = self._data, [self._schema]
        last = len(error["loc"]) - 1
        for index, step in enumerate(error["loc"]):
            kinds = [kind for node in nodes if (kind := self._kind(node, step))]
            if kinds:
                nodes = kinds
            elif _has(value, step) or (index == last and error["type"] == "missing"):
                branches = [branch for node in nodes for branch in self._branches(node, value)]
                nodes = [child for branch in branches for child in _below(branch, step)]
                where, value = (*where, step), _child(value, step)
        if _is_kind(error):
            return (*where, error["ctx"]["discriminator"].strip("'"))
        return where

    def _kind(self, node: Mapping[str, Any], step: str | int) -> Mapping[str, Any] | None:
        """The branch that a step of pydantic's location names, where the node is a union told apart by a key."""
        if "discriminator" in node:
            reference = node["discriminator"]["mapping"].get(step)
            return {"$ref": reference} if reference else None
        options = [self._resolve(node)] if "$ref" in node else node.get("anyOf", ())
        return next(filter(None, (self._kind(option, step) for option in options)), None)

    def _resolve(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        resolved: Mapping[str, Any] = self._schema["$defs"][str(node["$ref"]).rpartition("/")[2]]
        return resolved

    def _finding(self, where: Where, group: Sequence[ErrorDetails]) -> Finding:
        if group[0]["type"] == "extra_forbidden":
            return self._unknown_key(where)
        value = _at(self._data, where)
        expected = _describe_any(self._nodes(where))
        observed = show(value, where) if where or value is not None else "an empty file"
        reasons = [str(error["ctx"]["error"]) for error in group if error["type"] == "value_error"]
        if reasons and isinstance(value, (dict, list)):
            return Finding(where, ", ".join(reasons).removeprefix("expected "), observed)
        return Finding(where, expected, observed, ", ".join(reasons) or self._hint(where, value))

    def _unknown_key(self, where: Where) -> Finding:
        known = self._keys(where[:-1])
        hint = near_miss(where[-1], known) or f"the keys here are {', '.join(known)}"
        return Finding(where, "a known key", _key(str(where[-1])), hint)

    def _near_key(self, where: Where) -> Where:
        return (*where[:-1], nearest(where[-1], self._keys(where[:-1])))

    def _hint(self, where: Where, value: object) -> str:
        types = {node.get("type") for node in self._nodes(where)}
        if "boolean" in types and str(value).casefold() in _TYPO_OF_TRUTH:
            return f"nearest valid word {_TYPO_OF_TRUTH[str(value).casefold()]!r}"
        words = self._words(where)
        if types == {"string"} and not words and isinstance(value, (bool, int, float)):
            return "put it in quotes to make it text"
        return near_miss(value, words) if isinstance(value, str) else ""

    def _words(self, where: Where) -> list[str]:
        nodes = self._nodes(where)
        return [word for node in nodes for word in (*node.get("enum", ()), *filter(None, [node.get("const")]))]

    def _keys(self, where: Where) -> list[str]:
        return list(dict.fromkeys(key for node in self._nodes(where) for key in node.get("properties", ())))

    def _nodes(self, where: Where) -> list[Mapping[str, Any]]:
        """The schema's nodes that may describe a place: several where it is a union."""
        value = self._data
        nodes = self._branches(self._schema, value)
        for step in where:
            value = _child(value, step)
            below = [child for node in nodes for child in _below(node, step)]
            nodes = [branch for child in below for branch in self._branches(child, value)]
        return nodes

    def _branches(self, node: Mapping[str, Any], value: object) -> list[Mapping[str, Any]]:
        if "$ref" in node:
            return self._branches(self._resolve(node), value)
        options = node.get("oneOf") or node.get("anyOf")
        if options is None or "x-expected" in node:
            return [node]
        discriminator = node.get("discriminator")
        if discriminator and isinstance(value, dict):
            kind = value.get(discriminator["propertyName"])
            reference = discriminator["mapping"].get(kind) if isinstance(kind, str) else None
            options = [{"$ref": reference}] if reference else options
        branches = (branch for option in options for branch in self._branches(option, value))
        return [branch for branch in branches if branch.get("type") != "null"]


def _below(node: Mapping[str, Any], step: str | int) -> list[Mapping[str, Any]]:
    """The schema's nodes for an entry of a list or mapping."""
    if isinstance(step, int):
        return [node["items"]] if "items" in node else []
    if step in node.get("properties", {}):
        return [node["properties"][step]]
    open_ended = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
    return [child for child in open_ended if isinstance(child, dict)]


def _describe_any(nodes: Sequence[Mapping[str, Any]]) -> str:
    """What a place accepts: one of several nodes."""
    words = [node["const"] for node in nodes if "const" in node]
    if len(words) == len(nodes) > 1:
        return _describe({"enum": words})
    return " or ".join(dict.fromkeys(map(_describe, nodes)))


def _describe(node: Mapping[str, Any]) -> str:
    """What a schema's node accepts, in our words."""
    for key, tell in _TELLING.items():
        if key in node:
            return tell(node[key])
    kind = _TYPES.get(str(node.get("type")), "another value")
    limits = [form.format(node[key]) for key, form in _LIMITS.items() if key in node]
    return f"{kind} ({', '.join(limits)})" if limits else kind


_TELLING: Mapping[str, Callable[[Any], str]] = {
    "x-expected": str,
    "const": repr,
    "enum": lambda words: f"one of {', '.join(map(str, words))}",
    "properties": lambda keys: f"a mapping with the keys {', '.join(keys)}",
    "format": lambda name: "a date such as 2026-12-31" if name == "date" else f"text that is a {name}",
}
_TYPES = {
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
    "object": "a mapping",
}
_LIMITS = {
    "minimum": "at least {:g}",
    "exclusiveMinimum": "more than {:g}",
    "maximum": "at most {:g}",
    "exclusiveMaximum": "less than {:g}",
    "minItems": "at least {:g} of them",
    "maxItems": "at most {:g} of them",
    "minLength": "at least {:g} characters long",
    "maxLength": "at most {:g} characters long",
    "pattern": "of the form {}",
}
