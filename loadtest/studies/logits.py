"""`python -m loadtest.studies.logits`: what options that change logits add to a decode step on a CPU.

Runs decode steps of 32 requests with random weights in the shape of Qwen3-0.6B (28 layers, hidden size 1024), then the
sample stage alone on logits [32, 151936], with and without each option in turn. Prints mean CPU times, all threads
together, because a machine that is shared makes clock times meaningless. The share of a step is an upper bound: it
compares an option's time on all threads with the time of one thread of the step. Takes two minutes and 3 GB of memory.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_core.step_plan import NewRequest, SamplingParams, ThinkingBudget, pack_i32
from engine_core.worker_messages import BatchLimits
from kernels.interface import DRAW, Ops
from services.machine import available_cores, cpu_model
from services.options.declarations import WorkerOptions
from services.worker.logits.interface import LogitsRows
from services.worker.logits.pipeline import LogitsPipeline
from services.worker.logprobs import LogprobSlots
from services.worker.sampler import SampleRows, draw_of, sample
from tests.worker.in_process import InProcess

ROWS, VOCAB_SIZE, PROMPT_TOKENS = 32, 151_936, 256
STEPS, ROUNDS = 30, 60
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", "vocab_size": VOCAB_SIZE, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": True, "eos_token_id": 2,
}  # fmt: skip


def options() -> dict[str, SamplingParams]:
    """Returns the sampling parameters to compare; the first are the plain ones."""
    source = np.random.default_rng(0)
    biased, allowed = (source.permutation(VOCAB_SIZE)[:count] for count in (300, 1000))
    half = source.permutation(VOCAB_SIZE)[: VOCAB_SIZE // 2]
    bias = {"logit_bias_token_ids": pack_i32(biased), "logit_biases": source.random(300, np.float32).tobytes()}
    start, end = pack_i32([151667]), pack_i32([151668])  # Qwen3's <think> and </think>
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "logit_bias of 300 ids": bias,
        "allowed_token_ids, 1000": {"allowed_token_ids": pack_i32(allowed)},
        "both": bias | {"allowed_token_ids": pack_i32(allowed)},
        "allowed_token_ids, half the vocabulary": {"allowed_token_ids": pack_i32(half)},
        "thinking_token_budget": {"thinking_budget": ThinkingBudget(1000, start, end, starts_open=True)},
    }
    return {name: SamplingParams(STEPS + 8, temperature=0.8, **change) for name, change in changes.items()}


def step_seconds() -> tuple[float, Ops]:
    """Returns the mean CPU time of one thread in a decode step without any option, and the kernels that computed it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(CONFIG))
        chosen = WorkerOptions(
            model=folder, device="cpu", load_format="dummy", max_model_len=512, kv_cache_memory_bytes=2**31
        )
        engine = InProcess(path, chosen, BatchLimits(2, ROWS, ROWS * PROMPT_TOKENS), prefix_caching=False)
    plain = next(iter(options().values()))
    for row in range(ROWS):
        engine.add([row + 100] * PROMPT_TOKENS, plain, seed=row)
    engine.step()
    began = time.process_time()
    for _ in range(STEPS):
        assert engine.step()
    return (time.process_time() - began) / STEPS / available_cores(), engine.model.decoder.ops


def sample_rows(sampling: SamplingParams, ops: Ops) -> tuple[SampleRows, LogitsPipeline]:
    """Returns ROWS rows with these parameters, and the logits processors with their state."""
    device, slots = torch.device("cpu"), np.arange(ROWS)
    pipeline, logprobs = LogitsPipeline(ROWS, VOCAB_SIZE, device, ops), LogprobSlots(ROWS, device)
    for slot in range(ROWS):
        request = NewRequest(slot, slot, b"", b"", [], sampling, slot, 0)
        pipeline.add(request)
        logprobs.add(request)
    draws = np.array([draw_of(sampling, slot, 0, 0) for slot in range(ROWS)], dtype=DRAW)
    lengths = np.full(ROWS, PROMPT_TOKENS)
    tokens = torch.zeros(ROWS, PROMPT_TOKENS + 1, dtype=torch.int32)
    return SampleRows(draws, LogitsRows(slots, slots * 0, lengths, lengths, tokens), logprobs.rows(slots)), pipeline


@torch.inference_mode()
def main() -> int:
    step, ops = step_seconds()
    logits = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3
    cases = {name: sample_rows(sampling, ops) for name, sampling in options().items()}
    spent = dict.fromkeys(cases, 0.0)
    for _ in range(ROUNDS):
        for name, (rows, pipeline) in cases.items():
            began = time.process_time()
            sample(logits, rows, pipeline, ops)
            spent[name] += (time.process_time() - began) / ROUNDS
    plain = spent["nothing"]
    sys.stdout.write(
        f"{ops.name}, {cpu_model()}: a decode step of {ROWS} requests takes {1000 * step:.1f} ms of a thread,\n"
    )
    sys.stdout.write(f"the sample stage {1000 * plain:.1f} ms of all {available_cores()}. Each option adds:\n")
    for name, found in spent.items():
        added = found - plain
        sys.stdout.write(f"  {name}: {1000 * added:.2f} ms, {added / step:.1%} of the step\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
