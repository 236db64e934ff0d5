"""The check of an API key, in the value of an `authorization` header or metadata entry, and a warning without one."""

import hmac
import logging

from services.machine import is_all_interfaces

log = logging.getLogger(__name__)


class ApiKey:
    """A bearer token. https://www.rfc-editor.org/rfc/rfc6750#section-2.1"""

    def __init__(self, key: str) -> None:
        self._expected = key.encode()

    def is_in(self, authorization: bytes) -> bool:
        """Returns whether the value is `Bearer KEY`. The time that it takes tells nothing of the key."""
        scheme, _, given = authorization.partition(b" ")
        return hmac.compare_digest(given, self._expected) and scheme.lower() == b"bearer"


def warn_if_open(host: str, port: int, key: str | None) -> None:
    """Logs a warning if there is no key on the address of all interfaces (0.0.0.0 or ::)."""
    if key is None and is_all_interfaces(host):
        log.warning("port %d listens on all interfaces without --api-key: every client that reaches it is served", port)
