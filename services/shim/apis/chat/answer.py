"""The response of /v1/chat/completions. https://platform.openai.com/docs/api-reference/chat/object"""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from services.rpc.columns import unpack_u32
from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece, text_of
from services.shim.apis.answer import AccumulatedChoice, Answer, ChoiceFields, Json, Usage, finite


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]


class Message(TypedDict):
    """The last five fields are always null: clients read them as attributes."""

    role: str
    content: str
    refusal: None
    annotations: None
    audio: None
    function_call: None
    reasoning: None


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
    prompt_logprobs: None
    prompt_token_ids: list[int] | None
    kv_transfer_params: None


class ChatAnswer(Answer):
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

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

    def _full_choice(self, index: int, accumulated: AccumulatedChoice) -> Json:
        message: Message = {
            "role": self._options.response_role,
            "content": text_of(accumulated.pieces),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {"index": index, "message": message, "logprobs": self._logprobs(accumulated.logprobs)}

    def _full_fields(self) -> Json:
        ids = unpack_u32(self._generation.calls[0].prompt_token_ids) if self._options.token_ids else None
        return {"service_tier": None, "prompt_logprobs": None, "prompt_token_ids": ids, "kv_transfer_params": None}

    def _delta(self, index: int, piece: Piece | None) -> Json:
        delta = {"content": piece[1]} if piece is not None else {}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _first_ids(self, index: int) -> Json:
        return {}

    def _logprobs(self, logprobs: Sequence[text_pb2.TokenLogprobs]) -> ChatLogprobs | None:
        if not logprobs:
            return None
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
