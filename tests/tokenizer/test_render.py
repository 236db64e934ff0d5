"""Chat templates: the same text as transformers' apply_chat_template, and nothing but text for a template to reach."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import demo
from services.errors import Fatal
from services.rpc.errors import TandemError
from services.tokenizer.render import ChatTemplate, find_template, special_tokens

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not
           message.content.startswith('<tool_response>') %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = message.reasoning_content if message.reasoning_content is string else '' %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}{% set date_string = strftime_now("%Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
Today: {{ date_string }}

{% if tools is not none %}
{% for t in tools %}
    {{- t | tojson(indent=4) }}
    {{- "\\n\\n" }}
{% endfor %}
{% endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """\
{%- macro dump(value) %}{{ value | tojson(sort_keys=true, separators=(',', ':')) }}{% endmacro %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.content == 'stop here' %}{% break %}{% endif %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('Only user, assistant and tool roles are supported, got ' + message.role + '.') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- if loop.last and tools %}[AVAILABLE_TOOLS]{{ dump(tools) }}[/AVAILABLE_TOOLS]{% endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}
        {{- ' ' + message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- '[TOOL_RESULTS]' ~ dump({'content': message.content}) ~ '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
{%- if documents %}{{ documents | length }}{% endif %}
"""
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
    name: str, messages: Any, tools: Any = None, *, prompt: bool = True, go_on: bool = False, **more: Any
) -> str:
    return template(name).render(messages, tools, more, add_generation_prompt=prompt, continue_final_message=go_on)


def expected(
    name: str, messages: Any, tools: Any = None, *, prompt: bool = True, go_on: bool = False, **more: Any
) -> str:
    """What transformers makes of it; arguments of tool calls as objects, for this is what it asks for."""
    return str(
        hf_tokenizer().apply_chat_template(
            [_with_objects(message) for message in messages],
            tools=tools,
            chat_template=TEMPLATES[name],
            add_generation_prompt=prompt,
            continue_final_message=go_on,
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
    messages = [THOUGHT[0], {"role": "assistant", "content": "4", field: "add them"}]
    text = render("qwen3", messages, prompt=False)
    assert text == expected("qwen3", messages, prompt=False)
    assert "<think>\nadd them\n</think>" in text


@pytest.mark.parametrize(
    "content",
    ["The answer is", "The answer is ", " padded\n", "", "e", "im", "assistant", "<|im_end|>", "a CONTINUE b"],
)
@pytest.mark.parametrize("name", TEMPLATES)
def test_continue_final_message_equals_transformers(name: str, content: str) -> None:
    messages = [*SHORT, {"role": "assistant", "content": content}]
    text = render(name, messages, prompt=False, go_on=True)
    assert text == expected(name, messages, prompt=False, go_on=True)
    assert text.rstrip().endswith(content.strip())


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "<think>hidden</think>shown"},
        {"role": "assistant", "tool_calls": [CALL]},
    ],
)
def test_continue_needs_content_that_the_template_keeps(message: dict[str, Any]) -> None:
    with pytest.raises(TandemError, match="continue_final_message") as caught:
        render(DEMO, [*SHORT, message], prompt=False, go_on=True)
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
    render("qwen3", [*CALLED, {"role": "assistant", "content": "7"}], prompt=False, go_on=True)
    assert json.dumps(CALLED) == before


def test_loopcontrols() -> None:
    messages = [*LONG, {"role": "user", "content": "stop here"}, {"role": "martian", "content": "unseen"}]
    assert render("mistral", messages) == expected("mistral", messages)


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("mistral", [{"role": "martian", "content": ""}], "Only user, assistant and tool roles"),
        ("llama3", [{**CALLED[1], "tool_calls": [CALL, CALL]}], "only supports single tool-calls"),
        ("mistral", [{"role": "user", "content": 5}], "refuses these messages"),
        ("qwen3", [{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}], "not JSON"),
    ],
)
def test_what_a_template_refuses_is_the_requests_fault(name: str, messages: Any, reason: str) -> None:
    with pytest.raises(TandemError, match=reason) as caught:
        render(name, messages)
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


@pytest.mark.parametrize(
    "evil",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ tojson.__globals__ }}{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'role': 'system'}) %}",
        "{% set _ = messages[0].pop('content') %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ undefined.field }}",
    ],
)
def test_the_sandbox_refuses(evil: str) -> None:
    """Refused, or rendered to nothing of Python's own."""
    messages = [{"role": "user", "content": "x"}]
    try:
        text = ChatTemplate(evil, {}).render(
            messages, None, {}, add_generation_prompt=True, continue_final_message=False
        )
    except TandemError as error:
        assert error.code == "INVALID_ARGUMENT"
    else:
        assert not re.search("class|object|builtins|import", text), text
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("evil", ["{{ ''.__class__.__mro__ }}", "{% set _ = messages.append(1) %}"])
def test_the_sandbox_says_so(evil: str) -> None:
    with pytest.raises(TandemError, match="the chat template refuses these messages: access to"):
        ChatTemplate(evil, {}).render(SHORT, None, {}, add_generation_prompt=True, continue_final_message=False)


def test_nothing_is_included_from_files() -> None:
    with pytest.raises(TandemError):
        ChatTemplate("{% include '/etc/passwd' %}", {}).render(
            SHORT, None, {}, add_generation_prompt=True, continue_final_message=False
        )


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(TandemError, match="--chat-template"):
        ChatTemplate(None, {}).render(SHORT, None, {}, add_generation_prompt=True, continue_final_message=False)


def test_an_invalid_template_is_fatal() -> None:
    with pytest.raises(Fatal, match="not valid"):
        ChatTemplate("{% if %}", {})


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert find_template(tmp_path, None) is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert find_template(tmp_path, None) == "D"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert find_template(tmp_path, None) == "J"
    (tmp_path / "chat_template.jinja").write_text("{{ own }}")
    assert find_template(tmp_path, None) == "{{ own }}"
    other = tmp_path / "other"
    other.write_text("{{ other }}")
    assert find_template(tmp_path, str(other)) == "{{ other }}"


def test_a_long_template_may_be_the_option_itself(tmp_path: Path) -> None:
    assert find_template(tmp_path, QWEN3) == QWEN3


def test_an_option_that_is_neither_file_nor_template_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="there is no file nowhere"):
        find_template(tmp_path, "nowhere")


def test_special_tokens_as_templates_name_them(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "sep_token": "<sep>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<sep>"}


@pytest.mark.parametrize("content", [b"[", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_configuration_is_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    for read in (special_tokens, lambda path: find_template(path, None)):
        with pytest.raises(Fatal, match="tokenizer_config.json"):
            read(tmp_path)


def test_a_template_that_is_no_text_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(Fatal, match="broken.jinja"):
        find_template(tmp_path, str(tmp_path / "broken.jinja"))
