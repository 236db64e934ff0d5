"""Turns a submit's input (chat, text or token ids) into token ids: renders the chat template, encodes the text.

Long inputs are processed in a thread, so that the event loop goes on. Knows no streams.
"""

import asyncio
import json

from services.rpc.columns import unpack_u32
from services.rpc.errors import invalid, too_long
from services.rpc.generated import text_pb2
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.render import ChatTemplate
from services.tokenizer.vocabulary import Vocabulary

MAX_MODEL_LEN = 2**32 - 1  # assumed until an engine has sent its own
INLINE_CHARACTERS = 2000  # longer inputs are rendered and encoded in a thread


class PromptEncoder:
    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate, engines: EngineClient) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._engines = engines

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        """Returns the prompt's token ids.

        Raises TandemError (INVALID_ARGUMENT) without input, when the chat template refuses it, and for max_model_len
        tokens or more. Malformed JSON or token ids raise a built-in error such as ValueError.
        """
        token_ids = await self._encode(submit)
        if len(token_ids) >= self._max_model_len:
            raise too_long(len(token_ids), self._max_model_len)
        return token_ids

    async def _encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        kind = submit.WhichOneof("input")
        if kind == "prompt_token_ids":
            return unpack_u32(submit.prompt_token_ids)
        if kind == "chat":
            text, special = await self._rendered(submit.chat), False
        elif kind == "text":
            text, special = submit.text.text, submit.text.add_special_tokens
        else:
            raise invalid("the request has no input", "prompt")
        longest, limit = self._vocabulary.max_token_bytes, self._max_model_len
        if longest is not None and len(text) // longest >= limit:
            raise too_long(len(text) // longest, limit, at_least=True)
        if len(text) <= INLINE_CHARACTERS:
            return self._vocabulary.encode(text, add_special_tokens=special)
        return await asyncio.to_thread(self._vocabulary.encode, text, add_special_tokens=special)

    @property
    def _max_model_len(self) -> int:
        peer = self._engines.dispatcher.peer
        return peer.engine.max_model_len if peer is not None else MAX_MODEL_LEN

    async def _rendered(self, chat: text_pb2.ChatInput) -> str:
        size = len(chat.messages_json) + len(chat.tools_json) + len(chat.template_kwargs_json)
        return self._render(chat) if size <= INLINE_CHARACTERS else await asyncio.to_thread(self._render, chat)

    def _render(self, chat: text_pb2.ChatInput) -> str:
        return self._template.render(
            json.loads(chat.messages_json),
            json.loads(chat.tools_json) if chat.tools_json else None,
            json.loads(chat.template_kwargs_json) if chat.template_kwargs_json else {},
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )
