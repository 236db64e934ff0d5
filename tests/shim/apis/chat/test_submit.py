"""A chat's submit: messages and tools byte for byte, and the variables of the chat template."""

import json

import msgspec
import pytest

from services.rpc.generated import text_pb2
from services.shim.apis.chat.api import CHAT_API
from tests.shim.apis.field_values import CHAT, TOOL, Json, refused, submits, submits_of_text


def chat(change: Json) -> text_pb2.TextSubmit:
    (one,) = submits(CHAT_API, change)
    return one


def chat_of_text(text: str) -> text_pb2.TextSubmit:
    (one,) = submits_of_text(CHAT_API, text.encode())
    return one


def kwargs(change: Json) -> Json:
    found = chat(change).chat.template_kwargs_json
    return dict(json.loads(found)) if found else {}


@pytest.mark.parametrize(
    "messages",
    [
        '[ {"role" :"user","content":"a\\u0062\\/é😀"}\n]',
        '[{"role":"user","content":"x","n":1.50,"e":1e2,"big":123456789012345678901234567890}]',
        '[{"content":"x","role":"user","z":1,"a":{"d":null,"c":[]}}]',
        '[{"role":"user","content":"first","content":"last"}]',
    ],
)
def test_messages_pass_as_the_client_wrote_them(messages: str) -> None:
    assert chat_of_text(f'{{"messages": {messages} , "n":1}}').chat.messages_json == messages.encode()


def test_tools_and_documents_pass_as_the_client_wrote_them() -> None:
    tools = '[ {"function":{"parameters":{"b":1.0,"a":[1e0]},"name":"f\\u0061"},"type":"function","strict":null} ]'
    documents = '[{"text" : "d\\u00e9", "n": 1.0}]'
    found = chat_of_text(f'{{"tools":{tools},"documents":{documents},"messages":[{{"role":"user","content":""}}]}}')
    assert found.output.tools_json == tools.encode()
    assert found.chat.documents_json == documents.encode()


def test_of_a_field_that_is_there_twice_the_last_one_counts() -> None:
    """For the checks as for the tokenizer: otherwise unchecked messages could pass."""
    bad, good = '[{"role":5}]', '[{"role":"user","content":"b"}]'
    assert chat_of_text(f'{{"messages":{bad},"messages":{good}}}').chat.messages_json == good.encode()
    fields = msgspec.json.decode(bad)
    assert refused(CHAT_API, {"messages": fields}).param == "messages.0.role"


def test_a_plain_chat() -> None:
    found = chat({})
    assert json.loads(found.chat.messages_json) == CHAT["messages"]
    rest = text_pb2.ChatInput(messages_json=found.chat.messages_json, add_generation_prompt=True)
    assert found.chat == rest
    assert found.output.tools_json == b""


def test_switches() -> None:
    found = chat({"add_generation_prompt": False, "continue_final_message": True, "add_special_tokens": True}).chat
    assert (found.add_generation_prompt, found.continue_final_message, found.add_special_tokens) == (False, True, True)


def test_a_chat_template() -> None:
    assert chat({"chat_template": "{{ messages }}"}).chat.chat_template == "{{ messages }}"


@pytest.mark.parametrize("documents", [[], [{"text": "a"}]])
def test_documents(documents: list[Json]) -> None:
    assert json.loads(chat({"documents": documents}).chat.documents_json) == documents


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_an_effort_turns_thinking_on(effort: str) -> None:
    assert kwargs({"reasoning_effort": effort}) == {"reasoning_effort": effort, "enable_thinking": True}


def test_no_effort_turns_thinking_off() -> None:
    assert kwargs({"reasoning_effort": "none"}) == {"reasoning_effort": "none", "enable_thinking": False}


def test_template_variables_of_the_request_win() -> None:
    given = {"enable_thinking": True, "verbosity": "mine", "reasoning_effort": "mine", "other": [1]}
    fields = {"reasoning_effort": "none", "verbosity": "low", "chat_template_kwargs": given}
    assert kwargs(fields) == given


def test_verbosity_reaches_the_template() -> None:
    assert kwargs({"verbosity": "high"}) == {"verbosity": "high"}
    assert kwargs({}) == {}


FUNCTION = {"name": "f", "parameters": {"type": "object"}}
NONE, AUTO = text_pb2.TOOL_CHOICE_NONE, text_pb2.TOOL_CHOICE_AUTO


@pytest.mark.parametrize(
    ("fields", "sent", "choice"),
    [
        ({}, False, NONE),
        ({"tool_choice": "auto"}, False, NONE),
        ({"tools": []}, False, NONE),
        ({"tools": None, "functions": [], "parallel_tool_calls": False}, False, NONE),
        ({"tools": [TOOL]}, True, AUTO),
        ({"tools": [TOOL], "functions": []}, True, AUTO),
        ({"tools": [TOOL], "tool_choice": "auto"}, True, AUTO),
        ({"tools": [TOOL], "tool_choice": None}, True, AUTO),
        ({"tools": [TOOL], "tool_choice": "none"}, True, NONE),
        ({"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False}, True, NONE),
        ({"functions": [FUNCTION], "function_call": "none"}, True, NONE),
    ],
)
def test_tools(fields: Json, sent: bool, choice: text_pb2.ToolChoice) -> None:
    """With the choice "none" the prompt has the tools, as in vLLM, but calls stay text."""
    found = chat(fields).output
    assert (bool(found.tools_json), found.tool_choice, found.single_tool_call) == (sent, choice, False)


@pytest.mark.parametrize(
    "fields", [{"tools": [TOOL], "tool_choice": "none"}, {"functions": [FUNCTION], "function_call": "none"}]
)
def test_a_server_may_hide_tools_that_may_not_be_called(fields: Json) -> None:
    (found,) = submits(CHAT_API, fields, exclude_tools_when_tool_choice_none=True)
    assert (found.output.tools_json, found.output.tool_choice) == (b"", NONE)
    (found,) = submits(CHAT_API, {"tools": [TOOL]}, exclude_tools_when_tool_choice_none=True)
    assert found.output.tools_json and found.output.tool_choice == AUTO


@pytest.mark.parametrize("fields", [{"tools": [TOOL], "parallel_tool_calls": False}, {"functions": [FUNCTION]}])
def test_one_call_at_most(fields: Json) -> None:
    found = chat(fields).output
    assert (found.tool_choice, found.single_tool_call) == (AUTO, True)


def test_functions_become_tools_as_the_client_wrote_them() -> None:
    first, second = '{"name":"f","parameters":{"n" : 1.50,"e":1e2}}', '{"description":"d\\u00e9","name": "g"}'
    found = chat_of_text(f'{{"functions":[ {first},{second} ],"messages":[{{"role":"user","content":""}}]}}')
    tools = ",".join(f'{{"type":"function","function":{one}}}' for one in (first, second))
    assert found.output.tools_json.decode() == f"[{tools}]"


def test_strict_and_anything_else_in_a_tool_passes() -> None:
    function = {"name": "f", "strict": True, "parameters": {"$ref": "#", "not": {}, "x": [None, 1.5]}, "x": {"y": 1}}
    tools = [{"type": "function", "function": function, "cache_control": {"type": "ephemeral"}}]
    assert json.loads(chat({"tools": tools}).output.tools_json) == tools


@pytest.mark.parametrize(("budget", "sent"), [(None, None), (-1, None), (0, 0), (100, 100)])
def test_a_budget_of_reasoning(budget: int | None, sent: int | None) -> None:
    found = chat({"thinking_token_budget": budget}).output
    assert (found.thinking_token_budget if found.HasField("thinking_token_budget") else None) == sent


def test_reasoning_is_separated_even_if_it_is_not_shown() -> None:
    """So that it does not become content."""
    assert chat({"include_reasoning": False}).output.separate_reasoning
