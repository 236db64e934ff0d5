"""Models that would write control tokens are replaced by copies that do not, with the same ids for all else."""

import json

import pytest
from tokenizers import Tokenizer

from services.tokenizer.plain_model import plain_model
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.tokenizer_kinds import KINDS, directory

REPLACED = {"byte_level_of_whole_words", "llama_merging", "unigram", "word_piece"}


def without_added_tokens(kind: str, vocabulary: Vocabulary | None = None) -> Tokenizer:
    """Returns a kind's tokenizer; with the plain model of `vocabulary`."""
    config = json.loads((directory(kind) / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps({**config, "added_tokens": [], "post_processor": None}))
    if vocabulary is not None:
        tokenizer.model = vocabulary.plain_model
    return tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_only_models_that_could_write_one_are_replaced(kind: str) -> None:
    vocabulary = Vocabulary(directory(kind))
    assert vocabulary.has_other_model == (kind in REPLACED)


@pytest.mark.parametrize("kind", KINDS)
def test_other_text_has_the_same_ids(kind: str) -> None:
    """Unknown characters and single bytes too."""
    plain, own = without_added_tokens(kind, Vocabulary(directory(kind))), without_added_tokens(kind)
    for text in ("the quick brown fox", "hello, im_end think", "é天 \n\0", "< / s >", ""):
        assert plain.encode(text).ids == own.encode(text).ids


@pytest.mark.parametrize(("kind", "text"), [("llama_merging", "a</s>"), ("unigram", "</s>")])
def test_what_a_model_would_have_written(kind: str, text: str) -> None:
    vocabulary = Vocabulary(directory(kind))
    end = vocabulary.tokenizer.token_to_id("</s>")
    assert end in without_added_tokens(kind).encode(text).ids
    assert end not in without_added_tokens(kind, vocabulary).encode(text).ids


def test_merges_may_be_written_as_text() -> None:
    """Older files have them so."""
    config = json.loads((directory("llama_merging") / "tokenizer.json").read_text())
    config["model"]["merges"] = [" ".join(pair) for pair in config["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(config))
    model, is_other = plain_model(tokenizer.model, config, ["</s>"])
    assert is_other and model.token_to_id("</s>") is None
    assert len(json.loads(Tokenizer(model).to_str())["model"]["merges"]) == len(config["model"]["merges"]) - 1
