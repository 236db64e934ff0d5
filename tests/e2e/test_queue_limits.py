"""Too much work is refused with 429, a reason and Retry-After; accepted requests are completed."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.api import CHAT, INPUT, TEXT, Json, ask, choices_of, error_of, fold, fresh, stream
from tests.e2e.harness import Server, wait_for
from tests.e2e.test_hang_ups import read_chunked, send_without_reading
from tests.e2e.test_metrics import scrape

LONG: Json = {"max_tokens": 1800, "ignore_eos": True, "temperature": 0}
FLOOD = 5000


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    limits = ("--max-num-seqs=2", "--max-num-queued-reqs=4", "--max-num-queued-tokens=300")
    with Server("--dtype=float32", *limits, "--max-concurrent-requests=6") as server:
        yield server


def counts(server: Server) -> tuple[int, int]:
    stats = server.stats()
    return stats.num_running, stats.num_waiting


@contextmanager
def busy(server: Server, *token_counts: int) -> Iterator[list["Future[httpx.Response]"]]:
    """Runs requests with prompts of these lengths: two run, the others wait."""
    with ThreadPoolExecutor(len(token_counts)) as pool:
        answers: list[Future[httpx.Response]] = []
        for count in token_counts:
            answers.append(pool.submit(server.post, TEXT, fresh({"prompt": [500 + count] * count, **LONG})))
            expected = (min(2, len(answers)), max(0, len(answers) - 2))
            wait_for(lambda expected=expected: counts(server) == expected, "two run, the others wait")  # type: ignore[misc]
        yield answers
        assert {answer.result().status_code for answer in answers} == {200}


def refusal(server: Server, path: str, **body: object) -> str:
    """Returns the message of a request that was refused with 429 and Retry-After."""
    response = server.post(path, {**INPUT[path], **body})
    error = error_of(response, 429)
    assert error["type"] == "rate_limit_error"
    assert 1 <= int(response.headers["retry-after"]) <= 60
    return str(error["message"])


@pytest.mark.parametrize("path", [CHAT, pytest.param(TEXT, marks=pytest.mark.long)], ids=["chat", "text"])
@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.long)], ids=["whole", "stream"])
def test_max_num_queued_reqs(narrow: Server, path: str, streaming: bool) -> None:
    before = scrape(narrow)
    with busy(narrow, 5, 6, 7):
        message = refusal(narrow, path, n=2, stream=streaming)
        assert message == "3 requests are running or waiting: 2 more would exceed max_num_queued_reqs (4)"
        assert narrow.post(path, {**INPUT[path], "max_tokens": 1, "stream": streaming}).status_code == 200
    after, labels = scrape(narrow), {"reason": "max_num_queued_reqs"}
    name = "vllm:admission_rejections_total"
    assert after(name, **labels) - before(name, **labels) == 1
    error = error_of(narrow.post(TEXT, {"prompt": ["a", "b"], "n": 3}), 400)
    assert error["message"] == "the request asks for 6 choices, but max_num_queued_reqs is 4"


def test_max_num_queued_tokens(narrow: Server) -> None:
    with busy(narrow, 5, 6, 200):
        message = refusal(narrow, TEXT, prompt=[5] * 101)
        assert (
            message == "200 prompt tokens are waiting or in prefill: 101 more would exceed max_num_queued_tokens (300)"
        )
        assert narrow.post(TEXT, {"prompt": [5] * 100, "max_tokens": 1}).status_code == 200


def test_max_concurrent_requests(narrow: Server) -> None:
    """Bodies that are still being sent count as well. Requests that ask for no tokens are always answered."""
    url = urlsplit(narrow.url)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    head += b"Content-Length: 1000\r\n\r\n"

    async def six_and_one() -> None:
        writers = []
        for _ in range(6):
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(head)
            await writer.drain()
            writers.append(writer)
        try:
            async with httpx.AsyncClient(base_url=narrow.url, trust_env=False) as client:
                while (response := await client.post(TEXT, json={"prompt": "x", "max_tokens": 1})).status_code == 200:
                    pass
                assert "6 requests are in progress" in error_of(response, 429)["message"]
                assert int(response.headers["retry-after"]) == 1
                assert (await client.get("/health")).status_code == 200
        finally:
            for writer in writers:
                writer.close()

    asyncio.run(asyncio.wait_for(six_and_one(), 30))
    wait_for(lambda: narrow.post(TEXT, {"prompt": "x", "max_tokens": 1}).status_code == 200, "there is room again")
    assert scrape(narrow)("tandem:http_rejections_total", reason="max_concurrent_requests") >= 1


def test_openai_client_retries_after_the_seconds_of_retry_after(narrow: Server) -> None:
    with busy(narrow, 5, 6, 7, 8) as answers, narrow.openai().with_options(max_retries=50) as client:
        began = time.monotonic()
        raw = client.completions.with_raw_response.create(model="demo", prompt="Hi", max_tokens=1)
        assert time.monotonic() - began >= raw.retries_taken >= 1, "a second or more each; its own guess is half of one"
        assert any(answer.done() for answer in answers)
        assert raw.parse().choices[0].finish_reason == "length"


def memory_peak(pid: int) -> int:
    """Bytes."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_every_request_of_a_flood_is_answered() -> None:
    """The shim refuses some, the engine others. Each request is answered, and memory is bounded."""
    limits = ("--max-concurrent-requests=2500", "--max-num-queued-reqs=1000")

    async def ask(url: str, connected: asyncio.Barrier) -> int:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        await connected.wait()
        body = b'{"prompt": "Hello", "max_tokens": 2}'
        head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await reader.readline()).split()[1])
        answered = await reader.readuntil(b"\r\n\r\n")
        assert status == 200 or b"\r\nretry-after: " in b"\r\n" + answered
        writer.close()
        return status

    async def flood(url: str) -> Counter[int]:
        connected = asyncio.Barrier(FLOOD)
        async with asyncio.timeout(120):
            return Counter(await asyncio.gather(*(ask(url, connected) for _ in range(FLOOD))))

    with Server(*limits) as server:
        statuses = asyncio.run(flood(server.url))
        assert statuses.keys() == {200, 429} and statuses[200] >= 1000
        found = scrape(server)
        refused = [
            found("tandem:http_rejections_total", reason="max_concurrent_requests"),
            found("vllm:admission_rejections_total", reason="max_num_queued_reqs"),
        ]
        assert sum(refused) == statuses[429] and min(refused) > 0
        assert max(map(memory_peak, server.pids)) < 2**30
        assert server.post(TEXT, {"prompt": "Hello", "max_tokens": 2}).status_code == 200


def test_a_client_that_stops_reading_gets_merged_chunks_and_delays_no_other(server: Server) -> None:
    """The answer is some megabytes larger than the socket buffers."""
    body: Json = {"temperature": 1, "seed": 7, "ignore_eos": True, "max_tokens": 600}
    more: Json = {"logprobs": True, "top_logprobs": 20, "n": 8}
    (alone,) = fold(stream(server, CHAT, **body))
    stalled = fresh({**INPUT[CHAT], **body, **more, "stream": True, "return_token_ids": True})
    with send_without_reading(server, stalled) as client, ThreadPoolExecutor(6) as pool:
        head = client.recv(2000)
        assert head.startswith(b"HTTP/1.1 200 OK"), "it has begun to read"
        before = server.stats().num_steps
        others = [pool.submit(stream, server, CHAT, **body) for _ in range(6)]
        assert all(fold(one.result()) == [alone] for one in others)
        assert server.stats().num_steps - before < 2 * 600, "all of them side by side"
        wait_for(lambda: server.stats().num_running == 0, "the stalled one's answer is made", 60)
        chunks = read_chunked(client, head)
    assert len(chunks) < 0.8 * 8 * 600
    whole = choices_of(ask(server, CHAT, **body, n=8))
    assert [one["token_ids"] for one in fold(chunks)] == [one["token_ids"] for one in whole]
