"""Errors name the bad parameter, and a refused request has no effect on other requests."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.checkpoints import DEMO_VOCAB_SIZE
from tests.e2e.api import (
    CHAT,
    INPUT,
    LONG,
    MAX_LEN,
    SEEDED,
    TEXT,
    TOOL,
    Json,
    assert_idle,
    both,
    error_of,
    events_of,
    fold,
    stream,
)
from tests.e2e.harness import JSON_TYPE, Server, wait_for

BAD: list[tuple[Json, str | None, list[str]]] = [
    ({"temperature": 3}, "temperature", ["temperature"]),
    ({"temperature": "hot"}, "temperature", ["temperature"]),
    ({"n": 0}, "n", ["n"]),
    ({"max_tokens": 0}, "max_tokens", ["max_tokens"]),
    ({"min_tokens": 25}, "min_tokens", ["25", "24"]),
    ({"logit_bias": {"5": 101}}, "logit_bias", ["logit_bias", "100"]),
    ({"stop_token_ids": [DEMO_VOCAB_SIZE]}, "stop_token_ids", [str(DEMO_VOCAB_SIZE)]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"response_format": {"type": "xml"}}, "response_format", ["json_schema"]),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", ["guided_json"]),
    ({"guided_regex": "("}, "guided_regex", ["guided_regex"]),
    ({"guided_regex": "(?=a)"}, "guided_regex", ["guided_regex"]),
    ({"guided_json": "{"}, "guided_json", ["guided_json"]),
    ({"guided_json": {"properties": {"a": {"not": {"const": 1}}}}}, "guided_json", ["/properties/a", '"not"']),
    ({"guided_grammar": "start: other"}, "guided_grammar", ["guided_grammar"]),
]
BAD_TEXT: list[tuple[Json, str | None, list[str]]] = [
    ({"max_tokens": MAX_LEN}, "max_tokens", ["max_tokens", str(MAX_LEN)]),
    ({"prompt": ""}, "prompt", ["empty"]),
    ({"prompt": []}, "prompt", ["prompt"]),
    ({"prompt": [DEMO_VOCAB_SIZE]}, "prompt", [str(DEMO_VOCAB_SIZE)]),
    ({"prompt": [1] * MAX_LEN}, "prompt", [f"it has {MAX_LEN} tokens", f"maximum context length is {MAX_LEN}"]),
    (
        {"prompt": "a " * MAX_LEN},
        "prompt",
        [f"the prompt is too long: it has {MAX_LEN + 1} tokens", f"maximum context length is {MAX_LEN}"],
    ),
    ({"logprobs": 21}, "logprobs", ["20"]),
]
BAD_CHAT: list[tuple[Json, str | None, list[str]]] = [
    ({"max_tokens": MAX_LEN}, "messages", ["max_tokens", str(MAX_LEN)]),
    ({"messages": []}, "messages", ["messages"]),
    ({"messages": [{"role": "", "content": ""}]}, "messages.0.role", ["messages.0.role"]),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", ["no tools"]),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", ["'x'"]),
    ({"top_logprobs": 2}, "top_logprobs", ["logprobs"]),
    ({"continue_final_message": True}, "continue_final_message", ["add_generation_prompt"]),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", ["messages"]),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages.0.tool_calls", ["tool_calls"]),
]
ALL_BAD = [(path, *row) for path in (CHAT, TEXT) for row in BAD]
ALL_BAD += [(TEXT, *row) for row in BAD_TEXT] + [(CHAT, *row) for row in BAD_CHAT]


@pytest.mark.parametrize(("path", "change", "param", "words"), ALL_BAD, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_bad_requests(
    server: Server, path: str, change: Json, param: str | None, words: list[str], streaming: bool
) -> None:
    body = {**INPUT[path], "max_tokens": 24, **change, "stream": streaming and "stream_options" not in change}
    error = error_of(server.post(path, body), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert not [word for word in words if word not in error["message"]], error["message"]


def test_one_bad_prompt_refuses_all(server: Server) -> None:
    """In a stream the first prompt may have produced output already: then the error is the last chunk."""
    body = {"prompt": ["fine", ""], **SEEDED, "max_tokens": LONG}
    before = server.stats().num_steps
    assert "empty" in error_of(server.post(TEXT, body), 400)["message"]
    response = server.post(TEXT, {**body, "stream": True})
    if response.status_code == 200:
        *_, last = events_of(response.iter_lines())
        assert "empty" in last["error"]["message"]
    else:
        assert "empty" in error_of(response, 400)["message"]
    assert_idle(server, before)


@both
def test_an_unknown_model(server: Server, path: str) -> None:
    error = error_of(server.post(path, {**INPUT[path], "model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "gpt-4" in error["message"]


@both
def test_a_body_that_is_no_json(server: Server, path: str) -> None:
    response = httpx.post(server.url + path, content=b"{", headers=JSON_TYPE, trust_env=False)
    assert "not JSON" in error_of(response, 400)["message"]


@pytest.mark.parametrize("depth", [100, 500, 900, 980])
def test_deep_nesting_is_answered(server: Server, depth: int) -> None:
    """The process that cannot parse it refuses it: no request waits for ever."""
    nested = "[" * depth + "]" * depth
    function = f'{{"type": "function", "function": {{"name": "f", "parameters": {nested}}}}}'
    more = f'"max_tokens": 1, "chat_template_kwargs": {{"a": {nested}}}, "tools": [{function}]'
    body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], {more}}}'
    response = httpx.post(server.url + CHAT, content=body.encode(), headers=JSON_TYPE, timeout=20, trust_env=False)
    assert response.status_code in {200, 400}, response.text


def test_routes_and_methods(server: Server) -> None:
    error_of(server.get("/v1/nothing"), 404)
    response = server.get(CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


def test_bad_requests_disturb_no_neighbour(server: Server) -> None:
    body = {**SEEDED, "max_tokens": 200, "n": 2}
    alone = fold(stream(server, CHAT, **body))
    with ThreadPoolExecutor() as threads:
        neighbour = threads.submit(stream, server, CHAT, **body)
        wait_for(lambda: server.stats().num_running == 2, "the neighbour runs")
        for path, change, _, _ in ALL_BAD:
            assert server.post(path, {**INPUT[path], "max_tokens": 24, **change}).status_code == 400
        assert fold(neighbour.result()) == alone
