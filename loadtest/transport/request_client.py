"""A client process that sends short chats, half of them streamed, and waits for each answer: what a request costs.

It prints RUNNING after a warm-up, waits for a line on its standard input, sends all requests, and prints ENDING.
`python -m loadtest.transport.request_client PORT NUM_REQUESTS`
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from threading import local

from loadtest.transport.stream_client import ENDING, RUNNING
from services.machine import loopback

WARM_UP_REQUESTS = 64
CONNECTIONS = 4
TURNS = 6  # messages of a chat, about 1 KiB in all
TEXT = "The quick brown fox jumps over the lazy dog. " * 4


def chat(number: int) -> bytes:
    """Returns the body of a request. Its first message has `number`, so that no prompt is in the prefix cache."""
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": f"{number} {turn} {TEXT}"} for turn in range(TURNS - 1)]
    return json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0, "stream": number % 2 == 0}).encode()


def send(port: int, bodies: list[bytes]) -> None:
    """Sends each body over one of CONNECTIONS connections. Raises ValueError for any status but 200."""
    held = local()

    def post(body: bytes) -> None:
        if not hasattr(held, "connection"):
            held.connection = HTTPConnection(loopback(), port, timeout=60)
        held.connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = held.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {answer[:500]!r}")

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(post, bodies))


def main() -> None:
    port, num_requests = map(int, sys.argv[1:])
    bodies = [chat(number) for number in range(num_requests + WARM_UP_REQUESTS)]
    send(port, bodies[num_requests:])
    for word in (RUNNING, ENDING):
        sys.stdout.write(f"{word}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        if word == RUNNING:
            send(port, bodies[:num_requests])


if __name__ == "__main__":
    main()
