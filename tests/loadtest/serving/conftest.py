"""Fixtures of the serving benchmarks: one tandem server for all tests, and a journal for fake servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Server
from tests.loadtest.serving.compare_process import Journal


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with Server("--dtype=float32") as server:
        yield server


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)
