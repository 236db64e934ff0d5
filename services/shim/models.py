"""The entries of /v1/models. https://platform.openai.com/docs/api-reference/models/object; the rest is vLLM's."""

from typing import Literal

from typing_extensions import TypedDict

from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb


class ModelPermission(TypedDict):
    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: None
    is_blocking: bool


class ModelCard(TypedDict):
    """`root` is the model's directory, `parent` the base model of an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


def known(facts: pb.EngineFacts | None) -> pb.EngineFacts:
    """Returns the facts. Raises TandemError (UNAVAILABLE) before the first tokenizer connects."""
    if facts is None:
        raise unavailable("the model is still being loaded")
    return facts


def served_name(facts: pb.EngineFacts, model: str | None) -> str:
    """Returns `model` if it is a served name; for None the first served name. Raises TandemError (NOT_FOUND) for any
    other name."""
    names = facts.served_model_names
    if not model:
        return names[0]
    if model not in names:
        raise TandemError(
            "NOT_FOUND",
            f"the model {model!r} is not served; served models: {', '.join(names)}",
            "model",
            reason="model_not_found",
        )
    return model


def model_card(name: str, root: str, max_model_len: int, created: int) -> ModelCard:
    """`created`: seconds since the epoch."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tandem",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [_permission(name, created)],
    }


def _permission(name: str, created: int) -> ModelPermission:
    return {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
