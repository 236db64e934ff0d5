"""Workloads: the same seed gives the same requests; lengths and arrival rates are as requested."""

import random
from itertools import pairwise
from math import inf
from statistics import mean

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

import demo
from loadtest.serving.workloads import (
    RAGGED_OUTPUT_LENS,
    IdPrompts,
    TextPrompts,
    arrival_times,
    ragged_requests,
    random_requests,
)

IDS = IdPrompts(100, 1000)


def demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))


def letters(begin: str = "") -> Tokenizer:
    """One token per letter and per space, so that no word is one token; `begin` is a special token put before."""
    alphabet = " abcdefghijklmnopqrstuvwxyz"
    vocabulary = {letter: index for index, letter in enumerate(alphabet)} | {"[BOS]": 27, "word": 28}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[BOS]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, 27)]
        )
    return tokenizer


def test_ids_have_the_requested_lengths_and_range() -> None:
    requests = random_requests(IDS, count=20, input_len=64, output_len=7)
    assert {(len(request.prompt), request.input_len, request.output_len) for request in requests} == {(64, 64, 7)}
    drawn = {token for request in requests for token in request.prompt}
    assert min(map(int, drawn)) >= 100
    assert max(map(int, drawn)) < 1000
    assert len(drawn) > 500
    assert len({request.prompt for request in requests}) == 20


def test_the_seed_decides_the_requests() -> None:
    def make(seed: int) -> object:
        return random_requests(IDS, count=5, input_len=8, output_len=8, prefix_len=3, range_ratio=0.5, seed=seed)

    assert make(1) == make(1)
    assert make(1) != make(2)


def test_a_larger_count_leaves_the_first_requests_unchanged() -> None:
    few, many = (random_requests(IDS, count=count, input_len=8, output_len=8, range_ratio=0.5) for count in (3, 9))
    assert many[:3] == few


def test_the_shared_prefix_is_added_to_the_length() -> None:
    requests = random_requests(IDS, count=6, input_len=4, output_len=1, prefix_len=10)
    assert len({request.prompt[:10] for request in requests}) == 1
    assert len({request.prompt for request in requests}) == 6
    assert {request.input_len for request in requests} == {14}


def test_lengths_vary_within_the_range_ratio() -> None:
    requests = random_requests(IDS, count=400, input_len=100, output_len=10, range_ratio=0.3)
    assert {request.output_len for request in requests} == set(range(7, 14))
    lengths = [request.input_len for request in requests]
    assert (min(lengths), max(lengths)) == (70, 130)
    assert abs(mean(lengths) - 100) < 5


def test_a_length_is_never_zero() -> None:
    assert min(one.input_len for one in random_requests(IDS, count=50, input_len=1, output_len=1, range_ratio=1)) == 1


@pytest.mark.parametrize("length", [1, 2, 17, 256])
@pytest.mark.parametrize("prefix_len", [0, 32])
def test_text_encodes_to_the_requested_length(length: int, prefix_len: int) -> None:
    tokenizer = demo_tokenizer()
    requests = random_requests(TextPrompts(tokenizer), count=5, input_len=length, output_len=1, prefix_len=prefix_len)
    counted = [len(tokenizer.encode(request.prompt).ids) for request in requests]
    assert counted == [request.input_len for request in requests]
    assert set(counted) == {prefix_len + length}


def test_text_prompts_begin_with_the_same_tokens() -> None:
    tokenizer = demo_tokenizer()
    requests = random_requests(TextPrompts(tokenizer), count=8, input_len=16, output_len=1, prefix_len=32)
    assert len({tuple(tokenizer.encode(request.prompt).ids[:32]) for request in requests}) == 1
    assert len({request.prompt for request in requests}) == 8


def test_special_tokens_count() -> None:
    tokenizer = demo_tokenizer()
    plain = TextPrompts(tokenizer).draw(random.Random(0), 20)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="$A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    assert TextPrompts(tokenizer).count(plain) == 21
    assert TextPrompts(tokenizer).count(TextPrompts(tokenizer).draw(random.Random(0), 20)) == 20


@pytest.mark.parametrize("begin", ["", "[BOS]"])
@pytest.mark.parametrize("length", [1, 10, 101])
def test_without_one_token_words_the_nearest_length_is_taken(begin: str, length: int) -> None:
    """The one word of the vocabulary is four letters and a space: lengths go in steps of five."""
    prompts = TextPrompts(letters(begin))
    drawn = prompts.count(prompts.draw(random.Random(0), length))
    assert abs(drawn - length) <= (3 if length > 4 else 4)


def test_truncation_and_padding_of_a_tokenizer_are_switched_off() -> None:
    tokenizer = demo_tokenizer()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=12)
    (request,) = random_requests(TextPrompts(tokenizer), count=1, input_len=50, output_len=1)
    assert request.input_len == 50 == len(demo_tokenizer().encode(request.prompt).ids)


def test_ragged_50_is_fifty_answers_of_10_to_150_tokens() -> None:
    requests = ragged_requests(IDS, input_len=32)
    lengths = [request.output_len for request in requests]
    assert len(lengths) == 50
    assert RAGGED_OUTPUT_LENS[0] <= min(lengths) < 30
    assert 130 < max(lengths) <= RAGGED_OUTPUT_LENS[1]
    assert {request.input_len for request in requests} == {32}


def test_a_seed_changes_ragged_prompts_but_not_their_lengths() -> None:
    first, second = (ragged_requests(IDS, input_len=32, seed=seed) for seed in (0, 1))
    assert [one.output_len for one in first] == [one.output_len for one in second]
    assert all(one.prompt != other.prompt for one, other in zip(first, second, strict=True))


def test_arrivals_are_a_poisson_process() -> None:
    times = arrival_times(4001, 20.0, seed=3)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert len(gaps) == 4000
    assert mean(gaps) == pytest.approx(1 / 20, rel=0.06)
    # The share of gaps above the mean is 1/e for an exponential, and nothing or a half for what isn't one.
    assert mean(gap > 1 / 20 for gap in gaps) == pytest.approx(0.368, abs=0.03)


def test_arrivals_follow_the_seed() -> None:
    assert arrival_times(9, 5.0, seed=1) == arrival_times(9, 5.0, seed=1)
    assert arrival_times(9, 5.0, seed=1) != arrival_times(9, 5.0, seed=2)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(3, inf) == [0.0, 0.0, 0.0]
