"""The named workloads: their sizes, and that no prompt is repeated."""

import pytest

from loadtest.serving.cases import CASES, WARM_UP, seed_of, warm_up_seed


@pytest.mark.parametrize(
    ("name", "count", "concurrency", "sizes"),
    [
        ("c1", 4, 1, (256, 64)),
        ("c8", 32, 8, (256, 64)),
        ("c32", 32, 32, (256, 64)),
        ("prefill", 8, 4, (1024, 8)),
        ("prefix", 32, 8, (544, 32)),
        ("prefix-off", 32, 8, (544, 32)),
    ],
)
def test_sizes(name: str, count: int, concurrency: int, sizes: tuple[int, int]) -> None:
    requests = CASES[name].requests(1)
    assert (len(requests), CASES[name].concurrency) == (count, concurrency)
    assert {(len(request.prompt), request.output_len) for request in requests} == {sizes}


def test_only_prefix_has_a_shared_prefix() -> None:
    for name, begins in (("prefix", 1), ("prefix-off", 32)):
        prompts = [request.prompt for request in CASES[name].requests(1)]
        assert len({prompt[:512] for prompt in prompts}) == begins
        assert len({prompt[512:] for prompt in prompts}) == 32


def test_both_ragged_workloads_have_the_same_output_lengths() -> None:
    alone, together = CASES["ragged-50-seq"], CASES["ragged-50"]
    assert (alone.concurrency, together.concurrency) == (1, 50)
    lengths = [[request.output_len for request in case.requests(1)] for case in (alone, together)]
    assert lengths[0] == lengths[1] and len(lengths[0]) == 50


def test_only_prefill_counts_input_tokens() -> None:
    assert [name for name, case in CASES.items() if case.speed == "total_token_throughput"] == ["prefill"]


def test_no_two_runs_have_a_prompt_in_common() -> None:
    drawn = [
        request.prompt
        for number in (1, 2, 3)
        for case, seed in [(WARM_UP, warm_up_seed(number)), *((CASES[name], seed_of(name, number)) for name in CASES)]
        for request in case.requests(seed)
    ]
    assert len({prompt[:32] for prompt in drawn}) == len(drawn) - 3 * 31  # prefix shares its first tokens
