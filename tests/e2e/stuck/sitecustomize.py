"""On the path of a server under test: a role blocks its main thread, and so its event loop, at SIGUSR2."""

import signal
import threading

signal.signal(signal.SIGUSR2, lambda *_: threading.Event().wait())
