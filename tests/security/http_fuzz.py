"""Sends hostile HTTP requests to the shim, some at once, and reads what comes."""

import asyncio
import collections
import random
import re

from tests.security.http_requests import hostile_request

AT_ONCE = 32
WAIT_SECONDS = (0.0, 0.003, 0.2, 0.2, 0.2, 0.2, 0.2, 2.0)  # for an answer: what is sent may be a part of a request only
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
EXPECTED = {"200", "204", "400", "401", "403", "404", "405", "408", "411", "413", "414", "415", "417", "421",
            "426", "429", "431",
            "501", "503", "505"}  # fmt: skip


async def hostile_requests(address: str, num_requests: int, seed: int) -> collections.Counter[str]:
    """Sends `num_requests` requests. Returns how many answers had each status; "none": no answer.

    Raises AssertionError for an answer that is not HTTP or has another status than those of EXPECTED, such as 500.
    """
    rng = random.Random(seed)
    host, _, port = address.rpartition(":")
    found: collections.Counter[str] = collections.Counter()
    left = num_requests
    while left > 0:
        batch = [hostile_request(rng) for _ in range(min(AT_ONCE, left))]
        left -= len(batch)
        found.update(
            await asyncio.gather(
                *(_sent(host.strip("[]"), int(port), request, rng.choice(WAIT_SECONDS)) for request in batch)
            )
        )
    return found


async def _sent(host: str, port: int, request: bytes, seconds: float) -> str:
    """Sends one request and hangs up once an answer begins, or after `seconds`. Returns the status of the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        async with asyncio.timeout(seconds):
            return _status(await reader.read(65536), request)
    except (OSError, TimeoutError):
        return "none"
    finally:
        writer.transport.abort()


def _status(answer: bytes, request: bytes) -> str:
    if not answer:
        return "none"
    found = STATUS.match(answer)
    assert found is not None, f"no HTTP: {answer[:100]!r} to {request[:1000]!r}"
    status = found[1].decode()
    assert status in EXPECTED, f"{answer[:500]!r} to {request[:3000]!r}"
    return status
