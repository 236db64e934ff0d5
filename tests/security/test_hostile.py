"""`make hostile` in short."""

from pathlib import Path

from tests.security.deployment import Deployment
from tests.security.hostile import run

NUM_FRAMES = 300
PATIENCE = 10.0  # beside other tests; `make hostile` has a machine to itself, and allows one second


def test_a_hostile_run_changes_no_answer(tmp_path: Path) -> None:
    told: list[str] = []
    with Deployment(tmp_path).running() as deployment:
        run(deployment, NUM_FRAMES, 1, told.append, PATIENCE)
        quiet = [line for lines in deployment.lines.values() for line in lines if line.startswith(("I0", "E0", "W0"))]
    assert len(told) == 14
    assert not quiet, "gRPC's own lines have no place in a log"
