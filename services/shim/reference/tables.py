"""The tables about the API: every route, and every field of every request with its range and kind."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from services.shim.apis.all import APIS
from services.shim.apis.body_form import BodyForm
from services.shim.apis.chat.schema import ChatRequest
from services.shim.apis.chat_batch.api import CHAT_BATCH_API
from services.shim.apis.fields import Kind, kind_of
from services.shim.apis.request import GenerationRequest
from services.shim.apis.tokenize.submit import DETOKENIZE_TRANSLATION, TOKENIZE_TRANSLATION
from services.shim.apis.tokens.api import TOKENS_API
from services.shim.apis.translation import Translation
from services.shim.reference.operations import OPERATIONS
from services.shim.routes import DETOKENIZE, TOKENIZE, administers, is_open

Json = dict[str, Any]
ITEM_RANGES = ("minimum", "maximum", "minLength", "maxLength")  # too much detail in a table
MANY = 2**20  # from here on, numbers are written as powers of two


@dataclass(frozen=True)
class FieldRow:
    name: str
    kind: Kind
    values: str  # type, range and default
    description: str


@dataclass(frozen=True)
class Section:
    title: str
    rows: list[FieldRow]


def routes() -> list[tuple[str, str, str]]:
    """Returns (method and path, what it does, which API key it needs) of each route."""
    return [
        (
            f"{operation.path.method} {operation.path.path.replace(':path', '')}",
            operation.summary,
            _key(operation.path.path),
        )
        for operation in OPERATIONS
    ]


def _key(path: str) -> str:
    if is_open(path):
        return "no"
    return "yes; that of `--admin-api-key`, if there is one" if administers(path) else "yes"


def sections() -> list[Section]:
    """Returns the fields that OpenAI's APIs share, then those of each API and of other routes; supported ones first."""
    shared = Section("Fields of every request", _rows(GenerationRequest, _own_first(GenerationRequest)))
    own = []
    for api in APIS:
        names = [name for name in api.request.model_fields if _is_own(api.request, GenerationRequest, name)]
        own.append(Section(f"Fields of `{api.path.path}`", _rows(api.request, names)))
    return [shared, *own, _batch(), *_tokens(), *_tokenizing()]


def _batch() -> Section:
    model = CHAT_BATCH_API.request
    names = [name for name in model.model_fields if _is_own(model, ChatRequest, name)]
    return Section(f"Fields of `{CHAT_BATCH_API.path.path}`, beside those of chats", _rows(model, names))


def _tokens() -> list[Section]:
    model, form = TOKENS_API.request, TOKENS_API.translation.form
    assert form is not None
    title = f"Fields of `{TOKENS_API.path.path}`"
    return [
        Section(title, [_inner_row(form), *_rows(model, _named(model, form.names))]),
        Section(f"{title}, in `{form.inner}`", _rows(model, _named(model, form.inner_names))),
    ]


def _tokenizing() -> list[Section]:
    chat, text = TOKENIZE_TRANSLATION.all
    return [
        _of_form(f"Fields of `{TOKENIZE.path}` for text", text),
        _of_form(f"Fields of `{TOKENIZE.path}` for chats", chat),
        _of_form(f"Fields of `{DETOKENIZE.path}`", DETOKENIZE_TRANSLATION),
    ]


def _of_form(title: str, translation: Translation) -> Section:
    assert translation.form is not None
    return Section(title, _rows(translation.request, _named(translation.request, translation.form.names)))


def _named(model: type[BaseModel], names: Collection[str]) -> list[str]:
    """Returns these names in the order of the model's fields, its own first."""
    return [name for name in _own_first(model) if name in names]


def _inner_row(form: BodyForm) -> FieldRow:
    return FieldRow(form.inner, "supported", "object", form.about_inner)


def _own_first(model: type[BaseModel]) -> list[str]:
    return sorted(model.model_fields, key=lambda name: name not in model.__annotations__)


def _is_own(model: type[BaseModel], parent: type[BaseModel], name: str) -> bool:
    shared = parent.model_fields.get(name)
    return (
        shared is None
        or shared.description != model.model_fields[name].description
        or (shared.default != model.model_fields[name].default)
    )


@functools.cache
def _schema_of(model: type[BaseModel]) -> Json:
    return model.model_json_schema()


def _rows(model: type[BaseModel], names: Any) -> list[FieldRow]:
    schema = _schema_of(model)
    order: list[Kind] = ["supported", "no-op", "refused"]
    rows = []
    for name in names:
        field = model.model_fields[name]
        values = _values(schema["properties"][name])
        if not field.is_required() and field.default not in (None, [], {}, ""):
            values += f"; default {_literal(field.default)}"
        rows.append(FieldRow(name, kind_of(field), values, field.description or ""))
    return sorted(rows, key=lambda row: order.index(row.kind))


def _values(schema: Json) -> str:
    """Returns a schema in words: "integer, at least 1, at most 2"."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(_values(one) for one in alternatives if one.get("type") != "null"))
    if "$ref" in schema:
        return "object"
    if "const" in schema or "enum" in schema:
        return ", ".join(_literal(value) for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        items = _values({key: value for key, value in schema["items"].items() if key not in ITEM_RANGES})
        return ", ".join(["list of " + items, *_range(schema, "minItems", "maxItems", " items")])
    if kind == "object":
        return ", ".join([kind, *_range(schema, "", "maxProperties", " entries")])
    if kind == "string":
        return ", ".join([kind, *_range(schema, "minLength", "maxLength", " characters")])
    above = [f"above {_number(schema['exclusiveMinimum'])}"] if "exclusiveMinimum" in schema else []
    return ", ".join([kind, *above, *_range(schema, "minimum", "maximum", "")])


def _range(schema: Json, low: str, high: str, unit: str) -> list[str]:
    if low in schema and high in schema:
        return [f"{_number(schema[low])} to {_number(schema[high])}{unit}"]
    if low in schema:
        return [f"at least {_number(schema[low])}{unit}"]
    return [f"at most {_number(schema[high])}{unit}"] if high in schema else []


def _number(value: float) -> str:
    if abs(value) >= MANY and (int(value) + (value > 0)).bit_count() == 1:
        exponent = (int(abs(value)) + (value > 0)).bit_length() - 1
        return f"-2^{exponent}" if value < 0 else f"2^{exponent} - 1"
    return f"{int(value):,}" if value == int(value) else str(value)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')
