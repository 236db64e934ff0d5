"""The settings of the HTTP server: where it listens, TLS, and the limits and deadlines of its connections.

Names of sockets, TLS and prefix are those of `vllm serve`; --timeout-keep-alive is uvicorn's.
"""

import re
from dataclasses import dataclass

from services.options.setting import boolean, integer, setting

MAX_SECONDS = 86400.0


def path_prefix(text: str) -> str:
    """Returns a path without a slash at its end. Raises ValueError if it is not a path of unreserved characters."""
    prefix = text.rstrip("/")
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix) is None:
        raise ValueError("not a path such as /tandem")
    return prefix


@dataclass(frozen=True)
class HttpOptions:
    """Options of the HTTP server's sockets and connections."""

    uds: str | None = setting(
        None,
        "path of a Unix socket to listen on instead of --host and --port; its mode is 0600",
        unset="no Unix socket",
    )
    root_path: str | None = setting(
        None,
        "prefix of all paths for clients behind a proxy, such as /tandem; the proxy may strip it or not",
        unset="no prefix",
        parse=path_prefix,
    )
    ssl_certfile: str | None = setting(
        None, "PEM file with the certificate of the HTTP server, and those that lead to its authority", unset="no TLS"
    )
    ssl_keyfile: str | None = setting(
        None, "PEM file with the certificate's key, not encrypted", unset="in --ssl-certfile"
    )
    ssl_ca_certs: str | None = setting(
        None, "PEM file with the authorities of the clients' certificates", unset="no authority"
    )
    ssl_cert_reqs: int = setting(
        0,
        "whether a client needs a certificate of --ssl-ca-certs: 0 no, 1 only if it sends one, 2 yes",
        parse=int,
        low=0,
        high=2,
    )
    ssl_ciphers: str | None = setting(
        None, "ciphers of TLS 1.2, in OpenSSL's notation; TLS 1.3 has its own", unset="Python's"
    )
    enable_ssl_refresh: bool = setting(
        False, "new connections use the files of --ssl-* as they are then, if these change", parse=boolean
    )
    max_connections: int = setting(
        8192,
        "maximum number of open HTTP connections; for one more, the connection that has waited longest for a request"
        " is closed; if all have a request in progress, it gets HTTP status 503",
        parse=integer,
        low=1,
    )
    max_header_bytes: int = setting(
        65536,
        "maximum size of request line and headers, else HTTP status 431; as much may be spent on the framing of a body"
        " in chunks, above its content",
        parse=integer,
        low=1024,
        high=2**24,
    )
    max_header_count: int = setting(
        256, "maximum number of headers of a request, else HTTP status 431", parse=integer, low=16, high=65536
    )
    header_timeout: float = setting(
        20.0,
        "seconds for a new connection to send its first byte, for a TLS handshake, and for complete headers from their"
        " first byte on",
        parse=float,
        low=0.1,
        high=MAX_SECONDS,
    )
    body_timeout: float = setting(
        20.0,
        "seconds in which a request's body must end or bring 16 KiB, else HTTP status 408",
        parse=float,
        low=0.1,
        high=MAX_SECONDS,
    )
    write_timeout: float = setting(
        60.0,
        "seconds in which a client must take a part of what waits for it, or its connection is cut",
        parse=float,
        low=0.1,
        high=MAX_SECONDS,
    )
    timeout_keep_alive: float = setting(
        5.0, "seconds after which a connection without a request is closed", parse=float, low=0.1, high=MAX_SECONDS
    )
