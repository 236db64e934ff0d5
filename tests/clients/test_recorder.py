"""The proxy before the server keeps chats as they were, in order, and refuses streams that are not OpenAI's."""

import http.server
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.clients.programs.recorder import CHAT, exchange, recorder

Json = dict[str, Any]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
FIRST = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
REST = [{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}")]


def stream(*deltas: Json, reason: str | None = "tool_calls", end: str = "data: [DONE]\n\n") -> str:
    """Returns the body of a stream of one choice; its last chunk has the reason."""
    reasons = [None] * (len(deltas) - 1) + [reason]
    choices = [{"index": 0, "delta": delta, "finish_reason": one} for delta, one in zip(deltas, reasons, strict=True)]
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices) + end


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the status and the body that the request's `answer` has, in two writes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, self.path)

    def do_POST(self) -> None:
        status, body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["answer"]
        self._answer(status, body)

    def _answer(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:5])
        self.wfile.write(data[5:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def post(url: str, status: int, body: str, **fields: Any) -> tuple[int, str]:
    data = json.dumps({"answer": [status, body], **fields}).encode()
    try:
        with OPENER.open(urllib.request.Request(f"{url}{CHAT}", data), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_chats_pass_and_are_kept(url: str) -> None:
    whole = json.dumps({"choices": [{"message": {"content": "é"}, "finish_reason": "stop"}]})
    streamed = stream({"role": "assistant", "content": ""}, {"content": "é"}, {}, reason="stop")
    with recorder(url) as (recorded, recording):
        assert OPENER.open(f"{recorded}/v1/models", timeout=10).read() == b"/v1/models"
        assert post(recorded, 200, whole) == (200, whole)
        assert post(recorded, 200, streamed, stream=True) == (200, streamed)
        assert post(recorded, 400, "bad") == (400, "bad")
        kept = recording.exchanges()
    assert [(one.status, one.body) for one in kept] == [(200, whole), (200, streamed), (400, "bad")]
    assert [one.choice and one.choice["message"]["content"] for one in kept] == ["é", "é", None]
    assert [one.choice and one.choice["finish_reason"] for one in kept] == ["stop", "stop", None]
    assert [one.problem for one in kept] == ["", "", "400 bad"]


def test_chats_at_the_same_time_are_all_kept(url: str) -> None:
    with recorder(url) as (recorded, recording), ThreadPoolExecutor(8) as pool:
        sent = [json.dumps({"choices": [{"message": {"content": str(number)}}]}) for number in range(24)]
        assert list(pool.map(lambda body: post(recorded, 200, body), sent)) == [(200, body) for body in sent]
        assert sorted(one.body for one in recording.exchanges()) == sorted(sent)


def test_a_stream_is_put_together() -> None:
    thought = [{"reasoning": "Hm", "reasoning_content": "Hm"}, {"reasoning": "m.", "reasoning_content": "m."}]
    second = {**FIRST, "index": 1, "id": "call_2"}
    chunks = [
        {"role": "assistant", "content": ""},
        *thought,
        *({"tool_calls": [part]} for part in (FIRST, *REST, second)),
    ]
    choice = exchange({"stream": True}, 200, stream(*chunks, {})).choice
    assert choice is not None and choice["finish_reason"] == "tool_calls"
    other = {**CALL, "id": "call_2", "function": {"name": "f", "arguments": ""}}
    expected = {"role": "assistant", "content": "", "reasoning": "Hmm.", "reasoning_content": "Hmm."}
    assert choice["message"] == {**expected, "tool_calls": [CALL, other]}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(stream({"content": "a"}, end=""), id="no [DONE]"),
        pytest.param(stream({"content": "a"}, end="data: {\n\ndata: [DONE]\n\n"), id="no JSON"),
        pytest.param(stream({"content": "a"}, end="") + stream({"content": "b"}), id="after the finish_reason"),
        pytest.param(stream({"tool_calls": [{**FIRST, "id": None}]}), id="a call without id"),
        pytest.param(stream({"tool_calls": [{**FIRST, "type": None}]}), id="a call without type"),
        pytest.param(stream({"tool_calls": [{**FIRST, "index": 1}]}), id="a call with a wrong index"),
        pytest.param(stream({"tool_calls": [FIRST]}, {"tool_calls": [FIRST]}), id="an id twice"),
        pytest.param(stream({"tool_calls": [REST[0]]}), id="arguments of no call"),
    ],
)
def test_a_malformed_stream_has_a_problem(body: str) -> None:
    kept = exchange({"stream": True}, 200, body)
    assert kept.choice is None and body in kept.problem
