"""What the endpoint needs of an API: its path, its request, how that becomes submits, how an answer is rendered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.shim.apis.answer import Answer
from services.shim.apis.request import GenerationRequest
from services.shim.apis.submit import SubmitContext
from services.shim.body import Body
from services.shim.routes import Path

Submits = Callable[[Any, Body, SubmitContext], list[text_pb2.TextSubmit]]


@dataclass(frozen=True)
class Api:
    """An HTTP API that generates text.

    `operation` is gen_ai.operation.name of OpenTelemetry, `id_prefix` that of response ids. `response` is the type of
    the full response, for /openapi.json. `at_fault` replaces an error about the API's own field for one of the submit.
    """

    path: Path
    summary: str
    operation: str
    id_prefix: str
    request: type[GenerationRequest]
    submits: Submits
    answer: type[Answer]
    response: Any
    at_fault: Callable[[TandemError], TandemError]
