"""An API's request: its schema, and how a checked one becomes submits. Knows nothing of answers, links and servers.

Child processes that parse bodies import this side of an API alone: services/shim/prepare_task.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.rpc.generated import text_pb2
from services.shim.apis.request import GenerationRequest
from services.shim.apis.submit import SubmitContext
from services.shim.body import Body

Submits = Callable[[Any, Body, SubmitContext], list[text_pb2.TextSubmit]]


@dataclass(frozen=True)
class Translation:
    """`submits` returns one submit per prompt. It raises TandemError for what the schema cannot refuse. Processes know
    a translation by its `name`."""

    name: str
    request: type[GenerationRequest]
    submits: Submits
