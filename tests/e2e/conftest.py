"""Servers that tests share, also those of several files: a test leaves them as it found them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.api import MAX_LEN, MODEL
from tests.e2e.harness import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model with random weights: a wrong block or seed changes its answers."""
    with random_weights(tmp_path_factory.mktemp("model")) as server:
        yield server


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Like `server`, but of one file alone: for tests that add up all that a server has done."""
    with random_weights(tmp_path_factory.mktemp("model")) as server:
        yield server


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A server of the demo model, which ends its answers."""
    with Server("--dtype=float32") as server:
        yield server


@pytest.fixture(scope="session")
def plain() -> Iterator[Server]:
    """A server with the default options, which other servers are compared with; both flags are defaults."""
    with Server("--device=cpu", "--enable-prefix-caching") as server:
        yield server


def random_weights(folder: Path) -> Server:
    path = make_qwen3(folder, max_position_embeddings=MAX_LEN)
    return Server(str(path), "--dtype=float32", f"--served-model-name={MODEL}")
