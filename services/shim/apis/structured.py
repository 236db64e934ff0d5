"""The fields that give an answer its form: `response_format`, `structured_outputs` and the older `guided_*`.

https://platform.openai.com/docs/guides/structured-outputs and https://docs.vllm.ai/en/latest/features/structured_outputs
"""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.rpc.output_limits import check_structured
from services.shim.apis.fields import no_op, supported
from services.shim.apis.structured_types import (
    Choices,
    GrammarText,
    JsonObjectFormat,
    JsonSchemaFormat,
    Label,
    Pattern,
    ResponseFormat,
    SchemaOrText,
    Strict,
    StructuralTagFormat,
    StructuralTagOrText,
    TextFormat,
)
from services.shim.body import Body

FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
JSON_FORMS = ("json", "json_object", "structural_tag")
ABOUT_JSON = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
OLDER_FORMS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}


class StructuredOutputs(Strict):
    """Exactly one form, and how its JSON is written. `json_` has a line at its end because pydantic's models have a
    method of this name."""

    json_: SchemaOrText | None = Field(None, alias="json", description="A JSON Schema, as an object or as a string.")
    regex: Pattern | None = Field(None, description="The whole answer matches it.")
    choice: Choices | None = Field(None, description="The answer is one of these texts.")
    grammar: GrammarText | None = Field(None, description="A grammar in Lark, or in EBNF with the rule `root`.")
    json_object: bool | None = Field(None, description="True: the answer is a JSON object.")
    structural_tag: StructuralTagOrText | None = Field(None, description="As in response_format.")
    whitespace_pattern: Pattern | None = Field(
        None, description="The whitespace between the parts of JSON, as a regular expression."
    )
    disable_any_whitespace: bool = Field(False, description="JSON has no whitespace between its parts.")
    disable_additional_properties: bool = Field(
        False, description="Objects have the properties of their schema only, unless it says otherwise."
    )
    disable_fallback: bool = Field(False, description="No effect: there is one backend.")

    @property
    def form(self) -> tuple[str, Any]:
        """The name and the value of the form. Raises TandemError (INVALID_ARGUMENT) for none, for several, and for a
        setting that the form does not have."""
        found = [(name, value) for name, value in self._forms() if value is not None and value is not False]
        if len(found) != 1:
            given = " and ".join(name for name, _ in found) or "none"
            raise invalid(f"structured_outputs: exactly one of {', '.join(FORMS)}, not {given}", "structured_outputs")
        name = found[0][0]
        unused = [setting for setting in ABOUT_JSON if getattr(self, setting)] if name not in JSON_FORMS else []
        if unused:
            path = f"structured_outputs.{unused[0]}"
            raise invalid(f"{path} is about JSON, but the form is {name}", path)
        if self.whitespace_pattern and self.disable_any_whitespace:
            path = "structured_outputs.whitespace_pattern"
            raise invalid(f"{path} is only allowed without disable_any_whitespace", path)
        return found[0]

    def _forms(self) -> Iterator[tuple[str, Any]]:
        for name in FORMS:
            yield name, self.json_ if name == "json" else getattr(self, name)


class StructuredFields(Strict):
    """The part of a request that gives the answer its form. At most one form may be set."""

    response_format: ResponseFormat | None = supported(
        None,
        "The form of the answer: `text`, `json_object`, `json_schema`, or `structural_tag` with `structures` and"
        " `triggers`.",
    )
    structured_outputs: StructuredOutputs | None = supported(
        None, f"The form of the answer, exactly one of {', '.join(FORMS)}: docs/structured-outputs.md."
    )
    guided_json: SchemaOrText | None = supported(None, "Older name of `structured_outputs.json`.")
    guided_regex: Pattern | None = supported(None, "Older name of `structured_outputs.regex`.")
    guided_choice: Choices | None = supported(None, "Older name of `structured_outputs.choice`.")
    guided_grammar: GrammarText | None = supported(None, "Older name of `structured_outputs.grammar`.")
    structural_tag: StructuralTagOrText | None = supported(None, "Older name of `structured_outputs.structural_tag`.")
    guided_whitespace_pattern: Pattern | None = supported(
        None, "Older name of `structured_outputs.whitespace_pattern`. Needs guided_json or structural_tag."
    )
    guided_decoding_backend: Label | None = no_op(None, "There is one backend.")

    @model_validator(mode="after")
    def _check_form(self) -> "StructuredFields":
        older = [name for name in OLDER_FORMS if getattr(self, name) is not None and not self._is_repeated(name)]
        newer = ["structured_outputs"] if self.structured_outputs is not None else []
        free = self.response_format is None or isinstance(self.response_format, TextFormat)
        if self.structured_outputs is not None:
            _ = self.structured_outputs.form
        found = [*([] if free else ["response_format"]), *newer, *older]
        if len(found) > 1:
            raise invalid(f"{found[1]} is only allowed without {found[0]}", found[1])
        if self.guided_whitespace_pattern is not None and older not in (["guided_json"], ["structural_tag"]):
            raise invalid(
                "guided_whitespace_pattern is only allowed together with guided_json or structural_tag",
                "guided_whitespace_pattern",
            )
        return self

    def _is_repeated(self, older: str) -> bool:
        """Whether structured_outputs has the same form: clients for old and new servers of vLLM send both fields."""
        newer = self.structured_outputs
        return newer is not None and newer.form == (OLDER_FORMS[older], getattr(self, older))

    def structured_output(self, body: Body | None) -> text_pb2.StructuredOutput | None:
        """Returns the form of the answer, with schemas as the client wrote them; None if any answer will do.

        `body` may be None if all JSON is in strings. Raises TandemError (INVALID_ARGUMENT) for a form that is too
        large.
        """
        found = _of_format(self.response_format, body) or _of_outputs(self.structured_outputs, body)
        found = found or self._of_older(body)
        if found is not None:
            check_structured(found)
        return found

    def _of_older(self, body: Body | None) -> text_pb2.StructuredOutput | None:
        for name, form in OLDER_FORMS.items():
            value = getattr(self, name)
            if value is not None:
                whitespace = self.guided_whitespace_pattern or ""
                return _filled(form, value, body, (name,), whitespace_pattern=whitespace)
        return None


def _of_format(given: Any, body: Body | None) -> text_pb2.StructuredOutput | None:
    if isinstance(given, JsonObjectFormat):
        return _filled("json_object", True, body, ("response_format",))
    if isinstance(given, StructuralTagFormat):
        return _filled("structural_tag", given, body, ("response_format",))
    if isinstance(given, JsonSchemaFormat):
        path = ("response_format", "json_schema", "schema")
        return _filled("json", given.json_schema.schema_, body, path, strict=bool(given.json_schema.strict))
    return None


def _of_outputs(given: StructuredOutputs | None, body: Body | None) -> text_pb2.StructuredOutput | None:
    if given is None:
        return None
    name, value = given.form
    return _filled(
        name,
        value,
        body,
        ("structured_outputs", name),
        whitespace_pattern=given.whitespace_pattern or "",
        disable_any_whitespace=given.disable_any_whitespace,
        disable_additional_properties=given.disable_additional_properties,
    )


def _filled(
    form: str, value: Any, body: Body | None, path: tuple[str, ...], *, strict: bool = True, **settings: Any
) -> text_pb2.StructuredOutput:
    """Returns a form with its value: JSON as the text at `path` of the body, unless it is a string already."""
    found = text_pb2.StructuredOutput(strict=strict, field=".".join(path), **settings)
    if form == "json_object":
        found.json_object = True
    elif form == "choice":
        found.choices.texts.extend(value)
    elif form in ("regex", "grammar"):
        setattr(found, form, value)
    else:
        setattr(found, "json_schema" if form == "json" else form, _json(value, body, path))
    return found


def _json(value: Any, body: Body | None, path: tuple[str, ...]) -> bytes:
    if isinstance(value, str):
        return value.encode()
    assert body is not None
    return body.json(*path)
