r"""Data sets: what belongs to one (its manifest), one made from a seed, and how a copy differs from its manifest.

A manifest is text in UTF-8: a first line that names the format, then ``path TAB size TAB sha256`` a line, sorted by
path. In a path a backslash, every byte that is not printable UTF-8, and a ``#`` at its beginning are written ``\xNN``.
"""

import hashlib
import io
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

HEAD = "# seatrial manifest 1: path, size in bytes, sha256"
BLOCK = 1 << 20
"""Bytes that are read, written or made at a time: the memory that a stream uses, whatever a file's size."""

_MISTAKES = 10
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """A file of a data set: ``path`` below its root, with slashes; ``size`` in bytes; ``digest`` is its SHA-256."""

    path: str
    size: int
    digest: str


class ManifestError(ValueError):
    """A manifest that cannot be used; the message lists its first mistakes, each with its line."""


# The manifest as text.


def escaped(path: str) -> str:
    """A path as a manifest writes it, on one line and unmistakable."""
    text = "".join(map(_escaped_character, path))
    return "\\x23" + text[1:] if text.startswith("#") else text


def _escaped_character(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def unescaped(text: str) -> str:
    """The path that ``escaped`` wrote.

    Raises:
        ValueError: a backslash begins no escape.
    """
    if "\\" in _ESCAPE.sub("", text):
        raise ValueError("a backslash that begins no \\xNN")
    parts = _ESCAPE.split(text)
    data = b"".join(bytes([int(part, 16)]) if at % 2 else os.fsencode(part) for at, part in enumerate(parts))
    return os.fsdecode(data)


def line(entry: Entry) -> str:
    """An entry as a line of a manifest, without the line's end."""
    return f"{escaped(entry.path)}\t{entry.size}\t{entry.digest}"


def parse(text: str, name: str) -> List[Entry]:
    """The entries of a manifest.

    Args:
        text: the whole manifest.
        name: what its mistakes are told of.

    Raises:
        ManifestError: it is of another format, or a line is wrong.
    """
    lines = text.split("\n")
    if lines[0] != HEAD:
        raise ManifestError(f"{name}: expected the first line {HEAD!r}, observed {lines[0][:80]!r}")
    if lines[-1] != "":
        raise ManifestError(f"{name}:{len(lines)}: the last line has no end: the manifest was cut")
    entries: Dict[str, Entry] = {}
    mistakes = []
    for number, written in enumerate(lines[1:-1], 2):
        try:
            entry = _parsed(written)
            if entry.path in entries:
                raise ValueError(f"the path {entry.path!r} again")
            entries[entry.path] = entry
        except ValueError as error:
            mistakes.append(f"{name}:{number}: {error}")
    if mistakes:
        more = "" if len(mistakes) <= _MISTAKES else f"; and {len(mistakes) - _MISTAKES} more"
        raise ManifestError("; ".join(mistakes[:_MISTAKES]) + more)
    return list(entries.values())


def _parsed(written: str) -> Entry:
    fields = written.split("\t")
    if len(fields) != 3:
        raise ValueError(f"expected path, size and sha256 between tabs, observed {len(fields)} fields")
    path, size, digest = unescaped(fields[0]), fields[1], fields[2]
    if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
        raise ValueError(f"expected a path below the data set's folder, observed {path!r}")
    if not size.isdigit() or _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"expected a size in bytes and a sha256 in hexadecimal, observed {size!r}, {digest!r}")
    return Entry(path, int(size), digest)


# Folders.


class Found(NamedTuple):
    """What a folder holds: regular files (path, size), and what is neither file nor folder, in words."""

    files: List[Tuple[str, int]]
    others: List[str]


def walk(root: str) -> Found:
    """All that is below a folder, sorted; links are told, never followed.

    Raises:
        OSError: a folder cannot be read.
    """
    files: List[Tuple[str, int]] = []
    others: List[str] = []
    open_folders = [""]
    while open_folders:
        folder = open_folders.pop()
        with os.scandir(os.path.join(root, folder)) as found:
            for item in found:
                path = os.path.join(folder, item.name)
                if item.is_symlink():
                    others.append(f"{escaped(path)} is a link to {escaped(os.readlink(item.path))}")
                elif item.is_dir():
                    open_folders.append(path)
                elif item.is_file():
                    files.append((path, item.stat().st_size))
                else:
                    others.append(f"{escaped(path)} is {_kind(item.stat().st_mode)}")
    return Found(sorted(files), sorted(others))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device"}
    return kinds.get(stat.S_IFMT(mode), "a character device")


def digest_of(path: str, tell: Callable[[int], None] = lambda _: None) -> str:
    """The SHA-256 of a file; ``tell`` is told of the bytes of each block.

    Raises:
        OSError: it cannot be read.
    """
    digest, block = hashlib.sha256(), bytearray(BLOCK)
    with open(path, "rb", buffering=0) as file:
        while True:
            count = file.readinto(block)
            if not count:
                return digest.hexdigest()
            digest.update(memoryview(block)[:count])
            tell(count)


class Differences(NamedTuple):
    """How a folder differs from its manifest: each file with what is wrong, by path."""

    missing: Dict[str, str]
    extra: Dict[str, str]
    changed: Dict[str, str]

    @property
    def wrong(self) -> Dict[str, str]:
        """All of them."""
        return {**self.missing, **self.extra, **self.changed}


def compare(root: str, entries: Sequence[Entry], streams: int, tell: Callable[[int], None]) -> Differences:
    """Read every file below a folder and hold it against the manifest.

    Args:
        root: the folder.
        entries: the manifest.
        streams: how many files are read at once.
        tell: is told of the bytes of each block, by any stream.

    Raises:
        OSError: a folder cannot be read.
    """
    present, wanted = dict(walk(root).files), {entry.path: entry for entry in entries}
    with ThreadPoolExecutor(streams) as pool:
        judged = pool.map(lambda entry: _wrong(root, entry, present, tell), entries)
        changed = {entry.path: wrong for entry, wrong in zip(entries, judged) if wrong}
    return Differences(
        missing={path: "missing" for path in wanted if path not in present},
        extra={path: "not in the manifest" for path in present if path not in wanted},
        changed=changed,
    )


def _wrong(root: str, entry: Entry, present: Dict[str, int], tell: Callable[[int], None]) -> str:
    """What is wrong with a file that is there; empty where nothing, or where it is not there."""
    size = present.get(entry.path)
    if size is None:
        return ""
    if size != entry.size:
        return f"has {size} bytes, expected {entry.size}"
    try:
        digest = digest_of(os.path.join(root, entry.path), tell)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if digest == entry.digest else f"has sha256 {digest[:12]}, expected {entry.digest[:12]}"


# A data set made from a seed.


class Recipe(NamedTuple):
    """What a data set is made from: a few large shards and many small files, with contents that a seed decides.

    ``small_bytes`` is the mean: small files have from half to one and a half times as many, each another size.
    """

    seed: int
    shards: int
    shard_bytes: int
    small: int
    small_bytes: int

    def files(self) -> Iterator[Tuple[str, int]]:
        """Path and size of every file, by path."""
        for number in range(self.shards):
            yield f"shards/shard-{number:04}", self.shard_bytes
        for number in range(self.small):
            size = self.small_bytes // 2 + (number * 7919) % (self.small_bytes + 1)
            yield f"small/{number % 16:02}/file-{number:05}", size

    @property
    def total(self) -> int:
        """Bytes of the whole set."""
        return sum(size for _, size in self.files())


def content(seed: int, path: str, size: int) -> Iterator[bytes]:
    """A file's content in blocks; no two blocks of any two files are alike, and none can be compressed."""
    for at in range(0, size, BLOCK):
        yield block(seed, path, at)[: size - at]


def block(seed: int, path: str, at: int) -> bytes:
    """The BLOCK bytes of a file's content from ``at`` on, a multiple of BLOCK."""
    return hashlib.shake_128(f"{seed}/{path}/{at}".encode()).digest(BLOCK)


def make(recipe: Recipe, root: str, tell: Callable[[int], None], streams: int = 2) -> List[Entry]:
    """Write a data set below a folder, durably.

    Returns:
        Its manifest, from what was meant to be written, not from what was read back.

    Raises:
        OSError: it cannot be written.
    """

    def write(file: Tuple[str, int]) -> Entry:
        path, size = file
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb", buffering=0) as out:
            digest = _pour(out, content(recipe.seed, path, size), tell)
            os.fsync(out.fileno())
        return Entry(path, size, digest)

    with ThreadPoolExecutor(streams) as pool:
        return sorted(pool.map(write, recipe.files()))


def _pour(out: io.FileIO, blocks: Iterable[bytes], tell: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for data in blocks:
        digest.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[out.write(rest) :]
        tell(len(data))
    return digest.hexdigest()
