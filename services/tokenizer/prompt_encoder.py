"""Turns a submit's input (chat, text or token ids) into token ids: renders the chat template, encodes the text.

Long texts are encoded in a thread, so that the event loop goes on. Knows no streams.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeVar

from services.rpc.columns import unpack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, invalid, too_long
from services.rpc.generated import text_pb2
from services.tokenizer.chat_rendering import TooManyCharactersError
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.fill_in_middle import FillInMiddle
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.rendering_worker import TextLimits, cut_prompt
from services.tokenizer.text_length import CUT_WINDOW, UNBOUNDED_CHARACTERS, cut
from services.tokenizer.truncation import PromptLimits, TooManyTokensError, longest_prompt, truncated
from services.tokenizer.vocabulary import Vocabulary

MAX_MODEL_LEN = 2**32 - 1  # assumed until an engine has sent its own
INLINE_CHARACTERS = 2000  # longer texts are encoded in a thread
MAX_ENCODED = 2**20  # tokens of a text that need not fit into the context
MAX_ENCODED_CHARACTERS = 4 * MAX_ENCODED  # of such a text: a second of work
MAX_ANY_LENGTH_THREADS = 2
ResultT = TypeVar("ResultT")


class Rendering(Protocol):
    """What renders chats: services/tokenizer/chat_rendering.py."""

    async def render(self, chat: text_pb2.ChatInput, tools_json: bytes, limits: TextLimits) -> PromptText: ...


class Encode(Protocol):
    """Returns a prompt's token ids within limits. Raises TooManyTokensError."""

    def __call__(self, prompt: PromptText, limits: PromptLimits) -> list[int]: ...


class PromptEncoder:
    def __init__(
        self,
        vocabulary: Vocabulary,
        rendering: Rendering,
        engines: EngineClient,
        guard: GuardedEncoding | None = None,
    ) -> None:
        """`guard`: encodes the chats that `rendering` renders with its control tokens; None: it has none."""
        self._vocabulary = vocabulary
        self._guard = guard
        self._rendering = rendering
        self._engines = engines
        self._middle = FillInMiddle(vocabulary)
        self._threads: Executor | None = None  # asyncio's own

    def for_any_length(self) -> "PromptEncoder":
        """Returns an encoder of prompts that need not fit into the context: up to MAX_ENCODED - 1 tokens and
        MAX_ENCODED_CHARACTERS. It has its own threads, so that prompts of answers do not wait for it."""
        encoder = _AnyLengthEncoder(self._vocabulary, self._rendering, self._engines, self._guard)
        encoder._threads = ThreadPoolExecutor(MAX_ANY_LENGTH_THREADS, "any-length")
        return encoder

    async def in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Returns the result of `work` in one of the encoder's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        """Returns the prompt's token ids, shortened if the submit asks for it.

        Raises TandemError (INVALID_ARGUMENT) without input, when the chat template refuses it, and for max_model_len
        tokens or more. Malformed JSON or token ids raise a built-in error such as ValueError.
        """
        kind, limit = submit.WhichOneof("input"), self._max_model_len
        limits = PromptLimits(longest_prompt(submit, limit), submit.truncation.drop_end, refused_from=limit)
        if kind == "prompt_token_ids":
            token_ids = truncated(unpack_u32(submit.prompt_token_ids), limits.longest, drop_end=limits.drop_end)
        elif kind == "chat":
            prompt = await self._rendered(submit, limits)
            encode = functools.partial(self._chat_ids, add_special_tokens=submit.chat.add_special_tokens)
            token_ids = await self._encoded(prompt, encode, limits, "messages")
        elif kind == "text" and submit.text.suffix:
            token_ids = await self._around(submit.text, limits)
        elif kind == "text":
            encode = functools.partial(self._text_ids, add_special_tokens=submit.text.add_special_tokens)
            token_ids = await self._encoded(PromptText(submit.text.text), encode, limits, "prompt")
        else:
            raise invalid("the request has no input", "prompt")
        if len(token_ids) >= limit:
            raise too_long(len(token_ids), limit, param="messages" if kind == "chat" else "prompt")
        return token_ids

    async def _encoded(self, prompt: PromptText, encode: Encode, limits: PromptLimits, param: str) -> list[int]:
        """Returns the prompt's token ids. Raises TandemError if it is too long; `param` is the request's field with
        it."""
        longest = limits.longest
        if longest is None:
            self._check_length(len(prompt.text), param)
        else:
            # max_model_len tokens are refused anyway: more text is not needed for that.
            needed, whole = self._vocabulary.needed_characters(min(longest, self._max_model_len)), len(prompt.text)
            if needed is not None:
                prompt = cut_prompt(prompt, needed, drop_end=limits.drop_end)
            if len(prompt.text) == whole:
                self._check_characters(whole, param)
        try:
            if len(prompt.text) <= INLINE_CHARACTERS:
                return encode(prompt, limits)
            return await self.in_thread(functools.partial(encode, prompt, limits))
        except TooManyTokensError as error:
            raise too_long(error.num_tokens, limits.refused_from, param=param) from error

    async def _around(self, text: text_pb2.TextInput, limits: PromptLimits) -> list[int]:
        """Returns the token ids of a prompt for what is between a text and its suffix. Raises TandemError as `encode`,
        and for a model without tokens for that."""
        self._middle.check()
        prefix, suffix = text.text, text.suffix
        if limits.longest is None:
            self._check_length(len(prefix) + len(suffix), "prompt")
        else:
            prefix = self._part(prefix, limits.longest, "prompt", drop_end=False)
            suffix = self._part(suffix, limits.longest, "suffix", drop_end=True)
        arguments = (prefix, suffix, limits, text.add_special_tokens)
        try:
            if len(prefix) + len(suffix) <= INLINE_CHARACTERS:
                return self._middle.encode(*arguments)
            return await self.in_thread(functools.partial(self._middle.encode, *arguments))
        except TooManyTokensError as error:
            raise too_long(error.num_tokens, limits.refused_from) from error

    def _part(self, text: str, longest: int, param: str, *, drop_end: bool) -> str:
        """Returns what is needed of a text of which `longest` tokens are kept. Raises TandemError for too much text."""
        needed = self._vocabulary.needed_characters(min(longest, self._max_model_len))
        part = cut(text, needed, drop_end=drop_end) if needed is not None else text
        if len(part) == len(text):
            self._check_characters(len(text), param)
        return part

    def _text_ids(self, prompt: PromptText, limits: PromptLimits, *, add_special_tokens: bool) -> list[int]:
        return self._vocabulary.encode_prompt(prompt.text, limits, add_special_tokens=add_special_tokens)

    def _chat_ids(self, prompt: PromptText, limits: PromptLimits, *, add_special_tokens: bool) -> list[int]:
        encode = self._guard.encode if self._guard is not None else self._text_ids
        return encode(prompt, limits, add_special_tokens=add_special_tokens)

    async def _rendered(self, submit: text_pb2.TextSubmit, limits: PromptLimits) -> PromptText:
        """Returns the chat's prompt; where it is to be shortened, possibly a part of it that gives the same tokens.

        Raises TandemError as `_encoded`, without the text."""
        longest = limits.longest
        if longest is None:
            bounds = TextLimits(self._max_characters)
        else:
            kept = self._vocabulary.needed_characters(min(longest, self._max_model_len))
            bounds = TextLimits(max(self._most_characters, (kept or 0) + CUT_WINDOW), kept, limits.drop_end)
        try:
            return await self._rendering.render(submit.chat, submit.output.tools_json, bounds)
        except TooManyCharactersError as error:
            check = self._check_length if longest is None else self._check_characters
            check(error.num_characters, "messages")
            raise

    def _check_length(self, num_characters: int, param: str) -> None:
        """Raises TandemError for a text with max_model_len tokens for sure, and for too much text in any case."""
        max_bytes, limit = self._vocabulary.max_token_characters, self._max_model_len
        if max_bytes is not None and num_characters // max_bytes >= limit:
            raise too_long(num_characters // max_bytes, limit, at_least=True, param=param)
        self._check_characters(num_characters, param)

    def _check_characters(self, num_characters: int, param: str) -> None:
        limit = self._most_characters
        if num_characters > limit:
            raise invalid(
                f"the prompt is too long: it has {num_characters} characters, and the limit is {limit}:"
                f" {UNBOUNDED_CHARACTERS} for each of max_model_len tokens",
                param,
                CONTEXT_LENGTH_EXCEEDED,
            )

    @property
    def _max_characters(self) -> int:
        """The most characters of a text that is not to be shortened."""
        max_bytes, most = self._vocabulary.max_token_characters, self._most_characters
        return most if max_bytes is None else min(most, max_bytes * self._max_model_len - 1)

    @property
    def _most_characters(self) -> int:
        """The most characters of any text that is encoded whole."""
        return UNBOUNDED_CHARACTERS * self._max_model_len

    @property
    def _max_model_len(self) -> int:
        peer = self._engines.dispatcher.peer
        return peer.engine.max_model_len if peer is not None else MAX_MODEL_LEN

    async def render(self, chat: text_pb2.ChatInput, tools_json: bytes) -> str:
        """Returns the chat's text. Raises TandemError as the rendering does, and for too much text."""
        try:
            return (await self._rendering.render(chat, tools_json, TextLimits(self._most_characters))).text
        except TooManyCharactersError as error:
            self._check_characters(error.num_characters, "messages")
            raise


class _AnyLengthEncoder(PromptEncoder):
    @property
    def _max_model_len(self) -> int:
        return max(MAX_ENCODED, super()._max_model_len)

    @property
    def _most_characters(self) -> int:
        return MAX_ENCODED_CHARACTERS
