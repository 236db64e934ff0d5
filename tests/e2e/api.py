"""Requests to the chat and completions endpoints of a real server, and their answers in one form."""

import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

import demo
from services.tokenizer.vocabulary import Vocabulary
from tests.checkpoints import DEMO_VOCAB_SIZE
from tests.e2e.harness import PLAIN_HTTP, Server, wait_for

Json = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MODEL = "tiny"
MAX_LEN = 8192
LONG = MAX_LEN - 200  # tokens: more than a minute's work
GREEDY: Json = {"temperature": 0, "ignore_eos": True}
SEEDED: Json = {"temperature": 1, "seed": 7, "ignore_eos": True}
INPUT: dict[str, Json] = {
    CHAT: {"messages": [{"role": "user", "content": "Which way to Köln?"}]},
    TEXT: {"prompt": "Which way to Köln?"},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
DEFAULTS: Json = {"max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
both = pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "text"])
salts = map(str, itertools.count())


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(demo.CHECKPOINT)


@cache
def ids_by_bytes() -> dict[bytes, int]:
    return {vocabulary().token_bytes(token_id): token_id for token_id in range(DEMO_VOCAB_SIZE)}


@cache
def hf_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo.CHECKPOINT)


def fresh(body: Json) -> Json:
    """Returns the request with a cache salt of its own: no prefix hits, so its usage is the same each time."""
    return {**body, "cache_salt": next(salts)}


def ask(server: Server, path: str, **more: Any) -> Json:
    response = server.post(path, fresh({**INPUT[path], **DEFAULTS, **more}))
    assert response.status_code == 200, response.text
    return dict(response.json())


def choice(server: Server, path: str, **more: Any) -> Json:
    """Returns the only choice in one form for both endpoints: text, token_ids, logprobs, finish_reason, stop_reason."""
    (found,) = choices_of(ask(server, path, **more))
    return found


def _said(raw: Json) -> Json:
    """Returns the text of a choice, and its reasoning and its calls if it has some."""
    message = raw.get("message", {})
    parts = {"reasoning": message.get("reasoning"), "tool_calls": message.get("tool_calls")}
    return {"text": raw.get("text", message.get("content")) or ""} | {name: one for name, one in parts.items() if one}


def choices_of(answer: Json) -> list[Json]:
    found = []
    for index, raw in enumerate(answer["choices"]):
        assert raw["index"] == index
        found.append(
            _said(raw)
            | {name: raw[name] for name in ("token_ids", "logprobs", "finish_reason", "stop_reason")}
            | {name: raw[name] for name in ("effective_parameters",) if name in raw}
        )
    return found


def events_of(lines: Iterator[str]) -> list[Json]:
    """Returns the JSON of a stream's events. Asserts that each event is one data line and one empty line, and that the
    last one is [DONE]."""
    text = list(lines)
    assert text[1::2] == [""] * (len(text) // 2)
    assert all(line.startswith("data: ") for line in text[::2])
    assert text[-2] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in text[:-2:2]]


def stream(server: Server, path: str, **more: Any) -> list[Json]:
    body = fresh({**INPUT[path], **DEFAULTS, "stream": True, **more})
    with httpx.stream("POST", server.url + path, json=body, timeout=120, **PLAIN_HTTP) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events_of(response.iter_lines())


def fold(chunks: list[Json]) -> list[Json]:
    """Returns the choices that the chunks of a stream add up to, in the form of choices_of."""
    found: dict[int, Json] = {}
    for raw in (raw for chunk in chunks for raw in chunk["choices"]):
        one = found.setdefault(raw["index"], {"text": "", "token_ids": [], "logprobs": None, "finish_reason": None})
        assert one["finish_reason"] is None, "something came after the end"
        one["text"] += raw["text"] if "text" in raw else raw["delta"].get("content", "")
        _add_delta(one, raw.get("delta", {}))
        one["token_ids"] += raw.get("token_ids", [])
        one["finish_reason"] = raw["finish_reason"]
        if raw["finish_reason"] is not None:
            one["stop_reason"] = raw["stop_reason"]
            one |= {name: raw[name] for name in ("effective_parameters",) if name in raw}
        for name, values in (raw["logprobs"] or {}).items():
            one["logprobs"] = one["logprobs"] or {}
            one["logprobs"][name] = one["logprobs"].get(name, []) + values
    return [found[index] for index in sorted(found)]


def _add_delta(one: Json, delta: Json) -> None:
    """Adds reasoning and calls of a chunk to a choice."""
    if delta.get("reasoning"):
        assert delta["reasoning_content"] == delta["reasoning"]
        one["reasoning"] = one.get("reasoning", "") + delta["reasoning"]
    for part in delta.get("tool_calls", []):
        calls = one.setdefault("tool_calls", [])
        if "id" in part:
            assert part["index"] == len(calls), "calls begin in order"
            calls.append({name: part[name] for name in ("id", "type", "function")})
        else:
            assert part["index"] == len(calls) - 1, "arguments belong to the call that began last"
            calls[-1]["function"]["arguments"] += part["function"]["arguments"]


def error_of(response: httpx.Response, status: int) -> Json:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])


def assert_idle(server: Server, steps_before: int) -> None:
    """Waits until no request runs and all blocks are free. Asserts that since `steps_before` the engine ran too few
    steps for a request of LONG tokens to finish."""

    def idle() -> bool:
        stats = server.stats()
        return not stats.num_running and not stats.num_waiting and stats.num_free_blocks == stats.num_blocks

    wait_for(idle, "no request runs or waits, and all blocks are free", 5)
    assert server.stats().num_steps - steps_before < LONG / 2
