"""Without a GPU, Triton kernels run through Triton's interpreter; the choice must be made before Triton is imported.

Each process of pytest-xdist, with all that it starts, keeps to its share of the cores: two servers that compute with
all cores each would wait for each other at every step.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from services.process.runtime_dir import runtime_dir
from tests.interpreter import interpret

if not Path("/dev/nvidiactl").exists():
    interpret()


def keep_to_own_cores() -> None:
    """Does nothing without pytest-xdist, with fewer cores than processes, and outside Linux."""
    count, name = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if count > 1 and hasattr(os, "sched_setaffinity"):
        cores, index = sorted(os.sched_getaffinity(0)), int(name.removeprefix("gw"))
        if own := cores[index * len(cores) // count : (index + 1) * len(cores) // count]:
            os.sched_setaffinity(0, own)


keep_to_own_cores()

# No deadline: the time of an example depends on the load of the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A new directory with a path short enough for sockets; the path of tmp_path may be too long."""
    with runtime_dir(None) as folder:
        yield folder
