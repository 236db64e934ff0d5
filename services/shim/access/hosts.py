"""Refuses requests by their Host header: the defence against DNS rebinding.

There a web page's own name is made to resolve to this machine, so that its scripts are of one origin with the server.
An address in the header is harmless, for it cannot be resolved anew. https://www.rfc-editor.org/rfc/rfc9110#section-7.2
"""

import ipaddress
import logging
import re
from collections.abc import Iterable
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from services.options.declarations import ShimOptions
from services.rpc.errors import TandemError, invalid
from services.shim.responses import error_response
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")
ANY = "*"
MAX_SHOWN = 100  # characters of a client's header in a message


class AllowedHosts:
    """localhost and the names below it, every address, and `names`, where *.example.com stands for all names below."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = {name.lower() for name in names}
        self._names = {"localhost", *(name for name in lower if not name.startswith("*."))}
        self._ends = (".localhost", *(name[1:] for name in lower if name.startswith("*.")))

    def allows(self, header: str) -> bool:
        """Returns whether a request with this Host header, with or without a port, may pass."""
        found = _HOST.fullmatch(header.lower())
        if found is None:
            return False
        name = found.group(1) or found.group(2).removesuffix(".")
        return name in self._names or name.endswith(self._ends) or _is_address(name)


def allowed_hosts(options: ShimOptions, bound: str) -> AllowedHosts | None:
    """Returns the rule for a server on the numeric address `bound`, empty for a Unix socket; None: every host may pass.

    Without --allowed-hosts there is a rule on loopback addresses only: on others the names of the machine are unknown.
    """
    if ANY in options.allowed_hosts:
        return None
    if not options.allowed_hosts and not (bound and ipaddress.ip_address(bound.partition("%")[0]).is_loopback):
        return None
    return AllowedHosts([*options.allowed_hosts, *([options.host] if options.host else [])])


class HostMiddleware:
    """Answers 403 to a request with a host that is not allowed, 400 to one of HTTP/1.1 without exactly one Host."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts | None) -> None:
        self._app = app
        self._allows = lru_cache(maxsize=256)(hosts.allows) if hosts is not None else None
        self._refusals = RateLimitedLog(log, logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is not None:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> TandemError | None:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) > 1 or (not given and scope.get("http_version") == "1.1"):
            return invalid(f"the request has {len(given)} Host headers, but must have 1")
        if not given or self._allows is None or self._allows(given[0]):
            return None
        host = given[0][:MAX_SHOWN]
        self._refusals.log("a request with Host %r was refused; --allowed-hosts accepts it", host)
        return TandemError(
            "PERMISSION_DENIED",
            f"the host {host!r} in the header Host is not allowed here; see --allowed-hosts",
            reason="host_not_allowed",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
