"""The routes about tokens on a real server: equal to transformers' tokenizer, to chat and completions, after a kill."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.api import CHAT, INPUT, TEXT, Json, error_of, events_of, hf_tokenizer
from tests.e2e.harness import ALL_READY, PLAIN_HTTP, Server, children_of, role_of, wait_for

GENERATE = "/inference/v1/generate"
TEXTS = [
    "",
    "Hi",
    "Which way to Köln?",
    "  two  spaces\n\n\ttab",
    "👍🏽 ñandú 北京",
    "<|im_start|>user\nHi<|im_end|>",
    "a" * 3000,
]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CHATS: list[Json] = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "tools": [WEATHER]},
    {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False},
    {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, I"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"enable_thinking": True}},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--tokenizer-replicas=2") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def answer(server: Server, path: str, body: Json) -> Any:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_texts_are_tokenized_as_by_transformers(server: Server) -> None:
    tokenizer = hf_tokenizer()
    for text in TEXTS:
        expected = tokenizer(text)["input_ids"]
        found = answer(server, "/tokenize", {"prompt": text, "return_token_strs": True})
        assert (found["tokens"], found["count"]) == (expected, len(expected)), text
        assert found["token_strs"] == tokenizer.convert_ids_to_tokens(expected)
        bare = answer(server, "/tokenize", {"prompt": text, "add_special_tokens": False})
        assert bare["tokens"] == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert bare["token_strs"] is None
        assert answer(server, "/detokenize", {"tokens": expected}) == {"prompt": tokenizer.decode(expected)}


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
def test_chats_are_tokenized_as_by_transformers(server: Server, chat: Json) -> None:
    kwargs = {name: value for name, value in chat.items() if name not in ("messages", "chat_template_kwargs")}
    rendered = hf_tokenizer().apply_chat_template(
        chat["messages"],
        tokenize=False,
        **{"add_generation_prompt": True, **kwargs},
        **chat.get("chat_template_kwargs", {}),
    )
    expected = hf_tokenizer()(rendered, add_special_tokens=False)["input_ids"]
    assert answer(server, "/tokenize", chat)["tokens"] == expected


def test_template_arguments_are_variables(server: Server) -> None:
    """CVE-2025-62426: at /tokenize, too, they became arguments of a function that encoded in the API server."""
    kwargs = {"tokenize": True, "return_tensors": "pt", "padding": True, "truncation": True, "max_length": 1}
    named = answer(server, "/tokenize", {**CHATS[0], "chat_template_kwargs": kwargs})
    assert named == answer(server, "/tokenize", CHATS[0])


def test_the_configuration_is_what_lm_eval_looks_for(server: Server) -> None:
    response = server.get("/tokenizer_info")
    assert response.status_code == 200
    found, tokenizer = response.json(), hf_tokenizer()
    assert found["eos_token"] == tokenizer.eos_token and found["chat_template"] == tokenizer.chat_template
    assert found["tokenizer_class"]


def render_of(server: Server, path: str, body: Json) -> Json:
    rendered = answer(server, f"{path}/render", body)
    return dict(rendered if path == CHAT else rendered[0])


@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 3, "n": 2, "presence_penalty": 0.5, "logit_bias": {"300": 2}},
        {"temperature": 1, "seed": 4, "stop": ["e"], "min_tokens": 3, "bad_words": ["the"]},
    ],
    ids=["greedy", "seeded", "stopped"],
)
def test_a_rendered_request_has_the_same_answer(server: Server, path: str, fields: Json) -> None:
    body = {**INPUT[path], "max_tokens": 20, **fields}
    direct = answer(server, path, {**body, "return_token_ids": True})
    token_in = answer(server, GENERATE, render_of(server, path, body))
    for one, other in zip(direct["choices"], token_in["choices"], strict=True):
        for name in ("index", "token_ids", "finish_reason", "stop_reason"):
            assert one[name] == other[name], name
    for name in ("prompt_tokens", "completion_tokens"):
        assert direct["usage"][name] == token_in["usage"][name]


def test_logprobs_and_streams_of_ids(server: Server) -> None:
    ids = hf_tokenizer()("Which way?")["input_ids"]
    params = {"temperature": 1, "seed": 5, "max_tokens": 12, "logprobs": 2, "n": 2}
    whole = answer(server, GENERATE, {"token_ids": ids, "sampling_params": params})
    direct = answer(
        server, TEXT, {"prompt": ids, "return_tokens_as_token_ids": True, "return_token_ids": True, **params}
    )
    assert [one["token_ids"] for one in whole["choices"]] == [one["token_ids"] for one in direct["choices"]]
    for one, other in zip(whole["choices"], direct["choices"], strict=True):
        content = one["logprobs"]["content"]
        assert [entry["token"] for entry in content] == other["logprobs"]["tokens"]
        assert [entry["logprob"] for entry in content] == other["logprobs"]["token_logprobs"]
    chunks = streamed(server, {"token_ids": ids, "sampling_params": params, "request_id": "mine"})
    assert {chunk["request_id"] for chunk in chunks} == {"generate-tokens-mine"}
    found: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] += choice["token_ids"]
            assert len(choice["token_ids"]) == len((choice["logprobs"] or {"content": []})["content"])
    assert [found[0], found[1]] == [one["token_ids"] for one in whole["choices"]]


def test_logprobs_of_the_prompt(server: Server) -> None:
    """Those of completions, directly and for a request that was rendered."""
    ids = hf_tokenizer()("Which way to Köln?")["input_ids"]
    params = {"temperature": 0, "max_tokens": 2, "prompt_logprobs": 2}
    direct = answer(server, TEXT, {"prompt": ids, **params})["choices"][0]["prompt_logprobs"]
    assert len(direct) == len(ids) and direct[0] is None
    found = answer(server, GENERATE, {"token_ids": ids, "sampling_params": params})
    assert found["prompt_logprobs"] == direct
    rendered = render_of(server, TEXT, {"prompt": ids, **params})
    assert rendered["sampling_params"]["prompt_logprobs"] == 2
    assert answer(server, GENERATE, rendered)["prompt_logprobs"] == direct


def streamed(server: Server, body: Json) -> list[Json]:
    with httpx.stream("POST", server.url + GENERATE, json={**body, "stream": True}, timeout=60, **PLAIN_HTTP) as found:
        assert found.status_code == 200
        return events_of(found.iter_lines())


@pytest.mark.parametrize("params", [{}, {"stop": ["no such text"], "logprobs": 1}], ids=["ids", "text and logprobs"])
def test_a_stream_of_ids_survives_its_tokenizer(server: Server, params: Json) -> None:
    """Both tokenizers are killed in the middle: no id is lost or comes twice."""
    body = {
        "token_ids": hf_tokenizer()("Which way?")["input_ids"],
        "sampling_params": {"temperature": 1, "seed": 9, "max_tokens": 400, "ignore_eos": True, **params},
    }
    expected = answer(server, GENERATE, body)["choices"][0]["token_ids"]
    assert len(expected) == 400
    wait_for(lambda: len(tokenizers(server)) == 2, "both tokenizers run")
    found: list[int] = []
    victims = tokenizers(server)
    with httpx.stream("POST", server.url + GENERATE, json={**body, "stream": True}, timeout=60, **PLAIN_HTTP) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                found += chunk["choices"][0]["token_ids"]
                while len(found) > 50 and victims:
                    os.kill(victims.pop(), signal.SIGKILL)
                    assert len(found) < 300, "it has not ended yet"
    assert not victims and found == expected
    wait_for(lambda: server.get("/health").status_code == 200, "a tokenizer is back")


def tokenizers(server: Server) -> list[int]:
    return [pid for pid in children_of(server.process.pid) if role_of(pid) == "tokenizer"]


def test_a_hang_up_ends_the_generation(server: Server) -> None:
    before = server.stats().num_steps
    params = {"max_tokens": 1500, "ignore_eos": True}
    with httpx.stream(
        "POST", server.url + GENERATE, json={"token_ids": [5], "sampling_params": params, "stream": True}, **PLAIN_HTTP
    ) as response:
        next(response.iter_lines())

    def idle() -> bool:
        stats = server.stats()
        return not stats.num_running and not stats.num_waiting

    wait_for(idle, "no request runs", 5)
    assert server.stats().num_steps - before < 1000


def test_batch_and_invocations(server: Server) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("Hi", "Which way to Köln?", "Bye")]
    settings = {"temperature": 0, "max_tokens": 10, "return_token_ids": True}
    batch = answer(server, f"{CHAT}/batch", {"messages": conversations, **settings})
    for index, messages in enumerate(conversations):
        single = answer(server, CHAT, {"messages": messages, **settings})["choices"][0]
        assert batch["choices"][index]["message"] == single["message"]
        assert batch["choices"][index]["token_ids"] == single["token_ids"]
    for path in (CHAT, TEXT):
        body = {**INPUT[path], **settings}
        assert answer(server, "/invocations", body)["choices"] == answer(server, path, body)["choices"]


def test_errors_of_the_engine_name_the_field(server: Server) -> None:
    for body, param in (
        ({"token_ids": [2**31]}, "token_ids"),
        ({"token_ids": [5], "sampling_params": {"logit_bias": {str(2**31): 1}}}, "sampling_params.logit_bias"),
        ({"token_ids": [5], "sampling_params": {"structured_outputs": {"regex": "("}}},
         "sampling_params.structured_outputs.regex"),
        ({"token_ids": [5], "sampling_params": {"max_tokens": 2**31 - 1}}, "sampling_params.max_tokens"),
    ):  # fmt: skip
        assert error_of(server.post(GENERATE, body), 400)["param"] == param


def test_about_the_server(server: Server) -> None:
    assert server.get("/ping").status_code == 200
    assert httpx.post(server.url + "/ping", **PLAIN_HTTP).status_code == 200
    assert server.get("/load").json() == {"server_load": 0}
    info = server.get("/server_info").json()
    (card,) = server.get("/v1/models").json()["data"]
    assert info["vllm_config"]["model_config"]["max_model_len"] == card["max_model_len"]
    assert info["vllm_config"]["model_config"]["served_model_name"] == [card["id"]]
    assert isinstance(info["default_sampling_params"], dict)


def test_a_large_text(server: Server) -> None:
    """1 MB: longer than the context, and tokenized all the same."""
    text = "Hello, wörld! " * 75_000
    found = answer(server, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) > found["max_model_len"]
    assert answer(server, "/detokenize", {"tokens": found["tokens"]})["prompt"] == text
    error = error_of(server.post("/tokenize", {"prompt": "a" * (2**22 + 1)}), 400)
    assert error["param"] == "prompt" and "1048575 tokens and 4194304 characters" in error["message"]
