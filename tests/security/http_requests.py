"""Hostile HTTP requests, each made from a seeded generator: malformed bytes, odd fields, odd headers, odd texts.

Most of them end at once, refused or answered with a few tokens. What a single large request does is the business of
front_attacks.py.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from services.shim.apis.all import ALL_APIS
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.tokens.schema import TOKENS_FORM
from tests.security.malformed import mutated

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
BATCH, INVOCATIONS, TOKENIZE, DETOKENIZE = f"{CHAT}/batch", "/invocations", "/tokenize", "/detokenize"
CHATS = (CHAT, f"{CHAT}/render", INVOCATIONS, TOKENIZE)  # as far as a body has messages
TEXTS = (COMPLETIONS, f"{COMPLETIONS}/render", INVOCATIONS, TOKENIZE)
WITH_BODY = sorted({*CHATS, *TEXTS, BATCH, GENERATE, DETOKENIZE})
PATHS = [api.path.path for api in ALL_APIS] + WITH_BODY + [
    *("/ping", "/load", "/server_info", "/server_info?config_format=text", "/tokenizer_info"),
    *("/v1/models", "/v1/models/demo", "/health", "/version", "/docs", "/openapi.json", "/reset_prefix_cache"),
    *("/", "//", "/v1/../health", "/v1/%2e%2e/health", "/v1/chat/completions/", "/V1/MODELS", "/%00"),
    "/v1/models/" + "a" * 500,
]  # fmt: skip
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "PRI", "X" * 40]
FIELDS: dict[str, list[str]] = {
    **{key: list(ChatRequest.model_fields) for key in [*CHATS, BATCH]},
    **{key: list(CompletionRequest.model_fields) for key in [COMPLETIONS, f"{COMPLETIONS}/render"]},
    GENERATE: sorted(TOKENS_FORM.names | {"sampling_params"}),
    DETOKENIZE: ["tokens", "model"],
}
PIECES = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_", "end|>",
          "<", ">", "\n", " ", "a", "{{", "{%", "}}", "\x00", "\ue000", "\U000f0000", "é", "😀", "\u2028",
          "[INST]"]  # fmt: skip
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 1e308, 0.5, "", "a", "x" * 3000, "\x00", "\ud800"),
    *([], {}, [[]], [None], [{}], {"a": None}, [[[[[[]]]]]], ["a"] * 200, [0] * 200, {"type": "json_object"}),
    *({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": ["x"]}}}, {"regex": "(a*)*b"}),
    [1e308, -1],
]  # fmt: skip
HEADERS = [
    *("X-A: b", "X-A:", ": b", "X A: b", "X-A: \x01", "X-A: b\r\n folded", "Host: b", "Host: evil.example"),
    "Origin: http://b.example",
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1, 1"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked"),
    "Expect: 100-continue",
    *("Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings"),
    "Connection: close",
    *("Content-Encoding: gzip", "Accept-Encoding: br", "Authorization: Bearer x", "Authorization: \xff"),
    "X-Request-Id: \x7f",
    *("X-Request-Id: " + "a" * 300, "traceparent: 00-0-0-0", "Cookie: " + "a" * 4000, "Range: bytes=0-"),
    "X-" + "a" * 5000 + ": b",
]  # fmt: skip
CONTENT_TYPES = ["application/json", "application/json; charset=utf-8", "text/plain",
                 "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
                 "application/json;;;", "*/*"]  # fmt: skip


def base_body(path: str, rng: random.Random) -> dict[str, Any]:
    """Returns a valid request for a few tokens."""
    stream, few = {"stream": rng.random() < 0.5}, {"max_tokens": rng.randint(1, 3)}
    text = "".join(rng.choices(PIECES, k=rng.randint(0, 12))) or "Hi"
    messages = [{"role": "user", "content": text}]
    if path == GENERATE:
        return {"token_ids": [rng.randint(0, 999)], "sampling_params": few, **stream}
    if path == DETOKENIZE:
        return {"tokens": [rng.randint(0, 999)]}
    if path == BATCH:
        return {"messages": [messages, messages], **few}
    common = few | stream if path != TOKENIZE else {}
    is_chat = path in CHATS and (path not in TEXTS or rng.random() < 0.5)
    return common | ({"messages": messages} if is_chat else {"prompt": text})


def odd_field(path: str, rng: random.Random) -> bytes:
    """Returns a body of which one or two fields have an odd value."""
    body = base_body(path, rng)
    for name in rng.choices(FIELDS[path], k=rng.randint(1, 2)):
        body[name] = rng.choice(ODD_VALUES)
    if path == GENERATE and rng.random() < 0.7:
        names = rng.choices(sorted(TOKENS_FORM.inner_names), k=rng.randint(1, 3))
        body["sampling_params"] = {name: rng.choice(ODD_VALUES) for name in names}
    return _json(body, rng)


def odd_chat(path: str, rng: random.Random) -> bytes:
    """Returns a chat with odd messages, tools and variables; any other request with odd prompts."""
    body = base_body(path, rng)
    if "messages" not in body:
        prompts: list[Any] = ["", [], [0], [2**32], [-1], ["a", [1]], [[1], [2]], "a" * 5000, [[]] * 50, {"a": 1}]
        (name,) = body.keys() & {"prompt", "token_ids", "tokens"}
        return _json(body | {name: rng.choice(prompts)}, rng)
    body["messages"] = [_message(rng) for _ in range(rng.randint(1, 6))]
    if path == BATCH and rng.random() < 0.7:
        body["messages"] = [body["messages"], [_message(rng)]]
    if rng.random() < 0.4:
        name = "".join(rng.choices(["a", "b", ".", " ", "é", "<", "\n"], k=rng.randint(0, 5)))
        schema = rng.choice(
            [{}, {"type": "object"}, {"$ref": "#"}, {"properties": {"a": {"$ref": "#/properties/a"}}}, [], "x"]
        )
        body["tools"] = [{"type": "function", "function": {"name": name, "parameters": schema}}] * rng.randint(1, 3)
        body["tool_choice"] = rng.choice(["auto", "none", "required", {"type": "function", "function": {"name": name}}])
    if rng.random() < 0.3:
        body["chat_template_kwargs"] = {rng.choice(["enable_thinking", "a", "messages", "é"]): rng.choice(ODD_VALUES)}
    return _json(body, rng)


def not_json(path: str, rng: random.Random) -> bytes:
    depth = rng.choice([1, 10, 1000, 20_000])
    return rng.choice([
        b"", b"null", b"[]", b"1", b'"a"', b"{", b"{}", b'{"a"}', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"[" * depth, b'{"a":' * depth,
        b'{"messages":' + b"[" * depth + b"]" * depth + b"}",
        b'{"n": 1' + b"0" * 5000 + b"}", b'{"n": 1, "n": 2}', rng.randbytes(rng.randint(1, 200)),
        mutated(_json(base_body(path, rng), rng), rng),
    ])  # fmt: skip


BODIES: list[Callable[[str, random.Random], bytes]] = [odd_field, odd_field, odd_chat, not_json]


def hostile_request(rng: random.Random) -> bytes:
    """Returns the bytes of one request, or of what begins like one. Depends on the generator alone."""
    kind = rng.random()
    path = rng.choice([CHAT, COMPLETIONS, *WITH_BODY])
    if kind < 0.55:
        return request(path, rng.choice(BODIES)(path, rng))
    valid = request(path, _json(base_body(path, rng), rng))
    if kind < 0.65:
        return mutated(valid, rng)
    if kind < 0.75:
        return valid[: rng.randrange(len(valid))]
    if kind < 0.85:
        return valid + rng.choice([valid, b"\r\n", b"G", valid[:40], b"\x00" * 50])  # a second request behind it
    if kind < 0.92:
        return _odd_head(path, rng)
    return _odd_chunks(path, rng)


def request(path: str, body: bytes, *headers: str) -> bytes:
    """Returns a request with this body, and a close at its end."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "Connection: close", *headers, "", ""]).encode("latin-1") + body


def _odd_head(path: str, rng: random.Random) -> bytes:
    body = _json(base_body(path, rng), rng)
    version = rng.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "", "HTTQ/1.1"])
    target = rng.choice(
        [*PATHS, path, path, f"http://b.example{path}", "*", "a" * 9000, "/\xff", f"{path}?{'a=b&' * 50}"]
    )
    lines = [f"{rng.choice(METHODS)} {target} {version}", *rng.choices(HEADERS, k=rng.randint(0, 4))]
    if rng.random() < 0.8:
        lines.append("Host: localhost")
    if rng.random() < 0.7:
        lines += [f"Content-Type: {rng.choice(CONTENT_TYPES)}", f"Content-Length: {len(body)}"]
    if rng.random() < 0.1:
        lines += [f"X-{number}: a" for number in range(400)]
    end = rng.choice(["\r\n", "\r\n", "\r\n", "\n"])
    return end.join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


def _odd_chunks(path: str, rng: random.Random) -> bytes:
    body = _json(base_body(path, rng), rng)
    sizes = [
        f"{len(body):x}",
        f"{len(body):x};{'a' * 300}",
        f"{len(body) + 5:x}",
        "-1",
        "ffffffffffffffffff",
        "x",
        "",
        f"0{len(body):x}",
    ]
    head = request(path, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    trailer = rng.choice(["", "X-A: b\r\n", "X: " + "a" * 3000 + "\r\n", "Content-Length: 3\r\n"])
    return head + f"{rng.choice(sizes)}\r\n".encode() + body + f"\r\n0\r\n{trailer}\r\n".encode()


def _message(rng: random.Random) -> Any:
    text: Any = "".join(rng.choices(PIECES, k=rng.randint(0, 8)))
    content = rng.choice(
        [text, text, [{"type": "text", "text": text}], [{"type": "image_url", "image_url": {"url": text}}], None, 5]
    )
    message: dict[str, Any] = {
        "role": rng.choice(["user", "assistant", "system", "tool", "developer", text, None]),
        "content": content,
    }
    if rng.random() < 0.2:
        arguments = rng.choice([text, "{}", '{"a": "<|im_end|>"}', {"a": text}, None, "{" * 50])
        message["tool_calls"] = [{"id": text, "type": "function", "function": {"name": text, "arguments": arguments}}]
    if rng.random() < 0.2:
        message |= {"tool_call_id": text, "name": text, "reasoning_content": text}
    return message if rng.random() < 0.95 else rng.choice(ODD_VALUES)


def _json(body: Any, rng: random.Random) -> bytes:
    """Returns JSON, with or without escapes. Half of a surrogate pair stays an escape."""
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(body).encode()
