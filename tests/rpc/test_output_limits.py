"""The checks of an output specification that reaches the tokenizer."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.output_limits import (
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICE_TEXTS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_BYTES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_TOOLS_BYTES,
    check_output,
)


def texts(text: str, *, number: int = 1) -> text_pb2.TextChoices:
    return text_pb2.TextChoices(texts=[text] * number)


@pytest.mark.parametrize("choice", text_pb2.ToolChoice.values())
def test_what_is_known_passes(choice: Any) -> None:
    stop = ["a" * MAX_STOP_CHARACTERS] * MAX_STOP_STRINGS
    check_output(
        text_pb2.OutputSpec(
            stop=stop,
            tool_choice=choice,
            tools_json=b"a" * MAX_TOOLS_BYTES,
            allowed_tools=["f"],
            bad_words=["a" * MAX_STOP_CHARACTERS],
        )
    )


@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": b"{}"},
        {"json_schema": b"a" * MAX_SCHEMA_BYTES},
        {"json_object": True},
        {"regex": "a" * MAX_REGEX_CHARACTERS, "whitespace_pattern": "a" * MAX_REGEX_CHARACTERS},
        {"grammar": "a" * MAX_GRAMMAR_CHARACTERS},
        {"choices": texts("a", number=MAX_CHOICE_TEXTS)},
        {"choices": texts("a" * MAX_CHOICE_CHARACTERS, number=48)},
        {"structural_tag": b"a" * MAX_SCHEMA_BYTES},
    ],
    ids=lambda form: "-".join(form),
)
def test_a_form_up_to_its_limits_passes(form: dict[str, Any]) -> None:
    check_output(text_pb2.OutputSpec(structured=text_pb2.StructuredOutput(**form)))


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "structured"),
        ({"json_object": False}, "structured"),
        ({"json_schema": b""}, "structured.json_schema"),
        ({"json_schema": b"a" * (MAX_SCHEMA_BYTES + 1)}, "structured.json_schema"),
        ({"json_schema": b"", "field": "guided_json"}, "guided_json"),
        ({"regex": ""}, "structured.regex"),
        ({"regex": "a" * (MAX_REGEX_CHARACTERS + 1)}, "structured.regex"),
        ({"regex": "a", "whitespace_pattern": "a" * (MAX_REGEX_CHARACTERS + 1)}, "whitespace_pattern"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARACTERS + 1)}, "structured.grammar"),
        ({"choices": text_pb2.TextChoices()}, "structured.choices"),
        ({"choices": texts("")}, "structured.choices"),
        ({"choices": texts("a", number=MAX_CHOICE_TEXTS + 1)}, "structured.choices"),
        ({"choices": texts("a" * (MAX_CHOICE_CHARACTERS + 1))}, "structured.choices"),
        ({"choices": texts("a" * MAX_CHOICE_CHARACTERS, number=49)}, "structured.choices"),
        ({"structural_tag": b"a" * (MAX_SCHEMA_BYTES + 1)}, "structured.structural_tag"),
    ],
)
def test_a_form_beyond_its_limits_is_refused(form: dict[str, Any], param: str) -> None:
    with pytest.raises(TandemError) as caught:
        check_output(text_pb2.OutputSpec(structured=text_pb2.StructuredOutput(**form)))
    assert caught.value.param == param and caught.value.code == "INVALID_ARGUMENT"
    assert param in caught.value.message or param == "structured"


@pytest.mark.parametrize(
    ("output", "param"),
    [
        (text_pb2.OutputSpec(stop=["a"] * (MAX_STOP_STRINGS + 1)), "stop"),
        (text_pb2.OutputSpec(stop=["a" * (MAX_STOP_CHARACTERS + 1)]), "stop"),
        (text_pb2.OutputSpec(stop=[""]), "stop"),
        (text_pb2.OutputSpec(bad_words=["a", "a" * (MAX_STOP_CHARACTERS + 1)]), "bad_words.1"),
        (text_pb2.OutputSpec(tools_json=b"a" * (MAX_TOOLS_BYTES + 1)), "tools"),
        (text_pb2.OutputSpec.FromString(b"\x38\x4d"), "tool_choice"),  # 77, as a newer caller may send it
        (text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_REQUIRED), "tool_choice"),
        (text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_NAMED, allowed_tools=["f"]), "tool_choice"),
        (text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_NAMED, tools_json=b"[{}]"), "allowed_tools"),
        (
            text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_NAMED, tools_json=b"[{}]", allowed_tools=["f", "g"]),
            "allowed_tools",
        ),
    ],
)
def test_what_is_refused(output: text_pb2.OutputSpec, param: str) -> None:
    with pytest.raises(TandemError) as caught:
        check_output(output)
    assert caught.value.param == param and caught.value.code == "INVALID_ARGUMENT"
