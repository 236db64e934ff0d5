"""Forms of structured output for benchmarks: the fields of a request's body. Pure.

An answer under `json`, `regex` or `grammar` has as many parts as tokens are asked for, and each part takes several
tokens: so, no answer ends before its output length, and servers generate the same number of tokens as without a form.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import floor
from typing import Any

from loadtest.serving.workloads import Request

JSON, JSON_UNIQUE, REGEX, CHOICE, GRAMMAR = FORMS = ("json", "json-unique", "regex", "choice", "grammar")
CHOICES = ("very positive", "positive", "neutral", "negative", "very negative")


def structured_requests(requests: Sequence[Request], form: str | None, ratio: float = 1.0) -> list[Request]:
    """Returns the requests, of which an evenly spread share `ratio` (0 to 1) has the form; None: none has."""
    return [
        replace(request, fields=fields(form, request.output_len, index))
        if form is not None and floor((index + 1) * ratio) > floor(index * ratio)
        else request
        for index, request in enumerate(requests)
    ]


def fields(form: str, output_len: int, index: int) -> dict[str, Any]:
    """Returns the fields of the body for request `index`: response_format for JSON, which every server has, and vLLM's
    structured_outputs for the other forms."""
    match form:
        case "json" | "json-unique":
            name = "record" if form == JSON else f"record_{index}"
            schema = {"name": name, "schema": list_of_records(name, output_len), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "regex":
            return {"structured_outputs": {"regex": rf"([a-z]{{3,10}} = [0-9]{{1,4}};\n){{{output_len}}}"}}
        case "choice":
            return {"structured_outputs": {"choice": list(CHOICES)}}
        case _:
            return {"structured_outputs": {"grammar": statements(output_len)}}


def list_of_records(name: str, count: int) -> dict[str, Any]:
    """Returns the schema of an object with `count` records of several types in the property `name`."""
    properties = {
        "id": {"type": "integer", "minimum": 0, "maximum": 99999},
        "title": {"type": "string", "minLength": 1, "maxLength": 24},
        "status": {"enum": ["open", "pending", "closed"]},
        "price": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1000}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "active": {"type": "boolean"},
    }
    record = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    records = {"type": "array", "items": record, "minItems": count, "maxItems": count}
    return {"type": "object", "properties": {name: records}, "required": [name], "additionalProperties": False}


def statements(count: int) -> str:
    """Returns a grammar, in EBNF, of `count` SQL statements."""
    return f"""root ::= statement{{{count}}}
statement ::= "SELECT " column ("," column)* " FROM " table (" WHERE " condition)? ";\\n"
column ::= "col_" number
table ::= "table_" number
condition ::= column (" = " | " < " | " > ") (number | "'" [a-z]+ "'")
number ::= [1-9] [0-9]{{0,3}}
"""
