"""A submit's input becomes token ids: chat, text or ids; inputs that are too long or not valid are refused."""

import json
from typing import Any

import pytest

import demo
from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.hello import make_hello
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.prompt_encoder import INLINE_CHARACTERS, PromptEncoder
from services.tokenizer.render import ChatTemplate
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parts import connected, ids_of

VOCABULARY = Vocabulary(demo.CHECKPOINT)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ name }}{% if add_generation_prompt %}:{% endif %}"


def encoder(max_model_len: int = 64, vocabulary: Vocabulary = VOCABULARY) -> PromptEncoder:
    engines, link = connected()
    link.peer.engine.max_model_len = max_model_len
    return PromptEncoder(vocabulary, ChatTemplate(TEMPLATE, {}), engines)


def text(content: str, **fields: Any) -> text_pb2.TextSubmit:
    return text_pb2.TextSubmit(text=text_pb2.TextInput(text=content, **fields))


async def test_token_ids_are_taken_as_they_are() -> None:
    assert await encoder().encode(text_pb2.TextSubmit(prompt_token_ids=pack_u32([7, 8]))) == [7, 8]


async def test_text_is_encoded() -> None:
    assert await encoder().encode(text("one two")) == ids_of("one two")


async def test_a_chat_is_rendered_and_encoded() -> None:
    chat = text_pb2.ChatInput(
        messages_json=json.dumps([{"role": "user", "content": "one"}]),
        template_kwargs_json=json.dumps({"name": " two"}),
        add_generation_prompt=True,
    )
    assert await encoder().encode(text_pb2.TextSubmit(chat=chat)) == ids_of("one two:")


async def test_a_long_input_gives_the_same_ids_from_its_thread() -> None:
    content = "word " * INLINE_CHARACTERS
    chat = text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": content}]))
    long = encoder(10**6)
    assert await long.encode(text(content)) == ids_of(content)
    assert await long.encode(text_pb2.TextSubmit(chat=chat)) == ids_of(content)


async def test_the_prompt_must_leave_room_for_one_token() -> None:
    ids = pack_u32([7] * 63)
    assert len(await encoder(64).encode(text_pb2.TextSubmit(prompt_token_ids=ids))) == 63
    with pytest.raises(TandemError, match="the prompt has 63 tokens, but this model's maximum context length is 63"):
        await encoder(63).encode(text_pb2.TextSubmit(prompt_token_ids=ids))


async def test_a_text_that_is_too_long_for_any_tokens_is_refused_without_encoding_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocabulary = Vocabulary(demo.CHECKPOINT)
    assert vocabulary.max_token_bytes is not None
    monkeypatch.setattr(vocabulary, "encode", lambda *args, **kwargs: pytest.fail("it was encoded"))
    with pytest.raises(TandemError, match="the prompt has at least 64 tokens") as caught:
        await encoder(64, vocabulary).encode(text("x" * 64 * vocabulary.max_token_bytes))
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "prompt")


async def test_without_an_engine_any_length_is_encoded() -> None:
    alone = PromptEncoder(VOCABULARY, ChatTemplate(TEMPLATE, {}), EngineClient((), make_hello("tokenizer")))
    assert len(await alone.encode(text_pb2.TextSubmit(prompt_token_ids=pack_u32([7] * 1000)))) == 1000


async def test_a_submit_without_input_is_refused() -> None:
    with pytest.raises(TandemError, match="the request has no input"):
        await encoder().encode(text_pb2.TextSubmit())
