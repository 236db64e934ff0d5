"""Sends hostile HTTP requests to the shim, some at once, and reads what comes."""

import asyncio
import collections
import random
import re
from collections.abc import Iterator

from tests.security.http_requests import hostile_request

AT_ONCE = 32
WAIT_SECONDS = (0.0, 0.003, 0.2, 0.2, 0.2, 0.2, 0.2, 2.0)  # for an answer: what is sent may be a part of a request only
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
EXPECTED = {"200", "204", "307", "400", "401", "403", "404", "405", "408", "411", "413", "414", "415", "417", "421",
            "426", "429", "431", "501", "503", "505"}  # fmt: skip


async def hostile_requests(address: str, num_requests: int, seed: int) -> collections.Counter[str]:
    """Sends `num_requests` requests. Returns how many answers had each status; "none": no answer.

    Raises AssertionError for an answer that is not HTTP or has another status than those of EXPECTED, such as 500.
    """
    host, _, port = address.rpartition(":")
    requests = _requests(num_requests, random.Random(seed))
    found: collections.Counter[str] = collections.Counter()

    async def send() -> None:
        for request, seconds in requests:
            found[await _sent(host.strip("[]"), int(port), request, seconds)] += 1

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return found


def _requests(num_requests: int, rng: random.Random) -> Iterator[tuple[bytes, float]]:
    """Yields requests, and how long their clients wait for an answer, in seconds."""
    for _ in range(num_requests):
        yield hostile_request(rng), rng.choice(WAIT_SECONDS)


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
