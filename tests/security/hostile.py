"""Goes through all attacks on one deployment, beside seeded clients, and says what each of them did."""

import time
from collections.abc import Callable

from tests.security.attacks import attacks, settle
from tests.security.clients import Clients, expected_answers
from tests.security.deployment import Deployment

PATIENCE = 1.0  # seconds that a client may wait longer than without an attack
GROWTH = 64 * 2**20  # bytes that a process may have more afterwards: allocators keep what a flood needed
QUIET_SECONDS = 5.0


def run(at: Deployment, num_frames: int, seed: int, tell: Callable[[str], None], patience: float = PATIENCE) -> None:
    """Raises AssertionError with what went wrong."""
    expected = expected_answers(at.url)
    assert expected_answers(at.url) == expected, "the answers are the same without an attack"
    with Clients(at.url, expected) as clients:
        time.sleep(QUIET_SECONDS)
    usual = clients.longest_wait
    memory, descriptors = at.memory(), at.descriptors()
    tell(f"without an attack: {clients.num_answers} answers, longest wait {usual:.2f} s")
    for index, (name, attack) in enumerate(attacks(at).items()):
        began = time.monotonic()
        with Clients(at.url, expected) as clients:
            attack(num_frames, seed + index)
        seconds = time.monotonic() - began
        tell(f"{name}: {num_frames} frames in {seconds:.1f} s, {clients.num_answers} answers,"
             f" longest wait {clients.longest_wait:.2f} s")  # fmt: skip
        assert not at.ended, f"{name}: {at.ended} ended\n{at.log}"
        assert "Traceback" not in at.log, f"{name}:\n{at.log}"
        assert clients.longest_wait < usual + patience, f"{name}: a client waited {clients.longest_wait:.2f} s"
    settle()
    assert expected_answers(at.url) == expected
    after = at.memory()
    more = {role: (after[role] - memory[role]) // 2**20 for role in memory}
    left = {role: count - descriptors[role] for role, count in at.descriptors().items()}
    lines = sum(len(lines) for lines in at.lines.values())
    tell(f"MiB more than before: {more}; descriptors: {left}; lines in the logs: {lines}")
    assert all(after[role] < memory[role] + GROWTH for role in memory), more
    assert all(count <= 2 for count in left.values()), left
