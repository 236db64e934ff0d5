"""The parts of a response that all APIs share, as types: /openapi.json has their schemas."""

from typing_extensions import TypedDict


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


class PromptLogprob(TypedDict):
    """One of the logprobs of a prompt token, by its id. `rank`: in the vocabulary; 1: the most likely token."""

    logprob: float
    rank: int
    decoded_token: str


class ChoiceFields(TypedDict, total=False):
    """The fields of a choice that all APIs share."""

    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    effective_parameters: EffectiveParameters
