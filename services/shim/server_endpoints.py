"""The handlers of routes about the server: its load, its configuration."""

from starlette.requests import Request
from starlette.responses import Response

from services.options.declarations import ShimOptions
from services.rpc.errors import invalid
from services.shim.generations import Generations
from services.shim.in_progress import InProgress
from services.shim.responses import json_response
from services.shim.server_info import FORMATS, as_text, server_info


class ServerEndpoints:
    """One handler method per route; one object per process. A handler raises as those of Endpoints."""

    def __init__(self, generations: Generations, in_progress: InProgress, options: ShimOptions) -> None:
        self._generations = generations
        self._in_progress = in_progress
        self._options = options

    async def load(self, request: Request) -> Response:
        """Returns the number of requests in progress at this shim."""
        return json_response({"server_load": self._in_progress.num_requests})

    async def server_info(self, request: Request) -> Response:
        """Returns what server_info.py says. `config_format=text`: with `vllm_config` as text.

        Raises TandemError: INVALID_ARGUMENT for other query parameters, UNAVAILABLE before the model is known. vLLM has
        this path only in development mode: it shows its environment variables there.
        """
        for name in request.query_params:
            if name != "config_format":
                raise invalid(f"unsupported parameter: {name}", name)
        form = request.query_params.get("config_format", FORMATS[0])
        if form not in FORMATS:
            raise invalid(f"config_format: Input should be {' or '.join(FORMATS)}", "config_format")
        info = server_info(self._options, self._generations.facts())
        return json_response(info if form == "json" else as_text(info))
