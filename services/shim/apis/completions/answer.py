"""The response of /v1/completions. https://platform.openai.com/docs/api-reference/completions/object"""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, Piece, text_of
from services.shim.apis.answer import AccumulatedChoice, Answer, Json
from services.shim.apis.answer_types import ChoiceFields, PromptLogprob, Usage
from services.shim.apis.json_pieces import InPieces
from services.shim.apis.numbers import finite


class TextLogprobs(TypedDict):
    """The first token of an echoed prompt has none: null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ChoiceFields):
    index: int
    text: str
    logprobs: TextLogprobs | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None
    prompt_token_ids: list[int] | None


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    service_tier: None
    kv_transfer_params: None


class CompletionAnswer(Answer):
    object_name = "text_completion"
    chunk_name = "text_completion"

    def first_chunks(self) -> list[Json]:
        return []

    def _full_choice(self, index: int, accumulated: AccumulatedChoice, logprobs: InPieces | None) -> Json:
        return {
            "index": index,
            "text": text_of(accumulated.pieces),
            "logprobs": logprobs,
            "prompt_logprobs": self._scores.field(index),
            "prompt_token_ids": self._prompt_id_pieces(index) if self._options.token_ids else None,
        }

    def _full_fields(self) -> Json:
        return {"service_tier": None, "kv_transfer_params": None}

    def _delta(self, index: int, piece: Piece) -> Json | None:
        kind, text = piece
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None} if kind == CONTENT else None

    def _empty_delta(self, index: int) -> Json:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": None}

    def _first_ids(self, index: int) -> Json:
        return {"prompt_token_ids": self._prompt_ids_of(index)}

    def _logprobs(self, logprobs: Sequence[text_pb2.TokenLogprobs]) -> TextLogprobs:
        return {
            "tokens": [self._token_text(entry.sampled) for entry in logprobs],
            "token_logprobs": [finite(entry.sampled.logprob) for entry in logprobs],
            "top_logprobs": [
                {self._token_text(one): finite(one.logprob) for one in (*entry.top, entry.sampled)}
                for entry in logprobs
            ],
            "text_offset": [entry.text_offset for entry in logprobs],
        }
