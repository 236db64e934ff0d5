"""`tandem bench throughput`: requests and tokens per second of many concurrent requests.

Options and fields are named as in `vllm bench throughput`.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from loadtest.serving.client import run
from loadtest.serving.command import COUNT, Parser, make_folder_of, run_command, write
from loadtest.serving.flags import add_lengths, add_num_prompts, add_output_json, add_warmups
from loadtest.serving.report import WAIT_SHARE, faults, summarize
from loadtest.serving.subject import Subject, connect, fresh_requests, parse
from loadtest.serving.wait_share import read_counters, wait_share


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0; 1 for an incomplete answer, no server, or an unwritable file; 2 for a wrong command
    line; 130 if stopped by SIGTERM or Ctrl-C."""
    return run_command("tandem bench throughput", partial(_bench, argv))


def read_options(argv: Sequence[str]) -> tuple[Namespace, Subject]:
    """Returns the options and the server. Raises UsageError."""
    parser = Parser("tandem bench throughput", "Measure requests and tokens per second of many concurrent requests.")
    add_num_prompts(parser, 1000, "requests")
    add_lengths(parser, 1024, 128)
    parser.add_argument(
        "--max-concurrency", type=COUNT, metavar="N", help="limit of concurrent requests (default: none)"
    )
    add_warmups(parser, "--num-warmups", 1, "warm-up requests")
    add_output_json(parser)
    return parse(parser, argv)


async def _bench(argv: Sequence[str]) -> int:
    options, subject = read_options(argv)
    make_folder_of("--output-json", options.output_json)
    requests = fresh_requests(options.num_warmups + options.num_prompts, options.input_len, options.output_len)
    limit = options.max_concurrency
    async with connect(subject) as (session, target):
        await run(session, target, requests[: options.num_warmups], max_concurrency=limit)
        before = await read_counters(session, target.metrics_url)
        results, duration = await run(session, target, requests[options.num_warmups :], max_concurrency=limit)
        share = wait_share(before, await read_counters(session, target.metrics_url))
    numbers = summarize(results, duration)
    reasons = faults(numbers)
    sys.stdout.write(
        f"Throughput: {numbers['request_throughput']:.2f} requests/s, "
        f"{numbers['total_token_throughput']:.2f} total tokens/s, "
        f"{numbers['output_throughput']:.2f} output tokens/s\n"
    )
    if share is not None:
        sys.stdout.write(f"Accelerator wait share (%): {100 * share:.2f}\n")
    sys.stdout.write("".join(f"{reason}\n" for reason in reasons))
    if options.output_json is not None:
        found = {
            "elapsed_time": duration,
            "num_requests": numbers["completed"],
            "total_num_tokens": numbers["total_input_tokens"] + numbers["total_output_tokens"],
            "requests_per_second": numbers["request_throughput"],
            "tokens_per_second": numbers["total_token_throughput"],
            "output_tokens_per_second": numbers["output_throughput"],
            "faults": reasons,
            **({} if share is None else {WAIT_SHARE: share}),
        }
        write(options.output_json, json.dumps(found, indent=2) + "\n")
    return 1 if reasons else 0
