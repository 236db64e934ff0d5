"""Tokenize, Detokenize and Render."""

import json

import pytest

import demo
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer import text_tools
from services.tokenizer.find_template import find_template, special_tokens
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.text_tools import INLINE_IDS, TextTools
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parts import connected, ids_of, inline_rendering

VOCABULARY = Vocabulary(demo.CHECKPOINT)
CHAT = text_pb2.ChatInput(
    messages_json=json.dumps([{"role": "user", "content": "Hi"}]).encode(), add_generation_prompt=True
)


@pytest.fixture
async def tools() -> TextTools:
    guard = GuardedEncoding(VOCABULARY)
    template = find_template(demo.CHECKPOINT, None)
    rendering = inline_rendering(template, special_tokens(demo.CHECKPOINT), control_tokens=guard.control_tokens)
    return TextTools(VOCABULARY, PromptEncoder(VOCABULARY, rendering, connected()[0], guard))


async def test_text_is_encoded_and_decoded(tools: TextTools) -> None:
    request = text_pb2.TokenizeRequest(text=text_pb2.TextInput(text="Hi thère"), return_tokens=True)
    response = await tools.tokenize(request)
    assert list(response.token_ids) == ids_of("Hi thère")
    assert b"".join(response.tokens).decode() == "Hi thère"
    request.return_tokens = False
    assert not (await tools.tokenize(request)).tokens
    text = await tools.detokenize(text_pb2.DetokenizeRequest(token_ids=response.token_ids))
    assert text.text == "Hi thère"


async def test_a_chat_is_rendered_as_it_is_encoded(tools: TextTools) -> None:
    text = (await tools.render(text_pb2.RenderRequest(chat=CHAT))).text
    assert text.startswith("<|im_start|>user\nHi<|im_end|>")
    assert list((await tools.tokenize(text_pb2.TokenizeRequest(chat=CHAT))).token_ids) == ids_of(text)


async def test_control_tokens_in_a_chats_content_are_text(tools: TextTools) -> None:
    messages = json.dumps([{"role": "user", "content": "Hi<|im_end|>"}]).encode()
    chat = text_pb2.ChatInput(messages_json=messages)
    text = (await tools.render(text_pb2.RenderRequest(chat=chat))).text
    assert text == "<|im_start|>user\nHi<|im_end|><|im_end|>\n"
    ids = list((await tools.tokenize(text_pb2.TokenizeRequest(chat=chat))).token_ids)
    assert ids.count(2) == 1 and ids_of(text).count(2) == 2
    assert (await tools.detokenize(text_pb2.DetokenizeRequest(token_ids=ids))).text == text


async def test_special_tokens_are_skipped_if_asked(tools: TextTools) -> None:
    request = text_pb2.DetokenizeRequest(token_ids=[1, *ids_of("Hi")])
    assert (await tools.detokenize(request)).text == "<|im_start|>Hi"
    request.skip_special_tokens = True
    assert (await tools.detokenize(request)).text == "Hi"


async def test_many_ids_are_decoded_alike(tools: TextTools) -> None:
    ids = ids_of("Hello ") * INLINE_IDS
    assert (await tools.detokenize(text_pb2.DetokenizeRequest(token_ids=ids))).text == "Hello " * INLINE_IDS


@pytest.mark.parametrize(
    ("call", "request_", "param"),
    [
        ("tokenize", text_pb2.TokenizeRequest(), "prompt"),
        ("tokenize", text_pb2.TokenizeRequest(text=text_pb2.TextInput(text="word " * 1000)), "prompt"),
        ("tokenize", text_pb2.TokenizeRequest(chat=text_pb2.ChatInput(messages_json=b"{")), ""),
        ("render", text_pb2.RenderRequest(chat=text_pb2.ChatInput(messages_json=b"[3]")), ""),
        ("render", text_pb2.RenderRequest(), ""),
        ("detokenize", text_pb2.DetokenizeRequest(token_ids=[2**32 - 1]), "token_ids"),
    ],
)
async def test_what_cannot_be_read_is_refused(tools: TextTools, call: str, request_: object, param: str) -> None:
    with pytest.raises(TandemError) as refused:
        await getattr(tools, call)(request_)
    assert (refused.value.code, refused.value.param) == ("INVALID_ARGUMENT", param)


async def test_too_many_ids_are_refused(tools: TextTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tools, "MAX_IDS", 3)
    with pytest.raises(TandemError, match="4 ids, but at most 3"):
        await tools.detokenize(text_pb2.DetokenizeRequest(token_ids=[5] * 4))
