"""Hostile forms as requests: those of tests/tokenizer/structured/hostile.py, which are hard to compile, and some whose
masks are hard to compute. Each is served, or refused within a second."""

from typing import Any

from services.rpc.generated import text_pb2
from tests.tokenizer.structured.hostile import hostile_forms

Json = dict[str, Any]

_OVERLAPPING = "\n".join(f"T{n}: /[a-z]*{chr(97 + n % 26)}[a-z]{{{n % 9}}}{n}/" for n in range(300))
GRAMMARS = {
    "ambiguous": "start: s\ns: s s | A\nA: /[abc]/",
    "very ambiguous": 'start: s\ns: s s | s s s | s s s s | "a" s | s "a" | A\nA: /[abc]/',
    "optional parts in a circle": 'start: s*\ns: "a"? "b"? t t t\nt: "a"? "c"? u u\nu: "a"? "b"? s?',
    "empty rules without end": "start: a\na: b*\nb: c*\nc: a*",
    "300 terminals that overlap": f"start: ({' | '.join(f'T{n}' for n in range(300))})*\n{_OVERLAPPING}",
    "special tokens": 'start: <|im_end|> <[2]> "x"',
}
REGEXES = {
    "states that double": "(a|b)*a(a|b){20}",
    "three that overlap": "(.*a.{10}|.*b.{11}|.*c.{9})*",
    "letters of every script": r"(\p{L}|\p{N}|\p{Lu}){1,300}[^\p{L}]*\p{L}{20}",
}
SCHEMAS: dict[str, Json] = {
    "a string of a million": {"type": "string", "minLength": 1_000_000, "maxLength": 1_000_000},
    "arrays of arrays": {"type": "array", "minItems": 900, "items": {"type": "array", "minItems": 900}},
    "5,000 alternatives": {"anyOf": [{"const": {"kind": number}} for number in range(5_000)]},
    "all of 500 patterns": {
        "allOf": [{"type": "string", "pattern": f"{chr(97 + n % 26)}.{{{n % 20}}}"} for n in range(500)]
    },
}


def forms() -> list[tuple[str, Json]]:
    """Returns (name, fields of the request's body). A schema is sent as text, because some are no JSON."""
    found = [(f"grammar: {name}", {"grammar": text}) for name, text in GRAMMARS.items()]
    found += [(f"regex: {name}", {"regex": text}) for name, text in REGEXES.items()]
    sent = [(name, {"structured_outputs": fields}) for name, fields in (*found, *map(_sent, hostile_forms()))]
    for name, schema in SCHEMAS.items():
        lenient = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}
        sent.append((f"schema: {name}", {"structured_outputs": {"json": schema}}))
        sent.append((f"lenient schema: {name}", {"response_format": lenient}))
    return sent


def _sent(form: tuple[str, text_pb2.StructuredOutput]) -> tuple[str, Json]:
    name, structured = form
    match structured.WhichOneof("form"):
        case "json_schema":
            return name, {"json": structured.json_schema.decode()}
        case "regex":
            return name, {"regex": structured.regex}
        case "choices":
            return name, {"choice": list(structured.choices.texts)}
        case "grammar":
            return name, {"grammar": structured.grammar}
        case _:
            return name, {"structural_tag": structured.structural_tag.decode()}
