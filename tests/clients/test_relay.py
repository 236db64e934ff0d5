"""The relay before the server passes everything on, and keeps refusals."""

import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.clients.programs.relay import KEPT, relay

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers /STATUS/TEXT with this status and text; the head and the body are two writes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        _, status, text = self.path.split("/")
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def get(url: str) -> tuple[int, str]:
    try:
        with OPENER.open(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_answers_pass_and_refusals_are_kept(url: str) -> None:
    with relay(url) as (relayed, refusals):
        assert get(f"{relayed}/200/fine") == (200, "fine")
        assert refusals == []
        assert get(f"{relayed}/400/bad") == get(f"{relayed}/400/bad") == (400, "bad")
        assert refusals == ["400 bad"]
        assert [get(f"{relayed}/50{number}/x")[0] for number in range(5)] == [500, 501, 502, 503, 504]
        assert refusals == ["400 bad", "500 x"] and len(refusals) == KEPT


def test_a_relay_that_ended_refuses_connections(url: str) -> None:
    with relay(url) as (relayed, _):
        pass
    with pytest.raises(urllib.error.URLError):
        get(f"{relayed}/200/late")
