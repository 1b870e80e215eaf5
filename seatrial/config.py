"""The profile of a cluster: how to reach it, what was promised, what may be spent and what must be shown.

``load_cluster`` finds and reads one. A profile holds no secrets: it says where they are.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from seatrial import strict
from seatrial.errors import UsageError
from seatrial.job import Budget
from seatrial.quantity import Rate, Seconds
from seatrial.strict import Finding, Strict, Where

Suite = Literal["nccl", "checkpoint", "staging", "health", "mig", "queues"]
SUITES: tuple[str, ...] = get_args(Suite)
"""The suites that a profile may require."""
FAMILIES = (*SUITES, "telemetry")
"""What a check's id may begin with."""


def _text(pattern: str, expected: str, *examples: str) -> Any:
    """A text field of a fixed form, with the words that its mistakes use."""
    return Field(pattern=pattern, examples=list(examples), json_schema_extra={"x-expected": expected})


def _day(written: object) -> object:
    if not isinstance(written, str):
        return written
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", written):
        raise ValueError("write year, month and day")
    return datetime.date.fromisoformat(written)


def _is_check(name: str) -> str:
    family = name.partition(".")[0]
    if family not in FAMILIES:
        hint = strict.near_miss(family, FAMILIES) or f"there are {', '.join(FAMILIES)}"
        raise ValueError(f"no suite is called {family!r}, {hint}")
    return name


Slug = Annotated[
    str, _text(r"^[a-z0-9]+([._-][a-z0-9]+)*$", "a name in lower case such as 'h100-80gb'", "h100-80gb", "nvlink")
]
Line = Annotated[str, _text(r"^[^\r\n]*[^\s][^\r\n]*$", "a text of one line")]
Word = Annotated[str, _text(r"^[^\s-]\S*$", "a word without spaces")]
AbsolutePath = Annotated[str, _text(r"^/[^\r\n]*$", "an absolute path such as '/mnt/shared'", "/mnt/shared")]
Namespace = Annotated[str, _text(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "a namespace such as 'team-nlp'", "team-nlp")]
Address = Annotated[str, _text(r"^[a-z][a-z0-9+]*://\S+$", "an address such as 's3://bucket/path'", "s3://bucket/path")]
Credentials = Annotated[
    str,
    _text(
        r"^(env|file:[^\r\n]+|secret:[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$",
        "where the credentials are: 'env', 'file:PATH' or 'secret:NAME' of a Kubernetes secret",
        "env",
        "file:~/.aws/credentials",
        "secret:object-store",
    ),
]
CheckId = Annotated[
    str,
    _text(
        r"^[a-z0-9_]+(\.[a-z0-9_]+)+$",
        "a check's id such as 'nccl.all_reduce.busbw'",
        "nccl.all_reduce.busbw",
    ),
    AfterValidator(_is_check),
]
Day = Annotated[datetime.date, BeforeValidator(_day)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Amount = Annotated[float, Field(gt=0)]
Price = Annotated[float, Field(ge=0)]


class LocalTarget(Strict):
    """This machine."""

    kind: Literal["local"]
    python: Line = Field(
        default_factory=lambda: sys.executable,
        description="The interpreter that runs the payload; by default the one in use.",
    )
    env: Mapping[str, str] = Field({}, description="Added to the environment of every rank. Not for secrets.")


class Login(Strict):
    """How a host is logged in to; what is absent is taken from the user's SSH configuration."""

    user: Word | None = None
    port: Port | None = None
    key: Line | None = Field(None, description="The path of a private key; without it the agent is asked.")
    known_hosts: Line | None = Field(None, description="A file of host keys; an unknown host is refused.")
    python: Word = Field("python3", description="The interpreter that runs the payload there.")


class Host(Strict):
    """One host of an SSH target; its user and port go before the target's."""

    host: Word
    user: Word | None = None
    port: Port | None = None


def _named_host(written: object) -> object:
    return {"host": written} if isinstance(written, str) else written


class SshTarget(Login):
    """Hosts over SSH."""

    kind: Literal["ssh"]
    hosts: Annotated[
        tuple[Annotated[Host, BeforeValidator(_named_host, json_schema_input_type=Word | Host)], ...],
        Field(min_length=1),
    ]
    jump: Word | None = Field(None, description="The host through which the others are reached.")


class SlurmTarget(Login):
    """A Slurm cluster, from a login node or over SSH to one."""

    kind: Literal["slurm"]
    login: Word | None = Field(None, description="The login node; without it this machine is one.")
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: Word | None = None
    exclusive: bool = False
    container: Literal["pyxis"] | None = Field(None, description="What starts the profile's image.")


class KubernetesTarget(Strict):
    """A Kubernetes cluster."""

    kind: Literal["kubernetes"]
    context: Word | None = Field(None, description="A context of the kubeconfig; by default the current one.")
    kubeconfig: Line | None = None
    namespace: Namespace | None = Field(None, description="Where jobs go; by default one made for the run.")
    service_account: Namespace | None = None
    image_pull_secrets: tuple[Namespace, ...] = Field((), description="Names of secrets in the namespace.")
    host_network: bool = False
    privileged: bool = False
    python: Word = "python3"


_KINDS = ("local", "ssh", "slurm", "kubernetes")
Target = Annotated[LocalTarget | SshTarget | SlurmTarget | KubernetesTarget, Field(discriminator="kind")]


class Pool(Strict):
    """Nodes of one make, and what was promised of them. The five names are selectors of bounds and cost tags."""

    name: Slug
    accelerator: Slug = Field("auto", description="'auto' is what a local target finds; 'cpu' is none.")
    topology: Slug = "unstated"
    fabric: Slug = "unstated"
    workload: Slug = "unstated"
    sharing: Literal["full-gpu", "mig", "time-slicing", "mps"] = "full-gpu"
    nodes: Count = 1
    gpus_per_node: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"


class Minimum(Strict):
    """The rates that were promised of a storage."""

    write: Rate | None = None
    read: Rate | None = None

    @model_validator(mode="after")
    def _promises_something(self) -> Minimum:
        if self.write is None and self.read is None:
            raise ValueError("expected a rate for write or read, or no minimum at all")
        return self


class SharedFilesystem(Strict):
    """A file system that all nodes mount."""

    kind: Literal["shared-filesystem"]
    name: Slug
    path: AbsolutePath
    minimum: Minimum | None = None


class NodeLocal(Strict):
    """A directory of each node's own."""

    kind: Literal["node-local"]
    name: Slug
    path: AbsolutePath
    minimum: Minimum | None = None


class ObjectStorage(Strict):
    """A bucket."""

    kind: Literal["object"]
    name: Slug
    uri: Address
    endpoint: Address | None = None
    region: Word | None = None
    credentials: Credentials = "env"
    minimum: Minimum | None = None


Storage = Annotated[SharedFilesystem | NodeLocal | ObjectStorage, Field(discriminator="kind")]


class Dataset(Strict):
    """The user's own data; one made from a seed takes its place where there is none."""

    name: Slug
    uri: Line = Field(description="A path on the cluster, or an address.")
    manifest: Line | None = Field(None, description="The file that 'seatrial manifest' wrote.")


class Tenant(Strict):
    """A team with a queue; ``nominal`` is its quota in GPUs, ``weight`` its fair share of what others leave."""

    name: Slug
    queue: Word
    namespace: Namespace | None = None
    nominal: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(ge=0)] = 1.0


class Queues(Strict):
    """The queue system and the tenants that share it."""

    system: Literal["kueue", "volcano", "kai", "slurm"]
    tenants: Annotated[tuple[Tenant, ...], Field(min_length=1)]


class Prices(Strict):
    """What the cluster costs."""

    currency: Annotated[str, _text(r"^[A-Z]{3}$", "a currency such as 'USD'", "USD", "EUR")]
    gpu_hour: Price
    node_hour: Price = 0.0
    egress_gb: Price = 0.0


class Limits(Strict):
    """The most that a run may take; more stops it before it starts."""

    gpus: Count | None = None
    gpu_hours: Amount | None = None
    cost: Amount | None = None


class Budgets(Strict):
    """How long each stretch of a job may take, in place of the suite's own budgets."""

    queue: Seconds | None = None
    start: Seconds | None = None
    silence: Seconds | None = None
    total: Seconds | None = None
    cleanup: Seconds | None = None


class Waiver(Strict):
    """A check that may fail until a day, in somebody's name. ``where`` narrows it to a place such as node or gpu."""

    check: CheckId
    owner: Line
    reason: Line
    expires: Day
    where: Mapping[str, str] | None = None

    def active(self, today: datetime.date) -> bool:
        """Whether it still holds: its last day counts."""
        return today <= self.expires

    def covers(self, check: str, place: Mapping[str, str]) -> bool:
        """Whether it was written for this check at this place."""
        return check == self.check and all(place.get(key) == value for key, value in (self.where or {}).items())


class Cluster(Strict):
    """A cluster as its profile describes it."""

    name: Slug
    target: Target
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    image: Word | None = Field(None, description="The production image: what is accepted is what will run.")
    storage: tuple[Storage, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    queues: Queues | None = None
    prices: Prices | None = None
    limits: Limits | None = None
    budgets: Budgets = Budgets()
    protected: bool = Field(False, description="A trial needs --yes.")
    require: tuple[Suite, ...] = Field((), description="The suites without which nothing is accepted.")
    waivers: tuple[Waiver, ...] = ()

    def budget(self, default: Budget) -> Budget:
        """A job's budgets: the given ones, overridden by the profile's."""
        return replace(default, **self.budgets.model_dump(exclude_none=True))

    @classmethod
    def cross_check(cls, data: Any) -> Iterator[Finding]:
        """What is wrong between fields: doubled names, promises that contradict the target, secrets."""
        yield from _doubles(data)
        yield from _promises(data)
        yield from _dependencies(data)
        yield from _secrets(data)


# Checks between fields. The data is whatever the file holds, so that they speak beside all other mistakes.

_IDENTITY: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("pools",): ("name",),
    ("storage",): ("name",),
    ("datasets",): ("name",),
    ("queues", "tenants"): ("name",),
    ("target", "hosts"): ("host", "port"),
    ("require",): ("suite",),
    ("waivers",): ("check", "where"),
}
"""What tells the entries of a list apart; an entry that is a plain word is the first of these."""
_SERVED_BY = {"slurm": "slurm", "kueue": "kubernetes", "volcano": "kubernetes", "kai": "kubernetes"}
"""The kind of target that a queue system belongs to."""


def _get(data: object, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _entries(data: object, *keys: str) -> Iterator[tuple[Where, Any]]:
    """The entries of a list, each with its place."""
    entries = _get(data, *keys)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        yield (*keys, index), entry


def _doubles(data: object) -> Iterator[Finding]:
    """Entries of one list that cannot be told apart."""
    for keys, (name, *others) in _IDENTITY.items():
        seen: dict[str, Where] = {}
        for where, written in _entries(data, *keys):
            entry = {name: written} if isinstance(written, str) else written
            if not isinstance(_get(entry, name), str):
                continue
            identity = json.dumps([_get(entry, key) for key in (name, *others)], sort_keys=True)
            first = seen.setdefault(identity, where)
            if first != where:
                place = where if isinstance(written, str) else (*where, name)
                observed = f"{strict.show(entry[name])} again"
                yield Finding(place, "each name once", observed, f"{strict.spell(first)} has it already")


def _promises(data: object) -> Iterator[Finding]:
    """Pools that promise what their target cannot tell, or nothing at all."""
    kind = _get(data, "target", "kind")
    for where, pool in _entries(data, "pools"):
        if kind == "local":
            yield from _one_machine(where, pool)
        elif kind in _KINDS:
            yield from _stated(where, pool)
        gpus = _get(pool, "gpus_per_node")
        if _get(pool, "accelerator") == "cpu" and isinstance(gpus, int) and gpus > 0:
            yield Finding((*where, "gpus_per_node"), "0 beside the accelerator 'cpu'", strict.show(gpus))


def _one_machine(where: Where, pool: object) -> Iterator[Finding]:
    nodes = _get(pool, "nodes")
    if where[-1] != 0:
        yield Finding(where, "one pool: a local target is one machine", "another pool")
    elif isinstance(nodes, int) and nodes > 1:
        yield Finding((*where, "nodes"), "1: a local target is one machine", strict.show(nodes))


def _stated(where: Where, pool: object) -> Iterator[Finding]:
    for key, expected in (("accelerator", "the accelerator"), ("gpus_per_node", "the number of GPUs")):
        if isinstance(pool, dict) and pool.get(key, "auto") == "auto":
            observed = strict.show(pool.get(key))
            yield Finding((*where, key), f"{expected} that was promised", observed, "'auto' is for a local target")


def _dependencies(data: object) -> Iterator[Finding]:
    """Fields that need another field, or exclude it."""
    kind, system = _get(data, "target", "kind"), _get(data, "queues", "system")
    if kind == "local" and _get(data, "image") is not None:
        yield Finding(("image",), "no image: a local target runs on this machine's interpreter", "an image")
    served_by = _SERVED_BY.get(system) if isinstance(system, str) else None
    if served_by and kind in _KINDS and kind != served_by:
        observed = f"{system!r}, which needs {served_by}"
        yield Finding(("queues", "system"), f"a queue system of a {kind} target", observed)
    if _get(data, "limits", "cost") is not None and _get(data, "prices") is None:
        yield Finding(("limits", "cost"), "prices to count the cost by", "no prices", "add prices, or limit gpu_hours")


def _secrets(data: object, where: Where = ()) -> Iterator[Finding]:
    """Values that look like secrets, and environment variables that are called so."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _secrets(value, (*where, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _secrets(value, (*where, index))
    elif where[-1:] != ("credentials",) and (strict.holds_secret(data) or _is_secret_variable(where, data)):
        hint = "the record copies the profile: export it where seatrial runs, or name a file or secret that has it"
        yield Finding(where, "no literal secret", "a value that looks like one (not shown)", hint)


def _is_secret_variable(where: Where, value: object) -> bool:
    return where[:-1] == ("target", "env") and strict.names_secret(where[-1]) and bool(value)


# Finding profiles.


def default_folders(cwd: Path) -> list[Path]:
    """Where profiles are looked for: ``clusters`` of the working directory, then those that come with the package."""
    own, packaged = cwd / "clusters", Path(__file__).parent / "clusters"
    return [own] if own.resolve() == packaged.resolve() else [own, packaged]


def profiles(folders: Sequence[Path]) -> list[str]:
    """The names of all profiles in these folders."""
    return sorted(_files(folders))


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    """The file of each profile; an earlier folder's goes before a later one's of the same name."""
    return {path.stem: path for folder in reversed(folders) for path in folder.glob("*.yaml") if path.is_file()}


def find(name: str, folders: Sequence[Path]) -> Path:
    """The file of a profile.

    Args:
        name: a profile's name in one of the folders, the first that has it; or the path of a file.
        folders: as from ``default_folders``.

    Raises:
        UsageError: there is none; it lists the profiles there are.
    """
    files = _files(folders)
    if name in files:
        return files[name]
    if _is_path(name) and os.path.exists(name):
        return Path(name)
    expected = "the path of a profile" if _is_path(name) else "the name of a profile or a path to one"
    near = strict.near_miss(name, files)
    if name.startswith(_NOT_YET):
        near = "a kubeconfig's context (kube:...) and a lab's profile (lab-...) cannot be tried yet"
    there_are = f"there are {', '.join(sorted(files))}" if files else "there are none yet"
    places = " and ".join(map(str, folders))
    message = f"--cluster={name}: expected {expected}, observed nothing of that name; in {places} {there_are}"
    raise UsageError(f"{message}; {near}" if near else message)


_NOT_YET = ("kube:", "lab-")


def _is_path(name: str) -> bool:
    return not name.startswith("kube:") and ("/" in name or name.endswith((".yaml", ".yml")))


def load_cluster(name: str, cwd: Path) -> Cluster:
    """Find a profile and read it; a path is taken from ``cwd``.

    Raises:
        UsageError: there is none, or it has mistakes; all of them are listed.
    """
    named = str(cwd / os.path.expanduser(name)) if _is_path(name) else name
    return strict.load(find(named, default_folders(cwd)), Cluster)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a profile, for editors and validators."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Cluster.model_json_schema()}
