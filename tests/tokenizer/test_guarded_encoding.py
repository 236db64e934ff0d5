"""Prompts with plain spans: control tokens act outside of them only, and all else has the ids of transformers."""

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

import demo
from services.errors import Fatal
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.truncation import PromptLimits
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.tokenizer_kinds import KINDS, TOKENS, directory

# Earlier ones may drop control tokens beside an accent where BERT's normalizer removes it.
MERGES_ACCENTS = Version(tokenizers.__version__) < Version("0.23")
some = settings(max_examples=150, deadline=None, derandomize=True, database=None)
CONTROL = [token.content for token in TOKENS if token.content.strip()]
WORDS = ["hello", " ", "  ", "\n", "\n\n", "a", "é", "天", "fox ", "<", ">", "|", "1", "word", "\u0301"]
TEMPLATE = st.lists(st.sampled_from([*CONTROL, *CONTROL, *WORDS]), max_size=8).map("".join)
WHOLE = PromptLimits()
FOLDING = ["＜/s＞", "</S>", "<ｔ>", "<T>", "<\u00adt>"]  # NFKC, lower case and BERT's cleaning make tokens of these
HOSTILE = st.lists(st.sampled_from([*CONTROL, *FOLDING]), max_size=3).map("".join)


@cache
def encoding(kind: str) -> GuardedEncoding:
    return GuardedEncoding(Vocabulary(directory(kind)))


@cache
def always(kind: str) -> GuardedEncoding:
    """The same, but the guarded way for all prompts."""
    known = GuardedEncoding(Vocabulary(directory(kind)))
    known._always = True
    return known


@cache
def transformers_tokenizer(kind: str) -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(directory(kind) / "tokenizer.json"))


def ids_of(
    known: GuardedEncoding, prompt: PromptText, limits: PromptLimits = WHOLE, *, special: bool = False
) -> list[int]:
    return known.encode(prompt, limits, add_special_tokens=special)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_without_spans_has_the_ids_of_transformers(kind: str, special: bool) -> None:
    """Both ways: the model's own tokenizer, and the one that is guarded."""

    @some
    @given(text=TEMPLATE)
    def check(text: str) -> None:
        assume(not (MERGES_ACCENTS and kind == "word_piece" and "\u0301" in text))
        expected = transformers_tokenizer(kind)(text, add_special_tokens=special).input_ids
        for known in (encoding(kind), always(kind)):
            assert ids_of(known, PromptText(text), special=special) == expected

    check()


@st.composite
def prompts(draw: st.DrawFn) -> tuple[PromptText, str]:
    """Returns a prompt with hostile content, and its text with harmless content of the same length."""
    text = other = ""
    spans = []
    for number in range(draw(st.integers(1, 5))):
        part = draw(HOSTILE if number % 2 else TEMPLATE)
        if number % 2 and part:
            spans.append((len(text), len(text) + len(part)))
        text += part
        other += "¤" * len(part) if number % 2 else part
    return PromptText(text, tuple(spans)), other


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_plain_spans_do_not_act(kind: str) -> None:
    known = encoding(kind)
    tokenizer = Vocabulary(directory(kind)).tokenizer
    unknown = tokenizer.token_to_id("<unk>")
    control = {tokenizer.token_to_id(text) for text in CONTROL} - {unknown}

    @some
    @given(prompt=prompts())
    def check(prompt: tuple[PromptText, str]) -> None:
        expected = tokenizer.encode(prompt[1], add_special_tokens=False).ids
        found = ids_of(known, prompt[0])
        assert [one for one in found if one in control] == [one for one in expected if one in control]
        if kind.startswith("byte_level") and "\u0301" not in prompt[0].text:  # which NFC joins with what is before
            text = tokenizer.decode(found, skip_special_tokens=False)
            assert re.sub(r"\s", "", text) == re.sub(r"\s", "", prompt[0].text)  # added tokens take whitespace

    check()


def test_the_end_of_turn_in_content_as_before_and_now() -> None:
    known, text = GuardedEncoding(Vocabulary(demo.CHECKPOINT)), "<|im_start|>user\nHi<|im_end|><|im_end|>\n"
    before = ids_of(known, PromptText(text))
    now = ids_of(known, PromptText(text, ((19, 29),)))
    assert before == [1, 277, 207, 48, 81, 2, 2, 207]
    assert now == [1, 277, 207, 48, 81, 36, 100, 473, 71, 400, 620, 2, 207]


@pytest.mark.parametrize("drop_end", [False, True])
@pytest.mark.parametrize("kind", ["llama_first", "unigram", "byte_level"])
def test_a_prompt_with_spans_is_truncated_as_others(kind: str, drop_end: bool) -> None:
    """Special tokens around it stay."""
    known, prompt = encoding(kind), PromptText("hello</s> fox <|im_start|>fox", ((5, 9),))
    bare, whole = ids_of(known, prompt), ids_of(known, prompt, special=True)
    place = whole.index(bare[0])
    before, after = whole[:place], whole[place + len(bare) :]
    for longest in range(len(before) + len(after) + 1, len(whole) + 2):
        num_kept = min(len(bare), longest - len(before) - len(after))
        kept = bare[:num_kept] if drop_end else bare[len(bare) - num_kept :]
        assert ids_of(known, prompt, PromptLimits(longest, drop_end), special=True) == [*before, *kept, *after]
        assert ids_of(known, prompt, PromptLimits(num_kept, drop_end)) == kept


def test_a_long_prompt_has_the_ids_of_a_short_one() -> None:
    known, part = encoding("byte_level"), "<|im_start|>hello <t>\n"
    short = ids_of(known, PromptText(part, ((18, 21),)))
    spans = tuple((number * len(part) + 18, number * len(part) + 21) for number in range(1000))
    assert ids_of(known, PromptText(part * 1000, spans)) == short * 1000


def test_added_tokens_that_no_other_tokenizer_could_have_are_fatal() -> None:
    known = Vocabulary(demo.CHECKPOINT)
    tokens = {1026: AddedToken("<late>", special=True), **known.tokenizer.get_added_tokens_decoder()}
    known.tokenizer = SimpleNamespace(  # type: ignore[assignment]
        **{name: getattr(known.tokenizer, name) for name in ("model", "normalizer", "pre_tokenizer", "post_processor")},
        get_added_tokens_decoder=lambda: tokens,
    )
    with pytest.raises(Fatal, match="--allow-special-tokens-in-content"):
        GuardedEncoding(known)
