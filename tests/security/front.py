"""`python -m tests.security.front`: each attack on the HTTP port beside 16 seeded clients, one after the other.

Every client must get the bytes that it gets without an attack, no process may end, and the shim's event loop must be
no later than MAX_LAG above the 99.9th percentile of the runs without an attacker. `--seconds N`, names of attacks.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.e2e.harness import wait_for
from tests.security.clients import Clients, expected_answers
from tests.security.deployment import Deployment
from tests.security.front_attacks import ATTACKS
from tests.security.hostile import SETTLE_SECONDS, Growth
from tests.security.probed_shim import RING, open_samples

SECONDS = 20.0
MAX_LAG = 0.020  # seconds above a run without attacker, at the 99.9th percentile
END_SECONDS = 30.0  # for an attacker to end after its time


@dataclass(frozen=True)
class Phase:
    """What happened in one phase. `lag`: the 99.9th percentile of the event loop's lag; `longest_wait`: of a client for
    a chunk; both in seconds."""

    lag: float
    longest_lag: float
    num_answers: int
    longest_wait: float
    num_sent: int


class Front:
    def __init__(self, at: Deployment, lags: Path) -> None:
        self._at = at
        self._samples = open_samples(lags)
        self._expected = expected_answers(at.url)

    def phase(self, name: str | None, seconds: float) -> Phase:
        """Runs the clients for some seconds, beside the attack `name`; None: alone. Raises AssertionError if an answer
        differs, a process ends, or a log has a traceback."""
        begin, num_sent = int(self._samples[0]), 0
        with Clients(self._at.url, self._expected) as clients:
            if name is not None:
                num_sent = _attack(name, self._at.front, seconds)
            else:
                threading.Event().wait(seconds)
        assert not self._at.ended, f"{name}: {self._at.ended} ended\n{self._at.log}"
        assert "Traceback" not in self._at.log, f"{name}:\n{self._at.log}"
        lags = self._samples[1 + np.arange(begin, int(self._samples[0])) % RING]
        percentile, longest = float(np.percentile(lags, 99.9)), float(lags.max())
        return Phase(percentile, longest, clients.num_answers, clients.longest_wait, num_sent)


def _attack(name: str, address: str, seconds: float) -> int:
    """Runs an attack in a process of its own. Returns the number of requests sent."""
    command = [sys.executable, "-m", "tests.security.front_attacks", name, address, str(seconds)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + END_SECONDS, check=True)
    return int(ended.stdout)


def run(
    at: Deployment,
    lags: Path,
    names: list[str],
    seconds: float,
    report: Callable[[str], None],
    max_lag: float = MAX_LAG,
) -> list[str]:
    """Runs the attacks and reports a line for each. Returns the names of those that made the event loop late.

    Raises AssertionError as Front.phase, and if memory or descriptors are not as before at the end.
    """
    front = Front(at, lags)
    usual = [front.phase(None, seconds)]
    growth = Growth(at)
    report(_line("no attack", usual[0]))
    late = []
    for name in names:
        found = front.phase(name, seconds)
        report(_line(name, found))
        usual.append(front.phase(None, seconds / 2))
        if found.lag > max(phase.lag for phase in usual) + max_lag:
            late.append(name)
    report(_line("no attack", usual[-1]))
    try:
        wait_for(growth.is_small, "memory and descriptors are as before", SETTLE_SECONDS)
    finally:
        report(f"MiB more than before: {growth.mib()}; descriptors: {growth.descriptors()}")
    return late


def _line(name: str, phase: Phase) -> str:
    return (
        f"{name}: {phase.num_sent} sent, lag {1000 * phase.lag:.1f} ms (longest {1000 * phase.longest_lag:.1f}),"
        f" {phase.num_answers} answers, longest wait {phase.longest_wait:.2f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *ATTACKS], help="attacks; none: all")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lags = Path(folder) / "lags"
        options = ["--trust-request-chat-template"]
        with Deployment(Path(folder), lags=lags, tokenizer_options=options).running() as deployment:
            names = args.names or list(ATTACKS)
            late = run(deployment, lags, names, args.seconds, lambda line: print(line, flush=True))
    print(f"late: {', '.join(late)}" if late else f"ok: no attack made the event loop {1000 * MAX_LAG:g} ms later")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
