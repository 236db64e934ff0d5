"""The limits and deadlines of connections, as the options set them. Times are in seconds."""

import logging
import resource
from dataclasses import dataclass

from services.options.declarations import ShimOptions

log = logging.getLogger(__name__)
OTHER_FILES = 256  # open files that are no connections of clients: links, logs, scrapes, libraries


@dataclass(frozen=True)
class HttpLimits:
    """The defaults are those of the options of the same names (services/options/declarations.py)."""

    max_header_bytes: int = ShimOptions.max_header_bytes
    max_header_count: int = ShimOptions.max_header_count
    max_connections: int = ShimOptions.max_connections
    header_timeout: float = ShimOptions.header_timeout
    body_timeout: float = ShimOptions.body_timeout
    write_timeout: float = ShimOptions.write_timeout
    timeout_keep_alive: float = ShimOptions.timeout_keep_alive

    @classmethod
    def of(cls, options: ShimOptions) -> "HttpLimits":
        """Returns the limits of `options`; fewer connections, with a warning, if the system allows fewer open files."""
        return cls(
            options.max_header_bytes,
            options.max_header_count,
            _connections_within(options.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            options.header_timeout,
            options.body_timeout,
            options.write_timeout,
            options.timeout_keep_alive,
        )


def _connections_within(max_connections: int, open_files: int) -> int:
    """Returns `max_connections`, or what `open_files` leaves for connections, if that is less."""
    if open_files == resource.RLIM_INFINITY or max_connections + OTHER_FILES <= open_files:
        return max_connections
    allowed = max(open_files - OTHER_FILES, open_files // 2)
    log.warning(
        "this process may open %d files: --max-connections is %d instead of %d; raise the limit (ulimit -n)",
        open_files,
        allowed,
        max_connections,
    )
    return allowed
