"""Packs the payload: one zip application, the same bytes every time."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path

import seatrial.payload

NAME = "payload.pyz"
_ENTRY = "from payload.main import main\n\nraise SystemExit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _members() -> list[tuple[str, bytes]]:
    folder = Path(seatrial.payload.__file__).parent
    members = [("__main__.py", _ENTRY.encode())]
    members += [(f"payload/{path.name}", path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    # NVML's own Python binding is one pure file: with it inside, a production image without it can be sampled too.
    binding = importlib.util.find_spec("pynvml")
    if binding is not None and binding.origin is not None:
        members.append(("pynvml.py", Path(binding.origin).read_bytes()))
    return members


def pack(path: Path) -> str:
    """Write the payload's zip to ``path`` and return its SHA-256.

    Raises:
        OSError: the path cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for name, data in _members():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return hashlib.sha256(path.read_bytes()).hexdigest()
