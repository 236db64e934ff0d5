"""`python -m loadtest.serving.compare`: runs the same workloads on several servers in turn, in several rounds.

One server runs at a time. Each is restarted in every round; in a round all servers get the same prompts. If the
comparison stops early, the finished runs are still written.
"""

import json
import os
import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from aiohttp import ClientSession

from loadtest.serving.cases import CASES, WARM_UP, Case, seed_of, warm_up_seed
from loadtest.serving.client import Target, find_model, open_session, run
from loadtest.serving.command import COUNT, Parser, UsageError, make_folder, number, run_command, several, write
from loadtest.serving.comparison import disturbed, faults, markdown, summaries
from loadtest.serving.plot import can_draw, draw_comparison
from loadtest.serving.processes import foreign_share, usage
from loadtest.serving.report import Numbers, summarize
from loadtest.serving.server import PORT, Command, Server
from services.errors import Fatal
from services.machine import cpu_model

_LABEL = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Options:
    servers: tuple[Command, ...]
    rounds: int
    workloads: tuple[str, ...]
    start_timeout: float  # seconds
    output_dir: Path


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0; 1 if a run is invalid or an error ended the comparison; 2 for a wrong command line;
    130 if stopped by SIGTERM or Ctrl-C."""
    return run_command("loadtest.serving.compare", partial(_compare, argv))


def parse(argv: Sequence[str]) -> Options:
    """Returns the options of a command line. Raises UsageError with one line that names the flag."""
    parser = Parser("python -m loadtest.serving.compare", "Run the same workloads on several servers in turn.")
    parser.add_argument(
        "--server",
        dest="servers",
        type=_command,
        action="append",
        required=True,
        metavar="LABEL=COMMAND",
        help=f"a command that serves OpenAI's API on port {PORT} (replaced); repeat for each server; ratios are "
        "to the second one",
    )
    parser.add_argument("--rounds", type=COUNT, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument(
        "--workloads",
        type=several(_workload),
        default=tuple(CASES),
        metavar="NAMES",
        help=f"workloads to run, of {','.join(CASES)} (default: all)",
    )
    parser.add_argument(
        "--start-timeout",
        type=number(float, 0, above=True),
        default=600.0,
        metavar="S",
        help="time limit for the start of a server (default: 600)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("comparison"),
        metavar="DIR",
        help="directory for comparison.md, .json, .svg and the servers' logs (default: comparison)",
    )
    values = vars(parser.parse_args(argv))
    labels = [server.label for server in values["servers"]]
    if len(set(labels)) < len(labels):
        raise UsageError("--server: two servers have the same label")
    return Options(**values | {"servers": tuple(values["servers"])})


def _command(text: str) -> Command:
    label, _, line = text.partition("=")
    if not _LABEL.fullmatch(label) or PORT not in line or not _splits(line):
        raise ArgumentTypeError(f"{text!r} is not LABEL=COMMAND with {PORT} in the command")
    return Command(label, line)


def _splits(line: str) -> bool:
    """Returns whether shlex can split the line into one word or more: its quotes are closed."""
    try:
        return bool(shlex.split(line))
    except ValueError:
        return False


def _workload(text: str) -> str:
    if text not in CASES:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(CASES)}")
    return text


async def _compare(argv: Sequence[str]) -> int:
    options = parse(argv)
    can_draw()
    make_folder("--output-dir", options.output_dir)
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    rows: list[Numbers] = []
    try:
        for number in range(1, options.rounds + 1):
            for server in options.servers:
                await _round(server, number, options, rows)
    finally:
        if rows:
            _report(options, date, rows)
    return 1 if any(map(faults, rows)) else 0


async def _round(command: Command, number: int, options: Options, rows: list[Numbers]) -> None:
    """Runs one server's part of a round: appends a row for each workload to `rows`. Raises Fatal if the server does not
    start or lists no model, or if a request of its warm-up fails."""
    with Server(command, options.output_dir / f"{command.label}.log") as server:
        async with open_session(None) as session:
            await server.healthy(session, options.start_timeout)
            model = await find_model(session, f"{server.url}/v1/models", None)
            target = Target(server.url, "/v1/completions", model, chat=False, temperature=0.0, ignore_eos=True)
            warm_up = WARM_UP.requests(warm_up_seed(number))
            warm, _ = await run(session, target, warm_up, max_concurrency=WARM_UP.concurrency)
            if failures := [result.error for result in warm if result.error is not None]:
                raise Fatal(f"{command.label}: the warm-up failed: {failures[0]}")
            for name in options.workloads:
                numbers = await _measure(session, target, CASES[name], seed_of(name, number))
                row = {"round": number, "server": command.label, "workload": name}
                ended = await server.ended_soon() if numbers["failed"] else server.ended()
                rows.append(row | {"server_ended": ended} | numbers)
                _log(rows[-1])


async def _measure(session: ClientSession, target: Target, case: Case, seed: int) -> Numbers:
    requests = case.requests(seed)
    before = usage()
    results, duration = await run(session, target, requests, max_concurrency=case.concurrency)
    foreign = foreign_share(before, usage(), os.cpu_count() or 1)
    return {"foreign_cpu": foreign} | summarize(results, duration)


def _log(row: Numbers) -> None:
    speed = row[CASES[row["workload"]].speed]
    notes = [*faults(row), *([f"other processes used {row['foreign_cpu']:.0%} of the CPU"] if disturbed(row) else [])]
    line = f"round {row['round']}, {row['server']}, {row['workload']}: {speed:.1f} tok/s"
    sys.stderr.write("; ".join([line, *notes]) + "\n")


def _report(options: Options, date: str, rows: Sequence[Numbers]) -> None:
    machine = {"cpu": cpu_model(), "cores": os.cpu_count()}
    line = f"{machine['cpu']}, {machine['cores']} cores; {options.rounds} rounds, one server at a time"
    text = markdown(rows, options.servers, line, date)
    sys.stdout.write(text)
    found = {
        "date": date,
        "machine": machine,
        "rounds": options.rounds,
        "servers": {server.label: server.line for server in options.servers},
        "rows": [row | {"faults": faults(row), "disturbed": disturbed(row)} for row in rows],
    }
    path = options.output_dir / "comparison.md"
    write(path, text)
    write(path.with_suffix(".json"), json.dumps(found, indent=2) + "\n")
    draw_comparison(path.with_suffix(".svg"), summaries(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
