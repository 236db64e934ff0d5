"""Vocabulary: the bytes of a text's tokens are the text's UTF-8; a broken tokenizer.json is a Fatal error."""

import hashlib
import json
import shutil
import threading
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

import demo
from services.errors import Fatal
from services.tokenizer.truncation import PromptLimits, TooManyTokensError
from services.tokenizer.vocabulary import SHORT_TEXT, Vocabulary, encoding_of

many = settings(max_examples=300, deadline=None, derandomize=True)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(demo.CHECKPOINT)


def bytes_of(known: Vocabulary, ids: list[int]) -> bytes:
    return b"".join(map(known.token_bytes, ids))


@many
@given(text=st.text(max_size=60))
def test_bytes_of_an_encoding_are_the_text(text: str) -> None:
    ids = vocabulary().encode(text, add_special_tokens=False)
    assert bytes_of(vocabulary(), ids) == text.encode()


def test_every_token_alone_decodes_to_its_bytes() -> None:
    tokenizer = vocabulary().tokenizer
    for token_id in range(tokenizer.get_vocab_size()):
        raw = vocabulary().token_bytes(token_id)
        assert raw, token_id
        assert tokenizer.decode([token_id], skip_special_tokens=False) == raw.decode(errors="replace")


def test_the_vocabulary_has_every_byte_as_a_token() -> None:
    known = {vocabulary().token_bytes(token_id) for token_id in range(vocabulary().tokenizer.get_vocab_size())}
    assert known >= {bytes([byte]) for byte in range(256)}


@many
@given(ids=st.lists(st.integers(0, 1023), max_size=30))
def test_bytes_of_any_ids_are_their_decode(ids: list[int]) -> None:
    raw = bytes_of(vocabulary(), ids)
    assert vocabulary().tokenizer.decode(ids, skip_special_tokens=False) == raw.decode(errors="replace")


def test_special_tokens_are_encoded_as_such() -> None:
    assert vocabulary().encode("<|im_end|>", add_special_tokens=False) == [2]
    assert vocabulary().token_bytes(2) == b"<|im_end|>"


def test_an_id_without_a_token_has_no_bytes() -> None:
    assert vocabulary().token_bytes(2**32 - 1) == b""


def test_the_digest_is_that_of_the_file() -> None:
    content = (demo.CHECKPOINT / "tokenizer.json").read_bytes()
    assert vocabulary().digest == hashlib.sha256(content).hexdigest()


def test_byte_fallback_and_metaspace(tmp_path: Path) -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known, text = Vocabulary(tmp_path), "a b 🙂é  b"
    assert bytes_of(known, known.encode(text, add_special_tokens=False)) == text.encode()


def test_byte_level_tokens_outside_the_alphabet_stand_for_themselves(tmp_path: Path) -> None:
    """As in DeepSeek's vocabulary: the decoder leaves them unchanged."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "▁你": 1}, []))
    tokenizer.add_special_tokens([AddedToken("<｜end｜>", special=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known = Vocabulary(tmp_path)
    assert (
        bytes_of(known, [0, 1, 2]).decode() == "a▁你<｜end｜>" == tokenizer.decode([0, 1, 2], skip_special_tokens=False)
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"version": "1.0", "model": {"type": "None"}}', b"\xff"]
)
def test_a_malformed_file_is_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(Fatal, match=r"cannot read .*tokenizer\.json"):
        Vocabulary(tmp_path)


def test_a_truncated_file_is_fatal(tmp_path: Path) -> None:
    content = (demo.CHECKPOINT / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content[: len(content) // 2])
    with pytest.raises(Fatal, match="cannot read"):
        Vocabulary(tmp_path)


def test_a_missing_file_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="cannot read"):
        Vocabulary(tmp_path)


def test_a_file_without_a_decoder_is_usable(tmp_path: Path) -> None:
    shutil.copy(demo.CHECKPOINT / "tokenizer.json", tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"decoder": None}))
    assert Vocabulary(tmp_path).token_bytes(2) == b"<|im_end|>"


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path: Path) -> None:
    """As in transformers: they are settings of the tokenizer's training, not limits of prompts."""
    trained = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    trained.enable_truncation(8)
    trained.enable_padding(length=12)
    trained.save(str(tmp_path / "tokenizer.json"))
    for text in ("Hi", "one two three four five six seven eight nine ten eleven twelve thirteen"):
        assert Vocabulary(tmp_path).encode(text, add_special_tokens=False) == vocabulary().encode(
            text, add_special_tokens=False
        )


@cache
def vocabulary_with_specials() -> Vocabulary:
    """The demo's, whose texts begin with token 0 and end with token 1."""
    known = Vocabulary(demo.CHECKPOINT)
    first, last = known.tokenizer.id_to_token(0), known.tokenizer.id_to_token(1)
    known.tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, 0), (last, 1)]
    )
    return known


@pytest.mark.parametrize("longest", range(12))
@pytest.mark.parametrize("drop_end", [False, True])
def test_a_truncated_text_keeps_its_end_or_beginning(longest: int, drop_end: bool) -> None:
    text = "one two three four"
    ids = vocabulary().encode(text, add_special_tokens=False)
    kept = ids[:longest] if drop_end else ids[max(0, len(ids) - longest) :]
    found = vocabulary().encode_prompt(text, PromptLimits(longest, drop_end), add_special_tokens=False)
    assert found == kept


@pytest.mark.parametrize("longest", range(3, 12))
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_special_tokens_around_a_truncated_text_stay_as_in_transformers(longest: int, side: str) -> None:
    text = "one two three four"
    known = vocabulary_with_specials()
    reference = Tokenizer.from_str(known.tokenizer.to_str())
    reference.enable_truncation(longest, direction=side)
    found = known.encode_prompt(text, PromptLimits(longest, side == "right"), add_special_tokens=True)
    assert found == reference.encode(text).ids
    assert found[0] == 0 and found[-1] == 1


def test_special_tokens_alone_are_truncated_as_well() -> None:
    known = vocabulary_with_specials()
    assert known.encode_prompt("one two", PromptLimits(1), add_special_tokens=True) == [1]


def test_a_text_with_too_many_tokens_is_refused_unless_it_is_shortened() -> None:
    number = len(vocabulary().encode("one two three", add_special_tokens=False))
    with pytest.raises(TooManyTokensError) as caught:
        vocabulary().encode_prompt("one two three", PromptLimits(refused_from=number), add_special_tokens=False)
    assert caught.value.num_tokens == number
    for limits in (PromptLimits(refused_from=number + 1), PromptLimits(number, refused_from=1)):
        assert len(vocabulary().encode_prompt("one two three", limits, add_special_tokens=False)) == number


@pytest.mark.parametrize("special", [False, True])
def test_long_texts_have_the_ids_of_the_plain_method(special: bool) -> None:
    """They are encoded by another one, which releases the GIL."""
    known = vocabulary_with_specials()
    for text in ("hello world, " * 1000, "é🙂<|im_end|> \n" * 500, "x" * 5000):
        assert len(text) > SHORT_TEXT
        assert (
            known.encode(text, add_special_tokens=special)
            == known.tokenizer.encode(text, add_special_tokens=special).ids
        )
        found = known.encode_prompt(text, PromptLimits(10), add_special_tokens=special)
        assert len(found) == 10 and (found[0], found[-1]) == (0, 1) if special else found[-1] != 1


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    known, text = vocabulary(), "hello world, " * 150_000
    done, pauses = threading.Event(), []

    def watch() -> None:
        last = time.monotonic()
        while not done.wait(0.001):
            now = time.monotonic()
            pauses.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    encoding_of(known.tokenizer, text, False)
    taken = time.monotonic() - start
    done.set()
    watcher.join()
    assert len(pauses) > 5 and max(pauses) < taken / 2
