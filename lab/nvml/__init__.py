"""A stand-in NVML: a real ``libnvidia-ml.so.1`` whose GPUs are described in a file, for machines without any.

The library is loaded as the real one is: its folder stands in LD_LIBRARY_PATH. The file's language is told at the top
of ``nvml.c``.

Example:
    >>> library = build(folder)
    >>> write(folder / "gpus", {"driver": "580.95"}, [gpu(0), gpu(1, reasons="0x40", power="!GPU_IS_LOST")])
    >>> subprocess.run(["python", "watch.py"], env=environment(library, folder / "gpus"))
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "SEATRIAL_NVML_FILE"
"""The environment variable that names the file."""

Facts = Mapping[str, str | int]

MACHINE: Facts = {"driver": "580.95.05", "nvml": "13.580.95.05", "cuda": 13000}
"""A machine on which everything works."""


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Returns:
        The path of ``libnvidia-ml.so.1``.

    Raises:
        FileNotFoundError: there is no C compiler.
        RuntimeError: the compiler refuses, with what it says.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("the stand-in NVML needs a C compiler: expected gcc or cc on PATH, observed neither")
    source, library = Path(__file__).with_name("nvml.c"), folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]
    argv = [compiler, *flags, f"-Wl,-soname,{library.name}", "-o", str(library), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")
    return library


def gpu(index: int, **changes: str | int | None) -> dict[str, str | int]:
    """An idle, sound H100 in the file's words.

    Args:
        index: its place; it decides UUID and PCI address.
        changes: other words (a dot in a word is written ``__``); None takes a word away, so that the call is not
            supported.
    """
    facts: dict[str, str | int | None] = {
        "uuid": f"GPU-{index:08x}-5ea7-41a1-8000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "pci": f"00000000:{index + 0x10:02X}:00.0",
        "memory.total": 80 * 2**30,
        "memory.used": 2**30,
        "utilisation.gpu": 0,
        "utilisation.memory": 0,
        "power": 70_000,
        "temperature": 35,
        "headroom": 50,
        "clock.sm": 1980,
        "clock.memory": 2619,
        "reasons": "0x1",
        "ecc.corrected": 0,
        "ecc.uncorrected": 0,
        "remap.corrected": 0,
        "remap.uncorrected": 0,
        "remap.pending": 0,
        "remap.failure": 0,
        "nvlink.links": 18,
        "nvlink.crc_flit": 0,
        "nvlink.crc_data": 0,
        "nvlink.replay": 0,
        "nvlink.recovery": 0,
        "pcie.replay": 0,
        "mig.mode": 0,
        "xids": "",
    }
    facts.update({word.replace("__", "."): value for word, value in changes.items()})
    return {word: value for word, value in facts.items() if value is not None}


def write(
    file: Path, machine: Facts, gpus: Sequence[Facts], slices: Mapping[tuple[int, int], Facts] | None = None
) -> None:
    """Describe a machine; a program that reads the file meanwhile sees either all of the old state or all of the new.

    Args:
        file: the file that FILE names.
        machine: ``driver``, ``nvml``, ``cuda``, ``init``, ``delay``.
        gpus: each GPU's words.
        slices: the words of each MIG device, by the GPU's index and its own.
    """
    parts = [_lines(machine)]
    for index, facts in enumerate(gpus):
        parts.append(f"[gpu {index}]\n" + _lines(facts))
        parts += [
            f"[gpu {index} mig {own}]\n" + _lines(words) for (of, own), words in (slices or {}).items() if of == index
        ]
    fresh = file.with_name(file.name + ".new")
    fresh.write_text("\n".join(parts))
    os.replace(fresh, file)


def _lines(facts: Facts) -> str:
    return "".join(f"{word} = {value}\n" for word, value in facts.items())


def environment(library: Path, file: Path) -> dict[str, str]:
    """This process's environment with the stand-in in it."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), FILE: str(file)}
