"""Bad words become the token sequences that vLLM forbids, with and without a space before the word."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import demo
from services.rpc.errors import TandemError
from services.tokenizer.bad_words import bad_words_token_ids
from services.tokenizer.vocabulary import Vocabulary

VOCABULARY = Vocabulary(demo.CHECKPOINT)


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False)


def one_token_word() -> str:
    """Returns a word with a token for itself and one for itself after a space."""
    for word in ("the", "and", "he", "was", "a"):
        if len(ids(word)) == len(ids(f" {word}")) == 1:
            return word
    raise AssertionError("the demo's vocabulary has changed")


def test_a_word_is_forbidden_at_the_beginning_and_after_a_space() -> None:
    word = one_token_word()
    assert bad_words_token_ids([word], VOCABULARY, 0) == [ids(word), ids(f" {word}")]
    assert ids(word)[0] != ids(f" {word}")[0]


def test_spaces_before_a_word_make_no_difference() -> None:
    word = one_token_word()
    assert bad_words_token_ids([f"  {word}"], VOCABULARY, 0) == bad_words_token_ids([word], VOCABULARY, 0)


def test_a_form_that_only_adds_a_token_for_the_space_is_left_out() -> None:
    """It would forbid the word a second time, and take a place of the limit."""
    assert len(ids(" 🙂")) == len(ids("🙂")) + 1
    assert bad_words_token_ids(["🙂"], VOCABULARY, 0) == [ids("🙂")]


def test_each_word_is_compared_with_itself_alone() -> None:
    word = one_token_word()
    assert bad_words_token_ids(["🙂", word], VOCABULARY, 0) == [ids("🙂"), ids(word), ids(f" {word}")]


@pytest.mark.parametrize("empty", ["", " ", "\n "])
def test_a_word_without_tokens_is_refused_by_its_index(empty: str) -> None:
    with pytest.raises(TandemError, match=r"bad_words\[1\] has no tokens.*white space") as caught:
        bad_words_token_ids(["x", empty], VOCABULARY, 0)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "bad_words.1")


def test_white_space_of_any_kind_before_a_word_makes_no_difference() -> None:
    assert bad_words_token_ids(["\n\tthe"], VOCABULARY, 0) == bad_words_token_ids(["the"], VOCABULARY, 0)


def test_no_sequence_is_there_twice() -> None:
    word = one_token_word()
    assert bad_words_token_ids([word, "🙂", f" {word}", word], VOCABULARY, 0) == [ids(word), ids(f" {word}"), ids("🙂")]


def test_words_are_limited_whatever_the_number_of_their_sequences() -> None:
    word = one_token_word()
    assert len(bad_words_token_ids([word], VOCABULARY, 1)) == 2
    with pytest.raises(TandemError, match="bad_words are 2 words: the limit is 1") as caught:
        bad_words_token_ids([word, "🙂"], VOCABULARY, 1)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "bad_words")


def test_a_tokenizer_that_ignores_spaces_gives_one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(demo.CHECKPOINT)
    words = Tokenizer(models.WordLevel({"the": 5, "[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    monkeypatch.setattr(vocabulary, "tokenizer", words)
    assert bad_words_token_ids(["the"], vocabulary, 0) == [[5]]
