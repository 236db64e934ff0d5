"""scrape: the metrics of several processes on one page, also if some send nothing valid."""

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry, Counter
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


async def test_concurrent_callers_share_a_scrape() -> None:
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD % len(ONE) + ONE.encode())
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        one = Scrape(own(), (f"peer={at(server.sockets[0].getsockname()[1])}",))
        pages = await asyncio.gather(*(one.text() for _ in range(20)))
        assert len(asked) == 1 and len(set(pages)) == 1
        await one.text()
        assert len(asked) == 2
