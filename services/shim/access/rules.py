"""All rules about who may ask the shim, as one object: made from the options, put around the application."""

import logging
from dataclasses import dataclass

from starlette.types import ASGIApp

from services.machine import is_all_interfaces
from services.options.declarations import ShimOptions
from services.shim.access.hosts import AllowedHosts, HostMiddleware, allowed_hosts
from services.shim.access.key_check import ApiKeyMiddleware
from services.shim.access.key_file import open_keys
from services.shim.access.keys import Keys
from services.shim.access.origins import OriginMiddleware, with_cors

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccessRules:
    """`keys` None: no key is asked for. `hosts` None: every host may pass."""

    options: ShimOptions
    keys: Keys | None
    hosts: AllowedHosts | None

    def around(self, app: ASGIApp) -> ASGIApp:
        """Returns the application behind the rules. Refusals for the key have CORS headers; those before it do not."""
        keyed: ASGIApp = ApiKeyMiddleware(app, self.keys) if self.keys is not None else app
        with_origins = OriginMiddleware(with_cors(keyed, self.options), self.options.allowed_origins)
        return HostMiddleware(with_origins, self.hosts)


def access_rules(options: ShimOptions, bound: str) -> AccessRules:
    """Returns the rules for a server on the numeric address `bound`, empty for a Unix socket.

    Raises Fatal if the key file cannot be used.
    """
    return AccessRules(options, open_keys(options), allowed_hosts(options, bound))


def warn_if_open(host: str, port: int, keys: Keys | None) -> None:
    """Logs a warning if there is no key on the address of all interfaces (0.0.0.0 or ::)."""
    if keys is None and is_all_interfaces(host):
        log.warning(
            "port %d listens on all interfaces without --api-key or --api-key-file: every client that reaches it is"
            " served",
            port,
        )
