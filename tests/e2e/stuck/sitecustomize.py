"""On the path of a server under test: a role blocks its main thread, and so its event loop, at SIGUSR2; the engine
blocks its busy loop at SIGWINCH."""

import signal
import sys
import threading


def block(*_: object) -> None:
    threading.Event().wait()


def block_busy_loop(*_: object) -> None:
    sys.modules["services.engine.busy_loop"].BusyLoop._step = block  # type: ignore[attr-defined]


signal.signal(signal.SIGUSR2, block)
signal.signal(signal.SIGWINCH, block_busy_loop)
