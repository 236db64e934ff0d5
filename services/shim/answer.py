"""From updates to OpenAI's JSON: chunks for a stream, or the fold of all of them for a whole answer.

One class per endpoint; both give the same text, logprobs, finish reasons and usage whether streamed or not.
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
class ChoiceFold:
    """Everything that one choice has brought so far."""

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
    """One HTTP request's answer. `fingerprint` names the numerics that made it."""

    prefix: str
    operation: str  # in OpenTelemetry's GenAI conventions
    object_name: str
    chunk_name: str

    def __init__(
        self, request_id: str, model: str, fingerprint: str, generation: Generation, with_token_ids: bool
    ) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        self._generation = generation
        self._with_token_ids = with_token_ids
        self._folds = [ChoiceFold() for _ in range(generation.num_choices)]
        self._num_open = generation.num_choices

    async def whole(self) -> Json:
        """Waits for all choices. Raises the TandemError of one that failed."""
        while any(fold.terminal is None for fold in self._folds):
            for update in await self._generation.take():
                self._folds[update.index].add(update)
                _raise_error(update.terminal)
        choices = []
        for index, fold in enumerate(self._folds):
            assert fold.terminal is not None
            choice = self._whole_choice(index, fold) | _finish(fold.terminal)
            if self._with_token_ids:
                choice["token_ids"] = unpack_u32(fold.token_ids)
            choices.append(choice)
        answer = {**self._head, "object": self.object_name, "choices": choices, "usage": self.usage()}
        if self._with_token_ids:
            self._add_prompt_ids(answer)
        return answer

    async def chunks(self) -> list[Json] | None:
        """The next chunks of a stream, each without its head; None when all choices have ended.

        Raises TandemError like whole().
        """
        if self._num_open == 0:
            return None
        made = []
        for update in await self._generation.take():
            _raise_error(update.terminal)
            fold = self._folds[update.index]
            wanted = update.content or update.logprobs or self._with_token_ids or update.terminal is not None
            if wanted:
                choice = self._delta(update.index, fold, update) | _finish(update.terminal)
                if self._with_token_ids:
                    choice["token_ids"] = unpack_u32(update.token_ids)
                made.append({"choices": [choice]})
            if update.terminal is not None:
                fold.terminal = update.terminal
                self._num_open -= 1
        return made

    def first_chunks(self) -> list[Json]:
        """What a stream begins with, each without its head."""
        made = self._opening()
        if self._with_token_ids and made:
            self._add_prompt_ids(made[0])
        return made

    def head(self) -> Json:
        """What all chunks of a stream have in common."""
        return {**self._head, "object": self.chunk_name}

    def usage(self) -> Json:
        """Once all choices have ended."""
        terminals = [fold.terminal for fold in self._folds if fold.terminal is not None]
        per_call = len(self._folds) // len(self._generation.calls)
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
    def _whole_choice(self, index: int, fold: ChoiceFold) -> Json: ...

    @abstractmethod
    def _delta(self, index: int, fold: ChoiceFold, update: Update) -> Json: ...

    @abstractmethod
    def _opening(self) -> list[Json]: ...

    @abstractmethod
    def _add_prompt_ids(self, target: Json) -> None: ...


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    operation = "chat"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _whole_choice(self, index: int, fold: ChoiceFold) -> Json:
        message = {"role": "assistant", "content": fold.content}
        return {"index": index, "message": message, "logprobs": _chat_logprobs(fold.logprobs)}

    def _delta(self, index: int, fold: ChoiceFold, update: Update) -> Json:
        delta = {"content": update.content} if update.content else {}
        return {"index": index, "delta": delta, "logprobs": _chat_logprobs(update.logprobs)}

    def _opening(self) -> list[Json]:
        role = {"role": "assistant", "content": ""}
        return [
            {"choices": [{"index": index, "delta": role, "logprobs": None, "finish_reason": None}]}
            for index in range(len(self._folds))
        ]

    def _add_prompt_ids(self, target: Json) -> None:
        target["prompt_token_ids"] = self._prompt_ids()[0]


class CompletionAnswer(Answer):
    prefix = "cmpl-"
    operation = "text_completion"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def _whole_choice(self, index: int, fold: ChoiceFold) -> Json:
        choice = {"index": index, "text": fold.content, "logprobs": _text_logprobs(fold.logprobs)}
        if self._with_token_ids:
            choice["prompt_token_ids"] = self._prompt_ids_of(index)
        return choice

    def _delta(self, index: int, fold: ChoiceFold, update: Update) -> Json:
        choice = {"index": index, "text": update.content, "logprobs": _text_logprobs(update.logprobs)}
        if self._with_token_ids and not fold.token_ids:
            choice["prompt_token_ids"] = self._prompt_ids_of(index)
        fold.token_ids += update.token_ids
        return choice

    def _opening(self) -> list[Json]:
        return []

    def _add_prompt_ids(self, target: Json) -> None:
        """Completions carry them per choice, for each prompt has its own."""

    def _prompt_ids_of(self, index: int) -> list[int]:
        return self._prompt_ids()[index * len(self._generation.calls) // len(self._folds)]


def _raise_error(terminal: text_pb2.TextTerminal | None) -> None:
    if terminal is not None and terminal.HasField("error"):
        raise TandemError.from_proto(terminal.error)


def _finish(terminal: text_pb2.TextTerminal | None) -> Json:
    if terminal is None:
        return {"finish_reason": None}
    kind = terminal.WhichOneof("stop_reason")
    stop_reason = getattr(terminal, kind) if kind is not None else None
    return {"finish_reason": NAME_BY_REASON[terminal.reason], "stop_reason": stop_reason}


def _chat_logprobs(logprobs: list[text_pb2.TokenLogprobs]) -> Json | None:
    if not logprobs:
        return None
    return {
        "content": [{**_token(entry.sampled), "top_logprobs": [_token(top) for top in entry.top]} for entry in logprobs]
    }


def _token(entry: text_pb2.TokenLogprob) -> Json:
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
