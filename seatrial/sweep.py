"""Ends every process that carries a tag, and looks again until none is left."""

from __future__ import annotations

from seatrial.payload import procs
from seatrial.wait import until


def sweep(tag: str, seconds: float) -> tuple[list[str], list[str]]:
    """Kill what carries exactly this tag, again and again until nothing does or the time is spent.

    Returns:
        What was ended, and what is still alive: a description each.
    """
    found: dict[procs.Process, str] = {}

    def none_left() -> bool:
        living = procs.tagged(tag)
        for process in living:
            found.setdefault(process, procs.describe(process))
            procs.kill(process)
        return not living

    try:
        until(none_left, what=f"the processes of {tag} to end", timeout=seconds, state=lambda: "alive")
        left: set[procs.Process] = set()
    except TimeoutError:
        left = set(procs.tagged(tag))
    return [text for process, text in found.items() if process not in left], [procs.describe(p) for p in sorted(left)]
