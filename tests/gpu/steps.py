"""How long the worker's steps take at the shapes of Qwen3-0.6B and Qwen3-8B in bf16, with random weights, and what
share of the card's limits that is. CUDA only. A step that decodes must read all weights and the KV of its requests; one
that reads prompts must do the multiplications of all weights."""

import functools
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import EngineLimits
from services.config import WorkerOptions
from services.worker import loading
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import num_weight_bytes
from tests.gpu.ahead import Ran, run_steps
from tests.gpu.limits import matrix_rate, memory_rate
from tests.gpu.table import Check
from tests.worker.in_process import Answer, InProcess

DTYPE = torch.bfloat16
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "dtype": "bfloat16", "eos_token_id": 151645,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
MAX_MODEL_LEN, MAX_NUM_SEQS, BUDGET = 4096, 256, 8192
CONTEXT, STEPS = 512, 64
PREFILL = 4096
RAGGED, RAGGED_IN, RAGGED_OUT = 50, 32, (10, 150)


def checks(device: torch.device) -> list[Check]:
    rows = []
    for shape in SHAPES:
        for invariant in (True, False):
            how = "" if invariant else ", not batch-invariant"
            steps = [(f"decode, {count} running", functools.partial(decode, count=count)) for count in (1, 32, 256)]
            for what, run in [*steps, ("prefill", prefill), ("50 requests at once and one by one", ragged)]:
                if what.startswith("50") and not (invariant and shape == "0.6B"):
                    continue
                name = f"{shape} {what}{how}"
                rows.append(Check(name, functools.partial(_with_engine, run, device, shape, invariant)))
    rows.append(Check("0.6B against generate_batch of transformers", functools.partial(against_transformers, device)))
    return rows


def _with_engine(run: Any, device: torch.device, shape: str, invariant: bool) -> str:
    return str(run(engine_for(device, shape, invariant)))


@functools.lru_cache(maxsize=1)
def engine_for(device: torch.device, shape: str, invariant: bool) -> InProcess:
    """Weights are made on the device: what is timed here does not depend on them."""
    gc.collect()
    torch.cuda.empty_cache()
    path = checkpoint(shape)
    options = WorkerOptions(
        model=str(path), device=device.type, load_format="dummy", max_model_len=MAX_MODEL_LEN, batch_invariant=invariant
    )
    made, loading.dummy_weights = loading.dummy_weights, functools.partial(_weights_on, device)
    try:
        engine = InProcess(path, options, EngineLimits(1, MAX_NUM_SEQS, BUDGET), prefix_caching=False)
    finally:
        loading.dummy_weights = made
    while engine.runner.record():
        pass
    return engine


def checkpoint(shape: str) -> Path:
    path = Path(tempfile.mkdtemp())
    (path / "config.json").write_text(json.dumps(QWEN3 | SHAPES[shape]))
    return path


def _weights_on(
    device: torch.device, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int
) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        name: torch.ones(shape, dtype=dtype, device=device)
        if len(shape) == 1
        else torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02)
        for name, shape in shapes.items()
    }


def add(engine: InProcess, count: int, length: int, max_tokens: int) -> list[Answer]:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    vocab = engine.facts.vocab_size
    return [engine.add([(7 * row + place) % vocab for place in range(length)], sampling) for row in range(count)]


def decode(engine: InProcess, count: int) -> str:
    """Once all prompts are read: STEPS steps in which every request gets a token."""
    add(engine, count, CONTEXT, 2 * STEPS)
    while any(not answer.token_ids for answer in list(engine.answers.values())[-count:]):
        run_steps(engine, 1)
    run_steps(engine, 4)
    ran = run_steps(engine, STEPS)
    run_steps(engine)
    config, seconds = engine.model.decoder.config, ran.wall / ran.steps
    length = CONTEXT + STEPS // 2
    kv = count * length * 2 * config.num_layers * config.num_kv_heads * config.head_dim * DTYPE.itemsize
    limit = (read_bytes(config) + kv) / memory_rate(engine.model.decoder.device)
    return (
        f"{1000 * seconds:.2f} ms, {count / seconds:.0f} tokens/s, {limit / seconds:.0%} of the memory's limit,"
        f" wait share {ran.wait_share:.1%}"
    )


def read_bytes(config: DecoderConfig) -> int:
    """Of weights, in a step that decodes: of an embedding that is not the output head, only rows."""
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * DTYPE.itemsize
    return num_weight_bytes(config, DTYPE.itemsize, DTYPE.itemsize) - embedding


def prefill(engine: InProcess) -> str:
    """Prompts of PREFILL tokens, as many at once as a step takes."""
    ran = Ran()
    for _ in range(2):  # the first compiles what is new
        add(engine, 4 * BUDGET // PREFILL, PREFILL, 1)
        ran = run_steps(engine)
    config, tokens = engine.model.decoder.config, 4 * BUDGET
    weights = (
        read_bytes(config) // DTYPE.itemsize - config.vocab_size * config.hidden_size
    )  # behind the last token only
    pairs = tokens * PREFILL // 2
    operations = 2 * tokens * weights + 4 * pairs * config.num_layers * config.num_heads * config.head_dim
    limit = operations / matrix_rate(engine.model.decoder.device)
    return (
        f"{tokens / ran.wall:.0f} tokens/s, {operations / ran.wall / 1e12:.0f} TFLOP/s,"
        f" {limit / ran.wall:.0%} of the matrix rate, wait share {ran.wait_share:.1%}"
    )


def ragged(engine: InProcess) -> str:
    """50 requests of 10 to 150 tokens: how much faster all at once are than one after the other."""
    source = torch.Generator().manual_seed(1)
    lengths = torch.randint(RAGGED_OUT[0], RAGGED_OUT[1] + 1, (RAGGED,), generator=source).tolist()

    def ask(some: list[int]) -> float:
        for length in some:
            add(engine, 1, RAGGED_IN, length)
        return run_steps(engine).wall

    ask(lengths)
    at_once, one_by_one = ask(lengths), sum(ask([length]) for length in lengths)
    return (
        f"{sum(lengths) / at_once:.0f} tokens/s at once, {sum(lengths) / one_by_one:.0f} one by one:"
        f" {one_by_one / at_once:.1f} times"
    )


def against_transformers(device: torch.device) -> str:
    """64 requests of 64 tokens in and 64 out, greedy, all at once, bf16: this worker over `generate_batch`."""
    count, length, max_tokens = 64, 64, 64
    engine = engine_for(device, "0.6B", True)
    add(engine, count, length, max_tokens)
    run_steps(engine)
    add(engine, count, length, max_tokens)
    ours = count * max_tokens / run_steps(engine).wall
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(_hf_config(), dtype=DTYPE, attn_implementation="sdpa").eval()
    config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[(7 * row + place) % 1000 for place in range(length)] for row in range(count)]
    model.generate_batch(prompts[:2], generation_config=config)
    began = time.perf_counter()
    found = model.generate_batch(prompts, generation_config=config)
    seconds = time.perf_counter() - began
    theirs = sum(len(answer.generated_tokens) for answer in found.values()) / seconds
    return f"{ours:.0f} tokens/s against {theirs:.0f}: {ours / theirs:.1f} times"


def _hf_config() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**{key: value for key, value in (QWEN3 | SHAPES["0.6B"]).items() if key != "architectures"})
