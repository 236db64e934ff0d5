"""A cut of a text that is to be truncated changes no id that is kept; where that is not sure, nothing is cut."""

import json
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import demo
from services.tokenizer.text_length import CUT_WINDOW, cut, max_token_characters, may_cut
from services.tokenizer.truncation import PromptLimits
from services.tokenizer.vocabulary import Vocabulary

CONFIG = json.loads((demo.CHECKPOINT / "tokenizer.json").read_text())
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@cache
def byte_level(pattern: str) -> Tokenizer:
    """The demo's vocabulary with another pattern of words."""
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


def nfc() -> Tokenizer:
    """As in Qwen's: the text may become shorter."""
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As in Llama 2's successors: merges run over the whole text, spaces are a character of their own."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcde1.", "ab", "▁ab", "abab", "▁▁", "cd"]
    merges = [("a", "b"), ("▁", "ab"), ("ab", "ab"), ("▁", "▁"), ("c", "d")]
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Path) -> Vocabulary:
    tokenizer.save(str(folder / "tokenizer.json"))
    return Vocabulary(folder)


def random_text(seed: int, num_pieces: int) -> str:
    pieces = ["ab", "cd", "abab", "hello", "123", "1", " ", " ", " ", "  ", "\n", "\n\n", ". ", "é", "你好", "🙂", "'s"]
    pieces += ["e\u0301", "\u03b1\u0313\u0300\u0345", "\u0301", "<|im_end|>", "<think>", "\t", "E"]
    return "".join(random.Random(seed).choices(pieces, k=num_pieces))


@pytest.mark.parametrize("drop_end", [False, True])
@pytest.mark.parametrize("name", ["demo", "llama3", "lines", "nfc", "byte fallback"])
def test_a_cut_changes_no_kept_id(name: str, drop_end: bool, tmp_path: Path) -> None:
    tokenizers = {
        "demo": lambda: Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json")),
        "llama3": lambda: byte_level(LLAMA3_SPLIT),
        "lines": lambda: byte_level(r"[^\n]+"),
        "nfc": nfc,
        "byte fallback": byte_fallback,
    }
    known = saved(tokenizers[name](), tmp_path)
    num_cut = 0
    for seed in range(60):
        text = random_text(seed, 1500)
        ids = known.tokenizer.encode(text, add_special_tokens=False).ids
        for longest in (0, 1, 2, 3, 7, 20, 50):
            needed = known.needed_characters(longest)
            part = text if needed is None else cut(text, needed, drop_end=drop_end)
            num_cut += len(part) < len(text)
            kept = ids[:longest] if drop_end else ids[max(0, len(ids) - longest) :]
            found = known.encode_prompt(part, PromptLimits(longest, drop_end), add_special_tokens=False)
            assert found == kept, (seed, longest)
    assert num_cut > 300


def test_a_cut_keeps_little_more_than_needed_of_a_long_text() -> None:
    text = "hello world, " * 200_000
    for drop_end in (False, True):
        part = cut(text, 1000, drop_end=drop_end)
        assert 1000 <= len(part) <= 1000 + CUT_WINDOW
        assert text.startswith(part) if drop_end else text.endswith(part)
    assert cut(text, 1000, drop_end=True).endswith("hello") and cut(text, 1000, drop_end=False).startswith(" world")


@pytest.mark.parametrize("text", ["a" * 300_000, "你好" * 100_000, " " * 200_000, "a  b" * 50_000])
def test_without_a_place_the_text_stays_whole(text: str) -> None:
    assert cut(text, 10, drop_end=False) == cut(text, 10, drop_end=True) == text


def test_a_text_without_too_much_stays_whole() -> None:
    assert cut("a b c", 5, drop_end=False) == cut("a b c", 9, drop_end=True) == "a b c"


def test_a_token_over_a_space_forbids_cuts() -> None:
    assert may_cut([b" a", b"\n ", b". ", b"ab"])
    assert not may_cut([b"a", b"new york"]) and not may_cut([b"a "])


def test_a_vocabulary_with_a_token_over_a_space_is_not_cut(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    tokenizer.add_tokens(["new york"])
    assert saved(tokenizer, tmp_path).needed_characters(5) is None


def changed(**fields: Any) -> dict[str, Any]:
    return {**CONFIG, **fields}


UNBOUNDED = {
    "a normalizer": changed(normalizer={"type": "NFKC"}),
    "another model": changed(model=CONFIG["model"] | {"type": "Unigram"}),
    "dropout": changed(model=CONFIG["model"] | {"dropout": 0.1}),
    "spaces that are dropped": changed(pre_tokenizer={"type": "Whitespace"}),
    "a split that drops": changed(pre_tokenizer={"type": "Split", "behavior": "Removed"}),
    "unknown characters": changed(pre_tokenizer=None),
    "an added token that takes spaces": changed(added_tokens=[{"content": "<x>", "rstrip": True}]),
}


@pytest.mark.parametrize("config", UNBOUNDED.values(), ids=UNBOUNDED)
def test_text_per_token_has_no_bound(config: dict[str, Any]) -> None:
    alphabet, tokens = [chr(33)], set(CONFIG["model"]["vocab"])
    assert max_token_characters(CONFIG, tokens, alphabet) == max(len(token.encode()) for token in tokens)
    assert max_token_characters(config, tokens, alphabet) is None


def test_a_vocabulary_without_every_byte_has_no_bound() -> None:
    assert max_token_characters(CONFIG, {"a"}, ["a", "b"]) is None


def test_a_real_normalizer_and_added_token_are_found(tmp_path: Path) -> None:
    for change in ("normalizer", "added"):
        tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
        if change == "normalizer":
            tokenizer.normalizer = normalizers.NFKC()
        else:
            tokenizer.add_special_tokens([AddedToken("<x>", rstrip=True)])
        assert saved(tokenizer, tmp_path).max_token_characters is None


def test_nfc_makes_at_most_four_characters_one() -> None:
    tokens = set(CONFIG["model"]["vocab"])
    bound = max_token_characters(CONFIG | {"normalizer": {"type": "NFC"}}, tokens, [chr(33)])
    assert bound == 4 * max(len(token.encode()) for token in tokens)
    codes = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert max(len(unicodedata.normalize("NFD", code)) for code in codes) == 4
