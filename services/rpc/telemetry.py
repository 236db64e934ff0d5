"""What a caller tells of its links as a metric; asked when scraped, so that a message costs nothing but its count."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.rpc.link import Link


class LinkMessages(Collector):
    """One per step, however many requests are in it; fewer where this process is too slow to take them one by one."""

    def __init__(self, links: Sequence[Link[Any, Any]]) -> None:
        self._links = links

    def collect(self) -> Iterable[Metric]:
        received = sum(link.num_received for link in self._links)
        yield CounterMetricFamily("tandem:link_messages", "Messages from the processes below.", value=received)
