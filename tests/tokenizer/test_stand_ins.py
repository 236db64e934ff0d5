"""Stand-ins go through what templates do to strings, come back, and are none of the request's own characters."""

import json
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.chat_renderer import ChatRenderer, RendererSettings
from services.tokenizer.control_tokens import ControlToken
from services.tokenizer.prompt_text import PromptText

TOKENS = (
    ControlToken("<|end|>", True),
    ControlToken("<think>", False),
    ControlToken("</think>", False),
    ControlToken("<｜x｜>", True),
    ControlToken("\n<t>", True),
)


def chat(content: Any, **fields: Any) -> text_pb2.ChatInput:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return text_pb2.ChatInput(messages_json=json.dumps(messages).encode(), **fields)


def render(template: str, content: Any, tools: Any = None, **fields: Any) -> PromptText:
    renderer = ChatRenderer(
        RendererSettings(template, {"eos_token": "<|end|>"}, trust_requests=True, control_tokens=TOKENS)
    )
    return renderer.render(chat(content, **fields), json.dumps(tools).encode() if tools else b"")


def of_content(expression: str) -> str:
    """Returns a template that prints an expression of the first content, `x`, and a probe's content as it is."""
    return (
        "{% set x = messages[0].content %}"
        "{% if x.startswith('tandem') %}{{ x }}{% else %}{{ " + expression + " }}{% endif %}"
    )


def plain(prompt: PromptText) -> list[str]:
    return [prompt.text[start:end] for start, end in prompt.plain_spans]


@pytest.mark.parametrize(
    ("expression", "text", "spans"),
    [
        ("x", " a <|end|> <think>\n", ["<|end|>", "<think>"]),
        ("x | trim", "a <|end|> <think>", ["<|end|>", "<think>"]),
        ("x.split('<|end|>')[0]", " a <|end|> <think>\n", ["<|end|>", "<think>"]),
        ("x | upper", " A <|end|> <think>\n", ["<|end|>", "<think>"]),
        ("x[5:]", "end|> <think>\n", ["end|>", "<think>"]),
        ("x | length", "19", []),
        ("x | tojson", '" a <|end|> <think>\\n"', ["<|end|>", "<think>"]),
        ("x | tojson(ensure_ascii=true)", '" a <|end|> <think>\\n"', ["<|end|>", "<think>"]),
        ("[x]", "[' a <|end|> <think>\\n']", ["<|end|>", "<think>"]),
        ("'%r' % x", "' a <|end|> <think>\\n'", ["<|end|>", "<think>"]),
        ("x ~ '<|end|>'", " a <|end|> <think>\n<|end|>", ["<|end|>", "<think>"]),
        ("'<|end|>' in x", "False", []),
        ("x | reverse", "\n>kniht< >|dne|< a ", [">kniht<", ">|dne|<"]),
    ],
)
def test_what_a_template_does_to_a_string(expression: str, text: str, spans: list[str]) -> None:
    prompt = render(of_content(expression), " a <|end|> <think>\n")
    assert (prompt.text, plain(prompt)) == (text, spans)


def test_other_characters_than_ascii_come_back() -> None:
    prompt = render("{{ messages[0].content | tojson(ensure_ascii=true) }}", "é<｜x｜>")
    assert (prompt.text, plain(prompt)) == ('"\\u00e9<｜x｜>"', ["<｜x｜>"])


@pytest.mark.parametrize("own", ["\ue000\ue001", "\\ue000 \\uE001", "\uf8ff\ue003"])
def test_the_requests_own_private_characters_stay(own: str) -> None:
    text = f"{own}<|end|>{own}"
    for expression in ("x", "x | tojson", "x | tojson(ensure_ascii=true)", "[x]"):
        prompt = render(of_content(expression), text)
        assert prompt.text == ChatRenderer(RendererSettings(of_content(expression), {})).render(chat(text), b"").text
        assert plain(prompt) == ["<|end|>"]


def test_a_templates_own_private_characters_stay() -> None:
    prompt = render("\ue000{{ '\\ue001' }}{{ messages[0].content }}", "<|end|>")
    assert (prompt.text, plain(prompt)) == ("\ue000\ue001<|end|>", ["<|end|>"])


def test_nearly_all_private_characters_beside_a_control_token_are_refused() -> None:
    every = "".join(map(chr, range(0xE000, 0xF900)))
    assert render("{{ messages[0].content }}", every).text == every
    with pytest.raises(TandemError, match="nearly all private-use characters") as caught:
        render("{{ messages[0].content }}", every + "<|end|>")
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")
    assert render("{{ messages[0].content }}", every[9:] + "<|end|>").text == every[9:] + "<|end|>"


def test_an_error_of_a_template_names_the_clients_text() -> None:
    with pytest.raises(TandemError, match=r"no <\|end\|>") as caught:
        render(
            "{{ raise_exception('no ' + messages[1].content) if messages[1] }}{{ messages[0].content }}",
            [{"role": "user", "content": "a"}, {"role": "user", "content": "<|end|>"}],
        )
    assert caught.value.param == "messages"


@pytest.mark.parametrize("written", ["", " | tojson"])
@pytest.mark.parametrize(
    ("arguments", "num_plain"),
    [('{"a": "<|end|>"}', 2), ('{"a": "\\u003c|end|\\u003e"}', 1), ('{"a": "<|end|>', 2)],
    ids=["json", "escaped", "text"],
)
def test_arguments_of_calls_as_an_object_and_as_text(written: str, arguments: str, num_plain: int) -> None:
    """Escaped ones are control tokens where the template prints them unescaped."""
    calls = (
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments" + written + " }}){% endfor %}"
    )
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f<|end|>", "arguments": arguments}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>", "tool_calls": [call]}]
    prompt = render("{% for m in messages %}{{ m.content }}" + calls + " %}{% endfor %}", messages)
    assert plain(prompt) == ["<|end|>"] * (2 if written else num_plain)
    assert prompt.text.count("<|end|>") == len(prompt.plain_spans)
    assert "<think>" in prompt.text, "an assistant's own marker stays one"


def test_tools_documents_variables_keys_and_roles() -> None:
    template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }} {{ m.name }} {% endfor %}"
        "{{ tools | tojson }} {{ documents | tojson }} {{ mood }} {{ eos_token }} {{ extra | tojson }}"
    )
    prompt = render(
        template,
        [{"role": "role<|end|>", "content": "c", "name": "n<|end|>"}],
        [{"k<|end|>": ["v<|end|>", {"<think>": 1}]}],
        documents_json=b'[{"d<|end|>": "t<|end|>"}]',
        template_kwargs_json=b'{"mood": "m<|end|>", "extra": {"x": "<|end|>"}}',
    )
    assert plain(prompt) == [*["<|end|>"] * 4, "<think>", *["<|end|>"] * 4]
    assert prompt.text.count("<|end|>") == 9, "the operator's eos_token stays a token"


def test_the_operators_variables_stay_control_tokens() -> None:
    renderer = ChatRenderer(
        RendererSettings(
            "{{ messages[0].content }}{{ tail }}", {}, default_kwargs={"tail": "<|end|>"}, control_tokens=TOKENS
        )
    )
    prompt = renderer.render(chat("<|end|>"), b"")
    assert (prompt.text, prompt.plain_spans) == ("<|end|><|end|>", ((0, 7),))


@pytest.mark.parametrize("content", ["x <|end|>", " <|end|> x ", "<|end"])
def test_an_answer_continues_behind_a_control_token(content: str) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    prompt = render("{% for m in messages %}[{{ m.content }}]{% endfor %}", messages, continue_final_message=True)
    assert prompt.text == f"[q][{content}" and plain(prompt) == [content.strip(" x")]


def test_whitespace_within_a_token_is_trimmed_as_before() -> None:
    prompt = render("[{{ messages[0].content | trim }}]", "\n<t>")
    assert (prompt.text, plain(prompt)) == ("[<t>]", ["<t>"])


def test_clean_strings_are_not_copied() -> None:
    renderer = ChatRenderer(RendererSettings("", {}, control_tokens=TOKENS))
    value = [{"a": ["b < c", {"d": "e > f"}]}, 5, None, "g"]
    stand_ins = renderer._template.stand_ins([json.dumps(value)])
    assert stand_ins.value(value) is value


def test_values_within_values_have_no_limit_of_their_own() -> None:
    deep: Any = "<|end|>"
    for _ in range(800):
        deep = [deep]
    kwargs = json.dumps({"deep": deep}).encode()
    assert plain(render("{{ messages[0].content }}{{ deep | tojson }}", "a", template_kwargs_json=kwargs)) == [
        "<|end|>"
    ]
