"""The stream client: arrival times of tokens, lost tokens, and a run against a server with known chunks."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.transport.instant_worker import prompt_of
from loadtest.transport.stream_client import ALPHABET, arrivals, run
from services.machine import loopback


def chunk(text: str) -> bytes:
    return f'10\r\ndata: {{"choices":[{{"index":0,"text":"{text}","logprobs":null}}]}}\n\n\r\n'.encode()


def test_a_token_arrives_when_its_chunk_is_complete() -> None:
    whole = chunk("y") + chunk("za")
    cut = len(chunk("y")) + 30  # within the second chunk, before its text
    found, num_chunks = arrivals([b"HTTP/1.1 200 OK\r\n\r\n", whole[:cut], whole[cut:]], [1, 2, 3])
    assert (found.tolist(), num_chunks) == ([2, 3, 3], 2)


@pytest.mark.parametrize("text", ["abd", "abbc", "acb"], ids=["lost", "repeated", "swapped"])
def test_a_token_at_a_wrong_index_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="lost, repeated or swapped"):
        arrivals([chunk(text)], [1])


class LetterServer:
    """Answers each request with `num_tokens` letters, two in a chunk, starting at another letter for each stream."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self.bodies: list[dict[str, object]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
        first = len(self.bodies)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        text = "".join(ALPHABET[(first + index) % len(ALPHABET)] for index in range(self._num_tokens))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for index in range(0, len(text), 2):
            writer.write(chunk(text[index : index + 2]))
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def run_client(folder: Path, num_streams: int, num_tokens: int, num_served: int) -> LetterServer:
    letters = LetterServer(num_served)
    np.zeros(1, dtype=np.int64).tofile(folder / "count")
    async with await asyncio.start_server(letters.serve, loopback(), 0) as server:
        port = server.sockets[0].getsockname()[1]
        await run(port, str(folder / "received.npz"), str(folder / "count"), num_streams, num_tokens)
    return letters


async def test_a_run_writes_when_each_token_arrived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = await run_client(tmp_path, num_streams=3, num_tokens=40, num_served=40)
    assert sorted(map(str, (body["prompt"] for body in letters.bodies))) == [str(prompt_of(n)) for n in range(3)]
    assert all(body["max_tokens"] == 40 and body["stream"] is True for body in letters.bodies)
    assert capsys.readouterr().out == "running\nending\n"
    with np.load(tmp_path / "received.npz") as found:
        assert found["received"].shape == (3, 40)
        assert (np.diff(found["received"], axis=1) >= 0).all() and found["received"].min() > 0
        assert found["chunks"].tolist() == [20, 20, 20]
    assert 0 < np.fromfile(tmp_path / "count", dtype=np.int64)[0] <= 120


async def test_a_stream_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 6 of 8 tokens"):
        await run_client(tmp_path, num_streams=2, num_tokens=8, num_served=6)
