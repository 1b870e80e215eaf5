"""Profiles: the documented one loads, ten mistakes are ten lines, nothing secret is accepted or repeated."""

from __future__ import annotations

import copy
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial import config
from seatrial.config import SUITES, Cluster, Waiver, default_folders, find, json_schema, load_cluster, profiles
from seatrial.errors import UsageError
from seatrial.job import Budget
from seatrial.strict import Mistake, load, mistakes

DOCUMENTED = """
name: acme-h100
target: {kind: slurm, login: login.acme.example, user: accept, partition: gpu}
pools:
  - name: train
    accelerator: h100-80gb
    topology: 8gpu-sxm-nvlink
    fabric: infiniband-ndr-8x400
    workload: distributed-training
    sharing: full-gpu
    nodes: 16
    gpus_per_node: 8
image: registry.acme.example/train@sha256:0123456789abcdef
storage:
  - {name: shared, kind: shared-filesystem, path: /mnt/shared, minimum: {write: 20 GB/s, read: 40 GB/s}}
  - {name: scratch, kind: node-local, path: /scratch}
  - {name: bucket, kind: object, uri: s3://acme-accept, endpoint: https://objects.acme.example, credentials: env}
datasets: [{name: sample, uri: /mnt/shared/sample, manifest: sample.manifest}]
queues:
  system: slurm
  tenants: [{name: nlp, queue: nlp, namespace: team-nlp, nominal: 32, weight: 1}]
prices: {currency: USD, gpu_hour: 2.10, node_hour: 0, egress_gb: 0.05}
limits: {gpus: 128, gpu_hours: 40, cost: 150}
budgets: {queue: 10 min, silence: 90 s}
protected: true
require: [nccl, checkpoint, staging, queues]
waivers: [{check: nccl.all_gather.busbw, owner: j.doe, reason: "firmware fix due", expires: 2026-12-31}]
"""

TENANT = {"name": "nlp", "queue": "nlp", "nominal": 32}
WAIVER = {"check": "nccl.all_gather.busbw", "owner": "j.doe", "reason": "a fix is due", "expires": "2026-12-31"}
LOCAL = {"name": "here", "target": {"kind": "local"}, "pools": [{"name": "machine"}]}


def told(tmp_path: Path, profile: object) -> list[Mistake]:
    """The mistakes of a profile, given as text or as data."""
    path = tmp_path / "profile.yaml"
    path.write_text(profile if isinstance(profile, str) else yaml.safe_dump(profile))
    return mistakes(path, Cluster)[1]


def loaded(tmp_path: Path, profile: str) -> Cluster:
    """A profile that has no mistake."""
    path = tmp_path / "profile.yaml"
    path.write_text(profile)
    return load(path, Cluster)


def test_the_documented_profile_loads(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, DOCUMENTED)
    shared = cluster.storage[0]
    assert shared.minimum is not None
    assert (shared.minimum.write, shared.minimum.read) == (20e9, 40e9)
    assert cluster.target.kind == "slurm"
    assert (cluster.pools[0].nodes, cluster.pools[0].gpus_per_node) == (16, 8)
    assert cluster.waivers[0].expires == datetime.date(2026, 12, 31)
    assert cluster.protected
    assert cluster.require == ("nccl", "checkpoint", "staging", "queues")


def test_a_profile_survives_the_record(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, DOCUMENTED)
    recorded = cluster.model_dump_json()
    assert json.loads(recorded)["storage"][0]["minimum"]["write"] == "20 GB/s"
    assert Cluster.model_validate_json(recorded, strict=True) == cluster


def test_the_local_profile_works_unedited() -> None:
    folder = default_folders(Path.cwd())[-1]
    cluster = load(folder / "local.yaml", Cluster)
    assert cluster.name == "local"
    assert cluster.target.kind == "local"
    assert cluster.target.python == sys.executable
    assert [(pool.accelerator, pool.gpus_per_node) for pool in cluster.pools] == [("auto", "auto")]
    assert set(cluster.require) <= set(SUITES)


TEN_MISTAKES = """\
name: Acme H100
target: {kind: slrum, partition: gpu}
pools:
  - name: train
    accelerator: h100-80gb
    sharing: full_gpu
    gpus_per_node: eight
  - name: train
    accelerator: h100-80gb
    gpus_per_node: 8
    nodes: 0
storage:
  - name: shared
    kind: shared-filesystem
    path: /mnt/shared
    minimum:
      write: 20
      read: 40 GBs
require: [nccl, chekpoint]
limits: {cost: 150}
protcted: true
"""


def test_ten_mistakes_are_ten_lines_each_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "acme.yaml"
    path.write_text(TEN_MISTAKES)
    with pytest.raises(UsageError) as raised:
        load(path, Cluster)
    head, *lines = str(raised.value).splitlines()
    assert head == "11 mistakes to mend:"
    expected = [
        (1, "name", "observed 'Acme H100'"),
        (2, "target.kind", "nearest valid word 'slurm'"),
        (6, "pools[0].sharing", "nearest valid word 'full-gpu'"),
        (7, "pools[0].gpus_per_node", "observed 'eight'"),
        (8, "pools[1].name", "observed 'train' again"),
        (11, "pools[1].nodes", "expected a whole number (at least 1), observed 0"),
        (17, "storage[0].minimum.write", "20 lacks its unit; write a number and a unit such as MB/s, GB/s"),
        (18, "storage[0].minimum.read", "nearest valid unit GB/s"),
        (19, "require[1]", "nearest valid word 'checkpoint'"),
        (20, "limits.cost", "observed no prices"),
        (21, "protcted", "nearest valid word 'protected'"),
    ]
    assert len(lines) == len(expected)
    for line, (number, where, words) in zip(lines, expected, strict=True):
        assert line.startswith(f"  {path}:{number}: {where}: expected ")
        assert words in line


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of a profile: ``pools.0.nodes`` set to a value; None takes the key away."""
    *around, last = [int(step) if step.isdigit() else step for step in path.split(".")]

    def apply(profile: dict[str, Any]) -> None:
        place: Any = profile
        for step in around:
            place = place[step]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        ("name", None, "name", "expected a name in lower case"),
        ("pools", [], "pools", "expected a list (at least 1 of them)"),
        ("pools.0.accelerator", "auto", "pools[0].accelerator", "'auto' is for a local target"),
        ("pools.0.gpus_per_node", None, "pools[0].gpus_per_node", "expected the number of GPUs that was promised"),
        ("pools.0.accelerator", "cpu", "pools[0].gpus_per_node", "expected 0 beside the accelerator 'cpu'"),
        ("storage.1.name", "shared", "storage[1].name", "'shared' again; storage[0] has it already"),
        ("storage.1.path", "scratch", "storage[1].path", "expected an absolute path"),
        ("storage.0.minimum", {}, "storage[0].minimum", "expected a rate for write or read"),
        ("storage.0.minimum.read", "0 GB/s", "storage[0].minimum.read", "it must be more than zero"),
        ("storage.2.credentials", "hunter2", "storage[2].credentials", "'env', 'file:PATH' or 'secret:NAME'"),
        ("storage.2.credentials", "AKIAIOSFODNN7EXAMPLE", "storage[2].credentials", "not shown"),
        ("storage.2.endpoint", "https://me:hunter2@host", "storage[2].endpoint", "no literal secret"),
        ("datasets.0.kind", "x", "datasets[0].kind", "the keys here are name, uri, manifest"),
        ("queues.system", "kueue", "queues.system", "observed 'kueue', which needs kubernetes"),
        ("queues.tenants.0.nominal", -1, "queues.tenants[0].nominal", "at least 0"),
        ("prices.currency", "usd", "prices.currency", "a currency such as 'USD'"),
        ("prices", None, "limits.cost", "expected prices to count the cost by"),
        ("prices.gpu_hour", None, "prices.gpu_hour", "expected a number (at least 0), observed nothing"),
        ("limits.gpus", 0, "limits.gpus", "at least 1"),
        ("budgets.silence", 90, "budgets.silence", "90 lacks its unit; write a number and a unit such as us, ms, s"),
        ("require", ["nccl", "nccl"], "require[1]", "observed 'nccl' again"),
        ("datasets", [{"name": "a", "uri": "/a"}] * 2, "datasets[1].name", "datasets[0] has it already"),
        ("queues.tenants", [TENANT, TENANT], "queues.tenants[1].name", "queues.tenants[0] has it already"),
        ("waivers", [WAIVER, WAIVER], "waivers[1].check", "waivers[0] has it already"),
        ("waivers.0.check", "ncll.all_gather.busbw", "waivers[0].check", "nearest valid word 'nccl'"),
        ("waivers.0.check", "nccl", "waivers[0].check", "a check's id such as"),
        ("waivers.0.expires", "soon", "waivers[0].expires", "a date such as 2026-12-31"),
        ("waivers.0.expires", "86400", "waivers[0].expires", "write year, month and day"),
        ("waivers.0.owner", None, "waivers[0].owner", "observed nothing"),
        ("target.partition", "gpu\n#SBATCH --nodes=9", "target.partition", "a word without spaces"),
        ("target.user", "-oProxyCommand=x", "target.user", "a word without spaces"),
        ("target.port", 65536, "target.port", "at most 65535"),
        ("target", {"kind": "kubernetes", "namespace": "Team"}, "target.namespace", "a namespace such as"),
        ("image", "", "image", "observed an empty text"),
    ],
)
def test_one_wrong_word_is_one_mistake(tmp_path: Path, path: str, value: Any, where: str, words: str) -> None:
    profile = yaml.safe_load(DOCUMENTED)
    if path == "target":
        profile.pop("queues")
    change(path, value)(profile)
    found = told(tmp_path, json.loads(json.dumps(profile, default=str)))
    assert [mistake.where for mistake in found] == [where]
    assert words in str(found[0])
    assert "hunter2" not in str(found[0])


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        ("image", "train:latest", "image", "expected no image"),
        ("pools", [{"name": "a"}, {"name": "b"}], "pools[1]", "one pool: a local target is one machine"),
        ("pools.0.nodes", 2, "pools[0].nodes", "1: a local target is one machine"),
        ("target.env", {"HF_TOKEN": "hunter2"}, "target.env.HF_TOKEN", "export it where seatrial runs"),
        ("target.env", {"X": "AKIAIOSFODNN7EXAMPLE"}, "target.env.X", "no literal secret"),
        ("target.env", {"OMP_NUM_THREADS": 1}, "target.env.OMP_NUM_THREADS", "put it in quotes"),
        ("target.pyhton", "python3", "target.pyhton", "nearest valid word 'python'"),
    ],
)
def test_a_local_target_promises_one_machine(tmp_path: Path, path: str, value: Any, where: str, words: str) -> None:
    profile = copy.deepcopy(LOCAL)
    assert told(tmp_path, profile) == []
    change(path, value)(profile)
    found = told(tmp_path, profile)
    assert [mistake.where for mistake in found] == [where]
    assert words in str(found[0])
    assert not re.search("hunter2|AKIA", str(found[0]))


def test_hosts_are_words_or_mappings_and_stand_once(tmp_path: Path) -> None:
    profile = """
name: rack
target: {kind: ssh, user: accept, hosts: [n1, {host: n2, port: 2222}, {host: n2, port: 2223}]}
pools: [{name: all, accelerator: cpu, gpus_per_node: 0, nodes: 3}]
"""
    target = loaded(tmp_path, profile).target
    assert target.kind == "ssh"
    assert [(host.host, host.port) for host in target.hosts] == [("n1", None), ("n2", 2222), ("n2", 2223)]
    found = told(tmp_path, profile.replace("port: 2223", "port: 2222"))
    assert [(m.line, m.where) for m in found] == [(3, "target.hosts[2].host")]


def test_one_check_may_be_waived_at_several_places(tmp_path: Path) -> None:
    waivers = [{**WAIVER, "where": {"node": node}} for node in ("n7", "n8")]
    assert told(tmp_path, {**LOCAL, "waivers": waivers}) == []


def test_a_waiver_holds_until_its_last_day() -> None:
    waiver = Waiver(check="nccl.all_gather.busbw", owner="j.doe", reason="x", expires=datetime.date(2026, 12, 31))
    assert waiver.active(datetime.date(2026, 12, 31))
    assert not waiver.active(datetime.date(2027, 1, 1))


def test_a_waiver_covers_its_check_at_its_place_only() -> None:
    day = datetime.date(2026, 12, 31)
    anywhere = Waiver(check="nccl.all_gather.busbw", owner="j.doe", reason="x", expires=day)
    assert anywhere.covers("nccl.all_gather.busbw", {"node": "n7"})
    assert not anywhere.covers("nccl.all_reduce.busbw", {"node": "n7"})
    there = anywhere.model_copy(update={"where": {"node": "n7"}})
    assert there.covers("nccl.all_gather.busbw", {"node": "n7", "gpu": "0"})
    assert not there.covers("nccl.all_gather.busbw", {"node": "n8", "gpu": "0"})
    assert not there.covers("nccl.all_gather.busbw", {})


def test_an_expired_waiver_is_no_mistake_of_the_profile(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, DOCUMENTED.replace("2026-12-31", "2020-01-01"))
    assert not cluster.waivers[0].active(datetime.date(2026, 1, 1))


def test_the_profile_overrides_a_jobs_budgets_one_by_one(tmp_path: Path) -> None:
    suites_own = Budget(queue=1.0, start=2.0, silence=3.0, total=4.0, cleanup=5.0)
    overridden = Budget(queue=600.0, start=2.0, silence=90.0, total=4.0, cleanup=5.0)
    assert loaded(tmp_path, DOCUMENTED).budget(suites_own) == overridden


def test_a_profile_is_found_by_name_in_the_first_folder_that_has_it_or_by_path(tmp_path: Path) -> None:
    own, packaged = tmp_path / "clusters", tmp_path / "packaged"
    for folder, names in ((own, ["local", "mine"]), (packaged, ["local", "other"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(LOCAL))
    folders = [own, packaged, tmp_path / "absent"]
    assert profiles(folders) == ["local", "mine", "other"]
    assert find("local", folders) == own / "local.yaml"
    assert find("other", folders) == packaged / "other.yaml"
    assert find(str(packaged / "other.yaml"), []) == packaged / "other.yaml"
    assert load_cluster("mine", tmp_path).name == "here"
    assert load_cluster("packaged/other.yaml", tmp_path).name == "here"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nosuch", ", mine"),
        ("mien", "nearest valid word 'mine'"),
        ("clusters/nosuch.yaml", "the path of a profile"),
        ("kube:lab", "cannot be tried yet"),
        ("kube:arn:aws:eks:x:cluster/lab", "cannot be tried yet"),
        ("lab-slurm", "cannot be tried yet"),
        ("", ", mine"),
        ("n" * 5000, ", mine"),
        ("/" + "n" * 5000, ", mine"),
        ("~nosuch/a.yaml", ", mine"),
        ("no\x00such.yaml", ", mine"),
    ],
)
def test_a_name_without_a_profile_tells_which_there_are(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.yaml").write_text(yaml.safe_dump(LOCAL))
    with pytest.raises(UsageError) as raised:
        load_cluster(name, tmp_path)
    assert words in str(raised.value)


def test_the_packaged_profiles_are_found_from_anywhere(tmp_path: Path) -> None:
    assert load_cluster("local", tmp_path).name == "local"


def test_a_folder_of_the_checkout_is_not_named_twice() -> None:
    packaged = Path(config.__file__).parent / "clusters"
    assert default_folders(packaged.resolve().parent) == [packaged.resolve()]


def test_the_schema_has_every_field_and_its_form() -> None:
    schema = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert set(schema["properties"]) == set(Cluster.model_fields)
    assert set(schema["required"]) == {"name", "target", "pools"}
    assert schema["properties"]["require"]["items"]["enum"] == list(SUITES)
    text = json.dumps(schema)
    assert "a rate such as '20 GB/s'" in text
    assert sys.executable not in text


def test_the_import_leaves_the_heavy_things_alone() -> None:
    code = "import sys, seatrial.config; print({'torch', 'numpy', 'jinja2', 'pytest', 'pynvml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


words = st.sampled_from(["local", "ssh", "slurm", "kubernetes", "object", "node-local", "auto", "cpu", "20 GB/s"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | words
keys = st.sampled_from(["name", "kind", "host", "hosts", "minimum", "tenants", "system", "cost", "check", "where"])
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(list(Cluster.model_fields)), junk, max_size=6))
def test_random_profiles_are_refused_without_a_traceback(tmp_path: Path, profile: object) -> None:
    path = tmp_path / "junk.yaml"
    path.write_text(yaml.safe_dump(profile))
    value, found = mistakes(path, Cluster)
    assert (value is None) == bool(found)
    assert all(str(mistake).startswith(f"{path}:") for mistake in found)
