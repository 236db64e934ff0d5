"""The named workloads of `loadtest.serving.compare`: number of requests, lengths in tokens, concurrency.

The same seed gives the same requests. seed_of gives each case and round a seed of its own, so that runs have no prompt
in common and a prefix cache does not speed up a later run.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.serving.workloads import RAGGED_COUNT, IdPrompts, Request, ragged_requests, random_requests

# These ids exist in any vocabulary and lie above the special tokens with which many begin.
PROMPTS = IdPrompts(100, 1000)
_RAGGED_INPUT_LEN = 32


@dataclass(frozen=True)
class Case:
    description: str
    concurrency: int
    requests: Callable[[int], list[Request]]  # takes a seed
    speed: str = "output_throughput"  # the number by which servers are compared


def _case(count: int, concurrency: int, input_len: int, output_len: int, prefix_len: int = 0, **more: str) -> Case:
    def requests(seed: int) -> list[Request]:
        lengths = {"input_len": input_len, "output_len": output_len, "prefix_len": prefix_len}
        return random_requests(PROMPTS, count=count, seed=seed, **lengths)

    shared = f"{prefix_len} shared + " if prefix_len else ""
    return Case(
        f"{count} requests, concurrency {concurrency}, {shared}{input_len} tokens in, {output_len} out",
        concurrency,
        requests,
        **more,
    )


def _ragged(concurrency: int) -> Case:
    description = f"{RAGGED_COUNT} requests, concurrency {concurrency}, {_RAGGED_INPUT_LEN} tokens in, 10 to 150 out"
    return Case(description, concurrency, lambda seed: ragged_requests(PROMPTS, input_len=_RAGGED_INPUT_LEN, seed=seed))


WARM_UP = _case(8, 8, 256, 8)
CASES = {
    "c1": _case(4, 1, 256, 64),
    "c8": _case(32, 8, 256, 64),
    "c32": _case(32, 32, 256, 64),
    "prefill": _case(8, 4, 1024, 8, speed="total_token_throughput"),
    "prefix": _case(32, 8, 32, 32, prefix_len=512),
    "prefix-off": _case(32, 8, 544, 32),
    "ragged-50-seq": _ragged(1),
    "ragged-50": _ragged(RAGGED_COUNT),
}
_SEEDS_PER_ROUND = 100


def seed_of(name: str, round_number: int) -> int:
    """Returns the seed of the named case in a round (from 1); each pair of case and round has a seed of its own."""
    return _SEEDS_PER_ROUND * round_number + list(CASES).index(name) + 1


def warm_up_seed(round_number: int) -> int:
    return _SEEDS_PER_ROUND * round_number
