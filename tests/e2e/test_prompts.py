"""How prompts reach the model, as text, token ids, messages or tools; and the names under which a model is served."""

import pytest

from tests.e2e.api import (
    CHAT,
    GREEDY,
    INPUT,
    MAX_LEN,
    MODEL,
    SEEDED,
    TEXT,
    TOOL,
    Json,
    ask,
    choice,
    choices_of,
    error_of,
    fold,
    hf_tokenizer,
    stream,
    vocabulary,
)
from tests.e2e.harness import Server


def test_prompts_in_every_form(server: Server) -> None:
    texts = ["Which way to Köln?", "And now"]
    ids = [vocabulary().encode(text, add_special_tokens=True) for text in texts]
    (first,) = choices_of(ask(server, TEXT, prompt=texts[0], **GREEDY))
    (second,) = choices_of(ask(server, TEXT, prompt=texts[1], **GREEDY))
    assert choices_of(ask(server, TEXT, prompt=ids[0], **GREEDY)) == [first]
    for prompt in (texts, ids):
        answer = ask(server, TEXT, prompt=prompt, **GREEDY)
        assert choices_of(answer) == [first, second]
        assert [one["prompt_token_ids"] for one in answer["choices"]] == ids
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert fold(stream(server, TEXT, prompt=prompt, **GREEDY)) == [first, second]


def test_choices_of_several_prompts_stand_in_order(server: Server) -> None:
    """All choices of the first prompt, then all of the second, as in the OpenAI API."""
    apart = [choices_of(ask(server, TEXT, prompt=prompt, **SEEDED, n=2)) for prompt in ("one", "two")]
    answer = ask(server, TEXT, prompt=["one", "two"], **SEEDED, n=2)
    assert choices_of(answer) == apart[0] + apart[1]
    assert answer["usage"]["completion_tokens"] == 4 * 24
    one, two = (vocabulary().encode(text, add_special_tokens=True) for text in ("one", "two"))
    assert [raw["prompt_token_ids"] for raw in answer["choices"]] == [one, one, two, two]
    assert answer["usage"]["prompt_tokens"] == len(one) + len(two)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_that_ends_within_a_character(server: Server, cut: int) -> None:
    """The answer contains none of the prompt's text."""
    prompt = vocabulary().encode("so be it 🙂", add_special_tokens=False)[:-cut]
    answer = choice(server, TEXT, prompt=prompt, **GREEDY)
    raw = b"".join(map(vocabulary().token_bytes, answer["token_ids"]))
    assert answer["text"] == raw.decode(errors="replace")


def test_token_ids_only_when_asked_for(server: Server) -> None:
    for path in (CHAT, TEXT):
        answer = ask(server, path, return_token_ids=False)
        assert answer["choices"][0]["token_ids"] is None
        assert (answer | answer["choices"][0])["prompt_token_ids"] is None
        assert "token_ids" not in str(stream(server, path, return_token_ids=False))


def test_a_streams_prompt_ids_come_once(server: Server) -> None:
    whole, chunks = ask(server, CHAT, n=2), stream(server, CHAT, n=2)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [whole["prompt_token_ids"]] + [None] * (
        len(chunks) - 1
    )
    raw = [raw for chunk in stream(server, TEXT, n=2) for raw in chunk["choices"]]
    assert sorted(one["index"] for one in raw if "prompt_token_ids" in one) == [0, 1]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none"},  # the model sees them all the same, as in vLLM
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
    ids=str,
)
def test_the_prompt_is_what_transformers_makes_of_it(server: Server, more: Json) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in <Köln>?"}]},
        {"role": "assistant", "content": "I'll look "},
    ]
    variables = {name: value for name, value in more.items() if name not in {"chat_template_kwargs", "tool_choice"}}
    expected = hf_tokenizer().apply_chat_template(
        messages,
        return_dict=False,
        **{"add_generation_prompt": True, **variables, **more.get("chat_template_kwargs", {})},
    )
    answer = ask(server, CHAT, messages=messages, **more)
    assert answer["prompt_token_ids"] == expected
    assert answer["usage"]["prompt_tokens"] == len(expected)


def test_tool_calls_reach_the_template(server: Server) -> None:
    function = {"name": "weather", "arguments": '{"city": "Köln"}'}
    messages = [
        *INPUT[CHAT]["messages"],
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "7 degrees"},
    ]
    parsed = [
        messages[0],
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Köln"}}}]},
        messages[2],
    ]
    expected = hf_tokenizer().apply_chat_template(parsed, tools=[TOOL], add_generation_prompt=True, return_dict=False)
    assert ask(server, CHAT, messages=messages, tools=[TOOL])["prompt_token_ids"] == expected


def test_special_tokens_of_text_prompts(server: Server) -> None:
    """The demo's tokenizer adds none, so the flag has no effect. In the text they become tokens."""
    answer = ask(server, TEXT, prompt="Hi<|im_end|>", add_special_tokens=False)
    assert answer["choices"][0]["prompt_token_ids"][-1] == 2


def test_a_cache_salt_separates_prefixes(server: Server) -> None:
    def cached(salt: str | None) -> int:
        body = {"prompt": [9, 8, 7, 6] * 20, "max_tokens": 1, "cache_salt": salt}
        return int(server.post(TEXT, body).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("mine") == 0
    assert cached("mine") == 64  # of 80: the last block is computed, for its logits
    assert cached("yours") == 0
    assert cached(None) == 0
    assert [cached("yours"), cached(None), cached("mine")] == [64, 64, 64]


def test_models(server: Server) -> None:
    (card,) = server.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", MAX_LEN)
    assert server.get(f"/v1/models/{MODEL}").json() == card
    assert error_of(server.get("/v1/models/other"), 404)["code"] == "model_not_found"
    assert ask(server, TEXT, model=MODEL)["model"] == MODEL
