"""`python -m demo.train`: makes the demo checkpoint, a tokenizer and a tiny Qwen3 trained on dialogues.

Owns every file in demo/checkpoint. Trains with the tokenizer and chat template that it has saved, so that training and
serving render the same prompts. tests/e2e/test_demo.py asserts the answers of the result.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from demo import CHECKPOINT
from demo.dialogues import EARLY, LATE, WITH_JSON, Mix, dialogues
from demo.exam import EXAM
from demo.packing import Batch, Encoder, pack
from demo.vocabulary import END, build_tokenizer, save_tokenizer

MAX_LENGTH = 2048
EARLY_SHARE = 0.3  # of the training time
CHECK_SECONDS = 240


def build_model(vocab_size: int, stop: int, padding: int, layers: int, hidden: int) -> Qwen3ForCausalLM:
    """Returns an untrained model; its config becomes the checkpoint's. `stop` and `padding` are token ids."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=padding,
    )
    return Qwen3ForCausalLM(config)


def make_optimizer(model: Qwen3ForCausalLM, rate: float) -> torch.optim.AdamW:
    """Returns AdamW with the learning rate `rate` and with weight decay for matrices only, not for norm weights."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Returns the learning rate of update `step`: 50 updates of warm-up, then `peak`, then linear decay to 0 over the
    last 40% of the time. `progress` is the share of the time that has passed, from 0 to 1."""
    return peak * min(1.0, (step + 1) / 50) * min(1.0, (1.0 - progress) / 0.4)


def logits_of(model: Any, batch: Batch) -> torch.Tensor:
    """Returns logits [B, L, vocab], bf16 under autocast."""
    output = model(input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False)
    logits: torch.Tensor = output.logits
    return logits


def train_step(model: Any, optimizer: torch.optim.AdamW, batch: Batch) -> float:
    """Runs one update. Returns the batch's mean loss per token, before the update."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, batch)
    loss = F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.item())


@torch.inference_mode()
def examine(model: Qwen3ForCausalLM, encoder: Encoder, count: int) -> dict[str, float]:
    """Returns, for each task of EXAM by name, the share (0 to 1) of `count` held-out questions for which greedy
    generation gives exactly the expected answer. Leaves `model` in training mode."""
    model.eval()  # type: ignore[no-untyped-call]
    shares = {}
    for name, ask in EXAM.items():
        rng = Random(f"check {name}")
        right = 0
        for _ in range(count):
            one = encoder.encode(ask(rng).dialogue)
            likeliest = model(input_ids=torch.tensor([one.ids])).logits[0].argmax(-1).tolist()
            right += likeliest[one.answer_start - 1 : -1] == one.ids[one.answer_start :]
        shares[name] = right / count
    model.train()
    return shares


def train(model: Qwen3ForCausalLM, encoder: Encoder, args: argparse.Namespace) -> None:
    """Trains `model` for `args.minutes` and prints losses, and every CHECK_SECONDS the shares of `examine`."""

    def batches(seed: int, mix: Mix) -> Iterator[Batch]:
        return pack(map(encoder.encode, dialogues(seed, mix)), args.batch, args.length, encoder.end_of_text)

    if args.start:
        early = late = batches(args.seed + 2, WITH_JSON)  # with --seed 2 for more of it, other questions
    else:
        early, late = batches(args.seed, EARLY), batches(args.seed + 1, LATE)
    optimizer = make_optimizer(model, args.rate)
    model.train()
    began = checked = time.monotonic()
    losses: list[float] = []
    tokens = 0
    while (progress := (time.monotonic() - began) / (60 * args.minutes)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args.rate, len(losses), progress)
        batch = next(early if progress < EARLY_SHARE else late)
        losses.append(train_step(model, optimizer, batch))
        tokens += int((batch.ids != encoder.end_of_text).sum())
        if len(losses) % 100 == 0:
            seconds = time.monotonic() - began
            recent = sum(losses[-100:]) / 100
            print(f"step {len(losses)}: loss {recent:.3f}, {seconds:.0f} s, {tokens / seconds:.0f} tok/s", flush=True)
        if time.monotonic() - checked > CHECK_SECONDS:
            print(_shown(examine(model, encoder, 30)), flush=True)
            checked = time.monotonic()
    print(f"{len(losses)} updates, {tokens} tokens, {_shown(examine(model, encoder, 100))}", flush=True)


def _shown(shares: dict[str, float]) -> str:
    return "held-out: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def save_model(model: Qwen3ForCausalLM, stops: list[int], out: Path) -> None:
    """Writes the weights in bf16, config.json and generation_config.json into `out`. `stops` are the token ids that end
    an answer; the last one is also the padding. Converts `model` itself to bf16."""
    make_config: Any = GenerationConfig
    model.generation_config = make_config(do_sample=False, eos_token_id=stops, pad_token_id=stops[-1])
    model.to(torch.bfloat16).save_pretrained(out)  # type: ignore[arg-type]
    # save_pretrained makes the file readable by its owner only; a server may run as another user.
    (out / "model.safetensors").chmod(0o644)


def parse_args() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Make the demo checkpoint.")
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder to write the checkpoint to")
    parser.add_argument("--start", type=Path, help="checkpoint to train further, with questions about JSON")
    parser.add_argument("--minutes", type=float, default=90.0, help="training time")
    parser.add_argument("--batch", type=int, default=5, help="rows per update")
    parser.add_argument("--length", type=int, default=384, help="tokens per row")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--vocab", type=int, default=1024, help="size of the vocabulary")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and dialogues")
    return parser.parse_args()


def main() -> None:
    """Trains the tokenizer and the model, and writes the checkpoint into --out."""
    args = parse_args()
    disable_progress_bar: Any = transformers_logging.disable_progress_bar
    disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.start is None:
        save_tokenizer(build_tokenizer(args.vocab, args.seed), args.out, MAX_LENGTH)
    elif args.start != args.out:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(args.start / name, args.out / name)
    tokenizer: Any = AutoTokenizer.from_pretrained(args.out)
    encoder = Encoder(tokenizer)
    stop: int = tokenizer.convert_tokens_to_ids(END)
    if args.start is None:
        model = build_model(len(tokenizer), stop, encoder.end_of_text, args.layers, args.hidden)
    else:
        model = Qwen3ForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights", flush=True)
    train(model, encoder, args)
    save_model(model, [stop, encoder.end_of_text], args.out)


if __name__ == "__main__":
    main()
