"""`python -m loadtest.studies.pauses ROLE`: how long a stream pauses when the process of a role is killed or stopped.

A stream of the demo model runs, the process gets the signal, and the longest gap between two chunks is the pause.
Tokens pass between two signals, so each restart is immediate. Prints every pause, their median and the one that
99% of them do not exceed, in seconds, and the proportional memory (PSS) of each process.
"""

import argparse
import math
import os
import signal
import statistics
import time
from pathlib import Path

from tests.e2e.harness import ALL_READY, SPARES, Server, children_of, pid_of, role_of, wait_for

BODY = {"temperature": 0, "ignore_eos": True}
CHUNKS_BEFORE = 50  # before the signal
SETTLE_SECONDS = 5.0  # between two signals: a spare process is ready by then


def pause(server: Server, role: str, number: signal.Signals) -> float:
    """Sends the signal to the role's process in the middle of a stream. Returns the longest gap between two chunks."""
    gaps, last = [], 0.0
    with server.openai() as client:
        stream = client.completions.create(
            model="demo", prompt="Which way?", max_tokens=1500, extra_body=BODY, stream=True
        )
        for count, _ in enumerate(stream):
            moment = time.monotonic()
            gaps.append(moment - last if last else 0.0)
            last = moment
            if count == CHUNKS_BEFORE:
                os.kill(pid_of(server, role), number)
    return max(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("worker", "engine", "tokenizer"))
    parser.add_argument("--signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    parser.add_argument("--runs", type=int, default=9)
    args, more = parser.parse_known_args()
    with Server(*more or (SPARES,)) as server:
        wait_for(lambda: ALL_READY in server.log, "all are ready")
        pauses = []
        for _ in range(args.runs):
            settled = time.monotonic() + SETTLE_SECONDS
            wait_for(lambda: time.monotonic() > settled, "it settles", 2 * SETTLE_SECONDS)  # noqa: B023
            pauses.append(pause(server, args.role, signal.Signals[args.signal]))
        for pid in children_of(server.process.pid):
            print(f"{role_of(pid)} {pid}: {megabytes(pid):.0f} MB")
    most = sorted(pauses)[math.ceil(0.99 * len(pauses)) - 1]  # the longest of fewer than 100
    print(" ".join(f"{one:.2f}" for one in pauses), f"median {statistics.median(pauses):.2f} s, 99% {most:.2f} s")


def megabytes(pid: int) -> float:
    """Returns the proportional set size of a process and its children."""
    own = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0]
    return int(own) / 1024 + sum(megabytes(child) for child in children_of(pid))


if __name__ == "__main__":
    main()
