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


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, True),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": None}, True),
        ({"tool_choice": "none"}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
    ],
)
def test_tools(fields: Json, sent: bool) -> None:
    """With tool_choice none, the template gets no tools."""
    assert bool(chat({"tools": [TOOL]} | fields).output.tools_json) == sent
