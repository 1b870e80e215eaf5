"""Which transports NCCL chose, from its own log (NCCL_DEBUG=INFO)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"NCCL version (\d[\w.+-]*)")
_CHANNEL = re.compile(r"NCCL INFO (?:Channel|Ring|Coll|CollNet) \d.* via (?:NET/(?P<network>[^/]+)|(?P<kind>[\w ]+))")
_NVLS = re.compile(r"NCCL INFO (?:Connected NVLS|NVLS comm 0x|.*\b[1-9]\d* nvls channels)")
_NODES = re.compile(r"NCCL INFO comm .* nNodes (?P<nodes>\d+)(?!.* MNNVL 1)")
_CHOSEN = re.compile(r"NCCL INFO Using network (?P<network>.+)")

_NETWORKS = {"IBext": "IB", "AWS Libfabric": "OFI", "Libfabric": "OFI"}
"""Plugins by the transport that they are: NVIDIA's own InfiniBand plugin, and AWS's over libfabric (EFA)."""
_KINDS = {"direct shared memory": "SHM"}
"""What old releases called a transport."""


@dataclass(frozen=True)
class Transport:
    """What connects the ranks.

    Attributes:
        kinds: ``P2P`` (between GPUs), ``SHM`` (host memory), ``NVLS``, ``COLLNET``, and ``NET/...`` for what leaves the
            node: ``NET/IB``, ``NET/OFI``, ``NET/Socket``, or the plugin's own name. Empty: the log does not tell.
        lines: for each kind, the first line that says so.
        version: NCCL's version; None where the log does not tell.
    """

    kinds: frozenset[str]
    lines: tuple[str, ...]
    version: str | None


def transport_of(text: str) -> Transport:
    """Read a log; only what the ranks are connected by counts, not what NCCL found or could have used.

    A release that does not log its channels leaves one proof of the network: more than one node, and the network that
    was chosen for them. Other output between the log's lines does no harm.
    """
    said: dict[str, str] = {}
    chosen: dict[str, str] = {}
    nodes, version = 1, None
    for line in text.splitlines():
        if (match := _VERSION.search(line)) is not None:
            version = version or match[1]
        if (match := _CHANNEL.search(line)) is not None:
            said.setdefault(_network(match["network"]) if match["network"] else _kind(match["kind"]), line.strip())
        if _NVLS.search(line) is not None:
            said.setdefault("NVLS", line.strip())
        if (match := _NODES.search(line)) is not None:
            nodes = max(nodes, int(match["nodes"]))
        if (match := _CHOSEN.search(line)) is not None:
            chosen.setdefault(_network(match["network"]), line.strip())
    if nodes > 1 and not said.keys() - {"NVLS"}:
        said.update(chosen)
    return Transport(frozenset(said), tuple(dict.fromkeys(said.values())), version)


def _network(name: str) -> str:
    """``NET/IB`` for the plugin ``IBext_v8``."""
    plain = re.sub(r"_v\d+$", "", name.strip())
    return f"NET/{_NETWORKS.get(plain, plain)}"


def _kind(words: str) -> str:
    return _KINDS.get(words.strip(), words.split(maxsplit=1)[0])
