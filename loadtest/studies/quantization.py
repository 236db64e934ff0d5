"""`python -m loadtest.studies.quantization [MODEL]`: error and speed of `--quantization int8`.

Compares the logits of plain weights with those of int8 weights, and of int8 weights with a plain output head, on texts
that the plain model sampled at temperature 1. Then times decode steps and a prompt step of each, in turn: medians, with
one thread by default.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

import demo
from kernels.cpu.library import Library, load
from kernels.cpu.ops import CpuOps
from kernels.interface import AttentionInputs
from kernels.program import Matrix
from services.options.declarations import WorkerOptions
from services.worker.loading import load_model
from services.worker.models.decoder import Decoder

NUM_TEXTS, TEXT_TOKENS = 8, 64
DECODE_ROWS, PROMPT_TOKENS, CONTEXT = (1, 4, 8, 32), 512, 64
BLOCK_SIZE, FILLED_BLOCKS, ROUNDS = 16, 1024, 9


class PlainHead(CpuOps):
    """Kernels with int8 weights, but for the output head, and for the embedding that is tied to the head."""

    def __init__(self, library: Library, num_threads: int, vocab_size: int) -> None:
        super().__init__(library, num_threads, int8=True)
        self._vocab_size = vocab_size

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> Matrix:
        return super().matrix(*parts, dtype=dtype, exact=exact or parts[0].shape[0] == self._vocab_size)


class Texts:
    """A batch of sequences of equal length, with a KV cache of their own."""

    def __init__(self, decoder: Decoder, count: int, max_tokens: int) -> None:
        self._decoder, self._length = decoder, 0
        blocks = -(-max_tokens // BLOCK_SIZE)
        self._tables = torch.arange(count * blocks, dtype=torch.int32).view(count, blocks)
        self._cache = decoder.allocate_kv_cache(count * blocks, BLOCK_SIZE)

    def fill(self, count: int) -> None:
        """Gives every text `count` tokens with random keys and values, without computing them; after the first
        FILLED_BLOCKS, blocks repeat."""
        source = torch.Generator().manual_seed(2)
        for pair in {id(pair): pair for pair in self._cache}.values():
            for tensor in pair:
                first, *rest = tensor.split(FILLED_BLOCKS)
                first.normal_(generator=source)
                for part in rest:
                    part.copy_(first[: len(part)])
        self._length = count

    def read(self, ids: Tensor, keep: bool = True) -> Tensor:
        """Computes new tokens of every text. Returns hidden states [texts * tokens, size].

        `ids` [texts, tokens] int64. `keep`: the tokens stay part of the texts; else the next call overwrites them.
        """
        count, tokens = ids.shape
        positions = torch.arange(self._length, self._length + tokens)
        slots = self._tables.long()[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        inputs = AttentionInputs(
            slots.flatten(),
            self._tables,
            torch.arange(0, count * tokens + 1, tokens, dtype=torch.int32),
            torch.full((count,), self._length + tokens, dtype=torch.int32),
            num_decodes=count if tokens == 1 else 0,
            max_query_len=tokens,
            max_seq_len=self._length + tokens,
        )
        self._length += tokens if keep else 0
        num_groups = len(self._decoder.kv_layout.windows)  # they share the tables: no block is given back
        return self._decoder.forward(
            ids.flatten(), positions.repeat(count), self._cache, [inputs] * num_groups, torch.arange(count * tokens)
        )


def sampled_texts(decoder: Decoder) -> Tensor:
    """Returns token ids [NUM_TEXTS, TEXT_TOKENS]: random first tokens, and what the decoder sampled after them."""
    source = torch.Generator().manual_seed(1)
    texts = Texts(decoder, NUM_TEXTS, TEXT_TOKENS)
    ids = torch.randint(0, decoder.description.vocab_size, (NUM_TEXTS, 1), generator=source)
    written = [ids]
    for _ in range(TEXT_TOKENS - 1):
        ids = torch.multinomial(decoder.logits(texts.read(ids)).softmax(-1), 1, generator=source)
        written.append(ids)
    return torch.cat(written, dim=1)


def logits_of(decoder: Decoder, ids: Tensor) -> Tensor:
    """Returns the logits [texts * tokens, vocabulary] of `ids` [texts, tokens]."""
    return decoder.logits(Texts(decoder, *ids.shape).read(ids))


def error(name: str, plain: Tensor, other: Tensor) -> str:
    """Returns a table row, headed by `name`, with the differences between two logits tensors [positions,
    vocabulary]."""
    difference = (plain - other).abs()
    divergence = torch.nn.functional.kl_div(
        other.log_softmax(-1), plain.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    same = (plain.argmax(-1) == other.argmax(-1)).float().mean().item()
    return (
        f"| {name} | {difference.max():.3f} | {difference.mean():.4f} | {divergence.mean():.5f} | "
        f"{divergence.max():.4f} | {same:.1%} |"
    )


def median_ms(decoders: list[Decoder], rows: int, tokens: int, context: int) -> list[float]:
    """Returns the median ms of a step with `tokens` new tokens in each of `rows` texts after `context` tokens, for each
    decoder; the decoders take turns."""
    source = torch.Generator().manual_seed(2)
    prefix, ids = (
        torch.randint(0, decoders[0].description.vocab_size, (rows, n), generator=source) for n in (context, tokens)
    )
    several = [Texts(decoder, rows, context + tokens) for decoder in decoders]
    times: list[list[float]] = [[] for _ in decoders]
    for texts in several:
        if context:
            texts.read(prefix)
    for _ in range(ROUNDS + 1):
        for decoder, texts, one in zip(decoders, several, times, strict=True):
            began = time.perf_counter()
            hidden = texts.read(ids, keep=False)
            decoder.logits(hidden.unflatten(0, ids.shape)[:, -1])
            one.append(time.perf_counter() - began)
    return [1e3 * statistics.median(one[1:]) for one in times]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, nargs="?", default=demo.CHECKPOINT)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    library, options = load(), WorkerOptions(model=str(args.model), device="cpu", dtype="bfloat16")
    plain, int8 = (load_model(args.model, options, CpuOps(library, args.threads, on)).decoder for on in (False, True))
    mixed = load_model(args.model, options, PlainHead(library, args.threads, plain.description.vocab_size)).decoder
    with torch.inference_mode():
        ids = sampled_texts(plain)
        expected = logits_of(plain, ids)
        print(f"{ids.numel()} positions, kernels {plain.ops.name}, logits with a spread of {expected.std():.3f}\n")
        print("| weights | largest difference | mean difference | mean KL | largest KL | same argmax |")
        print("|---|---|---|---|---|---|")
        print(error("int8", expected, logits_of(int8, ids)))
        print(error("int8, head plain", expected, logits_of(mixed, ids)), flush=True)
        print("\n| step | bf16 ms | int8 ms | ratio | int8, head plain ms |\n|---|---|---|---|---|")
        steps = [(f"decode, {rows} rows", rows, 1, CONTEXT) for rows in DECODE_ROWS]
        for name, *shape in [*steps, (f"prompt of {PROMPT_TOKENS}", 1, PROMPT_TOKENS, 0)]:
            first, second, third = median_ms([plain, int8, mixed], *shape)
            print(f"| {name} | {first:.1f} | {second:.1f} | {second / first:.2f} | {third:.1f} |", flush=True)


if __name__ == "__main__":
    main()
