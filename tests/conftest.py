"""Without a GPU, Triton kernels run through Triton's interpreter; the choice must be made before Triton is imported."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from services.process.runtime_dir import runtime_dir
from services.rpc import waited
from tests.clock import Clock
from tests.collecting import pytest_collection as pytest_collection
from tests.cores import keep_to_own_cores
from tests.interpreter import interpret

if not Path("/dev/nvidiactl").exists():
    interpret()


keep_to_own_cores()

# No deadline: the time of an example depends on the load of the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A new directory with a path short enough for sockets; the path of tmp_path may be too long."""
    with runtime_dir(None) as folder:
        yield folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which this process counts how long a request has waited."""
    made = Clock()
    monkeypatch.setattr(waited, "monotonic", made)
    return made
