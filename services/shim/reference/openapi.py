"""/openapi.json: the routes with the schemas of requests and responses. https://spec.openapis.org/oas/v3.1.0"""

import copy
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from services.rpc.generated import common_pb2 as pb
from services.shim.apis.all import ALL_APIS
from services.shim.apis.translation import AnyTranslation, Translation
from services.shim.reference.operations import EVENT_STREAM, JSON, OPERATIONS, Error, Operation
from services.shim.responses import json_response
from services.shim.routes import Handler, is_open
from services.version import VERSION

Json = dict[str, Any]
REFS = "#/components/schemas/{model}"
ABOUT = ("title", "description", "default", "x-tandem")  # keys of a field that say nothing of its values
STATUS_TEXT = {
    200: "success",
    400: "the request is wrong; param names the field",
    401: "the API key is missing or wrong",
    403: "another key is needed, or the host or the web page's origin is not allowed",
    404: "no such model",
    413: "the body is larger than a limit, or takes too much memory or time to read",
    429: "a limit on running and waiting requests is reached",
    500: "the server failed at this request",
    503: "no process can answer now",
}


def openapi_endpoint(
    facts: Callable[[], pb.EngineFacts | None], *, ignore_unknown_fields: bool, root_path: str | None = None
) -> Handler:
    """Returns the handler of /openapi.json. `facts` returns the engine's facts, or None before they are known.

    `root_path`: the prefix of all paths for clients behind a proxy.
    """

    async def handler(request: Request) -> Response:
        document, known = openapi(ignore_unknown_fields), facts()
        if root_path is not None:
            document = {**document, "servers": [{"url": root_path}]}
        return json_response(document if known is None else with_limits(document, known))

    return handler


def with_limits(document: Json, facts: pb.EngineFacts) -> Json:
    """Returns a copy of the document in which the fields of requests have the limits of the engine."""
    document = copy.deepcopy(document)
    limits = facts.limits
    for api in ALL_APIS:
        fields = document["components"]["schemas"][api.request.__name__]["properties"]
        form = api.translation.form
        if form is not None and form.inner:
            fields = fields[form.inner]["anyOf"][0]["properties"]
        for name, bound, value in (
            ("n", "maximum", limits.max_n),
            (api.request.logprobs_field, "maximum", limits.max_logprobs),
            ("stop_token_ids", "maxItems", limits.max_stop_token_ids),
            ("logprob_token_ids", "maxItems", limits.max_logprob_token_ids),
            ("bad_words", "maxItems", limits.max_bad_words),
            ("allowed_token_ids", "maxItems", facts.vocab_size),
            ("logit_bias", "maxProperties", limits.max_logit_bias),
        ):
            if "const" not in (schema := fields[name]["anyOf"][0]):
                schema[bound] = value
    return document


@functools.cache
def openapi(ignore_unknown_fields: bool = False) -> Json:
    """Returns the OpenAPI document of a server that refuses unknown fields or ignores them."""
    schemas: Json = {}
    paths: Json = {}
    for operation in OPERATIONS:
        path = re.sub(r":\w+}", "}", operation.path.path)  # Starlette's convertor
        described = _operation(operation, schemas, ignore_unknown_fields)
        paths.setdefault(path, {})[operation.path.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "tandem", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schemas: Json, ignore_unknown_fields: bool) -> Json:
    described: Json = {"summary": operation.summary, "responses": _responses(operation, schemas)}
    parameters = [
        *_parameters("path", {key: {"type": "string"} for key in re.findall(r"{(\w+)", operation.path.path)}),
        *_parameters("query", {name: {"enum": list(values)} for name, values in operation.query.items()}),
    ]
    if parameters:
        described["parameters"] = parameters
    if not is_open(operation.path.path):
        described["security"] = [{"key": []}, {}]  # the key is needed if the server has one
    if operation.request is not None:
        content = {JSON: {"schema": _request(operation.request, schemas, ignore_unknown_fields)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(place: str, schemas: Mapping[str, Json]) -> list[Json]:
    """Returns the description of each parameter; only one in the path is required."""
    return [
        {"name": name, "in": place, "required": place == "path", "schema": schema} for name, schema in schemas.items()
    ]


def _responses(operation: Operation, schemas: Json) -> Json:
    responses: Json = {}
    if operation.bodies:
        # OpenAPI 3.1 has no words for a stream of events: a schema would be taken for that of each one.
        content: Json = {
            media: {} if media == EVENT_STREAM else {"schema": _body(body, schemas)}
            for media, body in operation.bodies.items()
        }
        responses["200"] = {"description": STATUS_TEXT[200], "content": content}
    for status in operation.empty:
        responses[str(status)] = {"description": STATUS_TEXT[status]}
    for status in operation.errors:
        content = {JSON: {"schema": _body(Error, schemas)}}
        responses[str(status)] = {"description": STATUS_TEXT[status], "content": content}
    return responses


def _body(body: Any, schemas: Json) -> Json:
    """Returns the schema of a response, and moves its definitions to `schemas`."""
    if body is None:
        return {"type": "string"}
    schema = TypeAdapter(body).json_schema(ref_template=REFS)
    schemas |= schema.pop("$defs", {})
    return schema


def _request(translation: AnyTranslation, schemas: Json, ignore_unknown_fields: bool) -> Json:
    """Returns the schema of a body: one of those that the route takes."""
    kinds = [{"$ref": REFS.format(model=_add_request(one, schemas, ignore_unknown_fields))} for one in translation.all]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _add_request(translation: Translation, schemas: Json, ignore_unknown_fields: bool) -> str:
    """Adds the schema of a request to `schemas`; returns its name. Optional fields may be null: null means absent."""
    model = translation.request
    schema = model.model_json_schema(ref_template=REFS)
    definitions = schema.pop("$defs", {})
    _make_optional(schema)
    if translation.form is not None:
        schema = translation.form.schema(schema)
    if ignore_unknown_fields:
        for one in [schema, *(field for field in schema["properties"].values() if "properties" in field)]:
            del one["additionalProperties"]
    _make_optional(schema)  # what the form added
    schemas |= {name: definitions[name] for name in _referenced(schema, definitions)}
    schemas[model.__name__] = schema
    return model.__name__


def _make_optional(schema: Json) -> None:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name not in required:
            schema["properties"][name] = _nullable(field)


def _referenced(value: Any, definitions: Json) -> set[str]:
    """Returns the names of the definitions that a schema refers to, and those that these refer to."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name in definitions and name not in found:
                found.add(name)
                waiting.append(definitions[name])
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return found


def _nullable(field: Json) -> Json:
    if {"type": "null"} in field.get("anyOf", []) or field.get("type") == "null":
        return field
    about: Json = {key: field[key] for key in ABOUT if key in field}
    return {"anyOf": [{key: value for key, value in field.items() if key not in about}, {"type": "null"}], **about}
