"""Turns updates into OpenAI's JSON: the chunks of a stream, or one full response.

ChatAnswer is for chat completions, CompletionAnswer for completions. Streamed or not, text, logprobs, finish reasons
and usage are the same.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import text_pb2
from services.shim.generation import Generation
from services.shim.updates import Update

Json = dict[str, Any]


@dataclass
class AccumulatedChoice:
    """The updates of one choice, merged by `add`. A stream sets only `terminal`, in completions also `token_ids`."""

    content: str = ""
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: list[text_pb2.TokenLogprobs] = field(default_factory=list)
    terminal: text_pb2.TextTerminal | None = None

    def add(self, update: Update) -> None:
        self.content += update.content
        self.token_ids += update.token_ids
        self.logprobs.extend(update.logprobs)
        self.terminal = update.terminal


class Answer(ABC):
    """The response to one HTTP request.

    Either `full_response` is called, or, for a stream, `first_chunks` and then `next_chunks` until it returns None.

    `fingerprint` is the response's system_fingerprint: the engine's numerics_id. `with_token_ids` adds the token ids of
    prompts and choices (vLLM's return_token_ids).
    """

    prefix: str
    operation: str  # gen_ai.operation.name of OpenTelemetry
    object_name: str
    chunk_name: str

    def __init__(
        self, request_id: str, model: str, fingerprint: str, generation: Generation, with_token_ids: bool
    ) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        self._generation = generation
        self._with_token_ids = with_token_ids
        self._choices = [AccumulatedChoice() for _ in range(generation.num_choices)]
        self._num_open = generation.num_choices

    async def full_response(self) -> Json:
        """Waits for the end of all choices and returns the response as JSON.

        As soon as a choice fails, raises its TandemError.
        """
        while any(choice.terminal is None for choice in self._choices):
            for update in await self._generation.take():
                self._choices[update.index].add(update)
                _raise_if_failed(update.terminal)
        choices = []
        for index, accumulated in enumerate(self._choices):
            assert accumulated.terminal is not None
            choice = self._full_choice(index, accumulated) | _finish_fields(accumulated.terminal)
            if self._with_token_ids:
                choice["token_ids"] = unpack_u32(accumulated.token_ids)
            choices.append(choice)
        answer = {**self._head, "object": self.object_name, "choices": choices, "usage": self.usage()}
        if self._with_token_ids:
            self._add_prompt_ids(answer)
        return answer

    async def next_chunks(self) -> list[Json] | None:
        """Waits for updates and returns their chunks, possibly none, without the fields of head().

        Returns None once the chunks of all choices have been returned. Raises the TandemError of a failed choice.
        """
        if self._num_open == 0:
            return None
        chunks = []
        for update in await self._generation.take():
            _raise_if_failed(update.terminal)
            accumulated = self._choices[update.index]
            has_content = update.content or update.logprobs or self._with_token_ids or update.terminal is not None
            if has_content:
                choice = self._delta(update.index, accumulated, update) | _finish_fields(update.terminal)
                if self._with_token_ids:
                    choice["token_ids"] = unpack_u32(update.token_ids)
                chunks.append({"choices": [choice]})
            if update.terminal is not None:
                accumulated.terminal = update.terminal
                self._num_open -= 1
        return chunks

    def first_chunks(self) -> list[Json]:
        """Returns the chunks that open a stream, without the fields of head(): one per choice in chat, else none.

        With token ids, the first one has the prompt's.
        """
        chunks = self._role_chunks()
        if self._with_token_ids and chunks:
            self._add_prompt_ids(chunks[0])
        return chunks

    def head(self) -> Json:
        """Returns the fields that all chunks of a stream share."""
        return {**self._head, "object": self.chunk_name}

    def usage(self) -> Json:
        """Returns OpenAI's `usage`. All choices must have ended.

        Output tokens are those of all choices. Prompt and cached tokens are those of each prompt's first choice.
        """
        terminals = [choice.terminal for choice in self._choices if choice.terminal is not None]
        per_call = len(self._choices) // len(self._generation.calls)  # the choices of a call share one prompt
        prompt = sum(terminal.prompt_tokens for terminal in terminals[::per_call])
        cached = sum(terminal.cached_tokens for terminal in terminals[::per_call])
        output = sum(terminal.output_tokens for terminal in terminals)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _prompt_ids(self) -> list[list[int]]:
        return [unpack_u32(call.prompt_token_ids) for call in self._generation.calls]

    @abstractmethod
    def _full_choice(self, index: int, accumulated: AccumulatedChoice) -> Json: ...

    @abstractmethod
    def _delta(self, index: int, accumulated: AccumulatedChoice, update: Update) -> Json: ...

    @abstractmethod
    def _role_chunks(self) -> list[Json]: ...

    @abstractmethod
    def _add_prompt_ids(self, target: Json) -> None: ...


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    operation = "chat"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _full_choice(self, index: int, accumulated: AccumulatedChoice) -> Json:
        message = {"role": "assistant", "content": accumulated.content}
        return {"index": index, "message": message, "logprobs": _chat_logprobs(accumulated.logprobs)}

    def _delta(self, index: int, accumulated: AccumulatedChoice, update: Update) -> Json:
        delta = {"content": update.content} if update.content else {}
        return {"index": index, "delta": delta, "logprobs": _chat_logprobs(update.logprobs)}

    def _role_chunks(self) -> list[Json]:
        role = {"role": "assistant", "content": ""}
        return [
            {"choices": [{"index": index, "delta": role, "logprobs": None, "finish_reason": None}]}
            for index in range(len(self._choices))
        ]

    def _add_prompt_ids(self, target: Json) -> None:
        target["prompt_token_ids"] = self._prompt_ids()[0]


class CompletionAnswer(Answer):
    prefix = "cmpl-"
    operation = "text_completion"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def _full_choice(self, index: int, accumulated: AccumulatedChoice) -> Json:
        choice = {"index": index, "text": accumulated.content, "logprobs": _text_logprobs(accumulated.logprobs)}
        if self._with_token_ids:
            choice["prompt_token_ids"] = self._prompt_ids_of(index)
        return choice

    def _delta(self, index: int, accumulated: AccumulatedChoice, update: Update) -> Json:
        choice = {"index": index, "text": update.content, "logprobs": _text_logprobs(update.logprobs)}
        if self._with_token_ids and not accumulated.token_ids:
            choice["prompt_token_ids"] = self._prompt_ids_of(index)
        accumulated.token_ids += update.token_ids
        return choice

    def _role_chunks(self) -> list[Json]:
        return []

    def _add_prompt_ids(self, target: Json) -> None:
        """Adds nothing: each choice has the ids of its own prompt."""

    def _prompt_ids_of(self, index: int) -> list[int]:
        return self._prompt_ids()[index * len(self._generation.calls) // len(self._choices)]


def _raise_if_failed(terminal: text_pb2.TextTerminal | None) -> None:
    if terminal is not None and terminal.HasField("error"):
        raise TandemError.from_proto(terminal.error)


def _finish_fields(terminal: text_pb2.TextTerminal | None) -> Json:
    if terminal is None:
        return {"finish_reason": None}
    kind = terminal.WhichOneof("stop_reason")
    stop_reason = getattr(terminal, kind) if kind is not None else None
    return {"finish_reason": NAME_BY_REASON[terminal.reason], "stop_reason": stop_reason}


def _chat_logprobs(logprobs: list[text_pb2.TokenLogprobs]) -> Json | None:
    if not logprobs:
        return None
    content = []
    for entry in logprobs:
        content.append({**_token_json(entry.sampled), "top_logprobs": [_token_json(top) for top in entry.top]})
    return {"content": content}


def _token_json(entry: text_pb2.TokenLogprob) -> Json:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.token_bytes)}


def _text_logprobs(logprobs: list[text_pb2.TokenLogprobs]) -> Json | None:
    if not logprobs:
        return None
    return {
        "tokens": [entry.sampled.token for entry in logprobs],
        "token_logprobs": [entry.sampled.logprob for entry in logprobs],
        "top_logprobs": [{one.token: one.logprob for one in (*entry.top, entry.sampled)} for entry in logprobs],
        "text_offset": [entry.text_offset for entry in logprobs],
    }
