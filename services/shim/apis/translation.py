"""An API's request: its schema, and how a checked one becomes submits. Knows nothing of answers, links and servers.

Child processes that parse bodies import this side of an API alone: services/shim/prepare_task.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.shim.apis.body_form import BodyForm
from services.shim.apis.request import GenerationRequest
from services.shim.apis.submit import SubmitContext
from services.shim.body import Body

Submits = Callable[[Any, Body, SubmitContext], list[text_pb2.TextSubmit]]


@dataclass(frozen=True)
class Translation:
    """`submits` returns one submit per prompt. It raises TandemError for what the schema cannot refuse. Processes know
    a translation by its `name`. `form` None: a body has every field of `request`, and no other."""

    name: str
    request: type[GenerationRequest]
    submits: Submits
    form: BodyForm | None = None

    def of(self, fields: Mapping[str, Any]) -> "Translation":
        return self

    @property
    def all(self) -> tuple["Translation", ...]:
        return (self,)


@dataclass(frozen=True)
class Alternatives:
    """A route that takes several kinds of requests: the first field of `by_field` that a body has decides."""

    name: str
    by_field: tuple[tuple[str, Translation], ...]

    def of(self, fields: Mapping[str, Any]) -> Translation:
        """Returns the translation of a body with these fields. Raises TandemError (INVALID_ARGUMENT) if none of the
        fields that decide is there."""
        for name, translation in self.by_field:
            if name in fields:
                return translation
        names = [name for name, _ in self.by_field]
        raise invalid(f"missing parameter: {' or '.join(names)}", names[0])

    @property
    def all(self) -> tuple[Translation, ...]:
        return tuple(translation for _, translation in self.by_field)


AnyTranslation = Translation | Alternatives
