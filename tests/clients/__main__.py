"""`make clients-test`: unmodified client programs against `tandem serve`, each in an environment of its own; and the
programs of docs/grpc.md, typed as written, against the servers that the page starts.

Prints one line per task: client, version, task, passed or failed, reason. The exit status is 1 if a task failed or an
environment could not be made.
"""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.edges import running_edges
from tests.clients.environments import ROOT, NotInstalled, environment
from tests.clients.run import Result, run
from tests.clients.server import FOLDER, MODEL, Server, running, running_played

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


def test(client: Client, arguments: tuple[str, ...], summary: Summary) -> None:
    """Makes the environment of a client and runs its program with these arguments."""
    try:
        made = environment(client)
    except NotInstalled as error:
        summary.add(client, "-", Result(INSTALLATION, False, str(error)))
        return
    if made is None:
        summary.skip(client, "the command is not on the PATH")
        return
    for result in run((*made.command, *arguments), client.seconds):
        summary.add(client, made.version, result)


def main() -> int:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"all by default: {', '.join(names)}")
    parser.add_argument("--tandem", default=str(ROOT / ".venv/bin/tandem"), help="command line of tandem")
    parser.add_argument("--cwd", type=Path, default=ROOT, help="folder that it runs in; from a checkout, its code runs")
    parser.add_argument("--url", help="HTTP clients ask this server; it must serve the demo model as demo")
    args = parser.parse_args()
    if unknown := sorted(set(args.clients) - set(names)):
        parser.error(f"unknown clients {', '.join(unknown)}; known: {', '.join(names)}")
    chosen = [client for client in CLIENTS if client.name in (args.clients or names)]
    summary = Summary()
    tandem = shlex.split(args.tandem)
    of_api = [client for client in chosen if not client.sections and not client.played]
    played = [client for client in chosen if client.played]
    of_page = [client for client in chosen if client.sections]
    for options in dict.fromkeys(client.options for client in of_api):
        group = [client for client in of_api if client.options == options]
        test_apis(group, options, args, summary)
    if args.url:
        for client in played:
            summary.skip(client, "it needs a server started here, with a worker that plays tokens")
    elif played:
        with running_played(tandem, args.cwd) as server:
            for client in played:
                test_api(client, server, summary)
    if of_page:
        with running_edges(tandem, args.cwd) as folder:
            for client in of_page:
                test(client, (str(ROOT), "/".join(client.sections), str(folder)), summary)
    print(f"\n{summary.text()}")
    return 1 if summary.failed else 0


def test_apis(group: list[Client], options: tuple[str, ...], args: argparse.Namespace, summary: Summary) -> None:
    """Runs clients of the HTTP and gateway APIs against one server: `args.url`, or one started with these options."""
    if args.url and options:
        for client in group:
            summary.skip(client, f"it needs a server started here, with {' '.join(options)}")
        return
    gateway = any(client.gateway for client in group)
    started = running(shlex.split(args.tandem), args.cwd, gateway=gateway, options=options)
    with contextlib.nullcontext(Server(args.url)) if args.url else started as server:
        for client in group:
            test_api(client, server, summary)


def test_api(client: Client, server: Server, summary: Summary) -> None:
    """Runs the program of a client of the HTTP or gateway API."""
    if client.gateway and (server.gateway is None or server.pid is None):
        summary.skip(client, "it needs the gateway API of a server started here, without --url")
        return
    more = (str(server.gateway), str(server.pid)) if client.gateway else ()
    test(client, (server.url, MODEL, str(FOLDER), *more), summary)


if __name__ == "__main__":
    sys.exit(main())
