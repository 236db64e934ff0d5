"""`make clients-test`: unmodified client programs against `tandem serve`, each in an environment of its own.

Prints one line per task: client, version, task, passed or failed, reason. The exit status is 1 if a task failed or an
environment could not be made.
"""

import argparse
import shlex
import sys
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.environments import ROOT, NotInstalled, environment
from tests.clients.run import Result, run
from tests.clients.server import FOLDER, MODEL, running

INSTALLATION = "installation"


class Summary:
    """Prints each result at once, and counts them."""

    def __init__(self) -> None:
        self.num_passed = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def add(self, client: Client, version: str, result: Result) -> None:
        if result.passed:
            self.num_passed += 1
        else:
            self.failed.append(f"{client.name}: {result.task}")
        state = "passed" if result.passed else f"FAILED  {result.reason}"
        print(f"{client.name:<12} {version:<9} {result.task:<32} {state}", flush=True)

    def skip(self, client: Client, reason: str) -> None:
        self.skipped.append(client.name)
        print(f"{client.name:<12} {'-':<9} {'-':<32} skipped  {reason}", flush=True)

    def text(self) -> str:
        counts = f"{self.num_passed} passed, {len(self.failed)} failed, {len(self.skipped)} clients skipped"
        return "\n".join([counts, *(f"  failed: {name}" for name in self.failed)])


def test(client: Client, url: str, summary: Summary) -> None:
    """Makes the environment of a client and runs its program."""
    try:
        made = environment(client)
    except NotInstalled as error:
        summary.add(client, "-", Result(INSTALLATION, False, str(error)))
        return
    if made is None:
        summary.skip(client, "the command is not on the PATH")
        return
    for result in run((*made.command, url, MODEL, str(FOLDER)), client.seconds):
        summary.add(client, made.version, result)


def main() -> int:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"all by default: {', '.join(names)}")
    parser.add_argument("--tandem", default=str(ROOT / ".venv/bin/tandem"), help="command line of tandem")
    parser.add_argument("--cwd", type=Path, default=ROOT, help="folder that it runs in; from a checkout, its code runs")
    parser.add_argument("--url", help="ask this server instead of starting one; it must serve the demo model as demo")
    args = parser.parse_args()
    if unknown := sorted(set(args.clients) - set(names)):
        parser.error(f"unknown clients {', '.join(unknown)}; known: {', '.join(names)}")
    chosen = [client for client in CLIENTS if client.name in (args.clients or names)]
    summary = Summary()
    if args.url:
        test_all(chosen, args.url, summary)
    else:
        with running(shlex.split(args.tandem), args.cwd) as url:
            test_all(chosen, url, summary)
    print(f"\n{summary.text()}")
    return 1 if summary.failed else 0


def test_all(clients: list[Client], url: str, summary: Summary) -> None:
    for client in clients:
        test(client, url, summary)


if __name__ == "__main__":
    sys.exit(main())
