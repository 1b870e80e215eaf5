"""The settings of a command: what was given laid over the defaults, with every mistake told at once."""

import difflib
from typing import Any, Dict, List, Optional


class SettingsError(ValueError):
    """The settings are wrong; the message lists every mistake."""


def settled(command: str, defaults: Dict[str, Any], given: Dict[str, Any]) -> Dict[str, Any]:
    """The defaults with what was given in their place.

    A value must have the type of its default: a list's items, the type of the default's items.

    Raises:
        SettingsError: an unknown key, or a value of another type.
    """
    mistakes = [mistake for key, value in given.items() for mistake in _mistakes(key, value, defaults)]
    refuse(command, mistakes)
    return dict(defaults, **given)


def refuse(command: str, mistakes: List[str]) -> None:
    """Raise SettingsError where there are mistakes."""
    if mistakes:
        raise SettingsError(f"{command}: {'; '.join(mistakes)}")


def _mistakes(key: str, value: object, defaults: Dict[str, Any]) -> List[str]:
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, 1)
        hint = f"did you mean {near[0]!r}" if near else f"known: {', '.join(sorted(defaults))}"
        return [f"unknown setting {key!r} ({hint})"]
    wrong = _wrong_type(value, defaults[key])
    return [] if wrong is None else [f"{key!r} must be {wrong}, not {value!r}"]


def _wrong_type(value: object, default: object) -> Optional[str]:
    """The type that was expected, where it is another one."""
    if not isinstance(default, list):
        kind = type(default)
        return None if _is(value, kind) else kind.__name__
    kind = type(default[0]) if default else str
    fits = isinstance(value, list) and all(_is(item, kind) for item in value)
    return None if fits else f"a list of {kind.__name__}"


def _is(value: object, kind: type) -> bool:
    """True and False are no numbers here; a whole number is a good float."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
