"""What the endpoint needs of an API: its path, its request, how that becomes submits, how an answer is rendered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.rpc.errors import TandemError
from services.shim.apis.answer import Answer
from services.shim.apis.request import GenerationRequest
from services.shim.apis.translation import Translation
from services.shim.routes import Path


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
    translation: Translation
    answer: type[Answer]
    response: Any
    at_fault: Callable[[TandemError], TandemError]

    @property
    def request(self) -> type[GenerationRequest]:
        return self.translation.request
