"""Command ``staging``: a data set comes onto this node, is compared there, and is read under a training loop.

One process a node does it all, without a group: nothing of it needs the other nodes. Each phase tells in events what it
found; what that means is judged elsewhere. Beside ``ready`` and ``done`` there are

- ``space`` (name, path, filesystem, needed, free): bytes, before the first byte of a data set is written.
- ``refused`` (what, why): a folder or a storage did not let us in; the phases that need it are left out.
- ``unsupported`` (op, why): this environment lacks something; the phase that needs it is left out.
- ``broken`` (what, why): this node's storage ended a phase before its end.
- ``dataset`` (name, uri, files, bytes, manifest, others): one data set, its manifest by its SHA-256.
- ``copy``: one timed copy, see ``copies.py``.
- ``resume``, ``weights``, ``loader``, ``object``: the phases of these names.
"""

import hashlib
import os
import resource
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from . import copying, datasets, pagecache, resuming, scratch, storage
from .copies import NAMED, REASON_CHARACTERS, VERIFYING, Copies, Turn, clip, faults_of, prepare
from .copying import Copier, Folder, Report
from .datasets import Entry, Recipe
from .events import Emitter, Heartbeat, Position
from .settings import refuse, settled

MIB = 1 << 20
DEFAULTS: Dict[str, Any] = {
    "seed": 0,
    "source": "",
    "target": "",
    "shards": 4,
    "shard_bytes": 8 * MIB,
    "small": 200,
    "small_bytes": 16 << 10,
    "streams": [1, 2, 4, 8],
    "judged_streams": 4,
    "rounds": 9,
    "scaling_rounds": 3,
    "weights_bytes": 32 * MIB,
    "datasets": {},
    "objects": {},
    "promised": {},
    "batch": 16,
    "sample_bytes": 16 << 10,
    "step_ms": 50,
    "steps": 25,
    "workers": 1,
}
"""``source`` and ``target`` are folders of the source storage and of the node's own; empty is the job's scratch.
``datasets`` are the user's own, by name: ``uri`` and ``manifest``. ``objects`` are the storages with a bucket, by name:
``uri``, ``endpoint``, ``region``, ``credentials``. ``promised`` are the paths whose rates are measured, by name."""

STATES = ("cold", "warm")
SPARE_BYTES = 64 * MIB
"""What a file system needs beside the files: its own structures, and somebody else's logs."""
FILE_BYTES = 4096
"""What each file takes beside its content."""
WARMUP_STEPS = 3


class Stage(NamedTuple):
    """Where this rank works: its folder on the source storage and its folder on the node's own."""

    source: str
    target: str


class Trial:
    """The phases on one node.

    Attributes:
        phases: the names of those that are done.
        rss_bytes: the most memory that was used before torch was imported.
    """

    def __init__(self, emitter: Emitter, position: Position, settings: Dict[str, Any], stage: Stage) -> None:
        self._emitter = emitter
        self._position = position
        self._settings = settings
        self._stage = stage
        self._recipe = Recipe(
            settings["seed"], settings["shards"], settings["shard_bytes"], settings["small"], settings["small_bytes"]
        )
        self._set = os.path.join(stage.source, "set")
        self._entries: List[Entry] = []
        self.phases: List[str] = []
        self.rss_bytes = 0

    def run(self) -> None:
        """All phases, one after the other; one that breaks does not hide the others."""
        if self._has_space():
            self._phase("make the data set", self._make)
            for state in STATES:
                self._phase(f"copy {state}", self._rounds, state)
            self._phase("kill and resume", self._resume)
            self._phase("weights", self._weights)
        for name, own in self._settings["datasets"].items():
            self._phase(f"data set {name}", self._own, name, own)
        for name, bucket in self._settings["objects"].items():
            self._phase(f"bucket {name}", self._objects, name, bucket)
        for name, path in self._settings["promised"].items():
            self._phase(f"rates of {name}", self._rates, name, path)
        self.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self._entries:
            self._phase("read back", self._read_back)

    def _phase(self, name: str, work: Callable[..., None], *args: object) -> None:
        self._position.what, self._position.phase = name, 0
        self._position.step += 1
        try:
            work(*args)
        except OSError as error:
            self._emitter.emit("broken", what=name, why=clip(str(error), REASON_CHARACTERS))
            return
        self._position.phase = 2
        self.phases.append(name)

    def _moved(self, _: int) -> None:
        """Bytes were moved: the rank is alive."""
        self._position.step += 1

    def _target(self, name: str) -> str:
        return os.path.join(self._stage.target, name)

    def _stream(self, source: str, target: str, entries: Sequence[Entry]) -> Report:
        return Copier(Folder(source), target, entries, self._settings["judged_streams"], self._moved).run()

    # Space.

    def _has_space(self) -> bool:
        """Whether both storages can take what the trial writes; said before the first byte."""
        once = self._recipe.total + (self._recipe.shards + self._recipe.small) * FILE_BYTES
        weights: int = self._settings["weights_bytes"]
        return self._fits("seeded", [(self._stage.source, once + weights), (self._stage.target, once + weights)])

    def _fits(self, name: str, needs: Sequence[Tuple[str, int]]) -> bool:
        """Whether the file systems of these folders have so many bytes free; needs of one file system add up."""
        by_device: Dict[int, Tuple[str, int]] = {}
        for path, needed in needs:
            device = os.stat(path).st_dev
            first, before = by_device.get(device, (path, SPARE_BYTES))
            by_device[device] = (first, before + needed)
        fits = True
        for path, needed in by_device.values():
            found = os.statvfs(path)
            free, kind = found.f_bavail * found.f_frsize, filesystem(path)
            self._emitter.emit("space", name=name, path=clip(path), filesystem=kind, needed=needed, free=free)
            fits = fits and free >= needed
        return fits

    # The seeded data set.

    def _make(self) -> None:
        begin = time.perf_counter()
        os.mkdir(self._set)
        self._entries = datasets.make(self._recipe, self._set, self._moved)
        self._tell_set("seeded", self._set, self._entries, [], time.perf_counter() - begin)

    def _tell_set(self, name: str, uri: str, entries: Sequence[Entry], others: Sequence[str], seconds: float) -> None:
        lines = "".join(datasets.line(entry) + "\n" for entry in entries)
        self._emitter.emit(
            "dataset",
            name=name,
            uri=clip(uri),
            files=len(entries),
            bytes=sum(entry.size for entry in entries),
            manifest=hashlib.sha256(lines.encode()).hexdigest(),
            others=[clip(other) for other in others[:NAMED]],
            seconds=round(seconds, 6),
        )

    def _rounds(self, state: str) -> None:
        """Copies with every number of streams beside cp, in turns, so that what drifts drifts for all alike."""
        copies, judged = Copies(self._emitter, self._target("copy"), self._moved), self._settings["judged_streams"]
        paths = [os.path.join(self._set, entry.path) for entry in self._entries]
        others = [streams for streams in self._settings["streams"] if streams != judged]
        for number in range(self._settings["rounds"]):
            turn = Turn("seeded", state, number)
            copies.by_cp(turn, self._set, self._entries, prepare(state, readable(paths), self._moved))
            for streams in [judged, *(others if number < self._settings["scaling_rounds"] else [])]:
                seen = prepare(state, readable(paths), self._moved)
                copies.by_streams(turn, Folder(self._set), self._entries, streams, seen)

    def _resume(self) -> None:
        pagecache.evict(readable([os.path.join(self._set, entry.path) for entry in self._entries]))
        target = self._target("resumed")
        self._emitter.emit("resume", **resuming.measure(self._set, target, self._entries, self._moved))
        copying.discard(target)

    # Weights.

    def _weights(self) -> None:
        """A model's weights: fetched and read, read cold from the node's own storage, and started a second time."""
        source, target = os.path.join(self._stage.source, "weights"), self._target("weights")
        os.mkdir(source)
        recipe = Recipe(self._settings["seed"] + 1, 1, self._settings["weights_bytes"], 2, FILE_BYTES)
        entries = datasets.make(recipe, source, self._moved)
        seen = prepare("cold", [os.path.join(source, entry.path) for entry in entries], self._moved)
        first, fetched = self._start(source, target, entries)
        local = readable([os.path.join(target, entry.path) for entry in entries])
        pagecache.evict(local)
        begin = time.perf_counter()
        pagecache.warm(local, self._moved)
        warmed = time.perf_counter() - begin
        second, again = self._start(source, target, entries)
        self._emitter.emit(
            "weights",
            bytes=recipe.total,
            first_s=round(first, 6),
            warm_s=round(warmed, 6),
            second_s=round(second, 6),
            first_copied=fetched.copied_bytes,
            second_copied=again.copied_bytes,
            resident=seen.resident,
            pages=seen.pages,
            unseen=clip(seen.why),
            stopped=clip(fetched.stopped),
            faults=faults_of(datasets.compare(target, entries, VERIFYING, self._moved), fetched),
        )
        copying.discard(target)

    def _start(self, source: str, target: str, entries: Sequence[Entry]) -> Tuple[float, Report]:
        """Stage the weights and read all of them, as a server does that starts; returns the seconds of both."""
        begin = time.perf_counter()
        report = self._stream(source, target, entries)
        pagecache.warm(readable([os.path.join(target, entry.path) for entry in entries]), self._moved)
        return time.perf_counter() - begin, report

    # Reading back.

    def _read_back(self) -> None:
        try:
            from . import feeding  # noqa: PLC0415  (torch is imported for this alone)
        except ImportError as error:
            why = clip(f"no torch here: {error}")
            self._emitter.emit("unsupported", op="loader", dtype=None, size=None, why=why)
            return
        asked, target = self._settings, self._target("read")
        report = self._stream(self._set, target, self._entries)
        if report.stopped or report.failures:
            self._emitter.emit("loader", why=clip(f"the data set could not be staged: {report.stopped}"))
            return
        files = [(os.path.join(target, entry.path), entry.size) for entry in self._entries]
        pagecache.evict([path for path, _ in files])
        feed = feeding.Feed(
            batch=asked["batch"],
            sample_bytes=asked["sample_bytes"],
            step_s=asked["step_ms"] / 1e3,
            steps=asked["steps"],
            warmup=WARMUP_STEPS,
            workers=asked["workers"],
        )
        self._emitter.emit("loader", warmup=WARMUP_STEPS, **feeding.measure(files, feed, asked["seed"], self._moved))
        copying.discard(target)

    # The user's own data sets, buckets, and promised rates.

    def _own(self, name: str, own: Dict[str, Any]) -> None:
        """Stage a data set of the user's once, and hold the copy against its manifest."""
        begin = time.perf_counter()
        try:
            given = storage.survey(own, self._moved)
        except (OSError, datasets.ManifestError) as error:
            self._emitter.emit("refused", what=f"data set {name}", why=clip(str(error), REASON_CHARACTERS))
            return
        self._tell_set(name, own["uri"], given.entries, given.others, time.perf_counter() - begin)
        needed = sum(entry.size + FILE_BYTES for entry in given.entries)
        if self._fits(name, [(self._stage.target, needed)]):
            here = readable([os.path.join(given.root, entry.path) for entry in given.entries])
            copies = Copies(self._emitter, self._target("own"), self._moved)
            seen, streams = prepare("cold", here, self._moved), self._settings["judged_streams"]
            copies.by_streams(Turn(name, "cold", 0), given.source, given.entries, streams, seen, given.extra)

    def _objects(self, name: str, bucket: Dict[str, Any]) -> None:
        target = self._target("objects")
        streams = self._settings["judged_streams"]
        storage.measure(name, bucket, self._recipe, target, streams, self._emitter, self._moved)
        copying.discard(target)

    def _rates(self, name: str, path: str) -> None:
        storage.rates(name, path, self._recipe, self._settings["judged_streams"], self._emitter, self._moved)


def readable(paths: Sequence[str]) -> List[str]:
    """Those files that are there and may be read; what the others lack shows in the copy of them."""
    return [path for path in paths if os.access(path, os.R_OK)]


def filesystem(path: str) -> str:
    """The type of the file system that a folder is on, as /proc/self/mountinfo names it."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            head, _, tail = line.partition(" - ")
            if head.split()[2] == wanted:
                return tail.split()[0]
    return "of an unnamed kind"


_ABOVE_0 = ("shards", "shard_bytes", "small", "small_bytes", "judged_streams", "rounds", "batch", "sample_bytes")


def _settle(given: Dict[str, Any]) -> Dict[str, Any]:
    settings = settled("staging", DEFAULTS, given)
    mistakes = [f"{key!r} must be above 0, not {settings[key]}" for key in _ABOVE_0 if settings[key] <= 0]
    mistakes += [f"streams {count} is not above 0" for count in settings["streams"] if count <= 0]
    if settings["judged_streams"] not in settings["streams"]:
        mistakes.append(f"judged_streams {settings['judged_streams']} is not one of {settings['streams']}")
    refuse("staging", mistakes)
    return settings


def run(emitter: Emitter, given: Dict[str, Any]) -> int:
    """Do all phases on this node and tell of the completion.

    Raises:
        payload.settings.SettingsError: the settings are wrong.
        OSError: this rank's folders cannot be looked at or removed.
    """
    settings, position, size = _settle(given), Position(), int(os.environ["WORLD_SIZE"])
    with Heartbeat(emitter, position):
        emitter.emit(
            "ready",
            world_size=size,
            rank=int(os.environ["RANK"]),
            backend=None,
            device="cpu",
            torch=None,
            uuid=None,
            transport=None,
        )
        phases, rss_bytes = _work(emitter, position, settings)
        peers = [f"{socket.gethostname()}:{os.getpid()}"]
        emitter.emit("done", world_size=size, peers=peers, phases=phases, rss_bytes=rss_bytes)
    return 0


def _work(emitter: Emitter, position: Position, settings: Dict[str, Any]) -> Tuple[List[str], int]:
    folders: List[str] = []
    try:
        for role in ("source", "target"):
            try:
                folders.append(scratch.claim(settings[role], role))
            except OSError as error:
                emitter.emit("refused", what=f"the {role} storage", why=clip(str(error), REASON_CHARACTERS))
                return [], 0
        trial = Trial(emitter, position, settings, Stage(*folders))
        trial.run()
        return trial.phases, trial.rss_bytes
    finally:
        for folder in folders:
            scratch.give_back(folder)
