"""`tandem bench sweep`: the same workload at several concurrencies or request rates, as one table."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path

import aiohttp

from loadtest.serving.client import Target, run
from loadtest.serving.command import COUNT, Parser, UsageError, make_folder_of, number, run_command, several, write
from loadtest.serving.flags import add_lengths, add_num_prompts, add_output_json, add_warmups
from loadtest.serving.plot import can_draw, draw_sweep
from loadtest.serving.report import WAIT_SHARE, Numbers, faults, summarize
from loadtest.serving.subject import Subject, connect, fresh_requests, parse
from loadtest.serving.wait_share import read_counters, wait_share
from loadtest.serving.workloads import Request, arrival_times

COLUMNS = {
    "req/s": "request_throughput",
    "output tok/s": "output_throughput",
    "total tok/s": "total_token_throughput",
    "TTFT ms": "mean_ttft_ms",
    "p99 TTFT": "p99_ttft_ms",
    "TPOT ms": "mean_tpot_ms",
    "p99 TPOT": "p99_tpot_ms",
}
_MAX_RATE = 1e6
_PICTURES = (".svg", ".png")


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0; 1 for an incomplete answer, no server, or an unwritable file; 2 for a wrong command
    line; 130 if stopped by SIGTERM or Ctrl-C."""
    return run_command("tandem bench sweep", partial(_bench, argv))


def read_options(argv: Sequence[str]) -> tuple[Namespace, Subject]:
    """Returns the options and the server. Raises UsageError."""
    parser = Parser("tandem bench sweep", "Send the same workload at several concurrencies or request rates.")
    swept = parser.add_mutually_exclusive_group(required=True)
    swept.add_argument("--max-concurrency", type=several(COUNT), metavar="N,N", help="limits of concurrent requests")
    swept.add_argument(
        "--request-rate",
        type=several(number(float, 0, _MAX_RATE, above=True)),
        metavar="R,R",
        help="requests per second, as a Poisson process",
    )
    add_num_prompts(parser, 100, "requests of each")
    add_lengths(parser, 1024, 128, prefix="random-")
    add_warmups(parser, "--num-warmups", 1, "warm-up requests before the first point")
    add_output_json(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the table to this .svg or .png file")
    options, subject = parse(parser, argv)
    if options.plot is not None and options.plot.suffix not in _PICTURES:
        raise UsageError(f"--plot: {options.plot} must end in {' or '.join(_PICTURES)}")
    return options, subject


async def _bench(argv: Sequence[str]) -> int:
    options, subject = read_options(argv)
    make_folder_of("--output-json", options.output_json)
    if options.plot is not None:
        can_draw()
        make_folder_of("--plot", options.plot)
    by_rate = options.request_rate is not None
    axis = "request rate" if by_rate else "concurrency"
    found: list[tuple[float, Numbers]] = []
    async with connect(subject) as (session, target):
        await run(session, target, _requests(options, options.num_warmups), max_concurrency=1)
        sys.stdout.write(_line([axis, *COLUMNS, "wait %"]))
        for point in options.request_rate or options.max_concurrency:
            numbers = await _measure(session, target, options, point, by_rate)
            found.append((point, numbers))
            cells = [*(_shown(numbers[name]) for name in COLUMNS.values()), _percent(numbers.get(WAIT_SHARE))]
            sys.stdout.write(_line([f"{point:g}", *cells]))
            sys.stdout.write("".join(f"{reason}\n" for reason in faults(numbers)))
            sys.stdout.flush()
    _save(options, axis, found)
    return 1 if any(faults(numbers) for _, numbers in found) else 0


async def _measure(
    session: aiohttp.ClientSession, target: Target, options: Namespace, point: float, by_rate: bool
) -> Numbers:
    requests = _requests(options, options.num_prompts)
    arrivals = arrival_times(len(requests), point if by_rate else inf)
    limit = None if by_rate else int(point)
    before = await read_counters(session, target.metrics_url)
    results, duration = await run(session, target, requests, arrivals=arrivals, max_concurrency=limit)
    share = wait_share(before, await read_counters(session, target.metrics_url))
    return summarize(results, duration, wait_share=share)


def _requests(options: Namespace, count: int) -> list[Request]:
    return fresh_requests(count, options.random_input_len, options.random_output_len)


def _save(options: Namespace, axis: str, found: list[tuple[float, Numbers]]) -> None:
    if options.output_json is not None:
        name = axis.replace(" ", "_")
        rows = [{name: point} | numbers for point, numbers in found]
        write(options.output_json, json.dumps(rows, indent=2) + "\n")
    if options.plot is not None:
        draw_sweep(options.plot, axis, found)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>12}" for cell in cells) + "\n"
