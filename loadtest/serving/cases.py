"""The named workloads that servers are compared by: sizes in tokens, and how many requests are under way at once.

The same seed gives the same requests. Nothing is shared between two runs of other cases or seeds, so that no prefix
cache helps by accident.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.serving.workloads import RAGGED_COUNT, IdPrompts, Request, ragged_requests, random_requests

# Low enough for any vocabulary, above the special tokens that many begin with.
PROMPTS = IdPrompts(100, 1000)
_RAGGED_INPUT_LEN = 32


@dataclass(frozen=True)
class Case:
    about: str
    at_once: int
    requests: Callable[[int], list[Request]]  # of a seed
    speed: str = "output_throughput"  # the number that the case is about


def _case(count: int, at_once: int, input_len: int, output_len: int, prefix_len: int = 0, **more: str) -> Case:
    def requests(seed: int) -> list[Request]:
        lengths = {"input_len": input_len, "output_len": output_len, "prefix_len": prefix_len}
        return random_requests(PROMPTS, count=count, seed=seed, **lengths)

    shared = f"{prefix_len} shared + " if prefix_len else ""
    return Case(
        f"{count} requests, {at_once} at once, {shared}{input_len} in, {output_len} out", at_once, requests, **more
    )


def _ragged(at_once: int) -> Case:
    about = f"{RAGGED_COUNT} requests, {at_once} at once, {_RAGGED_INPUT_LEN} in, 10 to 150 out"
    return Case(about, at_once, lambda seed: ragged_requests(PROMPTS, input_len=_RAGGED_INPUT_LEN, seed=seed))


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
_SEEDS_OF_A_ROUND = 100


def seed_of(name: str, number: int) -> int:
    """Of the case in this round (from 1): no two have the same."""
    return _SEEDS_OF_A_ROUND * number + list(CASES).index(name) + 1


def warm_up_seed(number: int) -> int:
    return _SEEDS_OF_A_ROUND * number
