"""Where the tokens of an echoed prompt stand in its text."""

from typing import Any

import pytest

import demo
from services.rpc.columns import pack_f32, pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.tokenizer.prompt_logprobs import PromptLogprobTexts
from services.tokenizer.vocabulary import Vocabulary

VOCABULARY = Vocabulary(demo.CHECKPOINT)


def message(start: int, ids: list[int]) -> pb.PromptLogprobs:
    columns = {"token_ids": pack_u32(ids), "logprobs": pack_f32([0.0] * len(ids)), "ranks": pack_u32([1] * len(ids))}
    return pb.PromptLogprobs(start_index=start, width=1, **columns)


def offsets_of(vocabulary: Any, ids: list[int], lead: str, *cuts: int) -> list[int]:
    """Returns the offset of each token but the first; the messages begin at 1 and at `cuts`."""
    texts, found = PromptLogprobTexts(vocabulary, ids, lead), []
    for start, end in zip((1, *cuts), (*cuts, len(ids)), strict=True):
        found += unpack_u32(texts.of(message(start, ids[start:end]), 9).text_offsets)
    return found


@pytest.mark.parametrize("cuts", [(), (3,), (2, 5, 6)])
def test_offsets_are_those_of_the_text(cuts: tuple[int, ...]) -> None:
    text = "How far is it from Köln to 東京? 🙂 ok"
    ids = VOCABULARY.encode(text, add_special_tokens=False)
    found = offsets_of(VOCABULARY, ids, text, *cuts)
    for at, offset in enumerate(found, 1):
        before = b"".join(map(VOCABULARY.token_bytes, ids[:at]))
        complete = len(before.decode(errors="ignore"))
        assert offset == complete, "a part of a character counts with the token that completes it"


class Pieces:
    """A vocabulary of these tokens."""

    def __init__(self, *tokens: bytes) -> None:
        self._tokens = tokens

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]


def test_a_token_that_the_text_does_not_show_takes_no_room() -> None:
    known = Pieces(b"<s>", b" Hello", b" you", b"!")
    assert offsets_of(known, [0, 1, 2, 3], "Hello you!") == [0, 5, 9]
    assert offsets_of(known, [1, 2, 0, 3], "Hello you!") == [5, 9, 9]


def test_a_resume_in_the_middle_has_the_same_offsets() -> None:
    known = Pieces(b"a", b"bc", b"def")
    texts = PromptLogprobTexts(known, [0, 1, 2, 0], "abcdefa")  # type: ignore[arg-type]
    assert unpack_u32(texts.of(message(3, [0]), 9).text_offsets) == [6]
