"""The options of `tandem bench serve`, named as those of `vllm bench serve`. The only reader of its flags.

Declares each flag once and checks combinations of flags, so that the Options that parse() returns are valid.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from loadtest.serving.command import COUNT, TOKENS, Parser, UsageError, checked_key, checked_url, number, several
from loadtest.serving.report import METRICS
from loadtest.serving.structured import FORMS
from loadtest.serving.workloads import RAGGED_COUNT, RAGGED_OUTPUT_LENS
from services.machine import authority, loopback

RANDOM, RAGGED = "random", "ragged-50"
_RANDOM_DEFAULTS: dict[str, Any] = {
    "num_prompts": 1000,
    "request_rate": inf,
    "max_concurrency": None,
    "random_input_len": 1024,
    "random_output_len": 128,
    "random_range_ratio": 0.0,
    "ignore_eos": False,
}
_RAGGED_DEFAULTS: dict[str, Any] = {"random_input_len": 32, "ignore_eos": True}
# Fixed by the workload's name: these flags are refused.
_RAGGED_FIXED: dict[str, Any] = {
    "num_prompts": RAGGED_COUNT,
    "request_rate": inf,
    "max_concurrency": None,
    "random_output_len": max(RAGGED_OUTPUT_LENS),
    "random_range_ratio": 0.0,
}
# These ids exist in any vocabulary and lie above the special tokens with which many begin.
_ID_DEFAULTS = {"random_first_id": 100, "random_last_id": 1000}


@dataclass(frozen=True)
class Options:
    """The values of the flags, under their names. None: not given and without a default."""

    base_url: str  # without a final slash
    endpoint: str
    model: str | None
    api_key: str | None
    workload: str
    num_prompts: int
    request_rate: float
    max_concurrency: int | None
    random_input_len: int
    random_output_len: int
    random_prefix_len: int
    random_range_ratio: float
    tokenizer: str | None
    random_first_id: int
    random_last_id: int
    ignore_eos: bool
    temperature: float | None
    structured_output: str | None
    structured_output_ratio: float
    seed: int
    num_warmups: int
    save_result: bool
    result_dir: str
    result_filename: str | None
    percentile_metrics: tuple[str, ...]
    metric_percentiles: tuple[float, ...]

    @property
    def chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    @property
    def models_url(self) -> str:
        """The URL of the model list of the same API: /v1/models for /v1/completions."""
        return self.base_url + self.endpoint.removesuffix("/completions").removesuffix("/chat") + "/models"


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(METRICS)}")
    return names


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "tandem bench serve", "Send a workload to an OpenAI-compatible server and report throughput and latencies."
    )
    _add_server(parser.add_argument_group("the server"))
    workload = parser.add_argument_group("the workload")
    _add_load(workload)
    _add_prompts(workload)
    _add_sampling(workload)
    _add_structured_output(workload)
    _add_report(parser.add_argument_group("the report"))
    return parser


def _add_server(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--base-url", metavar="URL", help="the server, instead of --host and --port")
    group.add_argument("--host", help="the server's address (default: this machine's own, 127.0.0.1 or ::1)")
    group.add_argument("--port", type=number(int, 1, 65535), help="the server's port (default: 8000)")
    group.add_argument(
        "--endpoint", default="/v1/completions", metavar="PATH", help="or /v1/chat/completions (default: %(default)s)"
    )
    group.add_argument("--model", help="name that requests use (default: the first that the server lists)")
    group.add_argument("--api-key", metavar="KEY", help="bearer token; also OPENAI_API_KEY in the environment")


def _add_load(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--workload",
        choices=[RANDOM, RAGGED],
        default=RANDOM,
        help="random, or ragged-50: 50 requests with 10 to 150 output tokens, first one by one, then all concurrently "
        "(default: %(default)s)",
    )
    group.add_argument("--num-prompts", type=COUNT, metavar="N", help="measured requests (default: 1000)")
    group.add_argument(
        "--request-rate",
        type=number(float, 0, above=True),
        metavar="R",
        help="requests per second, with the gaps of a Poisson process (default: inf, all at time 0)",
    )
    group.add_argument(
        "--max-concurrency", type=COUNT, metavar="N", help="limit of concurrent requests (default: none)"
    )


def _add_prompts(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--random-input-len", type=TOKENS, metavar="N", help="tokens of a prompt (default: 1024; ragged-50: 32)"
    )
    group.add_argument("--random-output-len", type=TOKENS, metavar="N", help="tokens of an answer (default: 128)")
    group.add_argument(
        "--random-prefix-len",
        type=number(int, 0),
        default=0,
        metavar="N",
        help="tokens of a prefix that all prompts share, added to their length (default: 0)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=number(float, 0, 1),
        metavar="R",
        help="lengths are uniform in [length * (1 - R), length * (1 + R)] (default: 0)",
    )
    group.add_argument(
        "--tokenizer", metavar="NAME", help="hub repository or directory: prompts are text (default: token ids)"
    )
    group.add_argument(
        "--random-first-id", type=number(int, 0), metavar="ID", help="lowest token id in a prompt (default: 100)"
    )
    group.add_argument(
        "--random-last-id", type=number(int, 1), metavar="ID", help="one above the highest token id (default: 1000)"
    )


def _add_sampling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="send ignore_eos, so that answers have the output length; not every server accepts it (default: only "
        "for ragged-50)",
    )
    group.add_argument(
        "--temperature", type=number(float, 0), metavar="T", help="sampling temperature (default: the server's)"
    )
    group.add_argument(
        "--seed", type=number(int, 0), default=0, help="seed of prompts, lengths and arrival times (default: 0)"
    )
    group.add_argument(
        "--num-warmups",
        type=number(int, 0),
        default=0,
        metavar="N",
        help="warm-up requests of this workload, not measured (default: 0)",
    )


def _add_structured_output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--structured-output",
        choices=FORMS,
        help="form of the answers; all but choice cannot end before the output length; json-unique: each request has a "
        "schema of its own (default: none)",
    )
    group.add_argument(
        "--structured-output-ratio",
        type=number(float, 0, 1),
        metavar="R",
        help="share of the requests with --structured-output (default: 1)",
    )


def _add_report(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument("--result-dir", metavar="DIR", help="its directory (default: the current one)")
    group.add_argument("--result-filename", metavar="FILE", help="its name (default: made of model, rate and date)")
    group.add_argument(
        "--percentile-metrics",
        type=_metrics,
        default=tuple(METRICS),
        metavar="NAMES",
        help=f"metrics to report, of {','.join(METRICS)} (default: all)",
    )
    group.add_argument(
        "--metric-percentiles",
        type=several(number(float, 0, 100)),
        default=(99.0,),
        metavar="POINTS",
        help="percentiles to report, such as 50,90,99.9 (default: 99)",
    )


def parse(argv: Sequence[str]) -> Options:
    """Returns the options of a command line. Raises UsageError with one line that names the flag."""
    values = vars(build_parser().parse_args(argv))
    values["base_url"] = _base_url(values.pop("base_url"), values.pop("host"), values.pop("port"))
    values["api_key"] = checked_key(values["api_key"])
    if not values["endpoint"].startswith("/") or not values["endpoint"].endswith("/completions"):
        raise UsageError(f"--endpoint: {values['endpoint']!r} is neither /v1/completions nor /v1/chat/completions")
    if not values["save_result"] and (values["result_dir"] or values["result_filename"]):
        raise UsageError("--result-dir and --result-filename need --save-result")
    if values["structured_output"] is None and values["structured_output_ratio"] is not None:
        raise UsageError("--structured-output-ratio needs --structured-output")
    if values["structured_output_ratio"] is None:
        values["structured_output_ratio"] = 1.0
    values["result_dir"] = values["result_dir"] or "."
    _fill_in(values)
    options = Options(**values)
    if options.chat and options.tokenizer is None:
        raise UsageError(f"--endpoint {options.endpoint} takes text, not token ids: set --tokenizer")
    return options


def _base_url(url: str | None, host: str | None, port: int | None) -> str:
    if url is None:
        return f"http://{authority(host or loopback(), port or 8000)}"
    if host is not None or port is not None:
        raise UsageError("--base-url cannot be combined with --host and --port")
    return checked_url(url)


def _fill_in(values: dict[str, Any]) -> None:
    """Sets missing values to the workload's defaults, in place. Raises UsageError for a flag that has no effect, or if
    no token id lies between --random-first-id and --random-last-id."""
    ragged, text = values["workload"] == RAGGED, values["tokenizer"] is not None
    for names, refused, reason in (
        (_RAGGED_FIXED, ragged, f"does not apply to --workload {RAGGED}"),
        (_ID_DEFAULTS, text, "does not apply with --tokenizer: prompts are text"),
    ):
        for name in names:
            if refused and values[name] is not None:
                raise UsageError(f"--{name.replace('_', '-')} {reason}")
    defaults = (_RAGGED_DEFAULTS | _RAGGED_FIXED if ragged else _RANDOM_DEFAULTS) | _ID_DEFAULTS
    values |= {name: default for name, default in defaults.items() if values[name] is None}
    if values["random_first_id"] >= values["random_last_id"]:
        raise UsageError("--random-last-id must be more than --random-first-id")
