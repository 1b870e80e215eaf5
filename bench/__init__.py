"""Long measurements of seatrial itself; each writes its figures to docs/, with the command that made them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def machine() -> str:
    """The machine that the figures were taken on, in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write(name: str, title: str, command: str, body: str) -> Path:
    """Write one page of figures."""
    path = DOCS / name
    path.write_text(f"# {title}\n\nMade by `{command}` on {machine()}.\n\n{body}")
    return path
