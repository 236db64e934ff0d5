"""Whether the shim is live, ready and healthy: for orchestrators, load balancers and gateways, over HTTP and gRPC."""

from starlette.requests import Request
from starlette.responses import Response

from services.shim.in_progress import InProgress
from services.shim.tokenizer_client import TokenizerClient


class ShimHealth:
    def __init__(self, client: TokenizerClient, in_progress: InProgress) -> None:
        self._dispatcher = client.dispatcher
        self._in_progress = in_progress

    def is_ready(self) -> bool:
        """Returns whether a token could be made now: an engine with a worker is connected through a tokenizer."""
        return not self._in_progress.is_draining and self._dispatcher.is_ready

    def is_healthy(self) -> bool:
        """Returns whether new requests are accepted: a token could be made now, or, after a restart, soon.

        A server whose requests are being resumed is healthy: an orchestrator that restarts it would cut them off.
        """
        return not self._in_progress.is_draining and self._dispatcher.is_served


class HealthEndpoints:
    """The handlers of /live, /ready and /health: 200 or 503, without a body."""

    def __init__(self, health: ShimHealth) -> None:
        self._health = health

    async def live(self, request: Request) -> Response:
        """Answers 200: the event loop answers. It asks no other process."""
        return Response()

    async def ready(self, request: Request) -> Response:
        return _status(self._health.is_ready())

    async def health(self, request: Request) -> Response:
        """Answers as vLLM's route of this name. SageMaker asks /ping for it."""
        return _status(self._health.is_healthy())


def _status(good: bool) -> Response:
    return Response(status_code=200 if good else 503)
