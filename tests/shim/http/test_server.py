"""The server: its sockets, its address in the log, and its end."""

import asyncio
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from services.machine.listen import listen, listen_unix
from services.shim.http.server import HttpServer, url_of
from tests.shim.http.raw import HOST, PATIENT, App, running, wait_for


@pytest.mark.parametrize("tls", [False, True])
def test_urls(socket_dir: Path, tls: bool) -> None:
    with listen("127.0.0.1", 0) as front:
        assert url_of(front, tls=tls) == f"http{'s' if tls else ''}://127.0.0.1:{front.getsockname()[1]}"
    with listen_unix(f"{socket_dir}/http.sock") as front:
        assert url_of(front, tls=tls) == f"unix:{socket_dir}/http.sock"


async def test_a_unix_socket(socket_dir: Path) -> None:
    path, app = f"{socket_dir}/http.sock", App()
    rejections = Counter("rejections", "refusals", ("reason",), registry=CollectorRegistry())
    with listen_unix(path) as front:
        server = HttpServer(app, PATIENT, rejections)
        serving = asyncio.create_task(server.serve(sockets=[front]))
        await server.is_listening.wait()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"GET /a HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
        assert (await reader.read()).endswith(b"\r\n\r\n/a")
        writer.close()
        assert app.scopes[0]["client"] is None and app.scopes[0]["server"] == (path, None)
        server.should_exit = True
        await asyncio.wait_for(serving, 20)


def test_at_its_end_idle_connections_are_closed_and_requests_are_told() -> None:
    with running() as server:
        idle, busy = server.connect(), server.connect()
        assert idle.get("/a").answer().status == 200
        busy.get("/hold")
        wait_for(lambda: server.app.num_running == 1, "it runs")
    assert idle.closed() and server.app.num_running == 0
    for client in (idle, busy):
        client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
