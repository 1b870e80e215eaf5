"""The storages that a data set can come from: folders and buckets, the user's own data sets and seeded ones."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from . import datasets, objects, scratch
from .copies import prepare
from .copying import Copier, Folder, Source, discard
from .datasets import BLOCK, Entry, Recipe, escaped
from .events import Emitter

SHARDS, SHARD_BYTES, SMALL = 2, 2 * objects.PART_BYTES + BLOCK + 1, 20
"""What is put into a bucket: objects of three parts, the last a short one, and small ones."""


class Given(NamedTuple):
    """A data set of the user's: its files as the manifest has them, and what the source has beside them.

    ``others`` are links and special files; ``extra`` are files that the manifest lacks.
    """

    source: Source
    root: str
    entries: Sequence[Entry]
    others: Sequence[str]
    extra: Sequence[str]


def survey(own: Dict[str, Any], moved: Callable[[int], None]) -> Given:
    """Look at a data set of the user's: ``uri`` (a folder), ``manifest`` (its file, or empty).

    A manifest's path that is not absolute is taken from the folder that the data set is in. Without a manifest one is
    made, which proves that the copy is like the source, and nothing of the source itself.

    Raises:
        OSError: it cannot be read.
        payload.datasets.ManifestError: the manifest cannot be used.
    """
    root = own["uri"].rstrip("/")
    found = datasets.walk(root)
    if own["manifest"]:
        path = os.path.join(os.path.dirname(root), own["manifest"])
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            entries = datasets.parse(file.read(), path)
    else:
        entries = [Entry(name, size, datasets.digest_of(os.path.join(root, name), moved)) for name, size in found.files]
    wanted = {entry.path for entry in entries}
    return Given(Folder(root), root, entries, found.others, sorted(set(dict(found.files)) - wanted))


def measure(
    name: str,
    bucket: Dict[str, Any],
    recipe: Recipe,
    target: str,
    streams: int,
    emitter: Emitter,
    moved: Callable[[int], None],
) -> None:
    """Make a data set in a bucket, stage it from there, and see what the storage refuses; emit what was found.

    Raises:
        OSError: this node's own storage failed.
    """
    where = objects.Bucket(bucket["uri"], bucket["endpoint"], bucket["region"], bucket["credentials"])
    prefix = f"seatrial-{os.environ.get('SEATRIAL_JOB', 'by-hand')}-{os.getpid()}"
    try:
        store = objects.open_store(where, prefix)
        objects.reach(store)
    except objects.MissingError as error:
        emitter.emit("unsupported", op="object", dtype=None, size=None, name=name, why=str(error)[:300])
        return
    except objects.RefusedError as error:
        emitter.emit("refused", what=f"storage {name}", why=str(error.strerror)[:300])
        return
    try:
        emitter.emit("object", name=name, **_staged(where, prefix, store, recipe, target, streams, moved))
    except OSError as error:
        emitter.emit("refused", what=f"storage {name}", why=str(error)[:300])
    finally:
        objects.delete(store)


def _staged(
    where: objects.Bucket,
    prefix: str,
    store: Any,
    recipe: Recipe,
    target: str,
    streams: int,
    moved: Callable[[int], None],
) -> Dict[str, Any]:
    small = Recipe(recipe.seed + 2, SHARDS, SHARD_BYTES, SMALL, recipe.small_bytes)
    begin = time.perf_counter()
    entries, tags = objects.upload(small, store, moved)
    uploaded = time.perf_counter() - begin
    report = Copier(objects.Objects(store), target, entries, streams, moved).run()
    found = datasets.compare(target, entries, 2, moved)
    wrong, asked = _wrong_ranges(store, small)
    unseen = _unseen(where, prefix, store, entries, target, moved)
    causes = {**found.wrong, **report.failures}
    return {
        "files": len(entries),
        "bytes": small.total,
        "upload_s": round(uploaded, 6),
        "seconds": round(report.seconds, 6),
        "multipart": sum("-" in tag for tag in tags.values()),
        "multipart_asked": SHARDS,
        "ranges": asked,
        "wrong_ranges": wrong,
        "provoked": list(PROVOKED),
        "unseen": unseen,
        "wrong_files": len(found.wrong),
        "wrong": [f"{escaped(path)[:100]}: {why[:100]}" for path, why in sorted(causes.items())[:10]],
        "stopped": report.stopped,
    }


def _wrong_ranges(store: Any, recipe: Recipe) -> Tuple[List[str], int]:
    """The ranges of an object that are not what was put there: its ends, and both sides of where its parts meet."""
    path, size = next(recipe.files())
    edge = objects.PART_BYTES
    spans = [(0, 1), (size - 1, 1), (edge - 1, 2), (edge, 1000), (2 * edge - 500, 1000), (size - 1000, 1000)]
    whole = b"".join(datasets.content(recipe.seed, path, size))
    got = objects.ranges(store, path, spans)
    wrong = [
        f"{path} from {start}, {length} bytes"
        for (start, length), data in zip(spans, got)
        if data != whole[start : start + length]
    ]
    return wrong, len(spans)


PROVOKED = ("wrong credentials", "a bucket that is not there", "an object whose checksum differs")


def _unseen(
    where: objects.Bucket, prefix: str, store: Any, entries: Sequence[Entry], target: str, moved: Callable[[int], None]
) -> List[str]:
    """Which of three faults, provoked on purpose, were let through."""
    unseen = []
    others = [{"secret_access_key": "not-the-secret"}, {"bucket": f"seatrial-no-such-bucket-{os.getpid()}"}]
    for what, changes in zip(PROVOKED, others):
        try:
            objects.reach(objects.open_store(where, prefix, **changes))
            unseen.append(what)
        except objects.RefusedError:
            pass
    victim = next(entry for entry in entries if entry.path.startswith("small/"))
    objects.put(store, victim.path, [bytes(victim.size)], multipart=False)
    copy = target + "-changed"
    try:
        Copier(objects.Objects(store), copy, [victim], 1, moved).run()
        if victim.path not in datasets.compare(copy, [victim], 1, moved).changed:
            unseen.append(PROVOKED[2])
    finally:
        discard(copy)
    return unseen


def rates(name: str, path: str, recipe: Recipe, streams: int, emitter: Emitter, moved: Callable[[int], None]) -> None:
    """Measure what a folder's storage writes and reads, durably and cold, with several streams; emit ``rate`` events.

    Each stream writes one file of a shard's size, made beforehand, and reads another stream's.
    """
    try:
        folder = scratch.claim(path, "rates")
    except OSError as error:
        emitter.emit("refused", what=f"storage {name}", why=str(error)[:300])
        return
    try:
        data = b"".join(datasets.content(recipe.seed + 3, "rates", recipe.shard_bytes))
        paths = [os.path.join(folder, str(stream)) for stream in range(streams)]
        written = _at_once(_write, [(own, data, moved) for own in paths])
        seen = prepare("cold", paths, moved)
        read = _at_once(_read, [(own, data, moved) for own in paths])
    except OSError as error:
        emitter.emit("refused", what=f"storage {name}", why=str(error)[:300])
        return
    finally:
        scratch.give_back(folder)
    size = len(data) * streams
    for op, seconds in (("write", written), ("read", read)):
        emitter.emit(
            "rate",
            name=name,
            op=op,
            bytes=size,
            seconds=round(seconds, 6),
            streams=streams,
            resident=seen.resident,
            pages=seen.pages,
            unseen=seen.why,
        )


def _at_once(work: Callable[..., None], argument_lists: Sequence[Tuple[Any, ...]]) -> float:
    """Do the same work in several threads; returns the seconds until the last one's end."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(argument_lists)) as pool:
        for pending in [pool.submit(work, *arguments) for arguments in argument_lists]:
            pending.result()
    return time.perf_counter() - begin


def _write(path: str, data: bytes, moved: Callable[[int], None]) -> None:
    with open(path, "wb", buffering=0) as file:
        for at in range(0, len(data), BLOCK):
            file.write(memoryview(data)[at : at + BLOCK])
            moved(BLOCK)
        os.fsync(file.fileno())


def _read(path: str, data: bytes, moved: Callable[[int], None]) -> None:
    buffer, at = bytearray(BLOCK), 0
    with open(path, "rb", buffering=0) as file:
        while at < len(data):
            count = file.readinto(buffer)
            if not count or memoryview(buffer)[:count] != memoryview(data)[at : at + count]:
                raise OSError(errno.EIO, f"{path}: other bytes at {at} than were written")
            at += count
            moved(count)
