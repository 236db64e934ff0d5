"""`make recovery-test`: sixty random kills while answers stream, in six servers; takes a few minutes.

`python -m tests.recovery --seed N` repeats the schedule of a run that failed.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.checkpoints import make_gemma3, make_gpt_oss, make_qwen3_moe
from tests.e2e.harness import SPARES, Server
from tests.recovery.kills import RandomKills

MAX_LEN = 2560
CHUNKED = ("--max-num-batched-tokens=192", "--long-prefill-token-threshold=64")
VARIANTS = {
    "one tokenizer": CHUNKED,
    "two tokenizers": (*CHUNKED, "--tokenizer-replicas=2"),
    "small KV cache": (*CHUNKED, "--kv-cache-memory-bytes=3M", "--block-size=8"),
    "windows": CHUNKED,  # a random model: all layers but one have a window
    "experts": CHUNKED,  # with a random model, which also has sinks and a window
    "experts alone": CHUNKED,  # with a random model whose layers keep all blocks
}
RANDOM = {"windows": make_gemma3, "experts": make_gpt_oss, "experts alone": make_qwen3_moe}


def kill_at_random(variant: str, seed: int, num_kills: int) -> list[str]:
    """Returns one line per kill: process and live answers. Raises AssertionError if an answer changed, or if too many
    kills found no live answer."""
    rng = random.Random(f"{variant} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        make = RANDOM.get(variant)
        model = [str(make(Path(folder), max_position_embeddings=MAX_LEN))] if make is not None else []
        with Server(*model, SPARES, *VARIANTS[variant]) as server:
            killer = RandomKills(server, rng, small=variant == "small KV cache")
            killer.run(num_kills)
            return killer.kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--kills", type=int, default=10, help="kills in each server")
    args = parser.parse_args()
    print(f"--seed {args.seed} --kills {args.kills}", flush=True)
    for variant in VARIANTS:
        began = time.monotonic()
        kills = kill_at_random(variant, args.seed, args.kills)
        print(f"{variant}: {len(kills)} kills, every answer as undisturbed, {time.monotonic() - began:.0f} s")
        print("\n".join(f"  {number}. {kill}" for number, kill in enumerate(kills, 1)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
