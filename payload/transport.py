"""How the ranks talk: what NCCL's own log says of the transport that it chose, and what is known of gloo's."""

import os
import re
import socket
import tempfile
from typing import Dict, List, MutableMapping, Optional

from .events import Emitter

MAX_LINES = 20
_LINE_CHARACTERS = 160
_TELLING = re.compile(
    r"NCCL version [\w.+]+|via (?:NET/[A-Za-z ]+|[A-Za-z0-9]+)|Using network .+|nNodes \d+"
    r"|Connected NVLS|NVLS comm|[0-9]+ nvls channels|NET/[A-Za-z]+ ?: (?:Using|No device)|Selected Provider is \w+"
)


class NcclLog:
    """NCCL's log of this rank, asked for before the group is joined and read when the work is done.

    What the user's environment says already (NCCL_DEBUG and its kin) stays as it is.

    Args:
        rank: names the file.
        environ: where NCCL reads its settings.
    """

    def __init__(self, rank: int, environ: MutableMapping[str, str]) -> None:
        scratch = environ.get("SEATRIAL_SCRATCH") or environ.get("TMPDIR") or tempfile.gettempdir()
        ours = os.path.join(scratch, f"seatrial-nccl-{os.getpid()}-rank-{rank}.log")
        environ.setdefault("NCCL_DEBUG", "INFO")
        environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,NVLS")
        self.path = _expanded(environ.setdefault("NCCL_DEBUG_FILE", ours))
        self._level = environ["NCCL_DEBUG"]
        self._ours = self.path == ours

    def tell(self, emitter: Emitter) -> None:
        """Emit ``transport`` with the telling lines; where there are none, it says why."""
        lines: List[str] = []
        why = None
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8", errors="replace") as file:
                lines = telling(file.read())
        if not lines:
            why = f"nothing about a transport in {self.path}, with NCCL_DEBUG={self._level}"
        emitter.emit("transport", file=self.path, lines=lines, why=why)

    def remove(self) -> None:
        """Delete the log where it is ours and nobody else clears it away."""
        if self._ours and "SEATRIAL_SCRATCH" not in os.environ and os.path.exists(self.path):
            os.unlink(self.path)


def _expanded(path: str) -> str:
    """NCCL writes the host's name for %h and the process for %p."""
    return path.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))


def telling(text: str) -> List[str]:
    """The first line for each thing that a log says of the transport, at most MAX_LINES, each cut to fit an event."""
    first: Dict[str, str] = {}
    for line in text.splitlines():
        for said in _TELLING.findall(line):
            # Plain ASCII: no character of it takes more than two bytes in an event.
            first.setdefault(said, re.sub(r"[^ -~]", "?", line)[:_LINE_CHARACTERS])
    lines = list(dict.fromkeys(first.values()))
    return lines[:MAX_LINES]


def gloo(interface: Optional[str]) -> str:
    """What is known of gloo's transport before it is used."""
    chosen = f"interface {interface}" if interface else "the interface that the host's name resolves to"
    return f"gloo over TCP, {chosen}"
