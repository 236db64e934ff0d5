"""Runs all attacks on one deployment while seeded clients stream, and checks answers, waits, logs and memory."""

import time
from collections.abc import Callable, Sequence

from services.rpc.start_lock import IDLE_SECONDS
from tests.e2e.harness import wait_for
from tests.security.attacks import attacks
from tests.security.clients import NUM_CLIENTS, Clients, expected_answers
from tests.security.deployment import Deployment

# Seconds that a client may wait longer than without an attack. A start lock that is held idly ends after IDLE_SECONDS.
PATIENCE = IDLE_SECONDS + 0.5
MAX_MIB = 64  # allowed growth of a process: allocators keep memory that an attack needed
MAX_DESCRIPTORS = 8  # allowed growth of a process: sockets of child processes that stay for later requests
USUAL_ANSWERS = 10 * NUM_CLIENTS  # measured without an attack
ANSWER_SECONDS = 120.0  # timeout for the usual answers
SETTLE_SECONDS = 30.0  # timeout until connections are closed: see rpc/transport.py and zeromq/socket_options.py


class Growth:
    """Growth of each process since this object was made, in memory (MiB) and file descriptors."""

    def __init__(self, at: Deployment) -> None:
        self._at = at
        self._memory, self._descriptors = at.memory(), at.descriptors()

    def mib(self) -> dict[str, int]:
        return {role: (count - self._memory[role]) // 2**20 for role, count in self._at.memory().items()}

    def descriptors(self) -> dict[str, int]:
        return {role: count - self._descriptors[role] for role, count in self._at.descriptors().items()}

    def is_small(self) -> bool:
        return max(self.mib().values()) < MAX_MIB and max(self.descriptors().values()) <= MAX_DESCRIPTORS


def run(
    at: Deployment,
    num_frames: int,
    seed: int,
    report: Callable[[str], None],
    patience: float = PATIENCE,
    words: Sequence[str] = (),
) -> None:
    """Runs every attack with `num_frames` frames and calls `report` with one line for each. Raises AssertionError when
    a check fails. `patience`: seconds that a client may wait longer than without an attack. `words`: if there are any,
    only attacks with one of them in their names run."""
    expected = expected_answers(at.url)
    assert expected_answers(at.url) == expected, "the answers are the same without an attack"
    with Clients(at.url, expected) as clients:
        wait_for(lambda: clients.num_answers >= USUAL_ANSWERS or clients.failures, "usual answers", ANSWER_SECONDS)
    usual = clients.longest_wait
    growth = Growth(at)
    report(f"without an attack: {clients.num_answers} answers, longest wait {usual:.2f} s")
    for index, (name, attack) in enumerate(attacks(at).items()):
        if words and not any(word in name for word in words):
            continue
        began = time.monotonic()
        with Clients(at.url, expected) as clients:
            attack(num_frames, seed + index)
        seconds = time.monotonic() - began
        report(f"{name}: {num_frames} frames in {seconds:.1f} s, {clients.num_answers} answers,"
               f" longest wait {clients.longest_wait:.2f} s")  # fmt: skip
        assert not at.ended, f"{name}: {at.ended} ended\n{at.log}"
        assert "Traceback" not in at.log, f"{name}:\n{at.log}"
        assert clients.longest_wait < usual + patience, f"{name}: a client waited {clients.longest_wait:.2f} s"
    assert expected_answers(at.url) == expected
    try:
        wait_for(growth.is_small, "memory and descriptors are as before", SETTLE_SECONDS)
    finally:
        lines = sum(len(lines) for lines in at.lines.values())
        report(f"MiB more than before: {growth.mib()}; descriptors: {growth.descriptors()}; lines in the logs: {lines}")
