"""Reads the body of a request and prepares it: as submits, with what else an endpoint needs."""

from starlette.requests import Request

from services.shim.access.keys import caller_of
from services.shim.apis.translation import AnyTranslation
from services.shim.concurrency import hold_of
from services.shim.generations import Generations
from services.shim.prepare import Prepared
from services.shim.preparer import Preparer
from services.shim.responses import until_disconnected


class RequestReader:
    """One object per process."""

    def __init__(self, generations: Generations, preparer: Preparer) -> None:
        self._generations = generations
        self._preparer = preparer

    async def read(self, request: Request, translation: AnyTranslation, operation: str) -> Prepared:
        """Returns the request, whose submits then count as held instead of its body. `operation`: the name of a span
        about a refusal.

        Raises TandemError as Preparer.prepare, ClientGone or ClientDisconnect if the client disconnects.
        """
        with self._generations.trace_refusals(operation, traceparent_of(request)):
            body = await _read_body(request)
            size, group = len(body), caller_of(request.scope).group
            preparing = self._preparer.prepare(translation, body, self._generations.client.facts(), group)
            if not self._preparer.is_inline(size):  # a client that hangs up frees the child process
                preparing = until_disconnected(request.receive, preparing)
            prepared = await preparing
        hold_of(request.scope)(prepared.facts.num_bytes - size)
        return prepared


async def _read_body(request: Request) -> bytearray:
    """Returns the body. body_limit.py bounds it. Raises ClientDisconnect if the client disconnects before its end."""
    body = bytearray()
    async for part in request.stream():
        body += part
    return body


def traceparent_of(request: Request) -> str:
    """Returns the W3C trace context of the client's span; empty: none."""
    return str(request.headers.get("traceparent", ""))
