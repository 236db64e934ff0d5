"""guidellm on synthetic text: chat, completions and a sweep. It sends ignore_eos and continuous_usage_stats."""

import json
import sys
import tempfile
from pathlib import Path

from report import FOLDER, MODEL, check, check_usage, equal, main, refusals_in_reason, run_cli, task

PROMPT_TOKENS, OUTPUT_TOKENS, NUM_REQUESTS = 64, 16, 8


def benchmarks(*arguments, target, request_format, **backend):
    """Runs guidellm. Returns the benchmarks of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log")
        settings = {"kind": "openai_http", "target": target, "model": MODEL, "request_format": request_format} | backend
        data = {"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
        options = {
            "--backend": settings,
            "--data": data,
            "--tokenizer": {"kind": "huggingface_auto", "model": FOLDER},
            "--output": {"kind": "json", "path": str(report)},
        }
        command = [part for name, value in options.items() for part in (name, json.dumps(value))]
        run_cli(sys.executable, "-m", "guidellm", "run", *command, *arguments, "--disable-progress", env={}, log=log)
        return json.loads(report.read_text())["benchmarks"]


def check_requests(benchmark, num_requests=None, output_tokens=OUTPUT_TOKENS):
    """Checks that all requests were answered, with as many tokens as were asked for."""
    requests = benchmark["requests"]
    errors = [request["info"].get("error") for request in requests["errored"]]
    check(not errors, f"{len(errors)} errors, {errors[:1]}")
    done = requests["successful"]
    if num_requests is not None:
        equal(len(done), num_requests, "the number of answers")
    check(done, "no request was answered")
    for request in done:
        equal(request["output_metrics"]["text_tokens"], output_tokens, "the number of output tokens")
        check(request["input_metrics"]["text_tokens"] >= PROMPT_TOKENS - 2, "the prompt has too few tokens")
        check_usage(request["prompt_tokens"], request["output_tokens"], request["total_tokens"])


def at_once(**backend):
    limit = json.dumps({"kind": "max_requests", "count": NUM_REQUESTS})
    profile = json.dumps({"kind": "concurrent", "streams": [2]})
    with refusals_in_reason() as target:
        (benchmark,) = benchmarks("--profile", profile, "--constraint", limit, target=target, **backend)
        check_requests(benchmark, NUM_REQUESTS)


@task
def chat():
    at_once(request_format="/v1/chat/completions")


@task
def chat_without_stream():
    at_once(request_format="/v1/chat/completions", stream=False)


@task
def completions():
    at_once(request_format="/v1/completions")


@task
def sweep():
    profile = json.dumps({"kind": "sweep", "sweep_size": 3})
    limit = json.dumps({"kind": "max_duration", "seconds": 4})
    chat = {"request_format": "/v1/chat/completions"}
    with refusals_in_reason() as target:
        found = benchmarks("--profile", profile, "--constraint", limit, target=target, **chat)
        equal(len(found), 3, "the number of benchmarks")
        for benchmark in found:
            check_requests(benchmark)


main()
