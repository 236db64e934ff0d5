"""The types of the fields about forms: what an error says, and how much a wrong list costs."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.shim.apis.structured import StructuredOutputs
from services.shim.apis.structured_types import StructuralTag
from tests.shim.apis.field_values import TAG, Json, each_api, refused


@each_api
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_format": {"type": "xml"}},
         "response_format: Input should be an object with type 'text', 'json_object', 'json_schema', 'structural_tag'"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "unsupported parameter: response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 5}}},
         "response_format.json_schema.schema: Input should be a JSON Schema: an object, or a boolean"),
        ({"guided_json": []}, "guided_json: Input should be a JSON Schema: an object, or a string of JSON"),
        ({"guided_regex": ""}, "guided_regex: String should have at least 1 character"),
        ({"guided_regex": "a" * 20_001}, "guided_regex: String should have at most 20000 characters"),
        ({"guided_grammar": "a" * 65_537}, "guided_grammar: String should have at most 65536 characters"),
        ({"guided_json": "a" * (2**20 + 1)}, "guided_json: String should have at most 1048576 characters"),
        ({"guided_json": {"a": "a" * 2**20}}, "guided_json: 1048584 bytes, but at most 1048576"),
        ({"guided_choice": ["a" * 4_096] * 49}, "guided_choice: 200704 characters in all, but at most 200000"),
        ({"structural_tag": {"format": {"type": "json_schema"}}},
         "structural_tag.format: it is not supported by this server: use structures and triggers"),
    ],
)  # fmt: skip
def test_what_an_error_says(api: Any, change: Json, message: str) -> None:
    assert refused(api, change).message == message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (StructuredOutputs, {"choice": [5] * 10**6}),
        (StructuredOutputs, {"choice": [""] * 10**6}),
        (StructuralTag, TAG | {"structures": [5] * 10**6}),
        (StructuralTag, TAG | {"triggers": [5] * 10**6}),
    ],
)
def test_a_million_wrong_items_make_one_error(kind: Any, value: Json) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(value)
    assert len(caught.value.errors(include_input=False)) == 1
