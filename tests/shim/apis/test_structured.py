"""The form of an answer on its way to the tokenizer: schemas byte for byte, the field's name, what is strict."""

from typing import Any

import pytest

from services.rpc.generated import text_pb2
from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.completions.submit import MAX_FORM_BYTES
from tests.shim.apis.field_values import SCHEMA, TAG, Json, each_api, refused, submits, submits_of_text

WRITTEN = (
    '{ "properties":{"b":{"minimum":1.50},"a":{"const":1e2}}, "type" :"object","x":123456789012345678901234567890}'
)
REST = {CHAT_API.path.path: '"messages":[{"role":"user","content":""}]', COMPLETIONS_API.path.path: '"prompt":""'}


def form(api: Api, change: Json) -> text_pb2.StructuredOutput:
    (one,) = submits(api, change)
    return one.output.structured


def form_of_text(api: Api, text: str) -> text_pb2.StructuredOutput:
    (one,) = submits_of_text(api, f"{{{REST[api.path.path]}, {text}}}".encode())
    return one.output.structured


@each_api
@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f'"response_format": {{"json_schema":{{"schema":{WRITTEN},"name":"n"}},"type":"json_schema"}}',
         "response_format.json_schema.schema"),
        (f'"structured_outputs":{{"json": {WRITTEN} }}', "structured_outputs.json"),
        (f'"guided_json":\n{WRITTEN}', "guided_json"),
    ],
)  # fmt: skip
def test_a_schema_passes_as_the_client_wrote_it(api: Api, text: str, field: str) -> None:
    found = form_of_text(api, text)
    assert (found.json_schema, found.field) == (WRITTEN.encode(), field)


@each_api
@pytest.mark.parametrize("field", ["structured_outputs.json", "guided_json"])
def test_a_schema_may_be_a_string(api: Api, field: str) -> None:
    change: Json = {"guided_json": WRITTEN} if field == "guided_json" else {"structured_outputs": {"json": WRITTEN}}
    found = form(api, change)
    assert (found.json_schema, found.field, found.strict) == (WRITTEN.encode(), field, True)


@each_api
@pytest.mark.parametrize(("strict", "sent"), [(None, False), (False, False), (True, True)])
def test_a_response_format_is_strict_if_it_says_so(api: Api, strict: bool | None, sent: bool) -> None:
    named = {"name": "n", "schema": SCHEMA, "strict": strict}
    assert form(api, {"response_format": {"type": "json_schema", "json_schema": named}}).strict == sent


@each_api
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True, "field": "response_format"}),
        ({"structured_outputs": {"json_object": True}},
         {"json_object": True, "field": "structured_outputs.json_object"}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+", "field": "structured_outputs.regex"}),
        ({"guided_regex": "a+"}, {"regex": "a+", "field": "guided_regex"}),
        ({"structured_outputs": {"choice": ["b", "a"]}},
         {"choices": text_pb2.TextChoices(texts=["b", "a"]), "field": "structured_outputs.choice"}),
        ({"guided_choice": ["a"]}, {"choices": text_pb2.TextChoices(texts=["a"]), "field": "guided_choice"}),
        ({"structured_outputs": {"grammar": "g"}}, {"grammar": "g", "field": "structured_outputs.grammar"}),
        ({"guided_grammar": "g"}, {"grammar": "g", "field": "guided_grammar"}),
        ({"structural_tag": "{}"}, {"structural_tag": b"{}", "field": "structural_tag"}),
        ({"guided_json": "{}", "guided_whitespace_pattern": " "},
         {"json_schema": b"{}", "whitespace_pattern": " ", "field": "guided_json"}),
        ({"structured_outputs": {"json": "{}", "whitespace_pattern": " ", "disable_additional_properties": True}},
         {"json_schema": b"{}", "whitespace_pattern": " ", "disable_additional_properties": True,
          "field": "structured_outputs.json"}),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
         {"json_object": True, "disable_any_whitespace": True, "field": "structured_outputs.json_object"}),
    ],
)  # fmt: skip
def test_each_form(api: Api, change: Json, expected: dict[str, Any]) -> None:
    assert form(api, change) == text_pb2.StructuredOutput(strict=True, **expected)


@each_api
@pytest.mark.parametrize("field", ["response_format", "structured_outputs.structural_tag", "structural_tag"])
def test_a_structural_tag_as_an_object(api: Api, field: str) -> None:
    written = (
        '{"triggers":["<f"],"structures":[{"end":"</f>","schema":{ "n":1.50},"begin":"<f>"}],"type":"structural_tag"}'
    )
    text = f'"structured_outputs":{{"structural_tag":{written}}}' if "." in field else f'"{field}":{written}'
    found = form_of_text(api, text)
    assert (found.structural_tag, found.field, found.strict) == (written.encode(), field, True)


@each_api
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "guided_json"),
        ({"guided_json": {}, "structural_tag": TAG}, "structural_tag"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_whitespace_pattern": " ", "guided_regex": "a"}, "guided_whitespace_pattern"),
        ({"guided_whitespace_pattern": " ", "structured_outputs": {"json": {}}}, "guided_whitespace_pattern"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"choice": ["a"], "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
         "structured_outputs.whitespace_pattern"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(api: Api, change: Json, param: str) -> None:
    error = refused(api, change)
    assert error.param == param and param in error.message


@each_api
def test_the_older_field_may_repeat_the_newer_one(api: Api) -> None:
    """As guidance's client sends it."""
    for name, value in (("grammar", "g"), ("regex", "a"), ("choice", ["a"]), ("json", SCHEMA)):
        newer: Json = {"structured_outputs": {name: value}}
        assert form(api, newer | {f"guided_{name}": value}) == form(api, newer)
        assert refused(api, newer | {f"guided_{name}": ["b"] if name == "choice" else "b"}).param == f"guided_{name}"


@each_api
def test_a_text_format_is_no_form(api: Api) -> None:
    for change in ({}, {"response_format": {"type": "text"}}):
        assert not submits(api, change)[0].output.HasField("structured")
    both: Json = {"response_format": {"type": "text"}, "guided_regex": "a"}
    assert form(api, both).regex == "a"


def test_each_prompt_has_the_form() -> None:
    found = submits(COMPLETIONS_API, {"prompt": ["a", "b"], "guided_regex": "a+"})
    assert [one.output.structured.regex for one in found] == ["a+", "a+"]


def test_a_large_form_for_many_prompts_is_refused() -> None:
    schema = '"' + "a" * 2**19 + '"'
    assert len(submits(COMPLETIONS_API, {"prompt": ["a"] * 16, "guided_json": schema})) == 16
    error = refused(COMPLETIONS_API, {"prompt": ["a"] * 40, "guided_json": schema})
    assert error.param == "guided_json" and str(MAX_FORM_BYTES) in error.message
