"""The accelerator's wait share of a run, from the counters in a tandem server's /metrics.

Wait share: of the time in which a request could run, the part outside of the worker's kernel time. On CUDA, kernel time
includes the gaps between the kernels of a step, but not the host's work before its inputs are copied. A server without
these counters, or without timed kernels, has no wait share; that is not a failure.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

RUNNABLE, KERNELS = "tandem:worker_runnable_seconds_total", "tandem:worker_kernel_seconds_total"
KEPT_SECONDS = 1.1  # a tandem server keeps the text of its metrics for a second
_TIMEOUT = aiohttp.ClientTimeout(total=30)


@dataclass(frozen=True)
class Counted:
    """Seconds in which a request could run, and seconds of kernel time, since each worker's start, summed over
    workers."""

    runnable: float
    kernels: float


async def read_counters(session: aiohttp.ClientSession, metrics_url: str) -> Counted | None:
    """Returns the counters; None if the server does not answer or does not export both.

    Reads them once more after KEPT_SECONDS, in which no request runs, so that they are not older than this call.
    """
    if await _read(session, metrics_url) is None:
        return None
    await asyncio.sleep(KEPT_SECONDS)
    return await _read(session, metrics_url)


async def _read(session: aiohttp.ClientSession, metrics_url: str) -> Counted | None:
    try:
        async with session.get(metrics_url, timeout=_TIMEOUT) as response:
            return parse_counters(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # ValueError: not text, or not this format
        return None


def parse_counters(text: str) -> Counted | None:
    """Returns both counters, summed over their labels, from Prometheus' text format; None unless both are there. Raises
    ValueError for other text."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in (RUNNABLE, KERNELS):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Counted(sums[RUNNABLE], sums[KERNELS]) if len(sums) == 2 else None


def wait_share(before: Counted | None, after: Counted | None) -> float | None:
    """Returns the wait share between two readings, from 0 to 1. None without counters, if no kernel ran, or if the
    differences are no valid share (a worker restarted in between)."""
    if before is None or after is None:
        return None
    runnable, kernels = after.runnable - before.runnable, after.kernels - before.kernels
    return 1 - kernels / runnable if 0 < kernels <= runnable else None
