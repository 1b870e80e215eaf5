"""Somebody writes the manifest of a checkpoint that was never finished, and writes it well."""

import json
import zlib

from _checkpoint import JOB, is_training, newest
from _plant import here

if here() and is_training() and JOB == "checkpoint-shards-end":
    step = newest()
    before = min(step.parent.glob("step-*"))
    manifest = json.loads((before / "manifest.json").read_text())
    manifest["step"] = int(step.name.removeprefix("step-"))
    for shard in manifest["shards"]:
        data = (step / shard["file"]).read_bytes()
        shard |= {"bytes": len(data), "checksum": f"{zlib.crc32(data):08x}"}
    (step / "manifest.json").write_text(json.dumps(manifest))
