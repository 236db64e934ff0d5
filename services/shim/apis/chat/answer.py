"""The response of /v1/chat/completions. https://platform.openai.com/docs/api-reference/chat/object"""

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, REASONING, Piece, text_of
from services.shim.apis.answer import AccumulatedChoice, Answer, Json
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.answer_types import ChoiceFields, CompletionTokensDetails, PromptLogprob, Usage
from services.shim.apis.chat.calls import (
    CalledFunction,
    FunctionCall,
    MessageToolCall,
    StreamedCalls,
    ToolCalls,
    calls_of,
)
from services.shim.apis.json_pieces import InPieces
from services.shim.apis.numbers import finite
from services.shim.generation import Generation


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]


class Message(TypedDict):
    """The fields that are always null are there all the same: clients read them as attributes.

    `content` is null if the answer has calls or reasoning only. `reasoning_content` is an older name of `reasoning`,
    with the same text. Without calls there is no `tool_calls`, as in vLLM.
    """

    role: str
    content: str | None
    refusal: None
    annotations: None
    audio: None
    function_call: CalledFunction | None
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: NotRequired[list[MessageToolCall]]


class ChatChoice(ChoiceFields):
    index: int
    message: Message
    logprobs: ChatLogprobs | None


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None
    prompt_token_ids: list[int] | None
    kv_transfer_params: None


class ChatAnswer(Answer):
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(self, request_id: str, model: str, generation: Generation, options: AnswerOptions) -> None:
        super().__init__(request_id, model, generation, options)
        self._form = FunctionCall() if options.older_function_call else ToolCalls()
        self._calls = [StreamedCalls(self._form) for _ in self._choices]

    def first_chunks(self) -> list[Json]:
        """Returns a chunk with the role per choice. With token ids, the first one has the prompt's."""
        delta = {"role": self._options.response_role, "content": ""}
        chunks: list[Json] = [
            {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
            for index in range(len(self._choices))
        ]
        if self._options.token_ids:
            chunks[0]["prompt_token_ids"] = self._prompt_ids_of(0)
        if self._options.continuous_usage:
            for index, chunk in enumerate(chunks):
                chunk["usage"] = self._usage_so_far(index)
        return chunks

    def _full_choice(self, index: int, accumulated: AccumulatedChoice, logprobs: InPieces | None) -> Json:
        pieces = accumulated.pieces
        content, reasoning = text_of(pieces), None
        if self._options.show_reasoning:
            reasoning = text_of(pieces, REASONING) or None
        message: Message = {
            "role": self._options.response_role,
            "content": None if pieces and not content else content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": reasoning,
            "reasoning_content": reasoning,
        }
        return {"index": index, "message": {**message, **self._form.in_message(calls_of(pieces))}, "logprobs": logprobs}

    def _full_fields(self) -> Json:
        ids = self._prompt_id_pieces(0) if self._options.token_ids else None
        scores = self._scores.field(0)
        return {"service_tier": None, "prompt_logprobs": scores, "prompt_token_ids": ids, "kv_transfer_params": None}

    def _delta(self, index: int, piece: Piece) -> Json | None:
        kind, text = piece
        delta: Json | None
        if kind == CONTENT:
            delta = {"content": text}
        elif kind == REASONING:
            delta = {"reasoning": text, "reasoning_content": text} if self._options.show_reasoning else None
        else:
            self._choices[index].has_call = True
            delta = self._calls[index].delta(piece)
        if delta is None:
            return None
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _empty_delta(self, index: int) -> Json:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}

    def _finish_reason(self, accumulated: AccumulatedChoice, terminal: text_pb2.TextTerminal) -> str:
        """A call that max_tokens cut leaves the reason as it is, and so does one that the request asked for by name."""
        if accumulated.has_call and not self._options.named_call and terminal.reason == pb.FINISH_REASON_STOP:
            return self._form.finish_reason
        return super()._finish_reason(accumulated, terminal)

    def _output_details(self, terminals: Sequence[text_pb2.TextTerminal]) -> CompletionTokensDetails | None:
        return {"reasoning_tokens": sum(terminal.reasoning_tokens for terminal in terminals)}

    def _first_ids(self, index: int) -> Json:
        return {}

    def _logprobs(self, logprobs: Sequence[text_pb2.TokenLogprobs]) -> ChatLogprobs:
        content: list[TokenLogprob] = []
        for entry in logprobs:
            content.append({**self._token(entry.sampled), "top_logprobs": [self._token(top) for top in entry.top]})
        return {"content": content}

    def _token(self, entry: text_pb2.TokenLogprob) -> TopLogprob:
        return {
            "token": self._token_text(entry),
            "logprob": finite(entry.logprob),
            "bytes": list(entry.token_bytes),
        }
