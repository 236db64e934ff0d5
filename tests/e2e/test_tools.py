"""Tool calls and reasoning of the demo model over HTTP: every field that asks for them, streamed and not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import CHAT, Json, ask, stream
from tests.e2e.harness import Server

README = Path(__file__).resolve().parents[2] / "README.md"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city", "parameters": PARAMETERS}
TOOLS: Json = {"tools": [{"type": "function", "function": WEATHER}]}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
# Greedy; the ids of calls depend on the seed.
FIELDS: Json = {"messages": [QUESTION], "temperature": 0, "seed": 7, "ignore_eos": False, "max_tokens": 120}
THINK: Json = {"chat_template_kwargs": {"enable_thinking": True}}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THOUGHT = "I look up Paris."
SENTENCE = "It is sunny in Paris, with 22 degrees."


def asked(server: Server, **more: Any) -> Json:
    """Returns the response to the question, up to the model's own end."""
    return ask(server, CHAT, **{**FIELDS, **more})


def choice_of(server: Server, **more: Any) -> Json:
    """Returns the choice of a response. Asserts that a stream says the same."""
    (choice,) = asked(server, **more)["choices"]
    assert merged(stream(server, CHAT, **{**FIELDS, **more})) == said(choice)
    return dict(choice)


def said(choice: Json) -> Json:
    """Returns finish reason, token ids and what is not empty of a choice's message."""
    message = {name: value for name, value in choice["message"].items() if value}
    return {"finish_reason": choice["finish_reason"], "token_ids": choice["token_ids"], **message}


def merged(chunks: list[Json]) -> Json:
    """Returns the only choice of a stream in the form of `said`."""
    found: Json = {"token_ids": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        for name in delta.keys() - {"tool_calls", "function_call"}:
            found[name] = found.get(name, "") + delta[name]
        for part in delta.get("tool_calls", []):
            index = part.pop("index")
            if index == len(found.setdefault("tool_calls", [])):
                found["tool_calls"].append(part)
            else:
                found["tool_calls"][index]["function"]["arguments"] += part["function"]["arguments"]
        if (part := delta.get("function_call")) is not None:
            call = found.setdefault("function_call", {"arguments": ""})
            call |= {**part, "arguments": call["arguments"] + part["arguments"]}
        found["finish_reason"] = choice["finish_reason"]
        found["token_ids"] += choice.get("token_ids", [])
    return {name: value for name, value in found.items() if value}


def call_of(choice: Json) -> Json:
    """Returns the only call of a choice that ended with it."""
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["type"] == "function"
    assert call["id"].startswith("call_") and len(call["id"]) == 29
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_weather", {"city": "Paris"})
    return dict(call)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_call_its_result_and_the_sentence(demo_server: Server, thinks: bool) -> None:
    kwargs = THINK if thinks else {}
    choice = choice_of(demo_server, **TOOLS, **kwargs)
    call, message = call_of(choice), choice["message"]
    assert not (message["content"] or "").strip()
    assert (message["reasoning"] or "").strip() == (THOUGHT if thinks else "")
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": 22, "condition": "sunny"}'}
    last = choice_of(demo_server, **TOOLS, messages=[QUESTION, message, result])
    assert (last["message"]["content"], last["finish_reason"]) == (SENTENCE, "stop")
    assert "tool_calls" not in last["message"]


def test_calls_stay_text_with_tool_choice_none(demo_server: Server) -> None:
    for fields in ({**TOOLS, "tool_choice": "none"}, {"functions": [WEATHER], "function_call": "none"}):
        choice = choice_of(demo_server, **fields)
        assert (choice["message"]["content"].strip(), choice["finish_reason"]) == (CALLED, "stop")
        assert "tool_calls" not in choice["message"] and choice["message"]["function_call"] is None


def test_functions(demo_server: Server) -> None:
    choice = choice_of(demo_server, functions=[WEATHER])
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    call = choice["message"]["function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})


def test_without_parallel_calls_the_first_one_ends_the_answer(demo_server: Server) -> None:
    """Even where the model would go on: its end token is ignored here."""
    usual = choice_of(demo_server, **TOOLS, ignore_eos=True)
    assert usual["finish_reason"] == "length" and len(usual["token_ids"]) == 120
    single = choice_of(demo_server, **TOOLS, ignore_eos=True, parallel_tool_calls=False)
    call_of(single)
    assert single["token_ids"] == usual["token_ids"][: len(single["token_ids"])]


def test_a_call_that_max_tokens_cuts(demo_server: Server) -> None:
    whole = len(choice_of(demo_server, **TOOLS)["token_ids"])
    for count in range(1, whole - 3, 4):
        choice = choice_of(demo_server, **TOOLS, max_tokens=count)
        assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == count


def test_reasoning_that_is_not_included(demo_server: Server) -> None:
    shown, hidden = (asked(demo_server, **TOOLS, **THINK, include_reasoning=included) for included in (True, False))
    assert shown["choices"][0]["message"]["reasoning"].strip() == THOUGHT
    assert hidden["choices"][0]["message"]["reasoning"] is None and THOUGHT not in json.dumps(hidden)
    details = [answer["usage"]["completion_tokens_details"] for answer in (shown, hidden)]
    assert details[0] == details[1] and 0 < details[0]["reasoning_tokens"] < shown["usage"]["completion_tokens"]
    assert asked(demo_server)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_budget_of_reasoning(demo_server: Server) -> None:
    """Its end is forced, and the answer goes on."""
    usual = asked(demo_server, **TOOLS, **THINK)["choices"][0]
    for budget in (0, 1, 3):
        choice = choice_of(demo_server, **TOOLS, **THINK, thinking_token_budget=budget)
        assert len(choice["message"]["reasoning"] or "") < len(usual["message"]["reasoning"])
        assert choice["finish_reason"] in ("tool_calls", "stop")
    for budget in (-1, 100):
        assert asked(demo_server, **TOOLS, **THINK, thinking_token_budget=budget)["choices"] == [usual]


def test_the_readme_example(demo_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    _, example, _ = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    with demo_server.openai() as client:
        exec(example, {"client": client})
    called, sentence = capsys.readouterr().out.splitlines()
    assert called == f'{THOUGHT} | get_weather {{"city": "Paris"}}'
    assert sentence == SENTENCE


def test_the_readme_example_of_json(demo_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    *_, example = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    with demo_server.openai() as client:
        exec(example, {"client": client, "__name__": "readme"})
    assert capsys.readouterr().out == "name='Anna' age=14\n"
