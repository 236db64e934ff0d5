"""Servers that the tests of one file share."""

from collections.abc import Iterator

import pytest

from tests.checkpoints import make_qwen3
from tests.e2e.api import MAX_LEN, MODEL
from tests.e2e.harness import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Random weights: its answers are noise, which makes each of them tell."""
    path = make_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=MAX_LEN)
    with Server(str(path), "--dtype=float32", f"--served-model-name={MODEL}") as server:
        yield server


@pytest.fixture(scope="module")
def demo_server() -> Iterator[Server]:
    """A model that ends its answers."""
    with Server("--dtype=float32") as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    """What the effects of options are held against: what is said is the default."""
    with Server("--device=cpu", "--enable-prefix-caching") as server:
        yield server
