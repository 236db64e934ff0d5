"""A prompt for what is between two texts has the order and the tokens of the model's own format, whatever is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import demo
from services.rpc.errors import TandemError
from services.tokenizer.fill_in_middle import FORMATS, FillInMiddle
from services.tokenizer.truncation import PromptLimits, TooManyTokensError
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.fill_tokenizers import FAMILIES, markers_of, vocabulary
from tests.tokenizer.tokenizer_kinds import directory

PREFIX, SUFFIX = "hello world,    the quick ", " fox jumps  over"
ANY = PromptLimits()
families = pytest.mark.parametrize("family", FAMILIES)
texts = st.text(alphabet="ab e,\n <>é☺", max_size=20)


def encoded(family: str, prefix: str, suffix: str, limits: PromptLimits = ANY, special: bool = False) -> list[int]:
    return FillInMiddle(vocabulary(family)).encode(prefix, suffix, limits, special)


def plain(family: str, text: str) -> list[int]:
    return vocabulary(family).encode(text, add_special_tokens=False)


def parts(family: str, ids: list[int]) -> list[list[int]]:
    """Returns what stands before, between and behind the markers, which are all there and in order."""
    markers = [vocabulary(family).tokenizer.token_to_id(text) for text in markers_of(family)]
    places = [ids.index(marker) for marker in markers]
    assert places == sorted(places) and [ids.count(marker) for marker in markers] == [1] * len(markers)
    return [ids[first + 1 : last] for first, last in pairwise([-1, *places, len(ids)])]


def sides(family: str, ids: list[int]) -> list[list[int]]:
    """Returns the tokens of prefix and suffix."""
    found = parts(family, ids)[1:3]
    return found[::-1] if "suf" in markers_of(family)[0].lower() else found


def test_every_format_has_a_family_here() -> None:
    assert {frozenset(markers_of(family)) for family in FAMILIES} == {frozenset(one.tokens) for one in FORMATS}


@families
def test_a_prompt_is_what_the_models_card_writes(family: str) -> None:
    """Byte-level tokenizers: its text, encoded. Others put a space before a text, but none before the suffix: as
    infilling_prompt_tokens of Code Llama and encode_fim of mistral-common, which encode the suffix behind a sign that
    they drop."""
    kind, template = FAMILIES[family]
    found = encoded(family, PREFIX, SUFFIX)
    if kind == "byte_level":
        assert found == plain(family, template.format(prefix=PREFIX, suffix=SUFFIX))
        return
    sign = len(plain(family, "☺"))
    wanted = [[], plain(family, PREFIX), plain(family, "☺" + SUFFIX)[sign:], []]
    if template.startswith("[SUFFIX]"):
        wanted = [[], wanted[2], wanted[1]]
    assert parts(family, found) == wanted
    assert "".join(vocabulary(family).token_bytes(index).decode() for index in sides(family, found)[1]) == SUFFIX


@families
def test_special_tokens_of_the_tokenizer_are_around_it(family: str) -> None:
    found = encoded(family, PREFIX, SUFFIX, special=True)
    added = vocabulary(family).encode("", add_special_tokens=True)
    assert found == [*added, *encoded(family, PREFIX, SUFFIX)]
    assert len(added) == FAMILIES[family][0].startswith("llama")


@families
def test_control_tokens_in_the_texts_act_as_in_any_completion(family: str) -> None:
    end = vocabulary(family).tokenizer.token_to_id("<|end|>")
    assert encoded(family, "a<|end|>b", "c<|end|>").count(end) == 2


@families
def test_an_empty_side_has_no_tokens(family: str) -> None:
    assert len(encoded(family, "", "")) == len(markers_of(family))
    assert SUFFIX.strip() in vocabulary(family).decode(encoded(family, "", SUFFIX), skip_special_tokens=True)


@given(prefix=texts, suffix=texts, longest=st.integers(0, 30), drop_end=st.booleans(), special=st.booleans())
@families
def test_what_is_kept_is_next_to_the_middle(
    family: str, prefix: str, suffix: str, longest: int, drop_end: bool, special: bool
) -> None:
    whole = encoded(family, prefix, suffix, special=special)
    limits = PromptLimits(longest, drop_end)
    fixed = len(encoded(family, "", "", special=special))
    if longest < fixed and longest < len(whole):
        with pytest.raises(TandemError, match=f"leaves {longest} tokens, but those around .* are {fixed}"):
            encoded(family, prefix, suffix, limits, special)
        return
    cut = encoded(family, prefix, suffix, limits, special)
    assert len(cut) == min(len(whole), longest)
    (first, second), (whole_first, whole_second) = sides(family, cut), sides(family, whole)
    assert first == whole_first[len(whole_first) - len(first) :]  # the last ones of the prefix
    assert second == whole_second[: len(second)]  # the first ones of the suffix
    # One side is cut once nothing is left of the other one.
    assert (first == whole_first or not second) if drop_end else (second == whole_second or not first)


@families
def test_too_many_tokens_are_counted(family: str) -> None:
    whole = len(encoded(family, PREFIX, SUFFIX))
    assert len(encoded(family, PREFIX, SUFFIX, PromptLimits(refused_from=whole + 1))) == whole
    with pytest.raises(TooManyTokensError) as caught:
        encoded(family, PREFIX, SUFFIX, PromptLimits(refused_from=whole))
    assert caught.value.num_tokens == whole


def test_long_texts_give_the_same_tokens() -> None:
    """They are encoded with the GIL released."""
    prefix, suffix = "hello " * 1000, " world" * 1000
    found = parts("codellama", encoded("codellama", prefix, suffix))
    assert found[1] == plain("codellama", prefix)
    assert found[2][-5:] == plain("codellama", " world" * 4)[-5:]


@pytest.mark.parametrize("path", [demo.CHECKPOINT, *map(directory, ["llama_first", "unigram", "word_piece"])])
def test_a_model_without_such_tokens_is_refused_by_name(path: object) -> None:
    with pytest.raises(TandemError, match="suffix is not supported: this model has no tokens for text in the middle"):
        FillInMiddle(Vocabulary(path)).check()  # type: ignore[arg-type]
    FillInMiddle(vocabulary("qwen")).check()
