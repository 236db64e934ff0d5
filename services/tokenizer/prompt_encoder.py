"""Turns a submit's input (chat, text or token ids) into token ids: renders the chat template, encodes the text.

Long inputs and templates of requests are processed in a thread, so that the event loop goes on. Knows no streams.
"""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import Protocol

from services.rpc.columns import unpack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, invalid, too_long
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.own_thread import OwnThreads
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.text_length import UNBOUNDED_CHARACTERS
from services.tokenizer.truncation import longest_prompt, truncated
from services.tokenizer.vocabulary import Vocabulary

MAX_MODEL_LEN = 2**32 - 1  # assumed until an engine has sent its own
INLINE_CHARACTERS = 2000  # longer inputs are rendered and encoded in a thread


class Encode(Protocol):
    """Returns a prompt's token ids, at most `longest` of them; None: all."""

    def __call__(self, prompt: PromptText, longest: int | None, *, drop_end: bool) -> list[int]: ...


@contextlib.contextmanager
def refusing_unreadable() -> Iterator[None]:
    """Raises TandemError (INVALID_ARGUMENT) for the built-in errors that malformed JSON and columns raise."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise invalid(f"the request cannot be read: {error}") from error


class PromptEncoder:
    def __init__(
        self,
        vocabulary: Vocabulary,
        renderer: ChatRenderer,
        engines: EngineClient,
        guard: GuardedEncoding | None = None,
    ) -> None:
        """`guard`: encodes the chats that `renderer` renders with its control tokens; None: it has none."""
        self._vocabulary = vocabulary
        self._guard = guard
        self._renderer = renderer
        self._engines = engines
        self._own_threads = OwnThreads()

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        """Returns the prompt's token ids, shortened if the submit asks for it.

        Raises TandemError (INVALID_ARGUMENT) without input, when the chat template refuses it, and for max_model_len
        tokens or more. Malformed JSON or token ids raise a built-in error such as ValueError.
        """
        kind, limit = submit.WhichOneof("input"), self._max_model_len
        longest, drop_end = longest_prompt(submit, limit), submit.truncation.drop_end
        if kind == "prompt_token_ids":
            token_ids = truncated(unpack_u32(submit.prompt_token_ids), longest, drop_end=drop_end)
        elif kind == "chat":
            prompt = await self.render(submit.chat, submit.output.tools_json)
            encode = functools.partial(self._chat_ids, add_special_tokens=submit.chat.add_special_tokens)
            token_ids = await self._encoded(prompt, encode, longest, drop_end, "messages")
        elif kind == "text":
            encode = functools.partial(self._text_ids, add_special_tokens=submit.text.add_special_tokens)
            token_ids = await self._encoded(PromptText(submit.text.text), encode, longest, drop_end, "prompt")
        else:
            raise invalid("the request has no input", "prompt")
        if len(token_ids) >= limit:
            raise too_long(len(token_ids), limit, param="messages" if kind == "chat" else "prompt")
        return token_ids

    async def _encoded(
        self, prompt: PromptText, encode: Encode, longest: int | None, drop_end: bool, param: str
    ) -> list[int]:
        """Returns the prompt's token ids, at most `longest`. Raises TandemError if the text is too long to be encoded;
        `param` is the request's field with it."""
        if longest is None:
            self._check_length(prompt.text, param)
        else:
            # max_model_len tokens are refused anyway: more text is not needed for that.
            most, whole = min(longest, self._max_model_len), len(prompt.text)
            length = len(self._vocabulary.shortened(prompt.text, most, drop_end=drop_end))
            if length == whole:
                self._check_characters(prompt.text, param)
            else:
                prompt = prompt.part(0, length) if drop_end else prompt.part(whole - length, whole)
        ids = functools.partial(encode, prompt, longest, drop_end=drop_end)
        return ids() if len(prompt.text) <= INLINE_CHARACTERS else await asyncio.to_thread(ids)

    def _text_ids(
        self, prompt: PromptText, longest: int | None, *, drop_end: bool, add_special_tokens: bool
    ) -> list[int]:
        return self._vocabulary.encode_prompt(
            prompt.text, longest, drop_end=drop_end, add_special_tokens=add_special_tokens
        )

    def _chat_ids(
        self, prompt: PromptText, longest: int | None, *, drop_end: bool, add_special_tokens: bool
    ) -> list[int]:
        encode = self._guard.encode if self._guard is not None else self._text_ids
        return encode(prompt, longest, drop_end=drop_end, add_special_tokens=add_special_tokens)

    def _check_length(self, text: str, param: str) -> None:
        """Raises TandemError for a text with max_model_len tokens for sure, or where this is unknown, too much text."""
        max_bytes, limit = self._vocabulary.max_token_characters, self._max_model_len
        if max_bytes is None:
            self._check_characters(text, param)
        elif len(text) // max_bytes >= limit:
            raise too_long(len(text) // max_bytes, limit, at_least=True, param=param)

    def _check_characters(self, text: str, param: str) -> None:
        limit = UNBOUNDED_CHARACTERS * self._max_model_len
        if len(text) > limit:
            raise invalid(
                f"the prompt is too long: it has {len(text)} characters, and the limit is {limit}:"
                f" {UNBOUNDED_CHARACTERS} for each of max_model_len tokens",
                param,
                CONTEXT_LENGTH_EXCEEDED,
            )

    @property
    def _max_model_len(self) -> int:
        peer = self._engines.dispatcher.peer
        return peer.engine.max_model_len if peer is not None else MAX_MODEL_LEN

    async def render(self, chat: text_pb2.ChatInput, tools_json: bytes) -> PromptText:
        """Returns the chat's prompt. A request's own template never runs on the event loop: it may be short and
        endless. It cannot be stopped, and slows the process down: the operator trusts requests not to do this."""
        render = functools.partial(self._renderer.render, chat, tools_json)
        if chat.chat_template:
            return await self._own_threads.run(render)
        if chat.ByteSize() + len(tools_json) <= INLINE_CHARACTERS:
            return render()
        return await asyncio.to_thread(render)
