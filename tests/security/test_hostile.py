"""The short form of `make hostile`: malformed frames and calls on each edge change no answer."""

from pathlib import Path

from tests.security.deployment import Deployment
from tests.security.hostile import run

NUM_FRAMES = 300
PATIENCE = 10.0  # seconds, because other tests run at the same time; `make hostile` allows one


def test_a_hostile_run_changes_no_answer(tmp_path: Path) -> None:
    reports: list[str] = []
    with Deployment(tmp_path).running() as deployment:
        run(deployment, NUM_FRAMES, 1, reports.append, PATIENCE)
        lines = [line for role in deployment.lines.values() for line in role]
    assert len(reports) == 16
    assert not [line for line in lines if line.startswith(("I0", "E0", "W0"))], "gRPC's core wrote to stderr"
