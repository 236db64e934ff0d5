"""Every route, described once: /openapi.json, /docs and docs/api.md derive from it."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from typing_extensions import TypedDict

from services.shim.apis.all import APIS
from services.shim.models import ModelCard, ModelList
from services.shim.routes import DOCS, HEALTH, METRICS, MODEL, MODELS, OPENAPI, RESET_PREFIX_CACHE, VERSION, Path

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


class Version(TypedDict):
    version: str


class Success(TypedDict):
    success: Literal[True]


class ErrorFields(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """https://platform.openai.com/docs/guides/error-codes"""

    error: ErrorFields


@dataclass(frozen=True)
class Operation:
    """A route. `bodies` maps media types of the 200 response to types; None: text without a schema.

    `empty` statuses have no body, `errors` have an Error.
    """

    path: Path
    summary: str
    bodies: dict[str, Any]
    request: type[BaseModel] | None = None
    empty: tuple[int, ...] = ()
    errors: tuple[int, ...] = (403, 500)


# A request for text may be refused for each of these reasons; those with a key only if the server has one.
GENERATION_ERRORS = (400, 401, 403, 404, 413, 429, 500, 503)
OPERATIONS: tuple[Operation, ...] = (
    *(
        Operation(api.path, api.summary, {JSON: api.response, EVENT_STREAM: None}, api.request, (), GENERATION_ERRORS)
        for api in APIS
    ),
    Operation(MODELS, "Lists the served names of the model.", {JSON: ModelList}, errors=(401, 403, 500, 503)),
    Operation(MODEL, "Describes the model of one served name.", {JSON: ModelCard}, errors=(401, 403, 404, 500, 503)),
    Operation(
        RESET_PREFIX_CACHE,
        "Empties the prefix cache of every engine; running requests go on.",
        {JSON: Success},
        errors=(400, 401, 403, 500, 503),
    ),
    Operation(HEALTH, "200 once the model is loaded and a tokenizer is connected, else 503.", {}, empty=(200, 503)),
    Operation(METRICS, "Prometheus metrics of all processes.", {"text/plain": None}),
    Operation(VERSION, "tandem's version.", {JSON: Version}),
    Operation(OPENAPI, "This API as an OpenAPI document.", {JSON: dict[str, Any]}, errors=(401, 403, 500)),
    Operation(DOCS, "The page about this API.", {"text/html": None}, errors=(401, 403, 500)),
)
