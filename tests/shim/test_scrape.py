"""scrape: the metrics of several processes on one page, also if some send nothing valid."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.shim import scrape
from services.shim.scrape import Scrape, merge
from tests.addresses import HOST, at

ONE = "# HELP a_total A.\n# TYPE a_total counter\na_total 1.0\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def values(page: bytes) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(page.decode())
    return {(one.name, one.labels["process"]): one.value for family in families for one in family.samples}


def test_each_process_has_its_own_label() -> None:
    page = merge({"x": ONE, "y": ONE.replace("1.0", "2.0"), "z": ""})
    assert values(page) == {
        ("a_total", "x"): 1.0,
        ("a_total", "y"): 2.0,
        ("tandem:process_up", "x"): 1.0,
        ("tandem:process_up", "y"): 1.0,
        ("tandem:process_up", "z"): 0.0,
    }
    assert page.count(b"# TYPE a_total") == 1


def own() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("mine", "Mine.", registry=registry)
    return registry


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x12\x04\x00",  # HTTP/2, as from a gRPC port
        HEAD % 100 + b"a_total 1",  # ends too early
        HEAD % 4 + b"\xff\xfe\xfd\xfc",
        HEAD % 9 + b"{nonsense",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"",
        None,  # nothing at all, for as long as one waits
    ],
    ids=repr,
)
async def test_a_peer_without_valid_metrics_is_down(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 0.3)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        found = values(await Scrape(own(), (f"bad={at(port)}",)).text())
        assert time.monotonic() - began < 5
    assert found["tandem:process_up", "bad"] == 0
    assert found["tandem:process_up", "shim"] == 1
    assert found["mine_total", "shim"] == 0


class Peer:
    """A metrics server that counts the requests that it answers with ONE."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD % len(ONE) + ONE.encode())
        writer.close()


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Peer, str]]:
    """A peer and its address."""
    found = Peer()
    async with await asyncio.start_server(found.serve, HOST, 0) as server:
        yield found, at(server.sockets[0].getsockname()[1])


async def test_callers_share_a_scrape_for_a_second(peer: tuple[Peer, str]) -> None:
    now = 100.0
    one = Scrape(own(), (f"peer={peer[1]}",), clock=lambda: now)
    pages = await asyncio.gather(*(one.text() for _ in range(20)))
    assert len(peer[0].requests) == 1 and len(set(pages)) == 1
    now += 0.99
    assert await one.text() == pages[0] and len(peer[0].requests) == 1
    now += 0.02
    assert await one.text() == pages[0] and len(peer[0].requests) == 2


async def test_the_token_is_sent(peer: tuple[Peer, str]) -> None:
    await Scrape(own(), (f"peer={peer[1]}",), "a token").text()
    assert b"\r\nAuthorization: Bearer a token\r\n" in peer[0].requests[0]


async def test_a_scrape_takes_little_of_the_event_loop(peer: tuple[Peer, str]) -> None:
    """It took 160 ms: a client with a TLS context for each peer, and metrics as objects. Every stream waited for it."""
    one = Scrape(own(), tuple(f"peer-{index}={peer[1]}" for index in range(4)))
    began = time.thread_time()
    await one.text()
    assert time.thread_time() - began < 0.05
    assert len(peer[0].requests) == 4


NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SERIES = st.dictionaries(st.tuples(TEXTS, TEXTS), st.floats(0, 1e300) | st.just(float("inf")), max_size=4)


@given(st.dictionaries(NAMES, st.tuples(TEXTS, SERIES), max_size=4), st.lists(st.sampled_from("xyz"), unique=True))
def test_the_merged_lines_are_what_a_parser_reads_of_each_process(
    counters: dict[str, tuple[str, dict[tuple[str, str], float]]], processes: list[str]
) -> None:
    registry = CollectorRegistry()
    for name, (about, series) in counters.items():
        gauge = Gauge(f"g_{name}", about, ("one", "two"), registry=registry)
        for labels, value in series.items():
            gauge.labels(*labels).set(value)
    text = generate_latest(registry).decode()
    expected = {
        (sample.name, process, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for process in processes
    }
    found = {
        (sample.name, sample.labels.pop("process"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(merge(dict.fromkeys(processes, text)).decode())
        for sample in family.samples
        if sample.name != scrape.UP
    }
    assert found == expected
