"""The response of /inference/v1/generate, vLLM's GenerateResponse: token ids, and no text. A chunk has new ids."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import TypedDict

from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece
from services.shim.apis.answer import AccumulatedChoice, Answer, Json
from services.shim.apis.answer_options import AnswerOptions
from services.shim.apis.answer_types import ChoiceFields, PromptLogprob, Usage
from services.shim.apis.json_pieces import InPieces
from services.shim.apis.numbers import finite
from services.shim.generation import Generation


class IdLogprob(TypedDict):
    """`token` is `token_id:` and the id."""

    token: str
    logprob: float
    bytes: None


class IdLogprobs(IdLogprob):
    top_logprobs: list[IdLogprob]


class TokensLogprobs(TypedDict):
    content: list[IdLogprobs]


class TokensChoice(ChoiceFields):
    index: int
    logprobs: TokensLogprobs | None
    routed_experts: None


class TokensResponse(TypedDict):
    request_id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[TokensChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None
    kv_transfer_params: None


class TokensAnswer(Answer):
    object_name = chunk_name = ""  # vLLM's response has none

    def __init__(self, request_id: str, model: str, generation: Generation, options: AnswerOptions) -> None:
        super().__init__(request_id, model, generation, replace(options, token_ids=True))

    def _heading(self, object_name: str) -> Json:
        heading = super()._heading(object_name)
        return {"request_id": heading.pop("id"), **{name: heading[name] for name in heading if name != "object"}}

    def first_chunks(self) -> list[Json]:
        return []

    def _full_choice(self, index: int, accumulated: AccumulatedChoice, logprobs: InPieces | None) -> Json:
        return {"index": index, "logprobs": logprobs, "routed_experts": None}

    def _full_fields(self) -> Json:
        return {"prompt_logprobs": self._scores.field(0), "kv_transfer_params": None}

    def _delta(self, index: int, piece: Piece) -> Json | None:
        return None

    def _empty_delta(self, index: int) -> Json:
        return {"index": index, "logprobs": None, "finish_reason": None, "stop_reason": None, "routed_experts": None}

    def _first_ids(self, index: int) -> Json:
        return {}

    def _logprobs(self, logprobs: Sequence[text_pb2.TokenLogprobs]) -> TokensLogprobs:
        return {
            "content": [
                {**_id_logprob(entry.sampled), "top_logprobs": [_id_logprob(top) for top in entry.top]}
                for entry in logprobs
            ]
        }


def _id_logprob(entry: text_pb2.TokenLogprob) -> IdLogprob:
    return {"token": f"token_id:{entry.token_id}", "logprob": finite(entry.logprob), "bytes": None}
