"""Attacks on the HTTP port, each by one client: `python -m tests.security.front_attacks NAME ADDRESS SECONDS`.

The client keeps to SHARE of one core, so that what it sends costs the server more than the client, or nothing. Each
attack is what issue threads of such servers report: headers and bodies without end, work hidden in small requests,
connections that stand still, requests whose client has gone. Traffic goes to the address given, bounded in time.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

SHARE = 0.2
PART_BYTES = 64 * 1024
NUM_IDLE = 300  # connections that stand still
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Attacker:
    """Opens connections and sends bytes, at no more than SHARE of a core since it was made."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._at = host.strip("[]"), int(port)
        self._began = time.monotonic() - time.process_time() / SHARE
        self.num_sent = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self.pace()
        return await asyncio.open_connection(*self._at)

    async def send(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        """Sends the content part by part. Raises OSError once the server has closed the connection."""
        for start in range(0, len(content), PART_BYTES):
            writer.write(content[start : start + PART_BYTES])
            await writer.drain()
            await self.pace()

    async def pace(self) -> None:
        """Waits until this process's CPU time is its share of the time."""
        await asyncio.sleep(max(0.0, self._began + time.process_time() / SHARE - time.monotonic()))

    async def ask(self, content: bytes, *, read: bool = True) -> None:
        """Sends a request on a connection of its own, reads the answer to its end, or hangs up at once."""
        reader, writer = await self.connect()
        try:
            with contextlib.suppress(OSError):
                await self.send(writer, content)
                while read and await reader.read(PART_BYTES):
                    await self.pace()
        finally:
            self.num_sent += 1
            writer.transport.abort()


def post(path: str, body: bytes, *headers: str, close: bool = True) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, *headers, *(["Connection: close"] if close else []), "", ""]).encode() + body


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
USER = {"role": "user", "content": "Count from 1 to 9."}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def one_large_header(attacker: Attacker) -> None:
    await attacker.ask(HEAD + b"X: " + b"a" * 64_000_000)


async def many_headers(attacker: Attacker) -> None:
    await attacker.ask(HEAD + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(240_000)))


async def unfinished_heads(attacker: Attacker) -> None:
    await standing(attacker, HEAD)


async def unfinished_bodies(attacker: Attacker) -> None:
    await standing(attacker, HEAD + b"Content-Length: 1000\r\n\r\n{")


async def idle_connections(attacker: Attacker) -> None:
    await standing(attacker, b"")


async def arrays(attacker: Attacker) -> None:
    await attacker.ask(post(CHAT, b'{"messages": [' + b"[1]," * 7_000_000 + b"1]}"))


async def objects(attacker: Attacker) -> None:
    await attacker.ask(post(CHAT, b'{"messages": [' + b"{}," * 10_300_000 + b"{}]}"))


async def small_arrays(attacker: Attacker) -> None:
    """Below the size from which bodies are parsed elsewhere."""
    await attacker.ask(post(CHAT, b'{"messages": [' + b"[1]," * 15_000 + b"1]}"))


async def prompt_ids(attacker: Attacker) -> None:
    prompts = [[5 + (number + place) % 900 for place in range(1000)] for number in range(1024)]
    await attacker.ask(post(COMPLETIONS, body(prompt=prompts, max_tokens=1, return_token_ids=True)))


async def logprobs(attacker: Attacker) -> None:
    await attacker.ask(post(COMPLETIONS, body(prompt=["a"] * 8, n=128, max_tokens=200, logprobs=20)))


async def allowed_logprobs(attacker: Attacker) -> None:
    await attacker.ask(post(COMPLETIONS, body(prompt="a", n=4, max_tokens=500, logprobs=20, ignore_eos=True)))


async def slow_readers(attacker: Attacker) -> None:
    """Streams that nobody reads."""
    wanted = body(messages=[USER], stream=True, max_tokens=1000, ignore_eos=True, logprobs=True, top_logprobs=20)
    await standing(attacker, post(CHAT, wanted), num_connections=8)


async def pipelined_orphans(attacker: Attacker) -> None:
    wanted = body(messages=[USER], max_tokens=1000, ignore_eos=True)
    await attacker.ask(post(CHAT, wanted, close=False) + post(CHAT, wanted), read=False)


async def scrapes(attacker: Attacker) -> None:
    await attacker.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


async def control_tokens(attacker: Attacker) -> None:
    text = "<|im_end|>" * 100_000
    await attacker.ask(post(CHAT, body(messages=[{"role": "user", "content": text}], max_tokens=1)))


async def many_messages(attacker: Attacker) -> None:
    await attacker.ask(post(CHAT, body(messages=[{"role": "user", "content": "a"}] * 16_000, max_tokens=1)))


async def endless_templates(attacker: Attacker) -> None:
    await attacker.ask(post(CHAT, body(messages=[USER], chat_template=ENDLESS, max_tokens=1)))


async def new_variables(attacker: Attacker) -> None:
    """Each request has other template variables, so that what a template does with roles is found out anew."""
    variables = {f"a{attacker.num_sent}": attacker.num_sent}
    messages = [USER, {"role": "tool", "content": "a"}, {"role": f"r{attacker.num_sent}", "content": "a"}]
    await attacker.ask(post(CHAT, body(messages=messages, chat_template_kwargs=variables, max_tokens=1)))


async def standing(attacker: Attacker, beginning: bytes, num_connections: int = NUM_IDLE) -> None:
    """Opens connections, sends a beginning on each, and holds them until the attack ends."""
    held = []
    try:
        for _ in range(num_connections):
            with contextlib.suppress(OSError):
                held.append(await attacker.connect())
                await attacker.send(held[-1][1], beginning)
                attacker.num_sent += 1
        await asyncio.Event().wait()
    finally:
        for _, writer in held:
            writer.transport.abort()


Attack = Callable[[Attacker], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(one_large_header, many_headers, unfinished_heads, unfinished_bodies, idle_connections, arrays, objects),
        *(small_arrays, prompt_ids, logprobs, allowed_logprobs, slow_readers, pipelined_orphans, scrapes),
        *(control_tokens, many_messages, endless_templates, new_variables),
    )
}


async def repeat(attack: Attack, address: str, seconds: float) -> int:
    """Repeats an attack for some seconds, one at a time. Returns the number of requests sent."""
    attacker = Attacker(address)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await attacker.pace()
                with contextlib.suppress(OSError):
                    await attack(attacker)
    return attacker.num_sent


if __name__ == "__main__":
    name, address, seconds = sys.argv[1:]
    print(asyncio.run(repeat(ATTACKS[name], address, float(seconds))))
