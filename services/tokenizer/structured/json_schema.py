"""JSON schemas in the form that llguidance compiles: only keywords that it has, references as definitions at the root.

The walk knows where it is, so messages have the keyword's path. Supported is draft 2020-12 but for
schema_walk.UNSUPPORTED and CONDITIONAL, and what older drafts write otherwise (`definitions`, lists as `items`,
`exclusiveMinimum: true`). Annotations and unknown keywords have no effect. Known limits of llguidance: a property that
is not in `properties` may come twice, properties come in the order of `properties`, and not too many of them in a row
are optional.
"""

import json
from typing import Any

from services.grammar.fragment import Fragment
from services.rpc.errors import invalid
from services.rpc.output_limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from services.tokenizer.structured.json_input import too_deep
from services.tokenizer.structured.schema_place import Place
from services.tokenizer.structured.schema_walk import SchemaWalk
from services.tokenizer.structured.settings import JsonForm

MAX_IGNORED = 100  # keywords that are named


def prepared_schema(
    schema: Any, strict: bool, where: str, form: JsonForm, path: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Returns the schema as JSON text that may follow `%json` in a rule, and its ignored keywords with their paths.

    `schema` is parsed JSON, `where` the client's field, `path` the schema's in it. Raises TandemError
    (INVALID_ARGUMENT) for what no schema has, for what is too large or deep, and under `strict` for a keyword that is
    not supported.
    """
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise too_deep(where)
    walk = SchemaWalk(schema, strict, form.disable_additional_properties)
    root = walk.prepare(Place(where, path))
    item, key = form.separators
    options: dict[str, Any] = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    if form.whitespace:
        options["whitespace_pattern"] = form.whitespace
    document = {"x-guidance": options, **root}
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid(f"{where}: a text has half of a surrogate pair", where) from None
    if size > MAX_SCHEMA_BYTES:
        raise invalid(f"{where}: the schema is larger than {MAX_SCHEMA_BYTES} bytes", where)
    return text, tuple(walk.ignored[:MAX_IGNORED])


def schema_fragment(text: str, name: str) -> Fragment:
    """Returns JSON that follows a prepared schema; `name` is the rule's."""
    return Fragment(name, (f"{name}: %json {text}",))


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether objects and arrays are nested more than `limit` deep; without recursion."""
    level = [value]
    for _ in range(limit):
        level = [
            item
            for node in level
            for item in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True
