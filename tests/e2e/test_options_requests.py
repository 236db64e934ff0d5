"""Options about what a request may have and what a response shows."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.api import CHAT, GREEDY, SEEDED, TEXT, TOOL, Json, ask, both, choice, error_of, stream
from tests.e2e.harness import Server, wait_for
from tests.e2e.structured_effects import SCHEMA, is_of_schema, whitespace

QUESTION: Json = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def changed() -> Iterator[Server]:
    """A server with every option of this file set to what is not its default."""
    flags = (
        "--response-role=helper",
        "--max-request-body-bytes=100K",
        "--max-logprob-entries=100",
        "--ignore-unknown-fields",
        "--enable-request-id-headers",
        "--enable-force-include-usage",
        "--no-enable-prompt-tokens-details",
        "--trust-request-chat-template",
        "--allow-special-tokens-in-content",
        "--chat-template-timeout=0.3",
        '--default-chat-template-kwargs={"enable_thinking": false, "mood": "calm"}',
        "--exclude-tools-when-tool-choice-none",
        "--enable-auto-tool-choice",
        "--structured-outputs-config.disable_any_whitespace=true",
        '--structured-outputs-config={"backend": "guidance", "disable_additional_properties": true}',
    )
    with Server("--dtype=float32", *flags) as server:
        yield server


def test_response_role(changed: Server, plain: Server) -> None:
    for server, role in ((changed, "helper"), (plain, "assistant")):
        assert ask(server, CHAT)["choices"][0]["message"]["role"] == role
        assert stream(server, CHAT)[0]["choices"][0]["delta"]["role"] == role


@both
def test_max_request_body_bytes(changed: Server, plain: Server, path: str) -> None:
    """The body is also above the size from which child processes read it."""
    padded = {**QUESTION, "prompt": "Hi", "metadata": {"a": "a" * 100 * 1024}}
    del padded["prompt" if path == CHAT else "messages"]
    error = error_of(changed.post(path, padded), 413)
    assert error["message"] == "the request body is larger than 102400 bytes, the limit set by max_request_body_bytes"
    assert plain.post(path, {**padded, "max_tokens": 1}).status_code == 200


@both
def test_max_logprob_entries(changed: Server, plain: Server, path: str) -> None:
    asked = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    for server, tokens in ((changed, 50), (plain, 51)):
        assert ask(server, path, max_tokens=tokens, **asked)["choices"][0]["logprobs"]
    body = {**QUESTION, "max_tokens": 51, **asked} if path == CHAT else {"prompt": "Hi", "max_tokens": 51, **asked}
    error = error_of(changed.post(path, body), 400)
    assert "x 51 max_tokens x 2 logprobs per token = 102, but max_logprob_entries is 100" in error["message"]


@both
def test_ignore_unknown_fields(changed: Server, plain: Server, path: str) -> None:
    assert ask(changed, path, no_such_field=1)["choices"]
    error = error_of(plain.post(path, {**QUESTION, "prompt": "Hi", "no_such_field": 1}), 400)
    assert error["message"].startswith("unsupported parameter")


def test_enable_request_id_headers(changed: Server, plain: Server) -> None:
    answer = changed.post(CHAT, {**QUESTION, "max_tokens": 1})
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    assert "x-request-id" not in plain.post(CHAT, {**QUESTION, "max_tokens": 1}).headers


@both
def test_enable_force_include_usage(changed: Server, plain: Server, path: str) -> None:
    chunks = stream(changed, path, **GREEDY)
    assert chunks[-1]["choices"] == [] and all(chunk["usage"] for chunk in chunks)
    assert "usage" not in stream(plain, path, **GREEDY)[-1]


@both
def test_enable_prompt_tokens_details(changed: Server, plain: Server, path: str) -> None:
    assert ask(changed, path)["usage"]["prompt_tokens_details"] is None
    assert ask(plain, path)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_trust_request_chat_template(changed: Server, plain: Server) -> None:
    body = {**QUESTION, "chat_template": "{{ messages[0].content }}!", "max_tokens": 1, "return_token_ids": True}
    assert changed.post(CHAT, body).json()["prompt_token_ids"] == token_ids(changed, "Hi!")
    error = error_of(plain.post(CHAT, body), 400)
    assert error["param"] == "chat_template" and "--trust-request-chat-template" in error["message"]


def test_allow_special_tokens_in_content(changed: Server, plain: Server) -> None:
    """With it, a user's end of turn is one, as in vLLM."""
    end = token_ids(plain, "<|im_end|>")[0]

    def num_ends(server: Server, content: str) -> int:
        messages = [{"role": "user", "content": content}]
        return int(ask(server, CHAT, messages=messages)["prompt_token_ids"].count(end))

    assert num_ends(changed, "Hi") == num_ends(plain, "Hi") == num_ends(plain, "Hi<|im_end|>") == 1
    assert num_ends(changed, "Hi<|im_end|>") == 2


def test_chat_template_timeout(changed: Server, plain: Server) -> None:
    """An endless template gets its answer in the end, and all others get theirs meanwhile."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(changed.post, CHAT, {**QUESTION, "chat_template": endless})
        answered = 0
        while not hostile.done():
            assert ask(changed, CHAT, **QUESTION, max_tokens=1)["choices"]
            answered += 1
    error = error_of(hostile.result(), 400)
    assert error["param"] == "chat_template" and "and 0.3 s of CPU time" in error["message"]
    assert answered > 1

    def is_logged() -> bool:
        return any("a chat was not rendered" in line and "--chat-template-timeout" in line for line in changed.lines)

    wait_for(is_logged, "the log names the chat's failure")


def test_default_chat_template_kwargs(changed: Server, plain: Server) -> None:
    """The model's template closes thinking at once with enable_thinking false; the request's own value wins."""

    def prompt(server: Server, **kwargs: bool) -> list[int]:
        return list(ask(server, CHAT, **QUESTION, chat_template_kwargs=kwargs)["prompt_token_ids"])

    assert prompt(changed) == prompt(plain, enable_thinking=False) != prompt(plain, enable_thinking=True)
    assert prompt(changed, enable_thinking=True) == prompt(plain, enable_thinking=True)
    mood = {
        **QUESTION,
        "chat_template": "{{ mood }}, {{ messages[0].content }}",
        "max_tokens": 1,
        "return_token_ids": True,
    }
    assert changed.post(CHAT, mood).json()["prompt_token_ids"] == token_ids(changed, "calm, Hi")


def test_exclude_tools_when_tool_choice_none(changed: Server, plain: Server) -> None:
    for server, hidden in ((changed, True), (plain, False)):
        offered = {choice: tools_prompt(server, tools=[TOOL], tool_choice=choice) for choice in ("auto", "none")}
        assert offered["auto"] != tools_prompt(server)
        assert offered["none"] == (tools_prompt(server) if hidden else offered["auto"])


def test_enable_auto_tool_choice(changed: Server, plain: Server) -> None:
    """It changes nothing: tools may be called without it."""
    for fields in ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}):
        assert tools_prompt(changed, **fields) == tools_prompt(plain, **fields)


def test_structured_outputs_config(changed: Server, plain: Server) -> None:
    """The defaults of requests: no whitespace in JSON, and no property beside those of the schema."""
    loose = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    assert whitespace(plain, TEXT, guided_json=SCHEMA) and not whitespace(changed, TEXT, guided_json=SCHEMA)
    for seed in range(5):
        is_of_schema(choice(changed, TEXT, **SEEDED | {"seed": seed}, guided_json=loose, max_tokens=200)["text"])


def tools_prompt(server: Server, **fields: object) -> list[int]:
    thinking = {"enable_thinking": False}  # the same prompt whatever --default-chat-template-kwargs says
    return list(ask(server, CHAT, **QUESTION, chat_template_kwargs=thinking, **fields)["prompt_token_ids"])


def token_ids(server: Server, text: str) -> list[int]:
    return list(ask(server, TEXT, prompt=text, max_tokens=1)["choices"][0]["prompt_token_ids"])
