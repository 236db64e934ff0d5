"""What the fields about an answer's form may be: JSON Schemas, texts, `response_format` and structural tags.

Sizes are checked here; what a schema, an expression or a grammar says is the tokenizer's business.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from services.rpc.output_limits import (
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICE_TEXTS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_BYTES,
)

MAX_LABEL = 4096  # characters of a label that nothing here reads
FORMATS = ("text", "json_object", "json_schema", "structural_tag")
JSON_TYPES = {str: "text", dict: "object", bool: "boolean"}


class Strict(BaseModel):
    """A model that accepts no unknown field, and no value of another type than declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _json_tag(value: Any) -> str:
    return f"json:{JSON_TYPES.get(type(value))}"


def _format_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"type:{kind}" if isinstance(kind, str) else None


def _not_the_newer_tag(value: Any) -> Any:
    raise PydanticCustomError("not_there", "it is not supported by this server: use structures and triggers")


Label = Annotated[str, StringConstraints(max_length=MAX_LABEL)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REGEX_CHARACTERS)]
GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
ChoiceText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]
Choices = Annotated[list[ChoiceText], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICE_TEXTS)]
# The tags are no identifiers, so that they do not appear in the path of an error.
_JsonText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SCHEMA_BYTES), Tag("json:text")]
_JsonObject = Annotated[dict[str, Any], Tag("json:object")]
_JsonBoolean = Annotated[bool, Tag("json:boolean")]
Schema = Annotated[
    _JsonObject | _JsonBoolean,
    Discriminator(
        _json_tag,
        custom_error_type="json_schema",
        custom_error_message="Input should be a JSON Schema: an object, or a boolean",
    ),
]
SchemaOrText = Annotated[
    _JsonText | _JsonObject,
    Discriminator(
        _json_tag,
        custom_error_type="json_schema",
        custom_error_message="Input should be a JSON Schema: an object, or a string of JSON",
    ),
]


class TextFormat(Strict):
    type: Literal["text"]
    json_schema: None = Field(None, description="As clients send it that write out every field.")


class JsonObjectFormat(Strict):
    type: Literal["json_object"]
    json_schema: None = Field(None, description="As clients send it that write out every field.")


class NamedSchema(Strict):
    """`schema_` has a line at its end because pydantic's models have a method of this name."""

    name: Label = Field(description="A label.")
    description: Label | None = Field(None, description="A label.")
    schema_: Schema = Field(alias="schema", description="A JSON Schema.")
    strict: bool | None = Field(
        False, description="A keyword that is not supported is refused; else it has no effect, and a header names it."
    )


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class Structure(Strict):
    begin: ChoiceText = Field(description="The text before the JSON. It starts with a trigger.")
    schema_: Schema = Field(alias="schema", description="The schema of the JSON.")
    end: Annotated[str, StringConstraints(max_length=MAX_CHOICE_CHARACTERS)] = Field(
        description="The text behind the JSON."
    )


class StructuralTag(Strict):
    """Text in which, after a trigger, one of the structures follows whose `begin` starts with it."""

    format: Annotated[None, BeforeValidator(_not_the_newer_tag)] = Field(None, description="Not supported.")
    type: Literal["structural_tag"] = "structural_tag"
    structures: Annotated[list[Structure], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICE_TEXTS)]
    triggers: Choices


class StructuralTagFormat(StructuralTag):
    type: Literal["structural_tag"]


StructuralTagOrText = Annotated[
    _JsonText | Annotated[StructuralTag, Tag("json:object")],
    Discriminator(
        _json_tag,
        custom_error_type="structural_tag",
        custom_error_message="Input should be an object with structures and triggers, or a string of JSON",
    ),
]
ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("type:text")]
    | Annotated[JsonObjectFormat, Tag("type:json_object")]
    | Annotated[JsonSchemaFormat, Tag("type:json_schema")]
    | Annotated[StructuralTagFormat, Tag("type:structural_tag")],
    Discriminator(
        _format_tag,
        custom_error_type="response_format",
        custom_error_message="Input should be an object with type " + ", ".join(map(repr, FORMATS)),
    ),
]
