"""The request schemas: each limit and each wrong type is refused with 400 and the name of the field at fault."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from services.rpc.errors import TandemError
from services.shim.parsing import validate
from services.shim.schema import MAX_PROMPTS, MAX_STOP_STRINGS, ChatRequest, CompletionRequest, GenerationRequest
from services.shim.translate import chat_submit
from tests.shim.harness import LIMITS

Body = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
CHAT: Body = {"messages": [USER]}
TEXT: Body = {"prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
BOTH: list[tuple[type[GenerationRequest], Body]] = [(ChatRequest, CHAT), (CompletionRequest, TEXT)]
both = pytest.mark.parametrize(("kind", "base"), BOTH, ids=["chat", "completion"])
# Names of pydantic's types, of our classes and of Python's: nothing that a client has written.
INTERNAL = ("list[", "constrained", "function-", "model_", "_type", "TextPart", "ChatMessage", "dictionary", "pydantic")


def refused(kind: type[GenerationRequest], body: Body) -> TandemError:
    """The error for this body."""
    with pytest.raises(TandemError) as caught:
        validate(kind, body, LIMITS)
    found = caught.value
    assert (found.code, found.status.http) == ("INVALID_ARGUMENT", 400)
    assert not [word for word in INTERNAL if word in found.message], found.message
    return found


MOST_STOP_IDS = [1] * LIMITS.max_stop_token_ids

# field, values that are accepted, values that are refused
COMMON: list[tuple[str, list[Any], list[Any]]] = [
    ("model", ["a"], [5, ["a"], True]),
    ("stream", [True, False], ["true", 1, {}]),
    ("n", [1, LIMITS.max_n], [0, -1, LIMITS.max_n + 1, 1.5, "1", True]),
    ("stop", ["a", ["a", "b"], [], ["a"] * MAX_STOP_STRINGS, "a" * 1024], [3, "", ["a"] * (MAX_STOP_STRINGS + 1), {}]),
    ("max_tokens", [1, 2**31 - 1], [0, -1, 2**31, 1.0, "5", True]),
    ("min_tokens", [0, 1], [-1, 2**31, "1", 0.5]),
    ("temperature", [0, 0.0, 1, 2.0], [-0.1, 2.1, math.inf, math.nan, "1", True]),
    ("top_p", [0.001, 1], [0, -1, 1.001, math.nan, "1"]),
    ("top_k", [-1, 0, 1, 2**31 - 1], [-2, 2**31, 1.5, "1"]),
    ("min_p", [0, 1], [-0.1, 1.1, math.nan, "0"]),
    ("seed", [0, 2**63 - 1], [-1, 2**63, 2**70, 1.5, "1"]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1, math.nan, "0"]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1, math.nan, "0"]),
    ("repetition_penalty", [0.1, 1e4], [0, -1, 1.1e4, math.inf, "1"]),
    ("ignore_eos", [True], [1, "yes"]),
    ("stop_token_ids", [[], [0, 2**32 - 1], MOST_STOP_IDS], [5, "5", [*MOST_STOP_IDS, 1]]),
    ("include_stop_str_in_output", [True], [1, "yes"]),
    ("skip_special_tokens", [False], [0, "no"]),
    ("return_token_ids", [True], [1, "yes"]),
    ("cache_salt", ["", "a" * 1024], ["a" * 1025, 5, []]),
    ("priority", [0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 0.5, "1", True]),
]
CHAT_ONLY: list[tuple[str, list[Any], list[Any]]] = [
    ("messages", [[USER], [USER, USER]], [[], {}, "Hi", 5]),
    ("max_completion_tokens", [1, 2**31 - 1], [0, -1, 2**31, 1.0, "5"]),
    ("logprobs", [True, False], [0, 1, 5, "true"]),
    ("top_logprobs", [], [-1, LIMITS.max_logprobs + 1, True, "1", 1.5]),
    ("tools", [[TOOL], [TOOL] * 3], [[], {}, "f"]),
    ("tool_choice", ["none", "auto"], ["required", "f", {"type": "function", "function": {"name": "f"}}, 5]),
    ("response_format", [{"type": "text"}], ["text", 5]),
    ("chat_template_kwargs", [{}, {"enable_thinking": False}], [[], "a", 5, {"messages": []}, {"tools": []}]),
    ("add_generation_prompt", [True, False], [1, "yes"]),
    ("continue_final_message", [False], [1, "yes", True]),  # true needs add_generation_prompt: false
]
TEXT_ONLY: list[tuple[str, list[Any], list[Any]]] = [
    ("prompt", ["", "Hi", ["a", "b"], [1, 2], [[1], [2]], ["a"] * MAX_PROMPTS], [5, [], {}, True]),
    ("logprobs", [0, LIMITS.max_logprobs], [-1, LIMITS.max_logprobs + 1, True, "1"]),
    ("add_special_tokens", [False], [0, "no"]),
]
ALL = [(kind, base, row) for kind, base in BOTH for row in COMMON]
ALL += [(ChatRequest, CHAT, row) for row in CHAT_ONLY] + [(CompletionRequest, TEXT, row) for row in TEXT_ONLY]
ids = [f"{kind.__name__}-{row[0]}" for kind, _, row in ALL]


@pytest.mark.parametrize(("kind", "base", "row"), ALL, ids=ids)
def test_each_field_and_its_limits(
    kind: type[GenerationRequest], base: Body, row: tuple[str, list[Any], list[Any]]
) -> None:
    field, good, bad = row
    for value in good:
        validate(kind, base | {field: value}, LIMITS)
    for value in bad:
        error = refused(kind, base | {field: value})
        assert error.param == field, f"{field}={value!r}: {error.param!r}: {error.message}"
        assert field in error.message


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_every_field_has_a_row_here(kind: type[GenerationRequest]) -> None:
    tested = {row[0] for other, _, row in ALL if other is kind} | {"stream_options"}
    assert set(kind.model_fields) == tested


@both
@pytest.mark.parametrize("name", ["user", "logit_bias", "best_of", "echo", "top-p", "str", "int", "", "Temperature"])
def test_unknown_fields_are_refused_by_name(kind: type[GenerationRequest], base: Body, name: str) -> None:
    error = refused(kind, base | {name: 1})
    assert (error.message, error.param) == (f"unsupported parameter: {name}", name)


@pytest.mark.parametrize("name", ["parallel_tool_calls", "reasoning_effort", "functions", "chat_template", "documents"])
def test_what_chat_does_not_do_yet_is_refused_by_name(name: str) -> None:
    assert refused(ChatRequest, CHAT | {name: None}).message == f"unsupported parameter: {name}"


def test_fields_of_one_endpoint_are_unknown_to_the_other() -> None:
    assert refused(CompletionRequest, TEXT | {"messages": []}).message == "unsupported parameter: messages"
    assert refused(ChatRequest, CHAT | {"prompt": "Hi"}).message == "unsupported parameter: prompt"


def test_what_is_needed() -> None:
    assert refused(ChatRequest, {}).message == "missing parameter: messages"
    assert refused(CompletionRequest, {}).message == "missing parameter: prompt"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hi", "messages.0"),
        ({"content": "Hi"}, "messages.0.role"),
        ({"role": "martian", "content": "Hi"}, "messages.0.role"),
        ({"role": 5, "content": "Hi"}, "messages.0.role"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": {"text": "Hi"}}, "messages.0.content"),
        ({"role": "user", "content": ["Hi"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0.content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": 5}]},
         "messages.0.content.1.text"),
        ({"role": "assistant", "tool_calls": 5}, "messages.0.tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages.0.tool_calls.0"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "messages.0.tool_calls.0.function"),
    ],
)  # fmt: skip
def test_paths_into_messages(message: Any, param: str) -> None:
    assert refused(ChatRequest, {"messages": [message]}).param == param
    second = refused(ChatRequest, {"messages": [USER, message]})
    assert second.param == param.replace("messages.0", "messages.1")


def test_messages_keep_fields_that_only_templates_know() -> None:
    parts = [{"type": "text", "text": "Hi", "cache_control": {}}]
    call: Body = {"role": "assistant", "content": None, "tool_calls": [], "reasoning": "..."}
    ChatRequest.model_validate({"messages": [{"role": "user", "content": parts, "name": "me"}, call]})


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (5, "tools.0"),
        ({"type": "function"}, "tools.0.function"),
        ({"function": {}}, "tools.0.type"),
        ({"type": "custom", "function": {}}, "tools.0.type"),
        ({"type": "function", "function": "f"}, "tools.0.function"),
    ],
)
def test_paths_into_tools(tool: Any, param: str) -> None:
    assert refused(ChatRequest, CHAT | {"tools": [tool]}).param == param


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", 1], "prompt.1"),
        ([1, "a"], "prompt.1"),
        ([1, -5], "prompt.1"),
        ([1, 2**32], "prompt.1"),
        ([1, 1.5], "prompt.1"),
        ([True], "prompt.0"),
        ([[1], []], "prompt.1"),
        ([[1], [2, "a"]], "prompt.1.1"),
        ([[1], [-1]], "prompt.1.0"),
        ([None], "prompt.0"),
        (["a"] * (MAX_PROMPTS + 1), "prompt"),
        ([[1]] * (MAX_PROMPTS + 1), "prompt"),
    ],
)
def test_paths_into_prompts(prompt: Any, param: str) -> None:
    assert refused(CompletionRequest, {"prompt": prompt}).param == param


@both
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": ["a", 5]}, "stop.1"),
        ({"stop": ["a", "b" * 1025]}, "stop.1"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1"),
        ({"stop_token_ids": [1, "1"]}, "stop_token_ids.1"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ],
)
def test_paths_into_common_fields(kind: type[GenerationRequest], base: Body, change: Body, param: str) -> None:
    assert refused(kind, base | change).param == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"min_tokens": 9, "max_completion_tokens": 8}, "min_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema"),
    ],
)
def test_what_does_not_go_together_in_chat(change: Body, param: str) -> None:
    assert refused(ChatRequest, CHAT | change).param == param


def test_max_completion_tokens_wins() -> None:
    request = ChatRequest.model_validate(CHAT | {"max_tokens": 5, "max_completion_tokens": 50, "min_tokens": 9})
    assert request.token_limit == 50


def test_a_million_wrong_items_make_one_error() -> None:
    """Otherwise building the list of errors would block the event loop for seconds."""
    bodies: list[Body] = [{"prompt": [{}] * 10**6}, {"prompt": [[{}] * 10**6]}]
    for body in bodies:
        with pytest.raises(ValidationError) as caught:
            CompletionRequest.model_validate(body)
        assert len(caught.value.errors(include_input=False)) <= 4  # one for each kind of prompt
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": [5] * 10**6})
    assert len(caught.value.errors(include_input=False)) == 1


def test_stop_strings_count_for_every_prompt() -> None:
    stop = ["x" * 1024] * 64
    CompletionRequest.model_validate({"prompt": ["a"] * 16, "stop": stop})
    error = refused(CompletionRequest, {"prompt": ["a"] * 17, "stop": stop})
    assert error.param == "stop" and "17 prompts" in error.message


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_an_assistant_message_may_lack_content(role: str) -> None:
    error = refused(ChatRequest, {"messages": [{"role": role}]})
    assert (error.param, error.message) == ("messages", f"a message with role {role} needs content")


def test_tool_choice_none_keeps_the_tools_from_the_template() -> None:
    body: Body = CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for choice, tools in (({}, True), ({"tool_choice": "auto"}, True), ({"tool_choice": "none"}, False)):
        raw = body | choice
        submit = chat_submit(ChatRequest.model_validate(raw), raw, "r", lambda: 1)
        assert bool(submit.chat.tools_json) == tools
