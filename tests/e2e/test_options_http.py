"""Options of the HTTP connections: Unix socket, prefix, limits and deadlines at one server, TLS at another."""

import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.process.runtime_dir import runtime_dir
from tests.e2e.harness import ALL_READY, Server, run_tandem, wait_for
from tests.security.http_certificates import Authority
from tests.shim.http.raw import DEADLINE, HOST, Client

MAX_CONNECTIONS = 4
LIMITS = {
    "--root-path": "/tandem",
    "--max-connections": MAX_CONNECTIONS,
    "--max-header-bytes": 4096,
    "--max-header-count": 20,
    "--header-timeout": 1,
    "--body-timeout": 1,
    "--write-timeout": 1,
    "--timeout-keep-alive": 2,
}


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with runtime_dir(None) as folder:
        yield folder / "http.sock"


@pytest.fixture(scope="module")
def local(path: Path) -> Iterator[Server]:
    """Listens on a Unix socket, in place of a file that a dead server has left."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Server(f"--uds={path}", *[f"{name}={value}" for name, value in LIMITS.items()]) as server:
        yield server
    assert not path.exists(), "the launcher removes it"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[Server]:
    pair = authority.issue("server")
    with Server(
        f"--ssl-certfile={pair.certificate}",
        f"--ssl-keyfile={pair.key}",
        f"--ssl-ca-certs={authority.path}",
        "--ssl-cert-reqs=1",
        "--ssl-ciphers=ECDHE-ECDSA-AES256-GCM-SHA384",
        "--enable-ssl-refresh",
    ) as server:
        yield server


def connect(path: Path) -> Client:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(DEADLINE)
    client.connect(str(path))
    return Client(client)


def test_uds(local: Server, path: Path) -> None:
    assert local.url == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    wait_for(lambda: ALL_READY in local.log, "the launcher knows that all are ready")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://local") as http:
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
        assert http.post("/v1/completions", json=body, timeout=60).json()["usage"]["completion_tokens"] == 3


def test_root_path(local: Server, path: Path) -> None:
    with connect(path) as client:
        for prefix in ("", "/tandem"):
            assert client.get(f"{prefix}/v1/models").answer().status == 200
        assert b'"servers":[{"url":"/tandem"}]' in client.get("/openapi.json").answer().body


def test_max_connections(local: Server, path: Path) -> None:
    idle = [connect(path).get("/version") for _ in range(MAX_CONNECTIONS)]
    assert [client.answer().status for client in idle] == [200] * MAX_CONNECTIONS
    with connect(path) as client:
        assert client.get("/health").answer().status == 200
        assert idle[0].closed(), "it has waited longest"
    for client in idle:
        client.close()


def test_max_header_bytes(local: Server, path: Path) -> None:
    with connect(path) as client:
        assert client.get("/version", f"X: {'x' * 4000}\r\n").answer().status == 200
        assert "4096 bytes" in client.get("/version", f"X: {'x' * 4096}\r\n").answer().error["message"]


def test_max_header_count(local: Server, path: Path) -> None:
    with connect(path) as client:
        assert client.get("/version", "X: x\r\n" * 19).answer().status == 200
        answer = client.get("/version", "X: x\r\n" * 20).answer()
        assert (answer.status, answer.error["message"]) == (431, "the request has more than 20 headers")


def test_header_timeout(local: Server, path: Path) -> None:
    with connect(path) as client:
        assert client.send("GET / HTTP/1.1\r\n").answer().error["code"] == "header_timeout"


def test_body_timeout(local: Server, path: Path) -> None:
    with connect(path) as client:
        head = f"POST /v1/completions HTTP/1.1\r\n{HOST}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        client.send(head, b"{")
        assert client.answer().error["code"] == "body_timeout"


def test_write_timeout(local: Server, path: Path) -> None:
    with connect(path) as client:
        for _ in range(50):
            client.get("/openapi.json")  # some 100 KB each, and the client reads none of them
        wait_for(lambda: "took nothing of its response for 1 s" in local.log, "it is cut")


def test_timeout_keep_alive(local: Server, path: Path) -> None:
    with connect(path) as client:
        assert client.get("/version").answer().status == 200
        client.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(DEADLINE)
        assert client.socket.recv(1) == b"", "closed after 2 s"


def context_of(authority: Authority, **attributes: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    for name, value in attributes.items():
        setattr(context, name, value)
    return context


def version(secure: Server, context: ssl.SSLContext) -> int:
    return httpx.get(f"{secure.url}/version", verify=context, trust_env=False, timeout=DEADLINE).status_code


def test_ssl_certfile(secure: Server, authority: Authority) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    wait_for(lambda: ALL_READY in secure.log, "the launcher knows that all are ready")
    assert version(secure, context_of(authority)) == 200
    with pytest.raises(httpx.ConnectError):
        version(secure, ssl.create_default_context())
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https:", "http:"), trust_env=False, timeout=DEADLINE)


def test_ssl_keyfile(tmp_path: Path, authority: Authority) -> None:
    """A key of another certificate is reported before the model is looked for."""
    pair, other = authority.issue("one"), authority.issue("other")
    files = [f"--ssl-certfile={pair.certificate}", f"--ssl-keyfile={other.key}"]
    ended = run_tandem("serve", str(tmp_path / "none"), "--port=0", *files)
    assert ended.returncode == 1 and other.key in ended.stderr and "KEY_VALUES_MISMATCH" in ended.stderr


@pytest.mark.parametrize("kind", ["ours", "stranger"])
def test_ssl_ca_certs(secure: Server, authority: Authority, tmp_path: Path, kind: str) -> None:
    own = (authority if kind == "ours" else Authority(tmp_path, "stranger")).issue("client")
    context = context_of(authority)
    context.load_cert_chain(own.certificate, own.key)
    if kind == "ours":
        assert version(secure, context) == 200
    else:
        with pytest.raises(httpx.TransportError):
            version(secure, context)


def test_ssl_cert_reqs(secure: Server, authority: Authority) -> None:
    assert version(secure, context_of(authority)) == 200, "with 1, a client needs no certificate"


def test_ssl_ciphers(secure: Server, authority: Authority) -> None:
    older = context_of(authority, maximum_version=ssl.TLSVersion.TLSv1_2)
    assert version(secure, older) == 200
    older.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(httpx.TransportError):
        version(secure, older)


def test_enable_ssl_refresh(secure: Server, authority: Authority) -> None:
    authority.issue("server")
    wait_for(lambda: "new connections use the changed TLS files" in secure.log, "it is loaded")
    assert version(secure, context_of(authority)) == 200
