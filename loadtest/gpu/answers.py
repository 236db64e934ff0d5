"""The demo checkpoint's greedy answer on the device against the CPU's, through scheduler and model runner."""

import functools
from dataclasses import dataclass

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import demo
from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from loadtest.gpu.parity import triton_ops
from loadtest.gpu.table import Check, Measured
from services.options.declarations import WorkerOptions
from tests.worker.in_process import InProcess

QUESTION = "What is the capital of France?"
MAX_TOKENS = {"cuda": 32, "cpu": 3}
LENGTH = 256


@dataclass(frozen=True)
class Prompt:
    """The question as a chat prompt of the demo checkpoint, and the text of an answer's tokens."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def token_ids(self) -> list[int]:
        messages = [{"role": "user", "content": QUESTION}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, token_ids: list[int]) -> str:
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))


def checks(device: torch.device) -> list[Check]:
    name = "demo checkpoint: the CPU's answer to one prompt"
    return [Check(name, functools.partial(same_answer, device))]


def same_answer(device: torch.device) -> Measured:
    """Asserts that the device's greedy answer in float32 has the text of the answer of torch's kernels on the CPU."""
    prompt = Prompt(AutoTokenizer.from_pretrained(demo.CHECKPOINT))
    count = MAX_TOKENS[device.type]
    expected = prompt.text(answer(torch.device("cpu"), prompt.token_ids, count, own_kernels=False))
    given = prompt.text(answer(device, prompt.token_ids, count, own_kernels=True))
    assert expected, "the CPU's answer is empty"
    assert given == expected, f"{given!r} instead of {expected!r}"
    return Measured(f"{len(prompt.token_ids)} tokens in, {count} at most out: {given!r}", text=given)


def answer(device: torch.device, prompt: list[int], max_tokens: int, *, own_kernels: bool) -> list[int]:
    """Returns the greedy answer of the demo checkpoint on `device`. `own_kernels`: by the Triton kernels, on a CPU
    through the interpreter; else by torch's kernels."""
    options = WorkerOptions(
        model=str(demo.CHECKPOINT), device=device.type, dtype="float32", max_model_len=LENGTH,
        kv_cache_memory_bytes=2**26, batch_invariant=own_kernels,
    )  # fmt: skip
    ops = triton_ops(device) if own_kernels else None
    engine = InProcess(demo.CHECKPOINT, options, BatchLimits(1, 4, LENGTH), ops=ops)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, eos_token_ids=engine.facts.eos_token_ids)
    return engine.complete([prompt], sampling)[0].token_ids
