"""Chat templates render the same text as transformers' apply_chat_template; a template's error refuses the request."""

import json
from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

import demo
from services.errors import Fatal
from services.rpc.errors import TandemError
from services.tokenizer.find_template import find_template, special_tokens
from services.tokenizer.render import ChatTemplate
from tests.tokenizer.templates import LLAMA3, MISTRAL, QWEN3

DEMO = "demo"
TEMPLATES = {DEMO: None, "qwen3": QWEN3, "llama3": LLAMA3, "mistral": MISTRAL}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells the weather; <b>ß</b> & "quotes"',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
SHORT = [{"role": "user", "content": "Hi <there> & 你好"}]
LONG = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "One?\n"},
    {"role": "assistant", "content": "One.", "name": None},
    {"role": "user", "content": "Two?"},
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Köln?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call-1", "content": '{"degrees": 7}'},
]
THOUGHT = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "\nadd them\n"},
]


@cache
def hf_tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(demo.CHECKPOINT)
    tokenizer.bos_token = "<|endoftext|>"
    return tokenizer


@cache
def template(name: str) -> ChatTemplate:
    variables = special_tokens(demo.CHECKPOINT) | {"bos_token": "<|endoftext|>"}
    return ChatTemplate(TEMPLATES[name] or find_template(demo.CHECKPOINT, None), variables)


def render(
    name: str, messages: Any, tools: Any = None, *, prompt: bool = True, continue_final: bool = False, **more: Any
) -> str:
    return template(name).render(
        messages, tools, more, add_generation_prompt=prompt, continue_final_message=continue_final
    )


def expected(
    name: str, messages: Any, tools: Any = None, *, prompt: bool = True, continue_final: bool = False, **more: Any
) -> str:
    """Returns transformers' text. It gets the arguments of tool calls as objects, as it expects them."""
    return str(
        hf_tokenizer().apply_chat_template(
            [_with_objects(message) for message in messages],
            tools=tools,
            chat_template=TEMPLATES[name],
            add_generation_prompt=prompt,
            continue_final_message=continue_final,
            tokenize=False,
            **more,
        )
    )


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append({**call, "function": {**function, "arguments": json.loads(function["arguments"])}})
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("messages", [SHORT, LONG, THOUGHT], ids=["short", "long", "thought"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(name: str, messages: Any, prompt: bool) -> None:
    assert render(name, messages, prompt=prompt) == expected(name, messages, prompt=prompt)


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_equal_transformers(name: str, messages: Any) -> None:
    text = render(name, messages, [TOOL, TOOL])
    assert text == expected(name, messages, [TOOL, TOOL])
    assert '<b>ß</b> & \\"quotes\\"' in text  # JSON, not HTML


@pytest.mark.parametrize("name", [DEMO, "qwen3", "llama3"])
def test_tool_calls_equal_transformers(name: str) -> None:
    text = render(name, CALLED, [TOOL])
    assert text == expected(name, CALLED, [TOOL])
    assert '{"city": "Köln"}' in text


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("qwen3", {"enable_thinking": False}),
        ("qwen3", {"enable_thinking": True}),
        (DEMO, {"enable_thinking": True}),
        ("llama3", {"date_string": "26 Jul 2024"}),
        ("llama3", {"bos_token": "<other>"}),
        ("mistral", {"documents": [{"title": "a", "text": "b"}]}),
    ],
)
def test_variables_reach_the_template(name: str, variables: dict[str, Any]) -> None:
    text = render(name, SHORT, **variables)
    assert text == expected(name, SHORT, **variables)
    assert text != render(name, SHORT) or variables == {"enable_thinking": True}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_under_any_of_its_names(field: str) -> None:
    """Compared under the one name that every version of transformers knows."""
    answer = {"role": "assistant", "content": "4"}
    text = render("qwen3", [THOUGHT[0], {**answer, field: "add them"}], prompt=False)
    assert text == expected("qwen3", [THOUGHT[0], {**answer, "reasoning_content": "add them"}], prompt=False)
    assert "<think>\nadd them\n</think>" in text


@pytest.mark.parametrize(
    "content",
    ["The answer is", "The answer is ", " padded\n", "", "e", "im", "assistant", "<|im_end|>", "a CONTINUE b"],
)
@pytest.mark.parametrize("name", TEMPLATES)
def test_continue_final_message_equals_transformers(name: str, content: str) -> None:
    messages = [*SHORT, {"role": "assistant", "content": content}]
    text = render(name, messages, prompt=False, continue_final=True)
    assert text == expected(name, messages, prompt=False, continue_final=True)
    assert text.rstrip().endswith(content.strip())


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "<think>hidden</think>shown"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "assistant", "content": "Let me see.", "function_call": CALL["function"]},
    ],
)
def test_continue_needs_content_that_the_template_renders(message: dict[str, Any]) -> None:
    with pytest.raises(TandemError, match="continue_final_message") as caught:
        render(DEMO, [*SHORT, message], prompt=False, continue_final=True)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


def test_text_parts_are_joined_by_lines() -> None:
    """As vLLM does for templates that expect a string."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("qwen3", [{"role": "user", "content": parts}]) == render(
        "qwen3", [{"role": "user", "content": "one\ntwo"}]
    )


def test_messages_are_not_changed() -> None:
    before = json.dumps(CALLED)
    render("qwen3", CALLED)
    render("qwen3", [*CALLED, {"role": "assistant", "content": "7"}], prompt=False, continue_final=True)
    assert json.dumps(CALLED) == before


def test_loopcontrols() -> None:
    messages = [*LONG, {"role": "user", "content": "stop here"}, {"role": "martian", "content": "unseen"}]
    assert render("mistral", messages) == expected("mistral", messages)


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("mistral", [{"role": "martian", "content": ""}], "Only user, assistant and tool roles"),
        ("mistral", [{"role": "user", "content": 5}], "refuses these messages"),
        ("qwen3", [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}], "must have a function"),
    ],
)
def test_an_error_of_a_template_makes_the_request_invalid(name: str, messages: Any, reason: str) -> None:
    with pytest.raises(TandemError, match=reason) as caught:
        render(name, messages)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(TandemError, match="--chat-template"):
        ChatTemplate(None, {}).render(SHORT, None, {}, add_generation_prompt=True, continue_final_message=False)


def test_an_invalid_template_is_fatal() -> None:
    with pytest.raises(Fatal, match="not valid"):
        ChatTemplate("{% if %}", {})
