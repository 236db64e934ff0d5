"""vLLM's `bench serve` on random prompts: chat, completions, logprobs. Runs in the runner's own Python."""

import json
import tempfile
from pathlib import Path

from report import FOLDER, MODEL, check, equal, main, refusals_in_reason, run_cli, task

PROMPT_TOKENS, OUTPUT_TOKENS, NUM_REQUESTS = 64, 16, 8


def bench(backend, endpoint, *arguments):
    """Runs `vllm bench serve`. Returns its detailed result, after checking the counts."""
    with tempfile.TemporaryDirectory() as folder, refusals_in_reason() as url:
        command = ["bench", "serve", "--backend", backend, "--base-url", url, "--endpoint", endpoint, "--model", FOLDER]
        command += ["--served-model-name", MODEL, "--tokenizer", FOLDER, "--dataset-name", "random"]
        command += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)]
        command += ["--num-prompts", str(NUM_REQUESTS), "--max-concurrency", "2", "--disable-tqdm", "--ignore-eos"]
        command += ["--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "result.json"]
        run_cli("vllm", *command, *arguments, env={}, log=Path(folder, "log"))
        result = json.loads(Path(folder, "result.json").read_text())
        errors = [error for error in result["errors"] if error]
        check(not errors, f"{len(errors)} errors, {errors[:1]}")
        equal((result["completed"], result["failed"]), (NUM_REQUESTS, 0), "completed and failed")
        equal(set(result["output_lens"]), {OUTPUT_TOKENS}, "the numbers of output tokens")
        equal(result["total_output_tokens"], NUM_REQUESTS * OUTPUT_TOKENS, "total_output_tokens")
        check(result["mean_ttft_ms"] > 0 and result["mean_tpot_ms"] > 0, "a mean time is 0")
        return result


@task
def chat():
    bench("openai-chat", "/v1/chat/completions")


@task
def completions():
    result = bench("openai", "/v1/completions", "--temperature", "0")
    check(sum(map(len, result["itls"])) > NUM_REQUESTS, "the tokens did not come one by one")


@task
def completions_with_logprobs():
    bench("vllm", "/v1/completions", "--logprobs", "2")


@task
def chat_with_extra_body():
    """What users pass on: sampling fields, and a request id for each request."""
    body = {"temperature": 0.7, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.0, "seed": 1}
    bench("openai-chat", "/v1/chat/completions", "--extra-body", json.dumps(body), "--request-id-prefix", "bench-")


@task
def with_structured_outputs():
    """The form is longer than the answers, so that all have the same number of tokens."""
    body = {"structured_outputs": {"regex": "[a-z ]{1000}"}}
    for backend, endpoint in (("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")):
        bench(backend, endpoint, "--extra-body", json.dumps(body))


main()
