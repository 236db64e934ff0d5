"""Every route, described once: /openapi.json, /docs and docs/api.md derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from typing_extensions import TypedDict

from services.shim.apis.all import ALL_APIS
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.tokenize.response import Detokenized, Tokenized
from services.shim.apis.tokenize.submit import DETOKENIZE_TRANSLATION, TOKENIZE_TRANSLATION
from services.shim.apis.translation import AnyTranslation
from services.shim.apis.translations import INVOCATION
from services.shim.models import ModelCard, ModelList
from services.shim.rendered import Rendered
from services.shim.routes import (
    CHAT_RENDER,
    COMPLETIONS_RENDER,
    DETOKENIZE,
    DOCS,
    HEALTH,
    INVOCATIONS,
    LIVE,
    LOAD,
    METRICS,
    MODEL,
    MODELS,
    OPENAPI,
    PING,
    PING_BY_POST,
    READY,
    RESET_PREFIX_CACHE,
    SERVER_INFO,
    TOKENIZE,
    TOKENIZER_INFO,
    VERSION,
    Path,
)
from services.shim.server_info import FORMATS, Load

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

    `empty` statuses have no body, `errors` have an Error. `query`: the values of each parameter of the query.
    """

    path: Path
    summary: str
    bodies: dict[str, Any]
    request: AnyTranslation | None = None
    empty: tuple[int, ...] = ()
    errors: tuple[int, ...] = (403, 500)
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _bodies(api: Api) -> dict[str, Any]:
    streams = api.request.model_fields["stream"].annotation is bool
    return {JSON: api.response, **({EVENT_STREAM: None} if streams else {})}


# A request for text may be refused for each of these reasons; those with a key only if the server has one.
GENERATION_ERRORS = (400, 401, 403, 404, 413, 429, 500, 503)
OPERATIONS: tuple[Operation, ...] = (
    *(Operation(api.path, api.summary, _bodies(api), api.translation, (), GENERATION_ERRORS) for api in ALL_APIS),
    Operation(
        INVOCATIONS,
        "For SageMaker: a chat, if the body has messages, or a completion.",
        {JSON: CHAT_API.response | COMPLETIONS_API.response, EVENT_STREAM: None},
        INVOCATION,
        (),
        GENERATION_ERRORS,
    ),
    Operation(
        CHAT_RENDER,
        "Renders a chat: the request of /inference/v1/generate to which the answer is the same.",
        {JSON: Rendered},
        CHAT_API.translation,
        (),
        GENERATION_ERRORS,
    ),
    Operation(
        COMPLETIONS_RENDER,
        "Renders texts: a list of such requests, one for each prompt.",
        {JSON: list[Rendered]},
        COMPLETIONS_API.translation,
        (),
        GENERATION_ERRORS,
    ),
    Operation(
        TOKENIZE,
        "Returns the token ids of a text or a chat.",
        {JSON: Tokenized},
        TOKENIZE_TRANSLATION,
        (),
        GENERATION_ERRORS,
    ),
    Operation(
        DETOKENIZE,
        "Returns the text of token ids.",
        {JSON: Detokenized},
        DETOKENIZE_TRANSLATION,
        (),
        GENERATION_ERRORS,
    ),
    Operation(
        TOKENIZER_INFO,
        "The tokenizer's configuration, with the chat template in use.",
        {JSON: dict[str, Any]},
        errors=(401, 403, 500, 503),
    ),
    Operation(MODELS, "Lists the served names of the model.", {JSON: ModelList}, errors=(401, 403, 500, 503)),
    Operation(MODEL, "Describes the model of one served name.", {JSON: ModelCard}, errors=(401, 403, 404, 500, 503)),
    Operation(
        RESET_PREFIX_CACHE,
        "Empties the prefix cache of every engine; running requests go on.",
        {JSON: Success},
        errors=(400, 401, 403, 500, 503),
    ),
    Operation(LIVE, "200: the process makes progress. It asks no other process.", {}, empty=(200,)),
    Operation(READY, "200 if a token could be made now, else 503.", {}, empty=(200, 503)),
    Operation(
        HEALTH,
        "200 once the model is loaded, also during a restart behind the shim; 503 once --resume-wait is over, and while"
        " the server stops.",
        {},
        empty=(200, 503),
    ),
    Operation(PING, "For SageMaker: as /health.", {}, empty=(200, 503)),
    Operation(PING_BY_POST, "For SageMaker: as /health.", {}, empty=(200, 503)),
    Operation(LOAD, "The number of requests in progress.", {JSON: Load}),
    Operation(
        SERVER_INFO,
        "The model, its limits and sampling defaults, and options; config_format=text gives vllm_config as text.",
        {JSON: dict[str, Any]},
        errors=(400, 401, 403, 500, 503),
        query={"config_format": FORMATS},
    ),
    Operation(METRICS, "Prometheus metrics of all processes.", {"text/plain": None}),
    Operation(VERSION, "tandem's version.", {JSON: Version}),
    Operation(OPENAPI, "This API as an OpenAPI document.", {JSON: dict[str, Any]}, errors=(401, 403, 500)),
    Operation(DOCS, "The page about this API.", {"text/html": None}, errors=(401, 403, 500)),
)
