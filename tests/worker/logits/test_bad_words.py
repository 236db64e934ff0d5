"""bad_words: a sequence's last id is masked exactly where the ids before it end the output."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.logits.bad_words import BadWords
from tests.worker.sample_rows import applied, row

VOCAB = 6
IDS = st.integers(0, VOCAB - 1)
WORDS = st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=6)


def masked(output: list[int], words: list[list[int]]) -> set[int]:
    return {word[-1] for word in words if len(word) == 1 or output[-(len(word) - 1) :] == word[:-1]}


def masked_by(prompt: list[int], output: list[int], words: list[list[int]]) -> set[int]:
    changed = applied(BadWords, torch.zeros(1, VOCAB), [row(prompt, output, bad_words=words)])
    assert ((changed == 0) | (changed == float("-inf"))).all()
    return set((changed[0] != 0).nonzero().flatten().tolist())


def test_a_word_of_one_id_is_never_sampled() -> None:
    assert masked_by([1, 2], [], [[3], [5]]) == {3, 5}


def test_a_longer_word_is_masked_after_its_beginning_only() -> None:
    words = [[1, 2, 3]]
    assert masked_by([9 % VOCAB], [4, 1, 2], words) == {3}
    assert masked_by([3], [1, 2, 4], words) == set()
    assert masked_by([3], [2], words) == set()


def test_the_prompt_is_no_part_of_the_output() -> None:
    assert masked_by([1, 2], [], [[1, 2, 3]]) == set()
    assert masked_by([1], [2], [[1, 2, 3]]) == set()
    assert masked_by([1], [1, 2], [[1, 2, 3]]) == {3}


def test_words_with_the_same_last_id_do_not_disturb_each_other() -> None:
    for words in ([[1, 3], [2, 3]], [[2, 3], [1, 3]]):
        assert masked_by([5], [1], words) == {3}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.lists(IDS, max_size=8), WORDS), min_size=1, max_size=5))
def test_many_rows_are_masked_as_each_alone(requests: list[tuple[list[int], list[list[int]]]]) -> None:
    logits = torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(3))
    rows = [row([4, 5], output, bad_words=words) for output, words in requests]
    changed = applied(BadWords, logits, rows)
    for before, after, (output, words) in zip(logits, changed, requests, strict=True):
        expected = before.clone()
        expected[list(masked(output, words))] = float("-inf")
        assert torch.equal(after, expected)
