"""The responses of /tokenize and /detokenize, as types: /openapi.json has their schemas."""

from typing_extensions import TypedDict


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str
