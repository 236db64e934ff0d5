"""A child tells its parent that it is ready."""

import os
import subprocess
import sys

from services.process.readiness import Readiness, tell


def test_it_is_set_once_a_child_tells_so() -> None:
    with Readiness() as readiness:
        assert not readiness.is_set()
        program = f"from services.process.readiness import tell; tell({readiness.child_fd})"
        subprocess.run([sys.executable, "-c", program], pass_fds=[readiness.child_fd], check=True)
        assert readiness.is_set()
        assert readiness.is_set(), "it stays so while the child restarts"


def test_a_child_that_restarts_for_ever_does_not_block() -> None:
    with Readiness() as readiness:
        for _ in range(70_000):  # more than a pipe holds
            tell(readiness.child_fd)


def test_a_child_outlives_its_parents_end() -> None:
    own, child = os.pipe()
    os.close(own)
    tell(child)
    os.close(child)
