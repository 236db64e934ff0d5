"""Each process of pytest-xdist keeps to its share of the cores: threads of two tests would wait for each other.

Servers of tests/e2e/harness.py have all cores. On one core a client that asks without a pause starves a worker's start.
"""

import os

ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def keep_to_own_cores() -> None:
    """Does nothing without pytest-xdist, with fewer cores than processes, and outside Linux."""
    count, name = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    index = int(name.removeprefix("gw"))
    if count > 1 and (own := ALL[index * len(ALL) // count : (index + 1) * len(ALL) // count]):
        os.sched_setaffinity(0, own)


def give_all_cores(pid: int) -> None:
    """Gives a new process, and those that it will start, all cores."""
    if ALL:
        os.sched_setaffinity(pid, ALL)
