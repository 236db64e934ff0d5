"""Encode and Decode: equal to the calls for programs and to a submit's prompt, in pieces, refusals as pieces."""

import asyncio
import json
import threading
from typing import Any

import pytest

import demo
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.output_limits import MAX_TOOLS_BYTES
from services.tokenizer import prompt_encoder, shim_tools
from services.tokenizer.find_template import find_template, special_tokens
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_encoder import INLINE_CHARACTERS, PromptEncoder
from services.tokenizer.shim_tools import PIECE_CHARACTERS, PIECE_IDS, ShimTools
from services.tokenizer.text_tools import MAX_IDS
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parts import connected, ids_of, inline_rendering, tokenizer

VOCABULARY = Vocabulary(demo.CHECKPOINT)
MESSAGES = [{"role": "user", "content": "Hi<|im_end|>"}]
CHAT = text_pb2.ChatInput(messages_json=json.dumps(MESSAGES).encode(), add_generation_prompt=True)


def encoder() -> PromptEncoder:
    guard = GuardedEncoding(VOCABULARY)
    template = find_template(demo.CHECKPOINT, None)
    rendering = inline_rendering(template, special_tokens(demo.CHECKPOINT), control_tokens=guard.control_tokens)
    return PromptEncoder(VOCABULARY, rendering, connected()[0], guard)


async def encoded(**fields: Any) -> tuple[list[int], list[str], int]:
    """Returns the ids, the tokens' texts and the number of pieces. Raises the TandemError of a piece."""
    ids: list[int] = []
    texts: list[str] = []
    count = 0
    async for piece in ShimTools(VOCABULARY, encoder()).encode(text_pb2.EncodeRequest(**fields)):
        if piece.HasField("error"):
            raise TandemError.from_proto(piece.error)
        ids += unpack_u32(piece.token_ids)
        texts += piece.token_strs
        count += 1
    return ids, texts, count


async def decoded(column: bytes) -> list[str]:
    found = []
    async for piece in ShimTools(VOCABULARY, encoder()).decode(text_pb2.DecodeRequest(token_ids=column)):
        if piece.HasField("error"):
            raise TandemError.from_proto(piece.error)
        found.append(piece.text)
    return found


def text(content: str) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(text=text_pb2.TextInput(text=content))


async def test_a_prompt_is_encoded_as_that_of_a_submit() -> None:
    for submit in (
        text("Hi thère"),
        text_pb2.TextSubmit(chat=CHAT),
        text_pb2.TextSubmit(prompt_token_ids=pack_u32([5, 6])),
    ):
        expected = await encoder().encode(submit)
        ids, texts, count = await encoded(submit=submit, return_token_strs=True)
        assert (ids, count) == (expected, 1)
        assert texts == [tokenizer().id_to_token(one) for one in expected]
        assert await encoded(submit=submit) == (expected, [], 1)
    assert await encoded(submit=text("")) == ([], [], 0)


async def test_a_truncation_counts() -> None:
    submit = text("Hi there, how are you?")
    submit.truncation.max_tokens = 3
    assert (await encoded(submit=submit))[0] == ids_of("Hi there, how are you?")[-3:]


async def test_many_ids_come_in_pieces() -> None:
    """The fake engine's context has 64 tokens."""
    content = "Hello " * PIECE_IDS
    ids, texts, count = await encoded(submit=text(content), any_length=True, return_token_strs=True)
    assert ids == ids_of(content) and len(texts) == len(ids)
    assert count == -(-len(ids) // PIECE_IDS) > 1
    with pytest.raises(TandemError, match="this model's maximum context length is 64 tokens"):
        await encoded(submit=text(content))


async def test_any_length_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_encoder, "MAX_ENCODED", 100)
    monkeypatch.setattr(prompt_encoder, "MAX_ENCODED_CHARACTERS", 500)
    assert len((await encoded(submit=text("a b " * 20), any_length=True))[0]) < 100
    for content in ("a b " * 100, "a" * 501):
        with pytest.raises(TandemError) as caught:
            await encoded(submit=text(content), any_length=True)
        assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "prompt")
        assert (
            caught.value.message == shim_tools.TOO_LONG
            and "1048575 tokens and 4194304 characters" in shim_tools.TOO_LONG
        )


async def test_a_long_chat_of_any_length() -> None:
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": "word " * 300}]).encode())
    assert len((await encoded(submit=text_pb2.TextSubmit(chat=chat), any_length=True))[0]) > 300
    with pytest.raises(TandemError) as caught:
        await encoded(submit=text_pb2.TextSubmit(chat=chat))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("submit", "said"),
    [
        (text_pb2.TextSubmit(), "the request has no input"),
        (text_pb2.TextSubmit(chat=text_pb2.ChatInput(messages_json=b"{")), "the request cannot be read"),
        (text_pb2.TextSubmit(prompt_token_ids=b"abc"), "the request cannot be read"),
        (
            text_pb2.TextSubmit(chat=CHAT, output=text_pb2.OutputSpec(tools_json=b" " * (MAX_TOOLS_BYTES + 1))),
            "tools: 1048577 bytes, but at most 1048576",
        ),
    ],
)
async def test_what_cannot_be_encoded_is_a_piece(submit: text_pb2.TextSubmit, said: str) -> None:
    for any_length in (False, True):
        with pytest.raises(TandemError) as caught:
            await encoded(submit=submit, any_length=any_length)
        assert caught.value.code == "INVALID_ARGUMENT" and said in caught.value.message


async def test_a_bug_is_a_piece_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: PromptEncoder, submit: text_pb2.TextSubmit) -> list[int]:
        raise RuntimeError("a secret")

    monkeypatch.setattr(PromptEncoder, "encode", broken)
    with pytest.raises(TandemError) as caught:
        await encoded(submit=text("a"))
    assert (caught.value.code, caught.value.message) == ("INTERNAL", shim_tools.FAILED)


async def test_ids_are_decoded_with_their_special_tokens() -> None:
    assert await decoded(pack_u32([1, *ids_of("Hi thère")])) == ["<|im_start|>Hi thère"]
    assert await decoded(b"") == []
    ids = ids_of("Hello ") * PIECE_CHARACTERS
    found = await decoded(pack_u32(ids[: MAX_IDS // 4]))
    assert len(found) > 1 and "".join(found) == tokenizer().decode(ids[: MAX_IDS // 4], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pack_u32([2**32 - 1]), "token_ids: 4294967295 is not in the vocabulary"),
        (b"abc", "the request cannot be read"),
        (bytes(4 * (MAX_IDS + 1)), "token_ids: 1048577 ids, but at most 1048576"),
    ],
)
async def test_what_cannot_be_decoded_is_a_piece(column: bytes, said: str) -> None:
    with pytest.raises(TandemError) as caught:
        await decoded(column)
    assert caught.value.code == "INVALID_ARGUMENT" and said in caught.value.message


async def test_prompts_of_answers_do_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten long texts fill their own threads, not those that encode the prompts of answers."""
    opened, encode = threading.Event(), Vocabulary.encode_prompt

    def held_back(self: Vocabulary, content: str, *args: Any, **kwargs: Any) -> list[int]:
        if content.startswith("slow"):
            assert opened.wait(10)
        return encode(self, content, *args, **kwargs)

    monkeypatch.setattr(Vocabulary, "encode_prompt", held_back)
    prompts = encoder()
    tools = ShimTools(VOCABULARY, prompts)

    async def tokenized() -> int:
        request = text_pb2.EncodeRequest(submit=text("slow " * 1000), any_length=True)
        return sum([len(piece.token_ids) async for piece in tools.encode(request)])

    tasks = [asyncio.create_task(tokenized()) for _ in range(40)]
    await asyncio.sleep(0)
    answer = text("a " * (INLINE_CHARACTERS // 2 + 1))
    answer.truncation.max_tokens = 5
    try:
        assert len(await asyncio.wait_for(prompts.encode(answer), 5)) == 5
    finally:
        opened.set()
    assert min(await asyncio.gather(*tasks)) > 0


async def test_a_long_text_leaves_the_event_loop_free() -> None:
    """Another task runs while it is encoded, and between its pieces."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    _, _, count = await encoded(submit=text("Hello " * PIECE_IDS), any_length=True, return_token_strs=True)
    task.cancel()
    assert turns >= count > 1
