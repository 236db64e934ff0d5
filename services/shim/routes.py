"""The HTTP paths: which method each one has, which are open, which administer, which count against
max_concurrent_requests.

Starlette's routes, the metrics' labels and the limits on bodies derive from PATHS. The handlers are in endpoints.py.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

Handler = Callable[[Request], Awaitable[Response]]
OTHER = "other"  # label of unknown paths and methods: a client must not be able to create series
SMALL_BODY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Path:
    """A path in Starlette's syntax, with a method. `max_body_bytes` None: --max-request-body-bytes."""

    path: str
    method: str
    max_body_bytes: int | None = SMALL_BODY_BYTES

    def route(self, endpoint: Handler, *others: "Path") -> Route:
        """Returns the Starlette route from this path to `endpoint`. A GET route answers HEAD as well.

        `others`: the same path with other methods. In a route of their own, they would not be in the header Allow.
        """
        return Route(self.path, endpoint, methods=[one.method for one in (self, *others)])


CHAT = Path("/v1/chat/completions", "POST", None)
COMPLETIONS = Path("/v1/completions", "POST", None)
CHAT_BATCH = Path("/v1/chat/completions/batch", "POST", None)
GENERATE = Path("/inference/v1/generate", "POST", None)
INVOCATIONS = Path("/invocations", "POST", None)
CHAT_RENDER = Path("/v1/chat/completions/render", "POST", None)
COMPLETIONS_RENDER = Path("/v1/completions/render", "POST", None)
TOKENIZE = Path("/tokenize", "POST", None)
DETOKENIZE = Path("/detokenize", "POST", None)
TOKENIZER_INFO = Path("/tokenizer_info", "GET")
MODELS = Path("/v1/models", "GET")
MODEL = Path("/v1/models/{model:path}", "GET")
RESET_PREFIX_CACHE = Path("/reset_prefix_cache", "POST")
LIVE = Path("/live", "GET")
READY = Path("/ready", "GET")
HEALTH = Path("/health", "GET")
PING = Path("/ping", "GET")
PING_BY_POST = Path("/ping", "POST")
LOAD = Path("/load", "GET")
VERSION = Path("/version", "GET")
SERVER_INFO = Path("/server_info", "GET")
METRICS = Path("/metrics", "GET")
OPENAPI = Path("/openapi.json", "GET")
DOCS = Path("/docs", "GET")
PATHS = (
    *(CHAT, COMPLETIONS, CHAT_BATCH, GENERATE, INVOCATIONS, CHAT_RENDER, COMPLETIONS_RENDER),
    *(TOKENIZE, DETOKENIZE, TOKENIZER_INFO, MODELS, MODEL, RESET_PREFIX_CACHE),
    *(LIVE, READY, HEALTH, PING, PING_BY_POST, LOAD, VERSION, SERVER_INFO, METRICS, OPENAPI, DOCS),
)


# With an API key set, these answer without it. Every other path needs it: a new route, and one that does not exist.
OPEN = frozenset({"/live", "/ready", "/health", "/ping", "/version", "/metrics", "/load"})
# With an admin key set, these need it.
ADMINISTERING = frozenset({RESET_PREFIX_CACHE.path})
# POST requests to them, and below them, count against max_concurrent_requests. Health checks and metrics are never
# limited: they matter most when the server is overloaded.
LIMITED = ("/v1", "/inference", INVOCATIONS.path, TOKENIZE.path, DETOKENIZE.path)

_LABELED_PATHS = {one.path for one in PATHS if "{" not in one.path}
_LABELED_METHODS = {one.method for one in PATHS} | {"HEAD"}


def route_path(scope: Scope) -> str:
    """Returns the path that Starlette looks for among the routes: that of the request, without the root path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path


def is_open(path: str) -> bool:
    return path in OPEN


def administers(path: str) -> bool:
    return path in ADMINISTERING


def is_limited(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in LIMITED)


def path_label(path: str) -> str:
    """Returns the path as a metric's label: "other" for an unknown path or one with a parameter."""
    return path if path in _LABELED_PATHS else OTHER


def method_label(method: str) -> str:
    """Returns the HTTP method as a metric's label: "other" for one that no route has."""
    return method if method in _LABELED_METHODS else OTHER
