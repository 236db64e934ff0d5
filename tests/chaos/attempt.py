"""One request over a raw HTTP/1.1 connection: its events, when each arrived, and how it ended.

Costs little CPU, because the clients share two cores with the server. Promises never to raise for what a server does:
every end is an `outcome`.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.chaos.cases import Case, Json

BUFFER_BYTES = 1 << 24  # a whole answer with logprobs may be one line
ANSWERED, HUNG_UP, REFUSED, LOST = "answered", "hung up", "refused", "lost"


class _Refused(Exception):
    """The server's answer is not status 200."""


class _Lost(Exception):
    """The answer is not complete."""


class _HangUp(Exception):
    """The client gives the request up."""


@dataclass(eq=False)
class Attempt:
    """`salt`: the request's cache salt; None: as in its body. Times are those of time.monotonic(), in seconds."""

    case: Case
    salt: str | None = None
    may_hang_up: bool = True
    started: float = 0.0
    times: list[float] = field(default_factory=list)  # of each event with a choice
    events: list[Json] = field(default_factory=list)  # if streamed
    whole: Json | None = None
    num_tokens: int = 0  # that the client has, of all choices; 0 for an answer that is not streamed
    ended_at: float = 0.0
    outcome: str = ""
    reason: str = ""  # of a request that was refused or lost

    @property
    def streaming(self) -> bool:
        """Whether the client has a part of the answer, and not all."""
        return bool(self.times) and not self.outcome

    async def run(self, host: str, port: int, seconds: float) -> "Attempt":
        """Sends the request and reads its answer for at most `seconds`. Returns itself with an outcome."""
        self.started = time.monotonic()
        hang_up = self.case.hang_up_seconds if self.may_hang_up else None
        try:
            async with asyncio.timeout(seconds if hang_up is None else min(seconds, hang_up)):
                await self._exchange(host, port)
            self.outcome = ANSWERED
        except _HangUp:
            self.outcome = HUNG_UP
        except TimeoutError:
            self.outcome, self.reason = (LOST, f"no end within {seconds:g} s") if hang_up is None else (HUNG_UP, "")
        except _Refused as error:
            self.outcome, self.reason = REFUSED, str(error)
        except (_Lost, msgspec.DecodeError) as error:
            self.outcome, self.reason = LOST, str(error)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.outcome, self.reason = (LOST if self.times else REFUSED), f"{type(error).__name__}: {error}"
        self.ended_at = time.monotonic()
        return self

    def _request(self, host: str, port: int) -> bytes:
        body = {**self.case.body, **({} if self.salt is None else {"cache_salt": self.salt})}
        encoded = msgspec.json.encode(body)
        head = (
            f"POST {self.case.path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n"
        )
        return head.encode() + encoded

    async def _exchange(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port, limit=BUFFER_BYTES)
        try:
            writer.write(self._request(host, port))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = int(head[9:12])
            if status != 200:
                raise _Refused(f"status {status}: {(await reader.read()).decode(errors='replace')[:300]}")
            if b"transfer-encoding: chunked" in head:
                await self._read_chunks(reader)
            else:
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self._take_whole(await reader.readexactly(length))
        finally:
            writer.transport.abort()

    async def _read_chunks(self, reader: asyncio.StreamReader) -> None:
        """Reads chunked framing up to its end. A stream's events may lie in several chunks."""
        buffer = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            buffer += (await reader.readexactly(size + 2))[:-2]
            if self.case.streams:
                *complete, buffer = buffer.split(b"\n\n")
                for event in complete:
                    self._take(event)
        if not self.case.streams:
            self._take_whole(buffer)
        elif self.events[-1:] != [{}]:
            raise _Lost("the stream ended without [DONE]")
        else:
            self.events.pop()

    def _take_whole(self, body: bytes) -> None:
        self.whole = msgspec.json.decode(body)

    def _take(self, line: bytes) -> None:
        if line == b"data: [DONE]":
            self.events.append({})
            return
        event: Any = msgspec.json.decode(line[6:])
        if "error" in event:
            raise _Lost(f"error in the stream: {event['error']}")
        self.events.append(event)
        if event["choices"]:
            self.times.append(time.monotonic())
            self.num_tokens += sum(len(choice.get("token_ids", ())) for choice in event["choices"])
            limit = self.case.hang_up_tokens
            if limit is not None and self.may_hang_up and self.num_tokens >= limit:
                raise _HangUp
