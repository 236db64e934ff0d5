"""`tandem bench transport`: what a token costs between worker and client, over the real processes and sockets.

Shim, tokenizer and engine are real; the worker runs no model. With a step time, the latency from the worker's socket to
the client's can be read. With --step-ms 0, tokens per second are what the machine can carry: the worker then stays at
most a few tokens ahead of the client. Then short chats follow, for the CPU time of a request. Prints one line for each
load.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from loadtest.flag_values import count
from loadtest.transport.measurement import PER_REQUEST, PROCESSES, Measurement, measure
from loadtest.transport.processes import Load
from services.errors import Fatal
from services.process.child_processes import ChildFailed

NUM_STREAMS = (16, 64, 256)
STEP_MS = (50.0, 20.0, 0.0)
MAX_STEP_MS = 1000
CLIENTS = ("http", "text", "tokens")
REQUEST_COLUMNS = tuple(f"{name}/req" for name in PER_REQUEST)
COLUMNS = (
    *("streams", "step ms", "tokens/s", "per chunk", "p50 ms", "p99 ms", "engine→tok", "tok→shim"),
    *(*PROCESSES, *REQUEST_COLUMNS),
)


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0, or 1 when a run fails. Exits with status 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="tandem bench transport", description="Measure what a token costs between worker and client."
    )
    parser.add_argument("--num-streams", type=count, nargs="+", default=NUM_STREAMS, help="concurrent streams")
    parser.add_argument("--num-tokens", type=count, default=200, help="tokens of each stream")
    parser.add_argument("--step-ms", type=_milliseconds, nargs="+", default=STEP_MS, help="time of a step; 0: no pace")
    parser.add_argument(
        "--client", choices=CLIENTS, default=CLIENTS[0], help="what is called: HTTP, or Generate of tokenizer or engine"
    )
    parser.add_argument(
        "--num-requests", type=_number, default=1000, help="short chats over HTTP after the streams; 0: none"
    )
    parser.add_argument("--tcp", action="store_true", help="TCP with TLS and CURVE between the processes")
    args = parser.parse_args(argv)
    sys.stdout.write(f"{_line(COLUMNS)}\n")
    try:
        for step_ms in args.step_ms:
            for num_streams in args.num_streams:
                load = Load(num_streams, args.num_tokens, step_ms, args.client, args.num_requests, args.tcp)
                sys.stdout.write(f"{_row(load, measure(load))}\n")
                sys.stdout.flush()
    except (Fatal, ChildFailed) as error:
        sys.stderr.write(f"tandem bench transport: error: {error}\n")
        return 1
    return 0


def _number(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return value


def _milliseconds(text: str) -> float:
    if not 0 <= (value := float(text)) <= MAX_STEP_MS:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to {MAX_STEP_MS}")
    return value


def _row(load: Load, found: Measurement) -> str:
    p50, p99 = np.percentile(found.latencies, [50, 99])
    to_tokenizer, to_shim = found.messages_per_step
    cells = [
        str(load.num_streams),
        f"{load.step_ms:g}",
        f"{found.tokens_per_second:,.0f}",
        f"{found.tokens_per_chunk:.2f}",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{to_tokenizer:.2f}",
        f"{to_shim:.2f}",
        *(f"{found.cpu_us_per_token[name]:.1f}" for name in PROCESSES),
        *(f"{found.cpu_us_per_request[name]:.0f}" for name in PER_REQUEST),
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{max(8, len(column))}}" for cell, column in zip(cells, COLUMNS, strict=True))
