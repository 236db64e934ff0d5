"""A client process with little overhead: it records when bytes arrive, and parses them after the last stream.

Each answer runs through the alphabet, letter by letter, so that a lost, repeated or swapped token is detected. It
prints RUNNING once all streams have a token, and ENDING when the first stream ends. Then it writes when each token
arrived, as loadtest/transport/instant_worker.py does for sending.
`python -m loadtest.transport.stream_client PORT FILE RECEIVED_FILE NUM_STREAMS NUM_TOKENS`
"""

import asyncio
import json
import re
import sys
import time
from typing import cast

import numpy as np
import numpy.typing as npt
import uvloop
from tokenizers import Tokenizer

import demo
from loadtest.transport.instant_worker import prompt_of, received_count
from services.machine import loopback

RUNNING, ENDING = "running", "ending"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
TEXT = re.compile(rb'"text":"([a-z]+)"')
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"


def letter_ids() -> list[int]:
    """Returns the token ids of the letters of ALPHABET, in order. The client finds each token of such an answer in its
    text."""
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[letter] for letter in ALPHABET]


class Progress:
    """`received` is the number of tokens received, of all streams together. Prints RUNNING when every stream has a
    token, and ENDING when the first stream ends."""

    def __init__(self, num_streams: int, received: npt.NDArray[np.int64]) -> None:
        self.received = received  # [1], tokens
        self._num_waiting = num_streams
        self._ended = False

    def first_token(self) -> None:
        self._num_waiting -= 1
        if self._num_waiting == 0:
            sys.stdout.write(f"{RUNNING}\n")
            sys.stdout.flush()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            sys.stdout.write(f"{ENDING}\n")
            sys.stdout.flush()


class Stream(asyncio.Protocol):
    """One connection with one request. `pieces` are the bytes as they arrived, at `times` in ns."""

    def __init__(self, number: int, num_tokens: int, progress: Progress) -> None:
        self.pieces: list[bytes] = []
        self.times: list[int] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = True
        self._progress = progress
        body = json.dumps(
            {
                "prompt": prompt_of(number),
                "max_tokens": num_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        )
        self._request = f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(self._request)  # uvloop's own is no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        self.times.append(time.monotonic_ns())
        self.pieces.append(data)
        if num_tokens := sum(map(len, TEXT.findall(data))):  # may miss a chunk cut in two: a hint for the worker
            self._progress.received[0] += num_tokens
            if self._waiting:
                self._waiting = False
                self._progress.first_token()

    def connection_lost(self, error: Exception | None) -> None:
        self._progress.end()
        if not self.ended.done():
            self.ended.set_result(None)


def arrivals(pieces: list[bytes], times: list[int]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns (when each token arrived, in ns [tokens], number of chunks). A token arrives with the end of its chunk.

    Raises ValueError when a token is repeated, out of order, or missing between others.
    """
    whole = b"".join(pieces)
    ends = np.cumsum([len(piece) for piece in pieces])
    found: list[int] = []
    text = ""
    num_chunks = 0
    for match in TEXT.finditer(whole):
        letters = match[1].decode()
        moment = times[int(np.searchsorted(ends, match.end()))]
        found += [moment] * len(letters)
        text += letters
        num_chunks += 1
    start = ALPHABET.find(text[:1])
    if any(letter != ALPHABET[(start + place) % len(ALPHABET)] for place, letter in enumerate(text)):
        raise ValueError(f"tokens were lost, repeated or swapped: {text[:100]}")
    return np.array(found, dtype=np.int64), num_chunks


async def run(port: int, file: str, received_file: str, num_streams: int, num_tokens: int) -> None:
    """Runs all streams and writes their arrival times and chunk counts to `file`. Raises ValueError when a stream did
    not get all of its tokens in order."""
    loop = asyncio.get_running_loop()
    progress = Progress(num_streams, received_count(received_file))
    streams = [Stream(number, num_tokens, progress) for number in range(num_streams)]
    await asyncio.gather(*(loop.create_connection(lambda s=stream: s, loopback(), port) for stream in streams))  # type: ignore[misc]
    await asyncio.gather(*(stream.ended for stream in streams))
    received = np.zeros((num_streams, num_tokens), dtype=np.int64)
    chunks = []
    for number, stream in enumerate(streams):
        times, num_chunks = arrivals(stream.pieces, stream.times)
        if len(times) != num_tokens:
            raise ValueError(
                f"stream {number} got {len(times)} of {num_tokens} tokens: {b''.join(stream.pieces)[:200]!r}"
            )
        received[number] = times
        chunks.append(num_chunks)
    np.savez(file, received=received, chunks=np.array(chunks))


if __name__ == "__main__":
    port, file, received_file, num_streams, num_tokens = sys.argv[1:]
    uvloop.run(run(int(port), file, received_file, int(num_streams), int(num_tokens)))
