"""Servers that the tests of one file share."""

from collections.abc import Iterator

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.api import MAX_LEN, MODEL
from tests.e2e.harness import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model with random weights: a wrong block or seed changes its answers."""
    path = make_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=MAX_LEN)
    with Server(str(path), "--dtype=float32", f"--served-model-name={MODEL}") as server:
        yield server


@pytest.fixture(scope="module")
def demo_server() -> Iterator[Server]:
    """A server of the demo model, which ends its answers."""
    with Server("--dtype=float32") as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    """A server with the default options, which other servers are compared with; both flags are defaults."""
    with Server("--device=cpu", "--enable-prefix-caching") as server:
        yield server
