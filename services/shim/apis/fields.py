"""Declares request fields with their documentation: docs/api.md, /docs and /openapi.json derive from it.

Every field is supported, or a no-op (accepted, because no allowed value changes the answer), or refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

Kind = Literal["supported", "no-op", "refused"]


def _boolean(value: Any) -> Any:
    """Refuses 0 and 1, which Literal takes as equal to false and true."""
    if not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "Input should be a valid boolean")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


OnlyTrue = Annotated[Literal[True], BeforeValidator(_boolean)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(_boolean)]
OnlyOne = Annotated[Literal[1], BeforeValidator(_number)]


def supported(default: Any, description: str, **constraints: Any) -> Any:
    """Returns pydantic's Field of a field that has an effect. `default` ...: required."""
    return _field("supported", default, description, constraints)


def no_op(default: Any, description: str, **constraints: Any) -> Any:
    """Returns pydantic's Field of a field that changes nothing. Its type has only values that may be ignored."""
    return _field("no-op", default, description, constraints)


def refused(default: Any, description: str) -> Any:
    """Returns pydantic's Field of a feature that tandem lacks. Its type has only the value that asks for nothing."""
    return _field("refused", default, description, {})


def kind_of(field: FieldInfo) -> Kind:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    kind: Any = extra["x-tandem"]
    return kind  # type: ignore[no-any-return]


def kind_in(model: type[BaseModel], name: str) -> Kind | None:
    """Returns the kind of the model's field `name`; None if it has no such field."""
    field = model.model_fields.get(name)
    return kind_of(field) if field is not None else None


def _field(kind: Kind, default: Any, description: str, constraints: dict[str, Any]) -> Any:
    return Field(default, description=description, json_schema_extra={"x-tandem": kind}, **constraints)
