"""Merges the metrics of the shim and of its peers (--metrics-peers), each series with a `process` label.

A process that sends no valid metrics in time is left out, and its tandem:process_up is 0. A scrape is cheap, and
shared for a second: anybody may ask for it. It works on the lines of the text format, which it does not decode:
https://github.com/prometheus/docs/blob/main/docs/instrumenting/exposition_formats.md
"""

import asyncio
import re
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from services.options.setting import split_address

TIMEOUT_SECONDS = 2.0
CACHE_SECONDS = 1.0
MAX_TEXT_BYTES = 16 * 1024 * 1024  # of one peer
UP = "tandem:process_up"
_ABOUT = re.compile(r"# (?:HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) .*")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( [-+0-9.eEa-zA-Z]+(?: -?[0-9]+)?)")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,10})\r\n", re.IGNORECASE)


class Scrape:
    """Merges `registry`, the shim's own metrics, with those of the metrics servers `peers`, each NAME=host:port.

    `token`: bearer token for the peers; None: none is sent. `clock`: in seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        peers: tuple[str, ...],
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._token = token
        self._peers = [(name, split_address(address)) for name, _, address in (peer.partition("=") for peer in peers)]
        self._clock = clock
        self._running: asyncio.Task[bytes] | None = None
        self._text, self._until = b"", float("-inf")  # the last text, and the time until which it is returned

    async def text(self) -> bytes:
        """Returns the merged metrics in Prometheus' text format. Waits for peers at most TIMEOUT_SECONDS.

        Concurrent callers, and those within CACHE_SECONDS after a scrape, share one.
        """
        if self._clock() < self._until:
            return self._text
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scrape())
        return await asyncio.shield(self._running)

    async def _scrape(self) -> bytes:
        texts = await asyncio.gather(*(self._fetch(host, port) for _, (host, port) in self._peers))
        merged = Merged()
        merged.add("shim", generate_latest(self._registry).decode())
        for (name, _), text in zip(self._peers, texts, strict=True):
            await asyncio.sleep(0)  # other requests go on between two processes
            merged.add(name, text)
        self._text, self._until = merged.text(), self._clock() + CACHE_SECONDS
        return self._text

    async def _fetch(self, host: str, port: int) -> str:
        """Returns the metrics of the process at this address as text; empty after an error or TIMEOUT_SECONDS."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return (await _get(host, port, self._token)).decode()
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            return ""


async def _get(host: str, port: int, token: str | None) -> bytes:
    """Returns the body of /metrics of a metrics server. Raises OSError, EOFError, LimitOverrunError, or ValueError for
    an answer that is not HTTP, not 200 or without a length.

    A client library makes a TLS context for each client, or keeps connections that a restarted peer has closed.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        bearer = f"Authorization: Bearer {token}\r\n" if token is not None else ""
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\n{bearer}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if head.split(b" ", 2)[1:2] != [b"200"] or length is None or int(length[1]) > MAX_TEXT_BYTES:
            raise ValueError("not the answer of a metrics server")
        return await reader.readexactly(int(length[1]))
    finally:
        writer.close()


class Merged:
    """The metrics of several processes, grouped by family."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}  # name: its lines, HELP and TYPE first
        self._up = [f"# HELP {UP} 1 if the process answered this scrape, else 0.", f"# TYPE {UP} gauge"]

    def add(self, process: str, text: str) -> None:
        """Adds the samples of a process, with its name as a label. An empty or invalid text leaves it out."""
        try:
            found = _labelled(text, process)
        except ValueError:
            found = {}
        self._up.append(f'{UP}{{process="{process}"}} {1.0 if found else 0.0}')
        for name, (about, samples) in found.items():
            self._families.setdefault(name, about).extend(samples)

    def text(self) -> bytes:
        lines = [*self._up, *(line for lines in self._families.values() for line in lines)]
        return "\n".join([*lines, ""]).encode()


def _labelled(text: str, process: str) -> dict[str, tuple[list[str], list[str]]]:
    """Returns the HELP and TYPE lines and the samples of each family, by name, the samples with one more label.

    Raises ValueError for a line that is neither.
    """
    label = f'process="{process}"'
    found: dict[str, tuple[list[str], list[str]]] = {}
    family = ""
    for line in text.split("\n"):  # a label may hold other line separators
        if about := _ABOUT.fullmatch(line):
            family = about[1]
            found.setdefault(family, ([], []))[0].append(line)
        elif sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            if family == "" or not name.startswith(family):
                family = name
            every = f"{labels},{label}" if labels else label
            found.setdefault(family, ([], []))[1].append(f"{name}{{{every}}}{value}")
        elif line and not line.startswith("#"):
            raise ValueError("not a line of the text format")
    return {name: parts for name, parts in found.items() if parts[1]}


def merge(texts: dict[str, str]) -> bytes:
    """Returns one text of all metrics, in UTF-8. `texts`: those of each process, by its name."""
    merged = Merged()
    for process, text in texts.items():
        merged.add(process, text)
    return merged.text()
