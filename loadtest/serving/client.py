"""The HTTP client: turns one streaming request into one RequestResult, and sends all requests of a run.

Owns the connections and the clock that TTFT, ITL and end-to-end latency are measured by: a token counts when its chunk
has arrived here. A failed request is a result with an error, not an exception.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import aiohttp

from loadtest.serving.events import EventDecoder
from loadtest.serving.result import RequestResult
from loadtest.serving.workloads import Request
from services.errors import Fatal

_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
# A request may wait for hours in a loaded server. This limit is for a server that no longer exists.
_REQUEST_SECONDS = 6 * 3600
# Below uvicorn's 5 s, after which it closes an idle connection; a request sent then would fail.
_KEEPALIVE_SECONDS = 2
_TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning", "tool_calls")


class _Failed(Exception):
    """The server's answer is an error or incomplete. The message is one line for the report."""


@dataclass(frozen=True)
class Target:
    """Where requests go, and the fields that all of them have."""

    base_url: str
    endpoint: str
    model: str
    chat: bool
    temperature: float | None = None  # None: the server's default
    ignore_eos: bool = False

    @property
    def url(self) -> str:
        return self.base_url + self.endpoint

    @property
    def metrics_url(self) -> str:
        return f"{self.base_url}/metrics"

    def body(self, request: Request) -> dict[str, Any]:
        """Returns the JSON body. It has only fields that were asked for: other servers reject unknown ones."""
        prompt = (
            {"messages": [{"role": "user", "content": request.prompt}]} if self.chat else {"prompt": request.prompt}
        )
        return {
            "model": self.model,
            **prompt,
            # OpenAI deprecates this name for chat, but it is the only one that every server accepts.
            "max_tokens": request.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if self.temperature is None else {"temperature": self.temperature}),
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **request.fields,
        }


def open_session(api_key: str | None) -> aiohttp.ClientSession:
    """Returns a session without a limit on connections; the caller limits the concurrency and closes the session."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
    )


async def find_model(session: aiohttp.ClientSession, models_url: str, model: str | None) -> str:
    """Returns `model`; None: the first model of the server's list. Raises Fatal if no server answers at `models_url`,
    or if `model` is None and the answer lists none."""
    try:
        async with session.get(models_url, timeout=aiohttp.ClientTimeout(total=30)) as response:
            if model is not None:
                return model
            status, text = response.status, await response.text(errors="replace")
    except _NETWORK_ERRORS as error:
        raise Fatal(f"no server answers at {models_url}: {_reason(error)}") from error
    if status != 200:
        raise Fatal(f"{models_url} answers {_http_error(status, text)}")
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise Fatal(f"{models_url} lists no model: name one with --model") from error


async def run(
    session: aiohttp.ClientSession,
    target: Target,
    requests: Sequence[Request],
    *,
    arrivals: Sequence[float] | None = None,
    max_concurrency: int | None = None,
    on_done: Callable[[], object] = lambda: None,
) -> tuple[list[RequestResult], float]:
    """Sends all requests. Each waits for its arrival time, then until fewer than `max_concurrency` are running.

    `arrivals` are seconds after the start; None: all at 0. `max_concurrency` None: no limit. Calls `on_done` after each
    request. Returns the results in the order of `requests`, and the seconds from the start to the end of the last
    answer.
    """
    slots = asyncio.Semaphore(max_concurrency or max(len(requests), 1))
    start = perf_counter()

    async def one(request: Request, arrival: float) -> RequestResult:
        await asyncio.sleep(max(0.0, start + arrival - perf_counter()))
        async with slots:
            result = await send(session, target, request)
        on_done()
        return result

    async with asyncio.TaskGroup() as group:
        times = arrivals or [0.0] * len(requests)
        tasks = [group.create_task(one(*each)) for each in zip(requests, times, strict=True)]
    return [task.result() for task in tasks], perf_counter() - start


async def send(session: aiohttp.ClientSession, target: Target, request: Request) -> RequestResult:
    """Sends one request, reads its stream and returns its result; a failure is in its `error`. TTFT starts here, before
    the connection is opened."""
    # Encoded before the clock starts: a long prompt of token ids takes milliseconds.
    body = json.dumps(target.body(request)).encode()
    result = RequestResult(request.input_len, request.output_len, start=perf_counter())
    try:
        headers = {"Content-Type": "application/json"}
        async with session.post(target.url, data=body, headers=headers, allow_redirects=False) as response:
            if 300 <= response.status < 400:
                raise _Failed(f"HTTP {response.status}: redirected to {response.headers.get('Location')}")
            if response.status != 200:
                raise _Failed(_http_error(response.status, await response.text(errors="replace")))
            await _read(response, result)
    except Exception as error:  # one bad answer must not discard the results of other requests
        result.error = _reason(error)
        result.end = perf_counter()
    return result


async def _read(response: aiohttp.ClientResponse, result: RequestResult) -> None:
    """Fills in the times and usage of `result`. Raises _Failed for an error or an incomplete answer."""
    finished = False
    async for now, data in _events(response):
        if data == b"[DONE]":
            finished = True
            continue
        chunk = _parse(data)
        for choice in chunk.get("choices") or ():
            result.end = now
            finished = finished or choice.get("finish_reason") is not None
            part = choice.get("delta") or choice
            if any(part.get(name) for name in _TEXT_FIELDS):
                result.chunk_times.append(now)
        if usage := chunk.get("usage"):
            result.prompt_tokens = _count(usage.get("prompt_tokens"))
            result.completion_tokens = _count(usage.get("completion_tokens"))
    if not finished or not result.end:
        raise _Failed("the stream ended before the answer was complete")


def _count(value: Any) -> int | None:
    """Returns `value` if it is a number of tokens (an integer of at least 0), else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _parse(data: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Failed(f"an event is not JSON: {_one_line(data.decode(errors='replace'))}") from error
    if isinstance(chunk, dict) and chunk.get("error"):
        raise _Failed(f"the stream has an error: {_message(chunk) or _one_line(str(chunk['error']))}")
    if not _is_chunk(chunk):
        raise _Failed(f"an event is not an OpenAI chunk: {_one_line(str(chunk))}")
    return cast("dict[str, Any]", chunk)


def _is_chunk(chunk: Any) -> bool:
    """Returns whether the fields that are read here have the right types."""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("usage") or {}, dict):
        return False
    choices = chunk.get("choices") or []
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and isinstance(choice.get("delta") or {}, dict) for choice in choices
    )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, bytes]]:
    """Yields (arrival time in seconds, data) of each server-sent event. Not by aiohttp's readline, which limits the
    length of a line."""
    decoder = EventDecoder()
    async for piece in response.content.iter_any():
        now = perf_counter()
        for data in decoder.feed(piece):
            yield now, data


def _http_error(status: int, text: str) -> str:
    try:
        message = _message(json.loads(text))
    except (ValueError, RecursionError):
        message = None
    return f"HTTP {status}: {message or _one_line(text) or 'no reason given'}"


def _message(body: Any) -> str | None:
    """Returns the message of OpenAI's {"error": {"message": ...}} or of similar bodies; None without one."""
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return _one_line(message) if isinstance(message, str) else None


def _reason(error: BaseException) -> str:
    return _one_line(str(error)) or type(error).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
