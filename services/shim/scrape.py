"""/metrics of the whole tree: this process's own series and those of the processes behind it, each with a `process`
label. One that does not answer in time, or not sensibly, is left out, and tandem:process_up says so."""

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

SECONDS = 2.0


class Scrape:
    """`peers` are NAME=host:port. They are shown the `token`, if there is one."""

    def __init__(self, registry: CollectorRegistry, peers: tuple[str, ...], token: str | None = None) -> None:
        self._registry = registry
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._peers = [(name, address) for name, _, address in (peer.partition("=") for peer in peers)]
        self._running: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Takes as long as the slowest peer, SECONDS at most. Callers at the same time share one scrape."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scrape())
        return await asyncio.shield(self._running)

    async def _scrape(self) -> bytes:
        texts = await asyncio.gather(*(self._fetch(address) for _, address in self._peers))
        own = generate_latest(self._registry).decode()
        found = {"shim": own} | {name: text for (name, _), text in zip(self._peers, texts, strict=True)}
        return await asyncio.to_thread(merge, found)

    async def _fetch(self, address: str) -> str:
        """Empty when there is no sensible answer."""
        from httpx2 import AsyncClient, HTTPError  # only a shim that is scraped needs it

        try:
            async with asyncio.timeout(SECONDS), AsyncClient(trust_env=False) as client:
                answer = await client.get(f"http://{address}/metrics", headers=self._headers)
                return answer.content.decode() if answer.status_code == 200 else ""
        except (HTTPError, TimeoutError, OSError, ValueError):
            return ""


def merge(texts: dict[str, str]) -> bytes:
    """One exposition of several processes', by name; empty text for one that is down."""
    up = Metric("tandem:process_up", "1 for a process that answered this scrape.", "gauge")
    families = {up.name: up}
    for process, text in texts.items():
        try:
            found = list(text_string_to_metric_families(text))
        except ValueError:
            found = []
        up.add_sample(up.name, {"process": process}, 1.0 if found else 0.0)
        for one in found:
            family = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
            for sample in one.samples:
                family.add_sample(sample.name, {**sample.labels, "process": process}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Given(families.values()))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
