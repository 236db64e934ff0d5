"""Seeded clients that stream during an attack: each checks its answers and records its longest wait for a chunk."""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.harness import PLAIN_HTTP

NUM_CLIENTS = 16
MAX_TOKENS = 24


def question(client: int) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": f"What is {client} + {3 * client + 1}?"}],
        "seed": client,
        "temperature": 1.0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }


@dataclass
class Received:
    """One answer as its client received it, with the finish reason, and the longest wait for a chunk in seconds."""

    answer: str = ""
    longest_wait: float = 0.0


def ask(url: str, client: int) -> Received:
    received, before = Received(), time.monotonic()
    with (
        httpx.Client(timeout=60, **PLAIN_HTTP) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json=question(client)) as response,
    ):
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            now = time.monotonic()
            received.longest_wait, before = max(received.longest_wait, now - before), now
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    received.answer += choice["delta"].get("content") or ""
                    received.answer += f" [{choice['finish_reason']}]" if choice["finish_reason"] else ""
    return received


@dataclass
class Clients:
    """A context manager: inside, all clients ask in a loop and expect `expected`. Its exit raises the first failure."""

    url: str
    expected: list[str]
    waits: list[float] = field(default_factory=list)  # the longest wait of each answer
    failures: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> "Clients":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures and exception[0] is None:
            raise self.failures[0]

    @property
    def num_answers(self) -> int:
        return len(self.waits)

    @property
    def longest_wait(self) -> float:
        return max(self.waits, default=0.0)

    def _run(self, client: int) -> None:
        try:
            while not self._stop.is_set():
                received = ask(self.url, client)
                assert received.answer == self.expected[client], f"client {client} got another answer"
                self.waits.append(received.longest_wait)
        except BaseException as error:
            self.failures.append(error)


def expected_answers(url: str) -> list[str]:
    return [ask(url, client).answer for client in range(NUM_CLIENTS)]
