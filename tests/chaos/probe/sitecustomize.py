"""On the path of a server under test: at SIGUSR2 a process writes how many objects of each class it holds, and how many
the garbage collector has freed so far.

The file is TANDEM_CHAOS_PROBE/PID.json. Counted are tandem's own classes and asyncio's tasks that are not done.
"""

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

OURS = ("services.", "engine_core.")


def _write(number: int, frame: object) -> None:
    gc.collect()
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if isinstance(one, asyncio.Task):
            found["asyncio task"] += not one.done()
        elif kind.__module__.startswith(OURS):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    path = Path(os.environ["TANDEM_CHAOS_PROBE"]) / f"{os.getpid()}.json"
    collected = sum(generation["collected"] for generation in gc.get_stats())
    path.with_suffix(".new").write_text(json.dumps({"objects": found, "collected": collected}))
    path.with_suffix(".new").rename(path)


if "TANDEM_CHAOS_PROBE" in os.environ:
    signal.signal(signal.SIGUSR2, _write)
