"""Each process of pytest-xdist keeps to its share of the cores: threads of two tests would wait for each other.

Servers of tests/e2e/harness.py have all cores. On one core a client that asks without a pause starves a worker's start.
"""

import os

COUNT = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
INDEX = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def keep_to_own_cores() -> None:
    """Does nothing without pytest-xdist, with fewer cores than processes, and outside Linux."""
    if COUNT > 1 and (own := ALL[INDEX * len(ALL) // COUNT : (INDEX + 1) * len(ALL) // COUNT]):
        os.sched_setaffinity(0, own)


def give_all_cores(pid: int) -> None:
    """Gives a new process, and those that it will start, all cores."""
    if ALL:
        os.sched_setaffinity(pid, ALL)
