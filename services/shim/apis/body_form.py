"""Which fields of its request's class a body has, and where: a route may lack some, or have some in an object.

So each field is declared once, with its range, for all routes that have it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.rpc.errors import TandemError, invalid
from services.shim.body import Body


@dataclass(frozen=True)
class BodyForm:
    """A body has the fields `names`, and in its object `inner`, if it is not empty, the fields `inner_names`.

    `about_inner`: what the object is, for the reference.
    """

    names: frozenset[str]
    inner: str = ""
    inner_names: frozenset[str] = frozenset()
    about_inner: str = ""

    def shape(self, body: Body, *, ignore_unknown_fields: bool) -> None:
        """Moves the fields of the object beside the others, in place. Raises TandemError (INVALID_ARGUMENT) for a field
        that the body must not have, unless those are ignored: they are then removed."""
        inner = body.fields.get(self.inner) if self.inner else None
        if inner is not None and not isinstance(inner, dict):
            raise invalid(f"{self.inner}: Input should be an object", self.inner)
        unknown = [name for name in body.fields if name not in self.names and (name != self.inner or not name)]
        _refuse(unknown if not ignore_unknown_fields else (), "")
        for name in unknown:
            del body.fields[name]
        if inner is None:
            return
        body.lift(self.inner)
        given = {name: value for name, value in inner.items() if value is not None}
        unknown = [name for name in given if name not in self.inner_names]
        _refuse(unknown if not ignore_unknown_fields else (), f"{self.inner}.")
        body.fields |= {name: value for name, value in given.items() if name in self.inner_names}

    def located(self, error: TandemError) -> TandemError:
        """Names the path of the field at fault, if it is in the object."""
        if error.param.partition(".")[0] in self.inner_names:
            error.param = f"{self.inner}.{error.param}"
        return error

    def schema(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Returns the body's JSON Schema, from that of the class."""
        found = _part(whole, self.names)
        if self.inner:
            described = _part({**whole, "title": self.inner}, self.inner_names)
            about = {"description": self.about_inner, "x-tandem": "supported"}
            found["properties"][self.inner] = {**described, **about}
        return found


def _refuse(unknown: Iterable[str], prefix: str) -> None:
    for name in unknown:
        raise invalid(f"unsupported parameter: {prefix}{name}", prefix + name)


def _part(schema: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    properties = {name: one for name, one in schema["properties"].items() if name in names}
    required = [name for name in schema.get("required", ()) if name in names]
    rest = {name: value for name, value in schema.items() if name != "required"}
    return {**rest, "properties": properties, **({"required": required} if required else {})}
