"""aiperf on synthetic prompts: chat with and without a stream, more turns, and completions."""

import json
import sys
import tempfile
from pathlib import Path

from report import FOLDER, MODEL, check, equal, main, refusals_in_reason, run_cli, task

PROMPT_TOKENS, OUTPUT_TOKENS, NUM_REQUESTS = 64, 16, 8


def profile(endpoint, *arguments):
    """Runs `aiperf profile`. Returns its summary and the records of its requests, after checking both."""
    with tempfile.TemporaryDirectory() as folder, refusals_in_reason() as url:
        command = ["profile", "--model", MODEL, "--url", url, "--endpoint-type", endpoint, "--tokenizer", FOLDER]
        command += ["--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"]
        command += ["--extra-inputs", "temperature:0", "--concurrency", "2", "--random-seed", "1", "--ui", "none"]
        command += ["--output-artifact-dir", folder, "--no-gpu-telemetry", *arguments]
        # It keeps caches under the home folder. Told to be offline, it looks for a local folder in the hub's cache.
        env = {"HOME": folder, "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}
        run_cli(sys.executable, "-m", "aiperf", *command, env=env, log=Path(folder, "log"))
        summary = json.loads(Path(folder, "profile_export_aiperf.json").read_text())
        lines = Path(folder, "profile_export.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        errors = [record["error"] for record in records if record.get("error")]
        check(not errors, f"{len(errors)} errors, {errors[:1]}")
        equal(summary["request_count"]["avg"], len(records), "request_count")
        return summary, records


def check_tokens(records, num_requests=NUM_REQUESTS):
    equal(len(records), num_requests, "the number of requests")
    for record in records:
        counted = record["metrics"]["output_sequence_length"]["value"]
        check(0 < counted <= OUTPUT_TOKENS + 1, f"{counted} output tokens")


@task
def chat():
    _, records = profile("chat", "--request-count", str(NUM_REQUESTS))
    check_tokens(records)


@task
def chat_stream():
    summary, records = profile("chat", "--streaming", "--request-count", str(NUM_REQUESTS))
    check_tokens(records)
    check(summary["time_to_first_token"]["avg"] > 0, "no time to first token")


@task
def chat_stream_with_the_servers_counts():
    counts = ("--use-server-token-count", "--per-chunk-usage")
    _, records = profile("chat", "--streaming", *counts, "--request-count", str(NUM_REQUESTS))
    lengths = {record["metrics"]["output_sequence_length"]["value"] for record in records}
    equal(lengths, {OUTPUT_TOKENS}, "the numbers of output tokens")


@task
def more_turns():
    turns = ("--conversation-num", "4", "--conversation-turn-mean", "2", "--conversation-turn-stddev", "0")
    _, records = profile("chat", "--streaming", *turns)
    check_tokens(records, 8)


@task
def completions_stream():
    _, records = profile("completions", "--streaming", "--request-count", str(NUM_REQUESTS))
    check_tokens(records)


main()
