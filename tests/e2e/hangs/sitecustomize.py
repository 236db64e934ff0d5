"""On the path of a server under test: its worker hangs at a prompt that starts with a certain token.

Each step takes STEP_SECONDS more, so that a test has the time to see its requests run. TANDEM_TEST_POISON is the
token, TANDEM_TEST_HANG one of the names below. TANDEM_TEST_ONCE is a file that the hang creates; while it exists, no
further hang happens.
"""

import ctypes
import importlib.abc
import os
import sys
import threading
from pathlib import Path

POISON = os.environ.get("TANDEM_TEST_POISON")
STEP_SECONDS = 0.003


def waits() -> None:
    """Blocks like a lock or a device: other threads run."""
    threading.Event().wait()


def holds_the_gil() -> None:
    """Blocks in C and holds the GIL: no other Python thread runs."""
    ctypes.PyDLL(None).sleep(1000)


def befall() -> None:
    once = os.environ.get("TANDEM_TEST_ONCE")
    if once is not None:
        if Path(once).exists():
            return
        Path(once).touch()
    {hang.__name__: hang for hang in (waits, holds_the_gil)}[os.environ["TANDEM_TEST_HANG"]]()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name != "services.worker.model_runner":
            return
        sys.meta_path.remove(self)
        import services.worker.input_batch as batch

        add, apply = batch.InputBatch._add, batch.InputBatch.apply

        def poisoned(self, request):  # type: ignore[no-untyped-def]
            if request.prompt_token_ids[:4] == int(POISON).to_bytes(4, "little"):
                befall()
            add(self, request)

        def slow(self, plan):  # type: ignore[no-untyped-def]
            threading.Event().wait(STEP_SECONDS)
            return apply(self, plan)

        batch.InputBatch._add, batch.InputBatch.apply = poisoned, slow
        return


if POISON:
    sys.meta_path.insert(0, _Finder())
