"""The metric of a caller's links. It is computed when it is scraped, so that a message costs only one addition."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.rpc.link import Link


class LinkMessages(Collector):
    """Counts the messages received on `links`: about one per engine step and link; fewer if this process is slow."""

    def __init__(self, links: Sequence[Link[Any, Any]]) -> None:
        self._links = links

    def collect(self) -> Iterable[Metric]:
        received = sum(link.num_received for link in self._links)
        yield CounterMetricFamily(
            "tandem:link_messages", "Messages received on the links to tokenizers or engines.", value=received
        )
