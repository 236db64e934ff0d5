"""Turns the built-in errors that reading a request's JSON and columns raises into a refusal of that request."""

import contextlib
from collections.abc import Iterator

from services.rpc.errors import invalid


@contextlib.contextmanager
def refusing_unreadable() -> Iterator[None]:
    """Raises TandemError (INVALID_ARGUMENT) for the built-in errors that malformed JSON and columns raise."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise invalid(f"the request cannot be read: {error}") from error
