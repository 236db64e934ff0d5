"""Merges the metrics of the shim and of its peers (--metrics-peers), each series with a `process` label.

A process that sends no valid metrics in time is left out, and its tandem:process_up is 0.
"""

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

TIMEOUT_SECONDS = 2.0


class Scrape:
    """Merges `registry`, the shim's own metrics, with those of the metrics servers `peers`, each NAME=host:port.

    `token`: bearer token for the peers; None: none is sent.
    """

    def __init__(self, registry: CollectorRegistry, peers: tuple[str, ...], token: str | None = None) -> None:
        self._registry = registry
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._peers = [(name, address) for name, _, address in (peer.partition("=") for peer in peers)]
        self._running: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Returns the merged metrics in Prometheus' text format. Waits for peers at most TIMEOUT_SECONDS.

        Concurrent callers share one scrape.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scrape())
        return await asyncio.shield(self._running)

    async def _scrape(self) -> bytes:
        texts = await asyncio.gather(*(self._fetch(address) for _, address in self._peers))
        own = generate_latest(self._registry).decode()
        found = {"shim": own} | {name: text for (name, _), text in zip(self._peers, texts, strict=True)}
        return await asyncio.to_thread(merge, found)

    async def _fetch(self, address: str) -> str:
        """Returns the metrics of the process at `address` as text; empty after an error or TIMEOUT_SECONDS."""
        from httpx2 import AsyncClient, HTTPError  # slow to import, and used only if the shim is scraped

        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), AsyncClient(trust_env=False) as client:
                answer = await client.get(f"http://{address}/metrics", headers=self._headers)
                return answer.content.decode() if answer.status_code == 200 else ""
        except (HTTPError, TimeoutError, OSError, ValueError):
            return ""


def merge(texts: dict[str, str]) -> bytes:
    """Returns one text of all metrics, in UTF-8. `texts`: those of each process, by its name.

    A process with an empty or invalid text is left out, and its tandem:process_up is 0.
    """
    up = Metric("tandem:process_up", "1 if the process answered this scrape, else 0.", "gauge")
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
    registry.register(_FixedMetrics(families.values()))
    return generate_latest(registry)


class _FixedMetrics(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
