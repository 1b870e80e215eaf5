"""The sampler freezes after half a second of work."""

import os
import signal
import sys
import threading


def freeze() -> None:
    threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


if "sample" in getattr(sys, "orig_argv", []):
    threading.Thread(target=freeze, daemon=True).start()
