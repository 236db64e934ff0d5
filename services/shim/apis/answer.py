"""Turns updates into the JSON of an API: the chunks of a stream, or one full response. No step takes long.

Each API has a subclass. Streamed or not, text, logprobs, finish reasons and usage are the same.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.rpc.columns import ITEM_BYTES, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import TOOL_CALL, Piece, add_pieces
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.answer_scores import AnswerScores
from services.shim.apis.answer_types import CompletionTokensDetails, EffectiveParameters, Usage
from services.shim.apis.json_pieces import InPieces, WrittenColumns, array_pieces, id_pieces, object_pieces
from services.shim.apis.numbers import as_written
from services.shim.generation import Generation
from services.shim.time_slices import TimeSlices
from services.shim.updates import Update

Json = dict[str, Any]
LOGPROBS_PER_STEP = 672  # of 32 tokens with 20 others each: a millisecond


@dataclass
class AccumulatedChoice:
    """The updates of one choice, merged. A stream sets only `terminal`, `has_call` and, if needed, `num_tokens`.

    `logprobs` has them as JSON: as protobuf's objects they would take several times as much memory.
    """

    pieces: list[Piece] = field(default_factory=list)
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: WrittenColumns | None = None  # None: none so far
    num_tokens: int = 0
    has_call: bool = False  # a tool call, whole or cut; the subclass sets it in a stream
    terminal: text_pb2.TextTerminal | None = None


class Answer(ABC):
    """The response to one HTTP request.

    Either `full_response` is called, or, for a stream, once an engine has accepted a choice, `head` and `first_chunks`,
    and then `next_chunks` until it returns None.
    """

    object_name: str
    chunk_name: str

    def __init__(self, request_id: str, model: str, generation: Generation, options: AnswerOptions) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model}
        self._generation = generation
        self._options = options
        self._counts_tokens = options.token_ids or options.continuous_usage  # of each choice, in a stream
        self._choices = [AccumulatedChoice() for _ in range(generation.num_choices)]
        self._num_open = generation.num_choices
        self._taken: list[Update] = []  # updates of a stream without chunks so far
        self._scores = AnswerScores(generation, options)
        self._take = self._scores.take if options.has_prompt_scores else generation.take

    async def full_response(self) -> Iterator[bytes]:
        """Waits for the end of all choices and returns the response as JSON in pieces.

        As soon as a choice fails, raises its TandemError; RESOURCE_EXHAUSTED if all requests hold too much.
        """
        slices = TimeSlices()
        while self._num_open:
            for update in await self._take():
                _raise_if_failed(update.terminal)
                self._accumulate(update)
                if update.logprobs:
                    await self._accumulate_logprobs(update, slices)
                elif slices.is_over:
                    await slices.pause()
        return object_pieces(
            {
                **self._heading(self.object_name),
                "choices": InPieces(array_pieces(map(self._choice_pieces, range(len(self._choices))))),
                "usage": self.usage(),
                **self._full_fields(),
            }
        )

    def _accumulate(self, update: Update) -> None:
        """Adds an update, without its logprobs, to its choice, and counts its bytes as held."""
        choice = self._choices[update.index]
        add_pieces(choice.pieces, update.pieces)
        size = sum([len(text) for _, text in update.pieces])
        if self._options.token_ids:
            choice.token_ids += update.token_ids
            size += len(update.token_ids)
        if update.terminal is not None:
            choice.terminal = update.terminal
            self._num_open -= 1
        self._generation.hold(size)

    async def _accumulate_logprobs(self, update: Update, slices: TimeSlices) -> None:
        choice = self._choices[update.index]
        choice.logprobs = choice.logprobs or WrittenColumns()
        size = await self._write_logprobs(update.logprobs, choice.logprobs, slices)
        self._generation.hold(size - update.held)
        update.held = 0

    async def _write_logprobs(
        self, logprobs: Sequence[text_pb2.TokenLogprobs], written: WrittenColumns, slices: TimeSlices
    ) -> int:
        """Adds the logprobs to `written`, with pauses. Returns by how many bytes it grew."""
        size = 0
        per_step = _tokens_per_step(logprobs)
        for start in range(0, len(logprobs), per_step):
            size += written.add(self._logprobs(logprobs[start : start + per_step]))
            await slices.pause()
        return size

    def _choice_pieces(self, index: int) -> Iterator[bytes]:
        choice = self._choices[index]
        assert choice.terminal is not None
        choice.has_call = any(kind == TOOL_CALL for kind, _ in choice.pieces)
        logprobs = None if choice.logprobs is None else InPieces(choice.logprobs.pieces())
        if self._options.echoes_logprobs:
            logprobs = InPieces(self._scores.before(index, choice.logprobs))
        token_ids = InPieces(id_pieces(choice.token_ids)) if self._options.token_ids else None
        return object_pieces(
            {
                **self._full_choice(index, choice, logprobs),
                **self._finish_fields(choice, choice.terminal),
                "token_ids": token_ids,
                **self._effective_parameters(index),
            }
        )

    async def next_chunks(self) -> list[Json] | None:
        """Waits for updates and returns the chunks of as many as a slice of time has room for, without the fields of
        head(); possibly none.

        Returns None once the chunks of all choices have been returned. Raises the TandemError of a failed choice.
        """
        if self._num_open == 0:
            return None
        if self._taken:
            await asyncio.sleep(0)
        else:
            self._taken = await self._take()
        chunks: list[Json] = []
        slices: TimeSlices | None = None
        while slices is None or not slices.is_over:
            update = self._taken.pop(0)
            _raise_if_failed(update.terminal)
            logprobs = None
            if update.logprobs or self._options.echoes_logprobs:
                logprobs = await self._streamed_logprobs(update)
            chunks += self._chunks_of(update, logprobs)
            if update.held:
                self._generation.hold(-update.held)
            if update.terminal is not None:
                self._choices[update.index].terminal = update.terminal
                self._num_open -= 1
            if not self._taken:
                break
            slices = slices or TimeSlices()  # most streams have one update: the clock is not read for it
        return chunks

    async def _streamed_logprobs(self, update: Update) -> Any:
        """Returns the logprobs of an update, those of a slow reader's written with pauses; None: it has none."""
        begins = self._options.echoes_logprobs and self._scores.begins(update.index)
        if not begins and len(update.logprobs) <= _tokens_per_step(update.logprobs):
            return self._logprobs(update.logprobs) if update.logprobs else None
        written = WrittenColumns()
        await self._write_logprobs(update.logprobs, written, TimeSlices())
        return self._scores.first_logprobs(update.index, written) if begins else msgspec.Raw(b"".join(written.pieces()))

    def _chunks_of(self, update: Update, logprobs: Any) -> list[Json]:
        """Returns one chunk per piece, at least one if there is anything to tell. Runs for every token.

        The first one has logprobs and token ids, the last one what a finished choice has. A choice with a tool call
        ends with a chunk without text: clients take a call for whole when a later chunk comes.
        """
        accumulated = self._choices[update.index]
        choices = [delta for piece in update.pieces if (delta := self._delta(update.index, piece)) is not None]
        ends = update.terminal is not None
        if (ends and accumulated.has_call) or (
            not choices and (ends or logprobs is not None or self._options.token_ids)
        ):
            choices.append(self._empty_delta(update.index))
        if logprobs is not None:
            choices[0]["logprobs"] = logprobs
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
        return self._heading(self.chunk_name)

    def _heading(self, object_name: str) -> Json:
        """Returns the fields that begin a response or a chunk."""
        return {**self._head, "system_fingerprint": self._generation.numerics_id, "object": object_name}

    def usage(self) -> Usage:
        """Returns OpenAI's `usage`. All choices must have ended.

        Output tokens are those of all choices. Prompt and cached tokens are those of each prompt's first choice.
        """
        terminals = [choice.terminal for choice in self._choices if choice.terminal is not None]
        per_call = len(self._choices) // self._generation.num_prompts  # the choices of a call share one prompt
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
        return self._generation.calls[index * self._generation.num_prompts // len(self._choices)]

    def _prompt_ids_of(self, index: int) -> list[int]:
        return unpack_u32(self._call_of(index).prompt_token_ids)

    def _prompt_id_pieces(self, index: int) -> InPieces:
        return InPieces(id_pieces(self._call_of(index).prompt_token_ids))

    def _effective_parameters(self, index: int) -> Json:
        call = self._call_of(index)
        if not self._options.effective_parameters or call.sampling is None:
            return {}
        return {"effective_parameters": _effective(call.sampling, call.seed)}

    @abstractmethod
    def _full_choice(self, index: int, accumulated: AccumulatedChoice, logprobs: InPieces | None) -> Json:
        """Returns a choice of the full response, without the fields of ChoiceFields. Values may be InPieces."""

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
        """Returns the logprobs of consecutive tokens of a choice, at least one: an object of arrays, which has those of
        more tokens if the items of each array are appended."""

    @abstractmethod
    def _first_ids(self, index: int) -> Json:
        """Returns the field with the prompt's ids for the first chunk with tokens of a choice; may be empty."""

    def _token_text(self, entry: text_pb2.TokenLogprob) -> str:
        return self._options.token_text(entry.token_id, entry.token)


def _raise_if_failed(terminal: text_pb2.TextTerminal | None) -> None:
    if terminal is not None and terminal.HasField("error"):
        raise TandemError.from_proto(terminal.error)


def _tokens_per_step(logprobs: Sequence[text_pb2.TokenLogprobs]) -> int:
    """Returns of how many tokens the logprobs are written in one step. `logprobs`: of one choice: all
    have as many."""
    others = len(logprobs[0].top) if logprobs else 0
    return max(1, LOGPROBS_PER_STEP // (1 + others))


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
