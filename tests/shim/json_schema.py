"""Checks values against JSON schemas, as far as the shim's OpenAPI document uses them. Raises for any other keyword.

https://json-schema.org/draft/2020-12/json-schema-validation
"""

import re
from typing import Any

Json = dict[str, Any]
TYPES: dict[str, Any] = {
    "string": str, "boolean": bool, "null": type(None), "object": dict, "array": list, "integer": int,
    "number": (int, float),
}  # fmt: skip
ABOUT = {"title", "description", "default", "x-tandem"}


def faults(value: Any, schema: Json, document: Json, path: str = "$", *, closed: bool = False) -> list[str]:
    """Returns what is wrong with `value`, each with its path. `closed`: keys without a schema are wrong everywhere."""
    return [
        fault for keyword in schema.keys() - ABOUT for fault in _faults(keyword, value, schema, document, path, closed)
    ]


def _faults(keyword: str, value: Any, schema: Json, document: Json, path: str, closed: bool) -> list[str]:
    rule = schema[keyword]
    number = isinstance(value, int | float) and not isinstance(value, bool)

    def into(item: Any, inner: Json, step: str) -> list[str]:
        return faults(item, inner, document, f"{path}{step}", closed=closed)

    def fault(wrong: bool) -> list[str]:
        return [f"{path}: {value!r} breaks {keyword} {rule!r}"] if wrong else []

    match keyword:
        case "$ref":
            return into(value, resolve(rule, document), "")
        case "anyOf" | "oneOf":
            found = [into(value, one, "") for one in rule]
            good = sum(not one for one in found)
            wrong = good != 1 if keyword == "oneOf" else good == 0
            return [f"{path}: {good} of {keyword} fit", *min(found, key=len)] if wrong else []
        case "type":
            return fault(not isinstance(value, TYPES[rule]) or (isinstance(value, bool) and rule != "boolean"))
        case "const":
            return fault(value != rule or isinstance(value, bool) != isinstance(rule, bool))
        case "enum":
            return fault(value not in rule)
        case "properties" if isinstance(value, dict):
            unknown = value.keys() - rule.keys() if closed else set()
            inner = [one for name in value.keys() & rule.keys() for one in into(value[name], rule[name], f".{name}")]
            return [f"{path}: {name} is not in the schema" for name in sorted(unknown)] + inner
        case "required" if isinstance(value, dict):
            return [f"{path}: {name} is missing" for name in rule if name not in value]
        case "additionalProperties" if isinstance(value, dict):
            names = value.keys() - schema.get("properties", {}).keys()
            patterns = list(schema.get("patternProperties", {}))
            names = {name for name in names if not any(re.search(pattern, name) for pattern in patterns)}
            if rule is True or rule is False:
                return fault(rule is False and bool(names))
            return [one for name in names for one in into(value[name], rule, f".{name}")]
        case "patternProperties" if isinstance(value, dict):
            pairs = [(name, inner) for pattern, inner in rule.items() for name in value if re.search(pattern, name)]
            return [one for name, inner in pairs for one in into(value[name], inner, f".{name}")]
        case "items" if isinstance(value, list):
            return [one for at, item in enumerate(value) for one in into(item, rule, f"[{at}]")]
        case "minItems" | "minProperties":
            return fault(isinstance(value, list | dict) and len(value) < rule)
        case "maxItems" | "maxProperties":
            return fault(isinstance(value, list | dict) and len(value) > rule)
        case "minLength" | "maxLength":
            length = len(value) if isinstance(value, str) else None
            return fault(length is not None and (length < rule if keyword == "minLength" else length > rule))
        case "pattern":
            rule = re.sub(r"\$$", r"\\Z", rule)  # Python's $ also fits before a newline, JSON schema's does not
            return fault(isinstance(value, str) and re.search(rule, value) is None)
        case "minimum":
            return fault(number and not value >= rule)
        case "maximum":
            return fault(number and not value <= rule)
        case "exclusiveMinimum":
            return fault(number and not value > rule)
        case "properties" | "required" | "additionalProperties" | "patternProperties" | "items":
            return []  # the value is no object, or no array
    raise AssertionError(f"{path}: {keyword} is not known here")


def resolve(reference: str, document: Json) -> Json:
    """Returns the schema at a reference within the document. Raises KeyError if there is none."""
    found: Any = document
    assert reference.startswith("#/")
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return dict(found)
