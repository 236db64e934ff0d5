"""The HTTP paths: which method each one has, which need the API key, which count against max_concurrent_requests.

Starlette's routes, the metrics' labels and the limits on bodies derive from PATHS, the key check and the concurrency
limit from RULES.
The handlers are in endpoints.py.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]
OTHER = "other"  # label of unknown paths and methods: a client must not be able to create series
SMALL_BODY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Path:
    """A path in Starlette's syntax, with its only method. `max_body_bytes` None: --max-request-body-bytes."""

    path: str
    method: str
    max_body_bytes: int | None = SMALL_BODY_BYTES

    def route(self, endpoint: Handler) -> Route:
        """Returns the Starlette route from this path to `endpoint`. A GET route answers HEAD as well."""
        return Route(self.path, endpoint, methods=[self.method])


CHAT = Path("/v1/chat/completions", "POST", None)
COMPLETIONS = Path("/v1/completions", "POST", None)
MODELS = Path("/v1/models", "GET")
MODEL = Path("/v1/models/{model:path}", "GET")
RESET_PREFIX_CACHE = Path("/reset_prefix_cache", "POST")
HEALTH = Path("/health", "GET")
VERSION = Path("/version", "GET")
METRICS = Path("/metrics", "GET")
OPENAPI = Path("/openapi.json", "GET")
DOCS = Path("/docs", "GET")
PATHS = (CHAT, COMPLETIONS, MODELS, MODEL, RESET_PREFIX_CACHE, HEALTH, VERSION, METRICS, OPENAPI, DOCS)


@dataclass(frozen=True)
class Rule:
    """The checks on requests to every path that starts with `prefix`, also to one without a route."""

    prefix: str
    needs_key: bool
    limited: bool  # its POST requests count against max_concurrent_requests


# The first match holds. Health checks and metrics are never limited: they matter most when the server is overloaded.
RULES = (
    Rule("/v1", needs_key=True, limited=True),
    Rule(RESET_PREFIX_CACHE.path, needs_key=True, limited=False),
    Rule("", needs_key=False, limited=False),
)

_LABELED_PATHS = {one.path for one in PATHS if "{" not in one.path}
_LABELED_METHODS = {one.method for one in PATHS} | {"HEAD"}


def rule_of(path: str) -> Rule:
    """Returns the first of RULES with a prefix of `path`; the last one fits every path."""
    return next(rule for rule in RULES if path.startswith(rule.prefix))


def path_label(path: str) -> str:
    """Returns the path as a metric's label: "other" for an unknown path or one with a parameter."""
    return path if path in _LABELED_PATHS else OTHER


def method_label(method: str) -> str:
    """Returns the HTTP method as a metric's label: "other" for one that no route has."""
    return method if method in _LABELED_METHODS else OTHER
