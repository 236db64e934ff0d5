"""Tokens pushed one by one give the text of a full decode, and never a part of a character."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import demo
from services.tokenizer.detokenize import MAX_PENDING_TOKENS, REPLACEMENT, Detokenizer

many = settings(max_examples=150, deadline=None, derandomize=True)
TEXTS = [
    "Hello, world",
    " and so on",
    "naïve café",
    "你好，世界",
    "🙂👩‍👩‍👧‍👦 ok",
    "  two  spaces\n\n",
    "ß→∑",
    "<|im_end|>",
    "�",
    "🙂🙂",
]
SPECIAL_IDS = [0, 1, 2]


@cache
def byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))


@cache
def byte_fallback() -> Tokenizer:
    """Like Llama 2: words begin with ▁, the text's first space is stripped, unknown characters become byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", *"abcdeHilo,", "▁a", "▁H", "lo", "▁▁"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("▁", "a"), ("▁", "H"), ("l", "o"), ("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def released(tokenizer: Tokenizer, prompt: list[int], ids: list[int], *, skip: bool) -> list[str]:
    """Returns the text that each push released, then that of the flush."""
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def full(tokenizer: Tokenizer, prompt: list[int], ids: list[int], *, skip: bool) -> str:
    """Returns the text that a decode of prompt and answer has after the prompt's text."""

    def decode(token_ids: list[int]) -> str:
        return str(tokenizer.decode(token_ids, skip_special_tokens=skip))

    return decode(prompt + ids)[len(decode(prompt)) :]


def byte_level_ids() -> st.SearchStrategy[list[int]]:
    """Any ids, many of them parts of characters, and the ids of real text."""
    tokenizer = byte_level()
    anything = st.integers(0, tokenizer.get_vocab_size() - 1).map(lambda token_id: [token_id])
    single_bytes = st.sampled_from(range(3, 259)).map(lambda token_id: [token_id])
    special = st.sampled_from(SPECIAL_IDS).map(lambda token_id: [token_id])
    text = st.sampled_from(TEXTS).map(lambda text: ids_of(tokenizer, text))
    return joined(anything | single_bytes | special | text)


def byte_fallback_ids() -> st.SearchStrategy[list[int]]:
    """Complete characters only: an incomplete run of byte tokens changes released text (its own test below)."""
    return joined(st.text("aHilo ,éß你好🙂", max_size=6).map(lambda text: ids_of(byte_fallback(), text)))


def joined(pieces: st.SearchStrategy[list[int]]) -> st.SearchStrategy[list[int]]:
    return st.lists(pieces, max_size=12).map(lambda found: [token_id for piece in found for token_id in piece])


@many
@given(ids=byte_level_ids(), skip=st.booleans())
def test_pushes_and_flush_equal_a_full_decode(ids: list[int], skip: bool) -> None:
    tokenizer = byte_level()
    assert "".join(released(tokenizer, [], ids, skip=skip)) == full(tokenizer, [], ids, skip=skip)


@many
@given(prompt=st.text(max_size=12), ids=byte_level_ids(), skip=st.booleans())
def test_prompt_text_is_never_released(prompt: str, ids: list[int], skip: bool) -> None:
    tokenizer = byte_level()
    prompt_ids = ids_of(tokenizer, prompt)
    assert "".join(released(tokenizer, prompt_ids, ids, skip=skip)) == full(tokenizer, prompt_ids, ids, skip=skip)


@many
@given(ids=byte_level_ids())
def test_released_text_is_a_prefix_and_ends_with_a_complete_character(ids: list[int]) -> None:
    tokenizer = byte_level()
    whole, text = full(tokenizer, [], ids, skip=True), ""
    for piece in released(tokenizer, [], ids, skip=True)[:-1]:
        text += piece
        assert whole.startswith(text)
        assert not piece.endswith(REPLACEMENT)


@many
@given(text=st.text(max_size=30))
def test_text_is_released_character_by_character(text: str) -> None:
    """After each token, the released text is that of all complete characters."""
    tokenizer = byte_level()
    detokenizer, out, raw = Detokenizer(tokenizer, [], skip_special_tokens=False), "", text.encode()
    ids = ids_of(tokenizer, text)
    for count, token_id in enumerate(ids, start=1):
        out += detokenizer.push(token_id)
        so_far = str(tokenizer.decode(ids[:count], skip_special_tokens=False))
        assert raw.startswith(out.encode())
        assert out == so_far or so_far.endswith(REPLACEMENT)
    assert out + detokenizer.flush() == text


@many
@given(ids=byte_level_ids(), data=st.data())
def test_a_character_split_between_prompt_and_answer_belongs_to_the_answer(ids: list[int], data: st.DataObject) -> None:
    """The prompt ends within 🙂. The answer's tokens complete it; no text before it is released."""
    tokenizer = byte_level()
    emoji = ids_of(tokenizer, "🙂")
    cut = data.draw(st.integers(1, len(emoji) - 1))
    prompt = [*ids_of(tokenizer, "so be it"), *emoji[:cut]]
    pieces = released(tokenizer, prompt, [*emoji[cut:], *ids], skip=False)
    assert "".join(pieces) == "🙂" + str(tokenizer.decode(ids, skip_special_tokens=False))


def test_a_character_of_the_prompt_that_stays_incomplete_is_not_released() -> None:
    tokenizer = byte_level()
    prompt = [*ids_of(tokenizer, "so be it"), *ids_of(tokenizer, "🙂")[:2]]
    assert released(tokenizer, prompt, [], skip=True) == [""]
    assert "".join(released(tokenizer, prompt, ids_of(tokenizer, "x"), skip=True)) == "x"


def test_a_prompt_that_ends_with_a_replacement_character() -> None:
    tokenizer = byte_level()
    assert "".join(released(tokenizer, ids_of(tokenizer, "what is �"), ids_of(tokenizer, "? �"), skip=True)) == "? �"


def test_an_incomplete_character_comes_with_the_flush() -> None:
    tokenizer = byte_level()
    emoji = ids_of(tokenizer, "🙂")
    assert released(tokenizer, [], [*ids_of(tokenizer, "a"), *emoji[:-1]], skip=True)[-1] == REPLACEMENT


@many
@given(prompt=byte_fallback_ids(), ids=byte_fallback_ids(), skip=st.booleans())
def test_byte_fallback_with_a_prompt(prompt: list[int], ids: list[int], skip: bool) -> None:
    tokenizer = byte_fallback()
    assert "".join(released(tokenizer, prompt, ids, skip=skip)) == full(tokenizer, prompt, ids, skip=skip)


def test_the_prompt_decides_about_the_first_space() -> None:
    tokenizer = byte_fallback()
    ids = [id_of(tokenizer, "▁H"), id_of(tokenizer, "i")]
    assert "".join(released(tokenizer, [], ids, skip=True)) == "Hi"
    assert "".join(released(tokenizer, ids_of(tokenizer, "a"), ids, skip=True)) == " Hi"


def test_a_prompt_that_ends_with_many_byte_tokens() -> None:
    """The last tokens of the prompt, taken alone, begin within a character."""
    tokenizer = byte_fallback()
    prompt = ids_of(tokenizer, "a 🙂🙂🙂")
    assert "".join(released(tokenizer, prompt, ids_of(tokenizer, "🙂")[1:], skip=True)) == "🙂"


@many
@given(ids=st.lists(st.integers(0, 275), max_size=40), prompt=st.lists(st.integers(0, 275), max_size=12))
def test_incomplete_byte_tokens_do_not_raise_and_later_text_is_released(ids: list[int], prompt: list[int]) -> None:
    """A full decode turns é and a lone byte into ���. The released é stays, and the next text follows it."""
    tokenizer = byte_fallback()
    x = id_of(tokenizer, "a")
    pieces = released(tokenizer, prompt, [*ids, x], skip=True)
    assert pieces[-2].endswith("a")
    assert pieces[-1] == ""


def test_a_lone_byte_after_a_complete_character() -> None:
    tokenizer = byte_fallback()
    ids = [id_of(tokenizer, token) for token in ("<0xC3>", "<0xA9>", "<0xC3>", "a")]
    assert released(tokenizer, [], ids, skip=True)[:3] == ["", "é", ""]
    assert "".join(released(tokenizer, [], ids, skip=True)).endswith("a")


@pytest.mark.parametrize("token", ["<|im_end|>", "<0xFF>"])
def test_endless_tokens_without_text_cost_the_same_each(token: str) -> None:
    """Special tokens are not kept; bytes without a complete character are released at MAX_PENDING_TOKENS."""
    tokenizer = byte_level() if token == "<|im_end|>" else byte_fallback()
    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=True)
    for _ in range(20 * MAX_PENDING_TOKENS):
        detokenizer.push(id_of(tokenizer, token))
        assert len(detokenizer._pending) < MAX_PENDING_TOKENS


def test_many_special_tokens_leave_the_space_after_them() -> None:
    tokenizer = byte_fallback()
    word = [id_of(tokenizer, "▁H"), id_of(tokenizer, "i")]
    ids = [*word, *[id_of(tokenizer, "</s>")] * (MAX_PENDING_TOKENS + 1), *word]
    assert "".join(released(tokenizer, [], ids, skip=True)) == "Hi Hi"


def test_an_id_without_a_token_adds_nothing() -> None:
    tokenizer = byte_level()
    ids = ids_of(tokenizer, "ab")
    assert "".join(released(tokenizer, [], [ids[0], 99999, ids[-1]], skip=True)) == tokenizer.decode([ids[0], ids[-1]])


@cache
def joined_by_spaces() -> Tokenizer:
    """Has no decoder: a decode puts a space between any two tokens."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[U]": 2}, unk_token="[U]"))
    tokenizer.add_special_tokens(["<s>", "<t>"])
    tokenizer.add_tokens(["<added>"])
    return tokenizer


@pytest.mark.parametrize(
    ("tokens", "spaced", "unspaced"),
    [
        (["a", "<s>", "<t>", "b"], "a <s> <t> b", "a <s><t> b"),
        (["<s>", "<added>", "<s>"], "<s> <added> <s>", "<s><added><s>"),
        (["<s>", "a", "<t>"], "<s> a <t>", "<s> a <t>"),
    ],
)
def test_spaces_between_special_tokens(tokens: list[str], spaced: str, unspaced: str) -> None:
    """As in vLLM: between two added tokens, special or not. Beside other tokens the decoder's spaces stay."""
    tokenizer = joined_by_spaces()
    ids = [id_of(tokenizer, token) for token in tokens]
    for spaces, expected in ((True, spaced), (False, unspaced)):
        detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=False, spaces_between_special_tokens=spaces)
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == expected
    hidden = Detokenizer(tokenizer, [], skip_special_tokens=True, spaces_between_special_tokens=False)
    assert "<s>" not in "".join([*map(hidden.push, ids), hidden.flush()])


def test_a_special_token_behind_an_incomplete_character_keeps_its_replacement() -> None:
    """The added token before that character is not its neighbour."""
    tokenizer = byte_level()
    ids = [1, *ids_of(tokenizer, "🙂")[:-1], 2]
    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=False, spaces_between_special_tokens=False)
    text = "".join(map(detokenizer.push, ids))
    assert text == str(tokenizer.decode(ids, skip_special_tokens=False))
    assert REPLACEMENT in text
