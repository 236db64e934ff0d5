"""`tandem bench latency`: the latency of one batch, repeated.

Options and fields are named as in `vllm bench latency`.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import aiohttp
import numpy as np

from loadtest.serving.client import Target, run
from loadtest.serving.command import COUNT, Parser, make_folder_of, run_command, write
from loadtest.serving.flags import add_lengths, add_output_json, add_warmups
from loadtest.serving.report import WAIT_SHARE, faults, summarize
from loadtest.serving.subject import Subject, connect, fresh_requests, parse
from loadtest.serving.wait_share import read_counters, wait_share
from services.errors import Fatal

_PERCENTILES = (10, 25, 50, 75, 90, 99)


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0; 1 for an incomplete answer, no server, or an unwritable file; 2 for a wrong command
    line; 130 if stopped by SIGTERM or Ctrl-C."""
    return run_command("tandem bench latency", partial(_bench, argv))


def read_options(argv: Sequence[str]) -> tuple[Namespace, Subject]:
    """Returns the options and the server. Raises UsageError."""
    parser = Parser(
        "tandem bench latency", "Measure how long one batch of requests takes, from sending it to its last token."
    )
    add_lengths(parser, 32, 128)
    parser.add_argument("--batch-size", type=COUNT, default=8, metavar="N", help="concurrent requests (default: 8)")
    parser.add_argument("--num-iters", type=COUNT, default=30, metavar="N", help="measured batches (default: 30)")
    add_warmups(parser, "--num-iters-warmup", 10, "warm-up batches")
    add_output_json(parser)
    return parse(parser, argv)


async def _bench(argv: Sequence[str]) -> int:
    options, subject = read_options(argv)
    make_folder_of("--output-json", options.output_json)
    async with connect(subject) as (session, target):
        for _ in range(options.num_iters_warmup):
            await _batch(session, target, options)
        before = await read_counters(session, target.metrics_url)
        seconds = [await _batch(session, target, options) for _ in range(options.num_iters)]
        share = wait_share(before, await read_counters(session, target.metrics_url))
    found = statistics(seconds)
    sys.stdout.write(f"Avg latency: {found['avg_latency']:.4f} seconds\n")
    for point, value in found["percentiles"].items():
        sys.stdout.write(f"{point}% percentile latency: {value:.4f} seconds\n")
    if share is not None:
        found[WAIT_SHARE] = share
        sys.stdout.write(f"Accelerator wait share (%): {100 * share:.2f}\n")
    if options.output_json is not None:
        write(options.output_json, json.dumps(found, indent=2) + "\n")
    return 0


async def _batch(session: aiohttp.ClientSession, target: Target, options: Namespace) -> float:
    """Sends one batch. Returns the seconds from the first request to the end of the last answer.

    Raises Fatal if an answer is incomplete.
    """
    requests = fresh_requests(options.batch_size, options.input_len, options.output_len)
    results, duration = await run(session, target, requests)
    if reasons := faults(summarize(results, duration)):
        raise Fatal(f"a batch of {options.batch_size}: {'; '.join(reasons)}")
    return duration


def statistics(seconds: Sequence[float]) -> dict[str, Any]:
    """Returns the fields of `vllm bench latency --output-json` for the latencies of all batches, in seconds."""
    percentiles = dict(zip(map(str, _PERCENTILES), map(float, np.percentile(seconds, _PERCENTILES)), strict=True))
    return {"avg_latency": float(np.mean(seconds)), "latencies": list(seconds), "percentiles": percentiles}
