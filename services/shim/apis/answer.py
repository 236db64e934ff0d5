"""Turns updates into the JSON of an API: the chunks of a stream, or one full response.

Each API has a subclass. Streamed or not, text, logprobs, finish reasons and usage are the same.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import TypedDict

from services.rpc.columns import ITEM_BYTES, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import TOOL_CALL, Piece, add_pieces
from services.shim.generation import Generation
from services.shim.updates import Update

Json = dict[str, Any]


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails | None


class EffectiveParameters(TypedDict):
    """The sampling parameters of a choice, with the model's defaults filled in."""

    seed: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float


class ChoiceFields(TypedDict, total=False):
    """The fields of a choice that all APIs share."""

    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    effective_parameters: EffectiveParameters


@dataclass(frozen=True)
class AnswerOptions:
    """What a response has beside the text, by the request's fields and the server's options."""

    token_ids: bool = False  # of prompts and choices
    tokens_as_token_ids: bool = False  # in logprobs
    effective_parameters: bool = False
    continuous_usage: bool = False  # every chunk has the counts so far
    prompt_tokens_details: bool = True
    response_role: str = "assistant"
    show_reasoning: bool = True  # if the API separates it from the content
    older_function_call: bool = False  # a tool call is written as `function_call`
    named_call: bool = False  # the request names the function of the answer's call


@dataclass
class AccumulatedChoice:
    """The updates of one choice, merged by `add`. A stream sets only `terminal`, `has_call` and, if needed,
    `num_tokens`."""

    pieces: list[Piece] = field(default_factory=list)
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: list[text_pb2.TokenLogprobs] = field(default_factory=list)
    num_tokens: int = 0
    has_call: bool = False  # a tool call, whole or cut; the subclass sets it in a stream
    terminal: text_pb2.TextTerminal | None = None

    def add(self, update: Update) -> None:
        add_pieces(self.pieces, update.pieces)
        self.token_ids += update.token_ids
        self.logprobs.extend(update.logprobs)
        self.terminal = update.terminal


class Answer(ABC):
    """The response to one HTTP request.

    Either `full_response` is called, or, for a stream, `first_chunks` and then `next_chunks` until it returns None.

    `fingerprint` is the response's system_fingerprint: the engine's numerics_id.
    """

    object_name: str
    chunk_name: str

    def __init__(
        self, request_id: str, model: str, fingerprint: str, generation: Generation, options: AnswerOptions
    ) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        self._generation = generation
        self._options = options
        self._counts_tokens = options.token_ids or options.continuous_usage  # of each choice, in a stream
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
            accumulated.has_call = any(kind == TOOL_CALL for kind, _ in accumulated.pieces)
            token_ids = unpack_u32(accumulated.token_ids) if self._options.token_ids else None
            choice = self._full_choice(index, accumulated) | self._finish_fields(accumulated, accumulated.terminal)
            choices.append({**choice, "token_ids": token_ids, **self._effective_parameters(index)})
        return {
            **self._head,
            "object": self.object_name,
            "choices": choices,
            "usage": self.usage(),
            **self._full_fields(),
        }

    async def next_chunks(self) -> list[Json] | None:
        """Waits for updates and returns their chunks, possibly none, without the fields of head().

        Returns None once the chunks of all choices have been returned. Raises the TandemError of a failed choice.
        """
        if self._num_open == 0:
            return None
        chunks: list[Json] = []
        for update in await self._generation.take():
            _raise_if_failed(update.terminal)
            chunks += self._chunks_of(update)
            if update.terminal is not None:
                self._choices[update.index].terminal = update.terminal
                self._num_open -= 1
        return chunks

    def _chunks_of(self, update: Update) -> list[Json]:
        """Returns one chunk per piece, at least one if there is anything to tell. Runs for every token.

        The first one has logprobs and token ids, the last one what a finished choice has. A choice with a tool call
        ends with a chunk without text: clients take a call for whole when a later chunk comes.
        """
        accumulated = self._choices[update.index]
        choices = [delta for piece in update.pieces if (delta := self._delta(update.index, piece)) is not None]
        ends = update.terminal is not None
        if (ends and accumulated.has_call) or (not choices and (ends or update.logprobs or self._options.token_ids)):
            choices.append(self._empty_delta(update.index))
        if update.logprobs:
            choices[0]["logprobs"] = self._logprobs(update.logprobs)
        if update.terminal is not None:
            choices[-1] |= self._finish_fields(accumulated, update.terminal)
            choices[-1] |= self._effective_parameters(update.index)
        chunks: list[Json] = [{"choices": [choice]} for choice in choices]
        if self._counts_tokens:
            self._add_counted(update, chunks)
        return chunks

    def _add_counted(self, update: Update, chunks: list[Json]) -> None:
        """Adds token ids and the counts so far to the chunks of an update, as far as the request asks for them."""
        accumulated = self._choices[update.index]
        if self._options.token_ids:
            first = chunks[0]["choices"][0]
            first |= self._first_ids(update.index) if accumulated.num_tokens == 0 else {}
            first["token_ids"] = unpack_u32(update.token_ids)
        accumulated.num_tokens += len(update.token_ids) // ITEM_BYTES
        if self._options.continuous_usage:
            usage = self._usage_so_far(update.index)
            for chunk in chunks:
                chunk["usage"] = usage

    @abstractmethod
    def first_chunks(self) -> list[Json]:
        """Returns the chunks that open a stream, without the fields of head()."""

    @property
    def counts_in_chunks(self) -> bool:
        """Whether every chunk has `usage`."""
        return self._options.continuous_usage

    def head(self) -> Json:
        """Returns the fields that all chunks of a stream share."""
        return {**self._head, "object": self.chunk_name}

    def usage(self) -> Usage:
        """Returns OpenAI's `usage`. All choices must have ended.

        Output tokens are those of all choices. Prompt and cached tokens are those of each prompt's first choice.
        """
        terminals = [choice.terminal for choice in self._choices if choice.terminal is not None]
        per_call = len(self._choices) // len(self._generation.calls)  # the choices of a call share one prompt
        prompt = sum(terminal.prompt_tokens for terminal in terminals[::per_call])
        cached = sum(terminal.cached_tokens for terminal in terminals[::per_call])
        usage = self._usage(prompt, sum(terminal.output_tokens for terminal in terminals))
        if self._options.prompt_tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        usage["completion_tokens_details"] = self._output_details(terminals)
        return usage

    def _usage_so_far(self, index: int) -> Usage:
        """Returns the counts of one choice, as in vLLM's continuous usage. The details are known at the end only."""
        return self._usage(self._call_of(index).num_prompt_tokens, self._choices[index].num_tokens)

    @staticmethod
    def _usage(prompt: int, output: int) -> Usage:
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }

    def _output_details(self, terminals: Sequence[text_pb2.TextTerminal]) -> CompletionTokensDetails | None:
        """Returns the details of the output tokens of all choices; None if the API has none."""
        return None

    def _finish_fields(self, accumulated: AccumulatedChoice, terminal: text_pb2.TextTerminal) -> Json:
        kind = terminal.WhichOneof("stop_reason")
        stop_reason = getattr(terminal, kind) if kind is not None else None
        return {"finish_reason": self._finish_reason(accumulated, terminal), "stop_reason": stop_reason}

    def _finish_reason(self, accumulated: AccumulatedChoice, terminal: text_pb2.TextTerminal) -> str:
        return NAME_BY_REASON[terminal.reason]

    def _call_of(self, index: int) -> Any:
        """Returns the TextCall of a choice: calls have equal numbers of choices, in their order."""
        return self._generation.calls[index * len(self._generation.calls) // len(self._choices)]

    def _prompt_ids_of(self, index: int) -> list[int]:
        return unpack_u32(self._call_of(index).prompt_token_ids)

    def _effective_parameters(self, index: int) -> Json:
        call = self._call_of(index)
        if not self._options.effective_parameters or call.sampling is None:
            return {}
        return {"effective_parameters": _effective(call.sampling, call.seed)}

    @abstractmethod
    def _full_choice(self, index: int, accumulated: AccumulatedChoice) -> Json:
        """Returns a choice of the full response, without the fields of ChoiceFields."""

    @abstractmethod
    def _full_fields(self) -> Json:
        """Returns the API's further fields of the full response."""

    @abstractmethod
    def _delta(self, index: int, piece: Piece) -> Json | None:
        """Returns a choice of a chunk, with finish_reason and logprobs None; None if the piece does not show.

        Called once for every piece of a stream, in order.
        """

    @abstractmethod
    def _empty_delta(self, index: int) -> Json:
        """Returns a choice of a chunk without text, with finish_reason and logprobs None."""

    @abstractmethod
    def _logprobs(self, logprobs: Sequence[text_pb2.TokenLogprobs]) -> Any:
        """Returns the logprobs of consecutive tokens of a choice; None if there are none."""

    @abstractmethod
    def _first_ids(self, index: int) -> Json:
        """Returns the field with the prompt's ids for the first chunk with tokens of a choice; may be empty."""

    def _token_text(self, entry: text_pb2.TokenLogprob) -> str:
        return f"token_id:{entry.token_id}" if self._options.tokens_as_token_ids else entry.token


LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON lacks; OpenAI's value


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def _raise_if_failed(terminal: text_pb2.TextTerminal | None) -> None:
    if terminal is not None and terminal.HasField("error"):
        raise TandemError.from_proto(terminal.error)


def _effective(sampling: pb.SamplingParams, seed: int) -> EffectiveParameters:
    return {
        "seed": seed if seed < 2**63 else seed - 2**64,  # as the API takes it
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": as_written(sampling.temperature),
        "top_p": as_written(sampling.top_p),
        "top_k": sampling.top_k,
        "min_p": as_written(sampling.min_p),
        "presence_penalty": as_written(sampling.presence_penalty),
        "frequency_penalty": as_written(sampling.frequency_penalty),
        "repetition_penalty": as_written(sampling.repetition_penalty),
    }


def as_written(value: float) -> float:
    """Returns a float32 as a short decimal: 0.7 instead of 0.699999988079071."""
    return float(f"{value:.7g}")
