"""The accelerator's wait share of a stretch of time, from a server that counts it: a tandem, known by its /metrics.

Of the time in which a request could run, it is the part in which no kernel did. A server without these counters, or
whose kernels nobody times, has none; that is no failure.
"""

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

RUNNABLE, KERNELS = "tandem:worker_runnable_seconds_total", "tandem:worker_kernel_seconds_total"
_TIMEOUT = aiohttp.ClientTimeout(total=30)


@dataclass(frozen=True)
class Counted:
    """Seconds since the workers began, of all of them together."""

    runnable: float
    kernels: float


async def read_counters(session: aiohttp.ClientSession, metrics_url: str) -> Counted | None:
    """None: nothing there has both counters."""
    try:
        async with session.get(metrics_url, timeout=_TIMEOUT) as response:
            return parse_counters(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # the last: no text, or not of this format
        return None


def parse_counters(text: str) -> Counted | None:
    """From Prometheus' text format, whatever the labels. Raises ValueError for another one."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in (RUNNABLE, KERNELS):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Counted(sums[RUNNABLE], sums[KERNELS]) if len(sums) == 2 else None


def wait_share(before: Counted | None, after: Counted | None) -> float | None:
    """From 0 to 1; None where nobody counted, where no kernel ran, or where a worker began anew in between."""
    if before is None or after is None:
        return None
    runnable, kernels = after.runnable - before.runnable, after.kernels - before.kernels
    return 1 - kernels / runnable if 0 < kernels <= runnable else None
