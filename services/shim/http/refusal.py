"""What the server answers by itself, before a request reaches the application: an error in OpenAI's format.

The connection is closed behind each of them. https://www.rfc-editor.org/rfc/rfc9110#section-15.5
"""

import http
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

Headers = Sequence[tuple[bytes, bytes]]
REASONS = (
    "header_bytes",
    "header_count",
    "header_timeout",
    "body_timeout",
    "write_timeout",
    "chunk_framing",
    "malformed",
    "max_connections",
    "tls_handshake",
)
SERVER_ERROR = 500
OVERLOADED_SECONDS = 1  # after which a client that was refused for the number of connections may try again


@dataclass(frozen=True)
class Refusal:
    """`reason`: one of REASONS, the metric's label. `message`: names the limit; nothing of the request is quoted."""

    status: int
    reason: str
    message: str

    def response(self, headers: Headers) -> bytes:
        """Returns the whole HTTP response, with `headers` in addition."""
        kind = "server_error" if self.status >= SERVER_ERROR else "invalid_request_error"
        body = msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": None, "code": self.reason}}
        )
        lines = [
            b"HTTP/1.1 %d %s" % (self.status, phrase(self.status)),
            *(b"%s: %s" % header for header in headers),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            *([b"retry-after: %d" % OVERLOADED_SECONDS] if self.reason == "max_connections" else []),
            b"connection: close",
        ]
        return b"\r\n".join([*lines, b"", body])


def phrase(status: int) -> bytes:
    """Returns the reason phrase of a status; empty if it has none."""
    try:
        return http.HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


def malformed(message: str, status: int = 400) -> Refusal:
    return Refusal(status, "malformed", message)


def header_bytes(limit: int) -> Refusal:
    return Refusal(431, "header_bytes", f"the request line and the headers have more than {limit} bytes")


def header_count(limit: int) -> Refusal:
    return Refusal(431, "header_count", f"the request has more than {limit} headers")


def header_timeout(seconds: float) -> Refusal:
    return Refusal(408, "header_timeout", f"the request's headers were not complete within {seconds:g} s")


def body_timeout(num_bytes: int, seconds: float) -> Refusal:
    message = f"the request's body is too slow: {seconds:g} s brought fewer than {num_bytes} bytes"
    return Refusal(408, "body_timeout", message)


def chunk_framing(limit: int) -> Refusal:
    message = f"the chunks of the body have more than {limit} bytes of sizes, extensions and trailers above its content"
    return Refusal(413, "chunk_framing", message)


def max_connections(limit: int) -> Refusal:
    message = f"{limit} connections are open, the limit set by --max-connections; try again later"
    return Refusal(503, "max_connections", message)


class Refused(Exception):
    """The request cannot be accepted; its connection has to be closed behind the answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
