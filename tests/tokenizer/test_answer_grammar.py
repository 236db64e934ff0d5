"""The grammar of whole answers: reasoning by the prompt's end, calls or content, and the forms of required calls."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.answer_grammar import grammar_field, may_need_grammar
from services.tokenizer.parsing.answer_format import Reasoning
from tests.tokenizer.parsing.drive import Call
from tests.tokenizer.walks import END, Model, Walk, model, parsed, tool, walk

NONE, AUTO = text_pb2.TOOL_CHOICE_NONE, text_pb2.TOOL_CHOICE_AUTO
REQUIRED, NAMED = text_pb2.TOOL_CHOICE_REQUIRED, text_pb2.TOOL_CHOICE_NAMED
QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [tool("go", PLACE), tool("stay", None)]
INTEGER = text_pb2.StructuredOutput(json_schema=b'{"type": "integer"}', field="response_format", strict=True)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model(tmp_path_factory.mktemp("qwen"), QWEN, "hermes", "qwen3")


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model(tmp_path_factory.mktemp("harmony"), HARMONY, "openai", "openai_gptoss")


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model(tmp_path_factory.mktemp("unknown"), QWEN, None, "qwen3")


def spec(choice: int, *allowed: str, tools: list[Any] | None = None, **fields: Any) -> text_pb2.OutputSpec:
    offered = TOOLS if tools is None and choice != NONE else tools
    return text_pb2.OutputSpec(
        tools_json=json.dumps(offered).encode() if offered else b"",
        tool_choice=text_pb2.ToolChoice.ValueType(choice),
        allowed_tools=allowed,
        separate_reasoning=True,
        skip_special_tokens=True,
        **fields,
    )


def ids(of: Model, text: str) -> list[int]:
    return of.vocabulary.encode(text, add_special_tokens=False)


def accepts(of: Model, output: text_pb2.OutputSpec, text: str, prompt: str = "<|im_start|>") -> bool:
    """Whether the whole text may be the answer."""
    grammar = of.grammars.of_request(output, ids(of, prompt)).text
    matcher = Matcher(of.cache.tokens, grammar)
    try:
        matcher.replay(ids(of, text))
        if not matcher.is_complete:
            matcher.replay([END])
    except GrammarError:
        return False
    return True


def read(of: Model, output: text_pb2.OutputSpec, text: str, prompt: str = "<|im_start|>") -> Any:
    return parsed(of, output, ids(of, prompt), Walk(ids(of, text), True, text)).answer


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n", Reasoning.POSSIBLE),
        ("<|im_start|>assistant\n<think>\n", Reasoning.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Reasoning.OVER),
        ("<think>x</think>y<|im_start|>assistant\n", Reasoning.POSSIBLE),
    ],
)
def test_the_prompts_end_says_whether_the_answer_begins_with_reasoning(
    qwen: Model, prompt: str, expected: Reasoning
) -> None:
    assert qwen.formats.reasoning_at(ids(qwen, prompt)) is expected


def test_reasoning_comes_before_content_if_it_may(qwen: Model) -> None:
    output = spec(NONE, structured=INTEGER)
    opened, closed = "<|im_start|><think>\n", "<|im_start|><think>\n\n</think>\n\n"
    for text, possible, is_open, is_over in [
        ("12", True, False, True),
        ("<think>\nHm 5\n</think>\n\n12", True, False, False),
        ("Hm 5\n</think>\n\n12", False, True, False),
        ("Hm 5\n</think>12", False, True, False),
        ("Hm 5\n</think>\n\n\n12", False, False, False),
        ("x", False, False, False),
    ]:
        assert accepts(qwen, output, text) is possible, text
        assert accepts(qwen, output, text, opened) is is_open, text
        assert accepts(qwen, output, text, closed) is is_over, text
    assert read(qwen, output, "<think>\nHm 5\n</think>\n\n12")[:2] == ("Hm 5", "12")


@pytest.mark.parametrize("prompt", ["<|im_start|>", "<|im_start|><think>\n\n</think>\n\n"])
@pytest.mark.parametrize("choice", [NONE, AUTO])
def test_whitespace_at_the_beginning_of_a_form_is_content(qwen: Model, prompt: str, choice: int) -> None:
    texts = [" yes \n", "\n\nno", "  "]
    output = spec(choice, structured=text_pb2.StructuredOutput(choices=text_pb2.TextChoices(texts=texts), field="f"))
    for text in texts:
        assert accepts(qwen, output, text, prompt)
        assert read(qwen, output, text, prompt).content == text
    if choice == AUTO:
        call = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'
        assert accepts(qwen, output, call, prompt)
        assert read(qwen, output, call, prompt)[1:] == ("", [Call("stay", "{}")])


def test_where_reasoning_stays_in_the_text_the_answer_does_not_begin_it(qwen: Model, harmony: Model) -> None:
    """In completions the text itself has the form. Reasoning that the prompt has begun still comes to its end."""
    output = spec(NONE, structured=INTEGER)
    output.separate_reasoning = False
    assert accepts(qwen, output, "12") and accepts(harmony, output, "12")
    assert not accepts(qwen, output, "<think>\nHm 5\n</think>\n\n12")
    assert accepts(qwen, output, "Hm 5\n</think>\n\n12", "<|im_start|><think>\n")


def test_the_end_of_reasoning_may_be_forced_after_any_token(qwen: Model) -> None:
    """thinking_token_budget does so."""
    grammar = qwen.grammars.of_request(spec(NONE, structured=INTEGER), ids(qwen, "<|im_start|><think>\n")).text
    thoughts = ids(qwen, "Is it <tool_c or </thin?\n\n")
    for length in range(len(thoughts) + 1):
        matcher = Matcher(qwen.cache.tokens, grammar)
        matcher.replay([*thoughts[:length], *ids(qwen, "</think>"), *ids(qwen, "7")])


def test_harmony_writes_channels(harmony: Model) -> None:
    prompt = "<|start|>assistant"
    final, analysis = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"
    again = "<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"city": "x"}'
    form, calls, either = spec(NONE, structured=INTEGER), spec(REQUIRED), spec(AUTO, structured=INTEGER)
    for text, expected in [
        (f"{final}12", (True, False, True)),
        (f"{analysis}Hm{again}{final}12", (True, False, True)),
        (f"{analysis}Hm{again}{analysis}So{again}{call}", (False, True, True)),
        ("12", (False, False, False)),
    ]:
        assert tuple(accepts(harmony, one, text, prompt) for one in (form, calls, either)) == expected, text
    found = read(harmony, calls, f"{analysis}Hm{again}{call}", prompt)
    assert (found.reasoning, found.calls) == ("Hm", [Call("go", '{"city": "x"}')])
    assert accepts(harmony, form, f"Hm{again}{final}12", f"{prompt}{analysis}")
    assert accepts(harmony, form, "12", f"{prompt}{final}")  # the answer goes on where the prompt's message ends


CALL = '<tool_call>\n{"name": "go", "arguments": {"city": "x"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "stay", "arguments": {}}\n</tool_call>'


def test_which_calls_an_answer_may_have(qwen: Model) -> None:
    for output, texts in [
        (spec(REQUIRED), {CALL: True, f"{CALL}\n{OTHER}": True, "hi": False, f"hi {CALL}": False}),
        (spec(REQUIRED, single_tool_call=True), {CALL: True, OTHER: True, f"{CALL}\n{OTHER}": False}),
        (spec(REQUIRED, "stay"), {CALL: False, OTHER: True}),
        (spec(NAMED, "go"), {CALL: True, OTHER: False, f"{CALL}\n{CALL}": False}),
        (spec(AUTO, "stay"), {CALL: False, OTHER: True, "hi": True, f"hi\n{OTHER} there": True}),
        (spec(AUTO, "stay", single_tool_call=True), {f"hi {OTHER}": True, f"{OTHER}\n{OTHER}": False}),
        (spec(AUTO, structured=INTEGER), {CALL: True, f"{CALL}\n{OTHER}": True, "12": True, "hi": False}),
    ]:
        for text, expected in texts.items():
            assert accepts(qwen, output, text) is expected, (output, text)


@pytest.mark.parametrize("tools", ["llama3_json", "pythonic", "granite", "hermes"])
def test_content_by_a_schema_beside_calls_that_begin_alike(tmp_path: Path, tools: str) -> None:
    of = model(tmp_path, (), tools, None)
    call = {
        "llama3_json": '{"name": "go", "parameters": {"city": "x"}}',
        "pythonic": '[go(city="x")]',
        "granite": '<|tool_call|>[{"name": "go", "arguments": {"city": "x"}}]',
        "hermes": '<tool_call>{"name": "go", "arguments": {"city": "x"}}</tool_call>',
    }[tools]
    schema = {
        "anyOf": [
            {"type": "array", "items": {"type": "integer"}},
            {
                "type": "object",
                "properties": {"age": {"type": "integer"}, "name": {"type": "string"}},
                "additionalProperties": False,
            },
        ]
    }
    form = text_pb2.StructuredOutput(json_schema=json.dumps(schema).encode())
    output = spec(AUTO, structured=form, tools=[tool("go", PLACE, strict=True)])
    for text in ('{"age": 5}', '{"name": "Jo"}', "[1, 2]", call):
        assert accepts(of, output, text), text
    assert not accepts(of, output, call.replace("city", "town"))
    assert read(of, output, call).calls == [Call("go", '{"city": "x"}')]
    assert read(of, output, '{"age": 5}').content == '{"age": 5}'


def test_strict_arguments_follow_their_schema_and_others_are_any_object(qwen: Model) -> None:
    output = spec(AUTO, tools=[tool("go", PLACE, strict=True), tool("look", {"type": "object"})])
    good, bad = '{"city": "x"}', '{"town": "x"}'
    for name, arguments, expected in [("go", good, True), ("go", bad, False), ("look", bad, True), ("no", good, False)]:
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        assert accepts(qwen, output, f"Well: {call}") is expected, (name, arguments)


def test_calls_of_a_model_without_a_known_format(unknown: Model) -> None:
    required, named = spec(REQUIRED), spec(NAMED, "go")
    text = '[{"name": "go", "parameters": {"city": "x"}}, {"name": "stay", "parameters": {}}]'
    assert accepts(unknown, required, text)
    assert read(unknown, required, f"<think>Hm</think>{text}").calls == [
        Call("go", '{"city": "x"}'),
        Call("stay", "{}"),
    ]
    assert accepts(unknown, named, '{"city": "x"}')
    assert read(unknown, named, '<think>Hm</think>\n\n{"city": "x"}')[:] == ("Hm", "", [Call("go", '{"city": "x"}')])
    for output in (required, named):
        grammar = unknown.grammars.of_request(output, [1])
        for seed in range(10):
            answer = walk(unknown, grammar.text, seed)
            if answer.ended:
                for call in parsed(unknown, output, [1], answer).answer.calls:
                    assert call.ended
                    jsonschema.validate(
                        json.loads(call.arguments), PLACE if call.name == "go" else {"maxProperties": 0}
                    )


def test_a_model_without_a_known_format_does_not_choose_by_itself(unknown: Model) -> None:
    with pytest.raises(TandemError, match='tool_choice "auto": the format'):
        unknown.grammars.of_request(spec(AUTO, "go"), [1])


def test_what_the_models_format_cannot_write_is_written_in_vllms(tmp_path: Path) -> None:
    odd = tool("go", {"type": "object", "properties": {"the city": {"type": "string"}}, "required": ["the city"]})
    of = model(tmp_path, QWEN, "qwen3_coder", None)
    output = spec(REQUIRED, tools=[odd])
    text = '[{"name": "go", "parameters": {"the city": "x"}}]'
    assert accepts(of, output, text)
    assert read(of, output, text).calls == [Call("go", '{"the city": "x"}')]
    strict = spec(AUTO, tools=[tool("go", odd["function"]["parameters"], strict=True)])
    with pytest.raises(TandemError, match="cannot write calls of a strict tool: go: the parameter 'the city'"):
        of.grammars.of_request(strict, [1])


@pytest.mark.parametrize("name", ["two words", 'a "b"', "a\\b", "a\nb", "{"])
def test_functions_with_odd_names(qwen: Model, name: str) -> None:
    tools = [tool(name, PLACE)]
    required, named = spec(REQUIRED, tools=tools), spec(NAMED, name, tools=tools)
    call = Call(name, '{"city": "x"}')
    array = f'[{{"name": {json.dumps(name)}, "parameters": {call.arguments}}}]'
    for output, text in [(required, array), (named, call.arguments)]:
        assert accepts(qwen, output, text)
        assert read(qwen, output, text).calls == [call]


def test_a_strict_tool_has_only_supported_keywords(qwen: Model) -> None:
    unsupported = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}
    strict, lenient = (spec(REQUIRED, tools=[tool("go", unsupported, strict=one)]) for one in (True, False))
    with pytest.raises(TandemError, match=r"tools\[0\].function.parameters: /properties/a") as caught:
        qwen.grammars.of_request(strict, [1])
    assert caught.value.param.startswith("tools")
    assert qwen.grammars.of_request(lenient, [1]).ignored_keywords == (
        "/tools/0/function/parameters/properties/a: not",
    )


def test_which_requests_have_a_grammar(qwen: Model) -> None:
    strict, loose = ([tool("go", PLACE, strict=one)] for one in (True, False))
    for output in (spec(REQUIRED), spec(NAMED, "go"), spec(AUTO, "go"), spec(AUTO, tools=strict)):
        assert may_need_grammar(output)
        assert qwen.grammars.of_request(output, [1]).text
        assert grammar_field(output) == "tools"
    assert may_need_grammar(spec(NONE, structured=INTEGER))
    assert grammar_field(spec(AUTO, structured=INTEGER)) == "response_format"
    assert qwen.grammars.of_request(spec(AUTO, tools=loose), [1]).text == ""
    plain = [{"type": "function", "function": {"name": "go"}}]
    for output in (spec(AUTO, tools=plain), spec(NONE), spec(NONE, tools=strict)):
        assert not may_need_grammar(output)
