"""Fixtures of the worker's tests."""

from pathlib import Path

import pytest

from tests.checkpoints import make_qwen3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_qwen3(tmp_path / "model", seed=1)
