"""`tandem bench serve`: sends a workload to a server and reports throughput and latencies.

The table goes to stdout, with the failures of requests below it. The progress bar, and an error that ends the run, go
to stderr.
"""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from tokenizers import Tokenizer
from tqdm import tqdm

from loadtest.serving import options as command_line
from loadtest.serving.client import Target, find_model, open_session, run
from loadtest.serving.command import make_folder, run_command, write
from loadtest.serving.options import RAGGED, Options
from loadtest.serving.report import Numbers, remarks, summarize, table
from loadtest.serving.structured import structured_requests
from loadtest.serving.wait_share import read_counters, wait_share
from loadtest.serving.workloads import IdPrompts, Request, TextPrompts, arrival_times, ragged_requests, random_requests
from services.errors import Fatal
from services.model_files.resolve import resolve


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0; 1 if no request completed, or the run could not start or be saved; 2 for a wrong
    command line; 130 if stopped by SIGTERM or Ctrl-C."""
    return run_command("tandem bench serve", partial(_bench, argv))


async def _bench(argv: Sequence[str]) -> int:
    options = command_line.parse(argv)
    started = datetime.now()
    if options.save_result:
        make_folder("--result-dir", Path(options.result_dir, options.result_filename or "result.json").parent)
    async with open_session(options.api_key) as session:
        model = await find_model(session, options.models_url, options.model)
        requests = structured_requests(_requests(options), options.structured_output, options.structured_output_ratio)
        bench = _Bench(session, options, model)
        await bench.warm_up(requests[options.num_prompts :])
        requests = requests[: options.num_prompts]
        numbers = await (bench.ragged(requests) if options.workload == RAGGED else bench.plain(requests))
    if options.save_result:
        _save(options, model, started, numbers)
    return 0 if numbers["completed"] else 1


class _Bench:
    """The runs against one server. Each prints its table and returns its numbers."""

    def __init__(self, session: ClientSession, options: Options, model: str) -> None:
        self._options = options
        target = Target(
            options.base_url, options.endpoint, model, options.chat, options.temperature, options.ignore_eos
        )
        self._run = partial(run, session, target)
        self._counters = partial(read_counters, session, target.metrics_url)

    async def warm_up(self, requests: Sequence[Request]) -> None:
        """Sends the warm-up requests. Raises Fatal if all of them fail."""
        results, _ = await self._run(requests, max_concurrency=self._options.max_concurrency)
        if requests and all(result.error is not None for result in results):
            raise Fatal(f"the warm-up failed: {results[0].error}")

    async def plain(self, requests: Sequence[Request]) -> Numbers:
        """Runs the requests once, at the rate and the concurrency of the options. Prints and returns the numbers."""
        rate, limit = self._options.request_rate, self._options.max_concurrency
        arrivals = arrival_times(len(requests), rate, self._options.seed)
        numbers = await self._measure(requests, "Requests", arrivals=arrivals, max_concurrency=limit)
        self._print(numbers, rate=None if rate == inf else rate, limit=limit)
        return numbers

    async def ragged(self, requests: Sequence[Request]) -> Numbers:
        """Runs the requests twice: one at a time, then all concurrently. Prints both tables. Returns the numbers of the
        second run, those of the first in `one_by_one`, and `output_throughput_ratio` (None if the first's is 0)."""
        alone = await self._measure(requests, "One by one", max_concurrency=1)
        self._print(alone, title="One by One", limit=1)
        together = await self._measure(requests, "All at once")
        self._print(together, title="All at Once")
        slow, fast = alone["output_throughput"], together["output_throughput"]
        ratio = fast / slow if slow else None
        if ratio is not None:
            sys.stdout.write(f"Output throughput ratio, all at once / one by one: {ratio:.2f}\n")
        return together | {"one_by_one": alone, "output_throughput_ratio": ratio}

    async def _measure(self, requests: Sequence[Request], label: str, **how: Any) -> Numbers:
        before = await self._counters()
        # disable=None: no bar if stderr is not a terminal. A file would get a line for each update.
        with tqdm(total=len(requests), desc=label, unit="req", disable=None, file=sys.stderr) as bar:
            results, duration = await self._run(requests, on_done=bar.update, **how)
        share = wait_share(before, await self._counters())
        metrics, points = self._options.percentile_metrics, self._options.metric_percentiles
        return summarize(results, duration, metrics=metrics, percentiles=points, wait_share=share)

    def _print(self, numbers: Numbers, **how: Any) -> None:
        lines = [table(numbers, **how), *remarks(numbers, exact_length=self._options.ignore_eos)]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _requests(options: Options) -> list[Request]:
    """Returns the measured requests, then the warm-up requests. Raises Fatal if the tokenizer cannot be loaded."""
    prompts = _prompts(options)
    common: dict[str, Any] = {
        "count": options.num_prompts + options.num_warmups,
        "input_len": options.random_input_len,
        "prefix_len": options.random_prefix_len,
        "seed": options.seed,
    }
    if options.workload == RAGGED:
        return ragged_requests(prompts, **common)
    output_len, ratio = options.random_output_len, options.random_range_ratio
    return random_requests(prompts, output_len=output_len, range_ratio=ratio, **common)


def _prompts(options: Options) -> Any:
    if options.tokenizer is None:
        return IdPrompts(options.random_first_id, options.random_last_id)
    path = resolve(options.tokenizer, None, weights=False) / "tokenizer.json"
    try:
        return TextPrompts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises no narrower type
        raise Fatal(f"{path}: the tokenizer cannot be loaded: {error}") from error


def _save(options: Options, model: str, started: datetime, numbers: Numbers) -> None:
    backend = "openai-chat" if options.chat else "openai"
    date = started.strftime("%Y%m%d-%H%M%S")
    rate: float | str = "inf" if options.request_rate == inf else options.request_rate
    limit = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    name = options.result_filename or f"{backend}-{rate}qps{limit}-{model.rsplit('/', 1)[-1]}-{date}.json"
    head = {
        "date": date,
        "backend": backend,
        "model_id": model,
        "tokenizer_id": options.tokenizer,
        "num_prompts": options.num_prompts,
        "workload": options.workload,
        "request_rate": rate,
        "max_concurrency": options.max_concurrency,
        "structured_output": options.structured_output,
        "structured_output_ratio": options.structured_output_ratio,
    }
    write(Path(options.result_dir) / name, json.dumps(head | numbers, indent=2) + "\n")
