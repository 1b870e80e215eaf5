"""Values as words: what a reader of a report sees of numbers, bounds, ranks and hostile names."""

from __future__ import annotations

import signal
import unicodedata
from collections.abc import Iterable, Mapping

from seatrial.record import Bound, Check

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"

GLYPHS: Mapping[str, str] = {
    "pass": "✓",
    "fail": "✗",
    "error": "!",
    "inconclusive": "?",
    "uncalibrated": "○",
    "waived": "\N{SECTION SIGN}",
    "skip": DASH,
}
"""A sign for each outcome, so that none is told by colour alone."""

SEVERITY = ("fail", "error", "inconclusive", "uncalibrated", "waived", "skip", "pass")
"""The outcomes, worst first."""


def clean(text: str) -> str:
    """The text with everything invisible made visible: control characters, overrides of direction, lone surrogates."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    unsafe = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\ufffe\uffff"
    return character.encode("unicode_escape").decode("ascii") if unsafe and character not in "\n\t" else character


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, grouped by thousands: ``1,234``, ``0.05``, ``1.2e-5``."""
    if float(value).is_integer() and abs(value) < 1e9:
        text = f"{value:,.0f}"
    elif 1e-3 <= abs(value) < 1e9:
        decimals = max(digits - 1 - _magnitude(value), 0)
        text = f"{value:,.{decimals}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", MINUS)


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def short(value: float) -> str:
    """A number for the tick of an axis: three digits, and no more than eight characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return number(value, 3)
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", MINUS)


def scaled(unit: str, greatest: float) -> tuple[float, str]:
    """The decimal multiple of bytes, and of bytes a second, in which ``greatest`` reads best, and its name."""
    if unit not in ("B", "B/s"):
        return 1.0, unit
    powers = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
    factor = next((power for power in powers if greatest >= power), 1.0)
    return factor, f"{powers.get(factor, '')}{unit}"


def quantity(value: float, unit: str) -> str:
    """A number with its unit, bytes in the decimal multiple that suits them."""
    factor, name = scaled(unit, abs(value))
    return f"{number(value / factor)} {name}".strip()


def apart(value: float, limits: Iterable[float]) -> int:
    """How many digits tell ``value`` from each of ``limits`` that it differs from: at least 4, at most 17."""
    others = [limit for limit in limits if limit != value]
    for digits in range(4, 17):
        if all(number(value, digits) != number(limit, digits) for limit in others):
            return digits
    return 17


def observed(check: Check) -> str:
    """What was measured, with as many digits as tell it from its bound."""
    if check.observed is None:
        return "not measured"
    return f"{number(check.observed, _digits(check))} {check.unit}".strip()


def interval(check: Check) -> str:
    """The 95% confidence interval, without its unit."""
    if check.interval is None:
        return "—"
    low, high = (number(end, _digits(check)) for end in check.interval)
    return f"{low} … {high}"


def _digits(check: Check) -> int:
    limits = [limit for limit in (check.bound.limits if check.bound else ()) if limit is not None]
    values = [value for value in (check.observed, *(check.interval or ())) if value is not None]
    return max((apart(value, limits) for value in values), default=4)


def bound(check: Check) -> str:
    """The bound in the check's unit: ``≥ 8.2 GB/s``."""
    if check.bound is None:
        return "none"
    return limits([limits_of(check.bound)], check.unit, _digits(check)) or rule(check.bound)


def limits_of(bound: Bound) -> tuple[float | None, float | None]:
    """The least and the greatest passing value; of a ratio without its reference there are none."""
    if bound.limits != (None, None) or bound.kind == "ratio":
        return bound.limits
    if isinstance(bound.value, tuple):
        return bound.value
    return (None if bound.kind == "max" else bound.value), (None if bound.kind == "min" else bound.value)


def limits(pairs: Iterable[tuple[float | None, float | None]], unit: str, digits: int = 4) -> str:
    """One or more bounds in words, ``≥ 7.9 … 9.1 GB/s`` where they differ from place to place; empty without any."""
    pairs = list(pairs)
    lows = [low for low, _ in pairs if low is not None]
    highs = [high for _, high in pairs if high is not None]
    if lows == highs and lows:
        said = [f"= {_span(lows, digits)}"]
    else:
        said = [f"{sign} {_span(ends, digits)}" for sign, ends in (("≥", lows), ("≤", highs)) if ends]
    return f"{' and '.join(said)} {unit}".strip() if said else ""


def _span(ends: list[float], digits: int) -> str:
    least, greatest = number(min(ends), digits), number(max(ends), digits)
    return least if least == greatest else f"{least} … {greatest}"


def rule(bound: Bound) -> str:
    """How the bound decides, apart from the number that follows from it: ``0.5 times loopback``."""
    if bound.kind != "ratio" or bound.value is None:
        return ""
    values = bound.value if isinstance(bound.value, tuple) else (bound.value,)
    factors = " … ".join(number(value) for value in values if value is not None)
    return f"{factors} {TIMES} {bound.of}"


def reference(check: Check) -> str:
    """What a ratio bound was held against: ``loopback was 2.6 GB/s``."""
    if check.bound is None or check.bound.reference is None:
        return ""
    return f"{check.bound.of} was {number(check.bound.reference)} {check.unit}"


def provenance(bound: Bound) -> str:
    """Where the bound comes from and how far it is trusted."""
    confidence = f"{bound.confidence} confidence" if bound.confidence else ""
    return ", ".join(part for part in (source(bound), confidence) if part)


def source(bound: Bound) -> str:
    """Where the bound comes from: source, date and conditions."""
    return ", ".join(part for part in (bound.source, bound.date, bound.conditions) if part)


def seconds(value: float) -> str:
    """A duration, in the unit that suits it."""
    if value < 120:
        return f"{number(value, 3)} s"
    if value < 7200:
        return f"{number(value / 60, 3)} min"
    return f"{number(value / 3600, 3)} h"


def memory(value: int) -> str:
    """Bytes as GiB."""
    return f"{number(value / 2**30, 3)} GiB"


def ranks(values: Iterable[int]) -> str:
    """Ranks as ranges: ``0-3, 7``."""
    spans: list[list[int]] = []
    for rank in sorted(set(values)):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}{DASH}{high}" for low, high in spans)


def exits(codes: Mapping[int, int | None]) -> str:
    """How the ranks ended: ``ranks 0-6: 0; rank 7: SIGKILL``."""
    by_code: dict[str, list[int]] = {}
    for rank, code in sorted(codes.items()):
        by_code.setdefault(_exit(code), []).append(rank)
    return "; ".join(f"{'rank' if len(of) == 1 else 'ranks'} {ranks(of)}: {code}" for code, of in by_code.items())


def _exit(code: int | None) -> str:
    if code is None:
        return "no exit seen"
    if code >= 0:
        return str(code)
    return signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"


def next_step(check: Check) -> str:
    """What to do about it; never empty."""
    if check.next:
        return check.next
    logs = f"; the ranks' own words are in logs/{check.job}" if check.job else ""
    return f"run it alone: pytest --cluster=NAME '{check.test}'{logs}" if check.test else f"run {check.id} alone{logs}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``1 check``, ``2 checks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
