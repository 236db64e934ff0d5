"""The head of a request: request line and headers, checked as RFC 9112 requires of a server.

llhttp (through httptools) parses it, whole and strictly: no bare LF, no folded header, no equal Content-Lengths. What
llhttp lets pass is refused here. No input is quoted in a message.
https://www.rfc-editor.org/rfc/rfc9112#section-3 · #section-6
"""

import urllib.parse
from typing import Any

import httptools

from services.shim.http.framing import ChunkFraming, Framing, LengthFraming
from services.shim.http.limits import HttpLimits
from services.shim.http.refusal import Refused, header_count, malformed

END = b"\r\n\r\n"
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Head:
    """A parsed head. Raises Refused for one that cannot be served. `text`: up to and with the empty line."""

    __slots__ = ("_url", "expects_continue", "framing", "headers", "keep_alive", "method", "num_hosts", "version")

    def __init__(self, text: bytes, limits: HttpLimits) -> None:
        if text.count(b"\r\n") - 2 > limits.max_header_count:
            raise Refused(header_count(limits.max_header_count))
        self.headers: list[tuple[bytes, bytes]] = []
        self.framing: Framing | None = None
        self.expects_continue = False
        self.num_hosts = 0
        self._url = b""
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(text)
        except httptools.HttpParserUpgrade:
            pass  # an offer, which a server may ignore (RFC 9110, section 7.8); CONNECT is refused below
        except httptools.HttpParserError as error:
            raise Refused(malformed(f"the HTTP request is malformed: {error}")) from error
        self.method = parser.get_method().decode("ascii")
        self.version = parser.get_http_version()
        self.keep_alive = self.version == "1.1"
        self._check(limits)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host":
            self.num_hosts += 1
        self.headers.append((name, value))

    def _check(self, limits: HttpLimits) -> None:
        if self.version not in ("1.0", "1.1"):
            raise Refused(malformed("the HTTP version is neither 1.0 nor 1.1", 505))
        if self.method == "CONNECT":
            raise Refused(malformed("CONNECT is not supported: this server is no proxy", 501))
        if self.num_hosts > 1 or (self.num_hosts == 0 and self.version == "1.1"):
            raise Refused(malformed(f"the request has {self.num_hosts} Host headers instead of one"))
        for name, value in self.headers:
            if name == b"content-length":
                self.framing = LengthFraming(int(value))
            elif name == b"transfer-encoding":
                self._check_coding(value)
                self.framing = ChunkFraming(limits.max_header_bytes)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expects_continue = self.version == "1.1"

    def _check_coding(self, value: bytes) -> None:
        if value.lower() != b"chunked":
            raise Refused(malformed("the only Transfer-Encoding that is supported is chunked"))
        if self.version == "1.0":
            raise Refused(malformed("HTTP/1.0 has no Transfer-Encoding"))

    def scope(self) -> dict[str, Any]:
        """Returns the parts of the ASGI scope that are in the head. Raises Refused for a wrong target."""
        try:
            url = httptools.parse_url(self._url)
        except httptools.HttpParserInvalidURLError as error:
            raise Refused(malformed("the request's target is not a valid URL")) from error
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "method": self.method,
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self.headers,
        }
