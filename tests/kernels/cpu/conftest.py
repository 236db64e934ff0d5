"""Fixtures for each variant of the compiled kernels that this machine can run."""

from collections.abc import Iterator

import pytest

from kernels.cpu.library import Library, load, runnable_variants
from kernels.cpu.ops import CpuOps


@pytest.fixture(params=runnable_variants())
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    found = load(request.param)
    yield found
    found.set_num_threads(1)


@pytest.fixture
def ops(library: Library) -> CpuOps:
    return CpuOps(library)
