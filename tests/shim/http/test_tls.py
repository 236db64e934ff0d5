"""HTTPS on real sockets: handshakes, certificates of clients, and connections that never finish a handshake."""

import dataclasses
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.security.https import Https, HttpsFiles
from tests.security.http_certificates import Authority, Pair
from tests.shim.http.raw import DEADLINE, PATIENT, QUICK, Client, Running, running, wait_for


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(scope="module")
def server(pair: Pair) -> Iterator[Running]:
    with running(QUICK, https=Https(HttpsFiles(pair.certificate, pair.key))) as server:
        yield server


def connect(server: Running, authority: Authority, own: Pair | None = None, **kwargs: ssl.TLSVersion) -> Client:
    context = ssl.create_default_context(cafile=authority.path)
    for name, value in kwargs.items():
        setattr(context, name, value)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
    try:
        return Client(context.wrap_socket(plain, server_hostname="127.0.0.1"))
    except OSError:
        plain.close()
        raise


def test_requests_over_tls(server: Running, authority: Authority) -> None:
    with connect(server, authority) as client:
        assert client.get("/a").answer().body == b"/a"
        body = bytes(range(256)) * 4000
        assert client.post("/echo", body).answer().body == body
        assert server.app.scopes[-1]["scheme"] == "https"
        assert server.app.scopes[-1]["client"] == client.socket.getsockname()


def test_a_request_may_come_with_the_end_of_the_handshake(server: Running, authority: Authority) -> None:
    for _ in range(20):
        with connect(server, authority) as client:
            assert client.get("/a").get("/b").answer().body == b"/a"
            assert client.answer().body == b"/b"


def test_a_hang_up_over_tls_is_noticed(server: Running, authority: Authority) -> None:
    hung_up = server.app.num_hung_up
    with connect(server, authority) as client:
        client.get("/hold")
        wait_for(lambda: server.app.num_running == 1, "it runs")
    wait_for(lambda: server.app.num_hung_up == hung_up + 1, "it ends")


def test_a_reader_over_tls_that_stands_still_is_cut(server: Running, authority: Authority) -> None:
    hung_up = server.app.num_hung_up
    with connect(server, authority) as client:
        client.get("/stream")
        wait_for(lambda: server.app.num_hung_up == hung_up + 1, "its place is free")
    wait_for(lambda: server.num_open == 0, "its connection is closed")


def test_a_refusal_over_tls(server: Running, authority: Authority) -> None:
    with connect(server, authority) as client:
        assert client.send("GET / HTTP/1.1\r\nHost: a\r\nX: " + "x" * 70_000).answer().status == 431


@pytest.mark.parametrize("text", ["", "GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_a_handshake_that_never_ends_is_cut(server: Running, text: str | bytes) -> None:
    before = server.rejections("tls_handshake")
    with server.connect() as client:
        client.send(text)
        client.socket.settimeout(DEADLINE)
        assert client.closed() or client.closed(), "an alert may come first"
    wait_for(lambda: server.rejections("tls_handshake") == before + 1, "it is counted")
    wait_for(lambda: server.num_open == 0, "it is closed")


def test_handshakes_count_as_connections(pair: Pair, authority: Authority) -> None:
    limits = dataclasses.replace(PATIENT, max_connections=4)
    with running(limits, https=Https(HttpsFiles(pair.certificate, pair.key))) as server:
        silent = [server.connect() for _ in range(20)]
        with connect(server, authority) as client:
            assert client.get("/health").answer().status == 200
        assert server.num_open <= 4
        for one in silent:
            one.close()
        held = [connect(server, authority).get("/hold") for _ in range(4)]
        wait_for(lambda: server.app.num_running == 4, "all run")
        with connect(server, authority) as other:
            assert other.answer().status == 503
        for one in held:
            one.close()


def test_tls_1_1_is_refused(server: Running, authority: Authority) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)), pytest.warns(DeprecationWarning):
        connect(server, authority, minimum_version=ssl.TLSVersion.TLSv1_1, maximum_version=ssl.TLSVersion.TLSv1_1)


@pytest.mark.parametrize("cert_reqs", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
def test_certificates_of_clients(pair: Pair, authority: Authority, tmp_path: Path, cert_reqs: ssl.VerifyMode) -> None:
    files = HttpsFiles(pair.certificate, pair.key, authority.path, cert_reqs)
    stranger = Authority(tmp_path, "stranger").issue("client")

    def answered(own: Pair | None) -> bool:
        try:
            with connect(server, authority, own) as client:
                return client.get("/a").answer().status == 200
        except (ssl.SSLError, ConnectionError, AssertionError):  # TLS 1.3 tells the client at its first read
            return False

    with running(https=Https(files)) as server:
        assert answered(authority.issue("client"))
        assert not answered(stranger)
        assert answered(None) is (cert_reqs == ssl.CERT_OPTIONAL)


def test_a_changed_certificate_is_used_by_new_connections(authority: Authority) -> None:
    pair = authority.issue("changing")

    def serial(client: Client) -> int:
        assert isinstance(client.socket, ssl.SSLSocket)
        found = client.socket.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)

    def new_serial() -> int:
        with connect(server, authority) as client:
            return serial(client)

    with (
        running(https=Https(HttpsFiles(pair.certificate, pair.key)), refresh=True) as server,
        connect(server, authority) as old,
    ):
        before = serial(old)
        assert new_serial() == before
        authority.issue("changing")
        wait_for(lambda: new_serial() != before, "it is used")
        assert old.get("/a").answer().status == 200, "open connections stay"
