"""The effect of every supported field about tools and reasoning on a server of random weights: TOOL_EFFECTS has a check
for each, as field_effects.py.

Such a model calls no tool unless the request asks for it: calls are tested with the demo model, in test_tools.py.
"""

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.api import GREEDY, TOOL, Json, ask, error_of, ids_by_bytes
from tests.e2e.field_effects import BARE, plain, prompt_ids
from tests.e2e.harness import Server

TURN: Json = {
    "type": "function",
    "function": {
        "name": "turn",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"way": {"enum": ["left", "right"]}, "by": {"type": "integer", "minimum": 10, "maximum": 99}},
            "required": ["way", "by"],
            "additionalProperties": False,
        },
    },
}
NAMED: Json = {"type": "function", "function": {"name": "turn"}}
# The prompt ends within a thought, so the whole answer is reasoning.
THOUGHT: Json = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nWell"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
}


def tools(server: Server, path: str) -> None:
    assert prompt_ids(server, path, tools=[TOOL]) != prompt_ids(server, path)
    assert prompt_ids(server, path, tools=[]) == prompt_ids(server, path)


def is_turn(call: Json) -> None:
    arguments = json.loads(call["arguments"])
    assert call["name"] == "turn" and arguments.keys() == {"way", "by"}
    assert arguments["way"] in ("left", "right") and 10 <= arguments["by"] <= 99


def called(server: Server, path: str, **fields: Any) -> Json:
    """Returns the only choice of an answer that the request asks to be a call."""
    (found,) = ask(server, path, **GREEDY, **fields, max_tokens=300)["choices"]
    return dict(found)


def tool_choice(server: Server, path: str) -> None:
    """The prompt has the tools whatever its value. The finish reasons are OpenAI's."""
    assert prompt_ids(server, path, tools=[TOOL], tool_choice="none") == prompt_ids(server, path, tools=[TOOL])
    allowed: Json = {"mode": "required", "tools": [NAMED]}
    for choice, reason in (
        ("required", "tool_calls"),
        (NAMED, "stop"),
        ({"type": "allowed_tools", "allowed_tools": allowed}, "tool_calls"),
    ):
        tools = [TURN] if choice == "required" else [TOOL, TURN]
        found = called(server, path, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        (call,) = found["message"]["tool_calls"]
        is_turn(call["function"])
        assert (found["finish_reason"], found["message"]["content"]) == (reason, None)


def function_call(server: Server, path: str) -> None:
    offered = [TOOL["function"], TURN["function"]]
    found = called(server, path, functions=offered, function_call={"name": "turn"})
    is_turn(found["message"]["function_call"])
    assert found["finish_reason"] == "stop"


def functions(server: Server, path: str) -> None:
    """The prompt is that of tools."""
    offered = prompt_ids(server, path, tools=[TOOL])
    assert prompt_ids(server, path, functions=[TOOL["function"]]) == offered
    assert prompt_ids(server, path, functions=[TOOL["function"]], function_call="none") == offered
    error = error_of(server.post(path, {**BARE[path], "functions": [TOOL["function"]], "tools": [TOOL]}), 400)
    assert error["param"] == "functions"


def parallel_tool_calls(server: Server, path: str) -> None:
    """It changes nothing but what comes after a call."""
    assert plain(server, path, tools=[TOOL], parallel_tool_calls=False) == plain(server, path, tools=[TOOL])


def include_reasoning(server: Server, path: str) -> None:
    shown, hidden = (ask(server, path, **GREEDY, **THOUGHT, include_reasoning=one) for one in (True, False))
    messages = [answer["choices"][0]["message"] for answer in (shown, hidden)]
    assert [message["content"] for message in messages] == [None, None]
    assert messages[0]["reasoning"] and messages[1]["reasoning"] is None
    assert shown["usage"] == hidden["usage"]
    assert shown["usage"]["completion_tokens_details"]["reasoning_tokens"] == 24


def thinking_token_budget(server: Server, path: str) -> None:
    def token_ids(**more: Any) -> list[int]:
        return list(ask(server, path, **GREEDY, **THOUGHT, **more)["choices"][0]["token_ids"])

    usual = token_ids()
    end = ids_by_bytes()[b"</think>"]
    assert end not in usual and token_ids(thinking_token_budget=-1) == usual
    found = token_ids(thinking_token_budget=5)
    assert found[:5] == usual[:5] and found[5] == end


TOOL_EFFECTS: dict[str, Callable[[Server, str], None]] = {
    "tools": tools,
    "tool_choice": tool_choice,
    "parallel_tool_calls": parallel_tool_calls,
    "functions": functions,
    "function_call": function_call,
    "include_reasoning": include_reasoning,
    "thinking_token_budget": thinking_token_budget,
}
