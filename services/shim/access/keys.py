"""The API keys: which caller an `authorization` value stands for. Knows digests only, not where keys come from.

A look-up takes the same time for every wrong key: it compares HMACs under a key that no client knows.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Scope

DEFAULT_GROUP = ""
CALLER = "tandem.caller"  # scope key of the Caller of a request


@dataclass(frozen=True)
class Caller:
    """What is known of a request's sender. `name`: of its key, empty for a key without a name; `group`: keys of one
    group share cached prefixes."""

    name: str = ""
    group: str = DEFAULT_GROUP
    is_admin: bool = False


ANYONE = Caller()  # of a server without keys


@dataclass(frozen=True)
class Key:
    """A key by its SHA-256 digest, and the caller that it stands for."""

    digest: bytes
    caller: Caller


def digest_of(key: str | bytes) -> bytes:
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


class Keys:
    """The keys that open the server now. `replace` exchanges them; requests that run are not affected."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._blind = secrets.token_bytes(32)
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        self._callers = {self._blinded(key.digest): key.caller for key in keys}
        self._has_admin = any(caller.is_admin for caller in self._callers.values())

    def caller_in(self, authorization: bytes) -> Caller | None:
        """Returns the caller of `Bearer KEY`; None for any other value.

        https://www.rfc-editor.org/rfc/rfc6750#section-2.1
        """
        scheme, _, given = authorization.partition(b" ")
        caller = self._callers.get(self._blinded(digest_of(given)))
        return caller if scheme.lower() == b"bearer" else None

    def may_administer(self, caller: Caller) -> bool:
        """Returns whether the caller may use what administers: with an admin key only that key's caller."""
        return caller.is_admin or not self._has_admin

    def _blinded(self, digest: bytes) -> bytes:
        # A dict compares digests in variable time. Without the blind, a client could find tokens whose digest begins
        # like that of a key, and learn more of it from the time of the comparison.
        return hmac.digest(self._blind, digest, "sha256")


def caller_of(scope: Scope) -> Caller:
    """Returns the caller that ApiKeyMiddleware put into the scope of an HTTP request."""
    caller: Caller = scope.get(CALLER, ANYONE)
    return caller
