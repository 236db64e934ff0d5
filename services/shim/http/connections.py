"""All connections of the HTTP server: how many are open, which must make room, whose deadline has passed.

One sweep looks at the deadlines, so that a request needs no timer of its own. Knows no HTTP.
"""

import logging
from collections import Counter
from typing import Protocol

from prometheus_client import Counter as Metric

from services.shim.http.limits import HttpLimits
from services.shim.http.refusal import REASONS

log = logging.getLogger(__name__)
NEVER = float("inf")
MAX_TURNED_AWAY = 64  # connections above the limit that are being told so; more are cut
LOG_SECONDS = 1.0


class Connection(Protocol):
    """`deadline`: the loop's time from which `expire` is called."""

    deadline: float

    def expire(self, now: float) -> None:
        """Closes the connection if its client is too slow, else sets the next deadline."""

    def evict(self) -> None:
        """Closes the connection at once, in favour of a new one or because the server ends."""


class Connections:
    """`members`: the set of open connections, which the server that owns it reads as well."""

    def __init__(self, limits: HttpLimits, rejections: Metric, members: "set[Connection]") -> None:
        self.limits = limits
        self._members = members
        self._waiting: dict[Connection, None] = {}  # those without a request in progress, the longest waiting first
        self._turned_away: set[Connection] = set()
        self._rejections = rejections
        for reason in REASONS:
            rejections.labels(reason)
        self._not_logged: Counter[str] = Counter()
        self._last_message = ""
        self._logged_at = 0.0

    def opened(self, connection: Connection) -> bool:
        """Adds a connection, which waits for a request. At the limit, the longest waiting one is closed for it.

        Returns False if none waits: then the new connection has to be turned away.
        """
        if len(self._members) >= self.limits.max_connections and not self._make_room():
            return False
        self._members.add(connection)
        self._waiting[connection] = None
        return True

    def turned_away(self, connection: Connection) -> bool:
        """Keeps a connection above the limit until it has its answer. Returns False if too many of them are kept."""
        if len(self._turned_away) >= MAX_TURNED_AWAY:
            return False
        self._turned_away.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self._members.discard(connection)
        self._turned_away.discard(connection)
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection) -> None:
        """Records that a connection waits for its next request."""
        if connection in self._members:
            self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """Records that a connection has a request in progress, or is being closed."""
        self._waiting.pop(connection, None)

    def refused(self, reason: str, message: str) -> None:
        """Counts a refusal. The next sweep logs it, with all others of that second in one line."""
        self._rejections.labels(reason).inc()
        self._not_logged[reason] += 1
        self._last_message = message

    def sweep(self, now: float) -> None:
        """Expires the connections whose deadline is before `now`, and logs what was refused since the last line."""
        for connection in [one for group in (self._members, self._turned_away) for one in group if one.deadline <= now]:
            connection.expire(now)
        if self._not_logged and now - self._logged_at >= LOG_SECONDS:
            counts = ", ".join(f"{reason} {count}" for reason, count in sorted(self._not_logged.items()))
            log.warning("the HTTP server refused %s; the last one: %s", counts, self._last_message)
            self._not_logged.clear()
            self._logged_at = now

    def end(self) -> None:
        """Closes all connections at once, those with a request in progress as well."""
        for connection in [*self._members, *self._turned_away]:
            connection.evict()

    def _make_room(self) -> bool:
        for oldest in self._waiting:
            self.closed(oldest)
            oldest.evict()
            return True
        return False
