"""A process with another secret names the likely cause in its log, about once a second, and keeps retrying."""

import time
from pathlib import Path

import pytest

from tests.e2e.harness import wait_for
from tests.security.deployment import Deployment
from tests.security.peers import THEIRS

SAID = {
    "worker": "the engine closed the connection without an answer: check that both have the same cluster secret",
    "tokenizer": "is its cluster secret another one? UNAVAILABLE",
    "shim": "is its cluster secret another one? UNAVAILABLE",
}


@pytest.mark.parametrize("role", SAID)
def test_another_secret_is_named_as_the_likely_cause(tmp_path: Path, role: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(THEIRS.value)
    deployment = Deployment(tmp_path)
    began = time.monotonic()
    with deployment.started(**{role: other}):
        wait_for(lambda: any(SAID[role] in line for line in deployment.lines[role]), "it says so", 30)
        assert not deployment.ready and not deployment.ended, deployment.log
    said = [line for line in deployment.lines[role] if SAID[role] in line]
    assert len(said) <= 2 + time.monotonic() - began
