"""How a drawn page gets to its place."""

from __future__ import annotations

from pathlib import Path


def replace(out: Path, content: str) -> None:
    """Put a text into a file, which is replaced at once."""
    fresh = out.with_name(f"{out.name}.drawing")
    fresh.write_text(content, encoding="utf-8")
    fresh.replace(out)
