"""Structured outputs that are hard to compile, or meant to be: each is compiled or refused within a second."""

import json
from collections.abc import Iterator
from typing import Any

from services.rpc.generated import text_pb2

NAMES = [f"p{number}" for number in range(5_000)]


def hostile_forms() -> Iterator[tuple[str, text_pb2.StructuredOutput]]:
    """Returns each with a name."""
    for name, schema in _schemas():
        text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
        yield f"schema: {name}", text_pb2.StructuredOutput(json_schema=text)
    for name, pattern in _patterns():
        yield f"regex: {name}", text_pb2.StructuredOutput(regex=pattern)
    for name, grammar in _grammars():
        yield f"grammar: {name}", text_pb2.StructuredOutput(grammar=grammar)
    for name, texts in _choices():
        yield f"choices: {name}", text_pb2.StructuredOutput(choices=text_pb2.TextChoices(texts=texts))
    for name, tag in _tags():
        yield f"tag: {name}", text_pb2.StructuredOutput(structural_tag=json.dumps(tag).encode(), strict=True)


def _nested(depth: int, key: str = "items") -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {key: schema} if key != "properties" else {"type": "object", "properties": {"a": schema}}
    return schema


def _schemas() -> Iterator[tuple[str, Any]]:
    yield "megabyte of blanks", b"{" + b" " * (2**20 - 2) + b"}"
    yield "more than a megabyte", b"{" + b" " * 2**20 + b"}"
    yield "megabyte of description", {"description": "x" * 1_000_000, "type": "string"}
    yield "megabyte of one constant", {"const": "x" * 1_000_000}
    yield "megabyte of brackets", b"[" * 2**20
    yield "megabyte of quotes", b'"' * 2**20
    yield "megabyte of backslashes", b'"' + b"\\" * (2**20 - 1)
    yield "megabyte of digits", b"1" * 2**20
    yield "huge numbers", {"type": "number", "minimum": 10**300, "maximum": 10**301, "multipleOf": 1e-300}
    yield "huge exponents", b'{"type": "number", "minimum": -1e308, "maximum": 1e308, "multipleOf": 1e99999}'
    yield "4,000 digits", b'{"const": ' + b"9" * 4_000 + b"}"
    yield "tiny numbers", {"type": "number", "exclusiveMinimum": 5e-324, "maximum": 1e-320}
    yield "multiples", {"type": "integer", "multipleOf": 9_973}
    yield (
        "multiples of multiples",
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (9_973, 9_967, 9_949, 9_941)]},
    )
    yield "two multiples", {"allOf": [{"type": "integer", "multipleOf": n} for n in (997, 991)]}
    yield "three small multiples", {"allOf": [{"type": "integer", "multipleOf": n} for n in (101, 103, 107)]}
    yield "huge counts", {"type": "array", "minItems": 10**6, "maxItems": 10**18, "items": {"minLength": 10**6}}
    yield (
        "nested counts",
        {"type": "array", "maxItems": 1_000, "items": {"maxItems": 1_000, "items": {"maxItems": 1_000}}},
    )
    yield "many exact counts", {"type": "array", "items": {"type": "array", "minItems": 999_999, "maxItems": 999_999}}
    yield "as deep as allowed", _nested(99)
    yield "too deep", _nested(101)
    yield "deep properties", _nested(49, "properties")
    yield "deep not", _nested(99, "not")
    yield "10,000 brackets deep", b'{"items":' * 10_000 + b"{}" + b"}" * 10_000
    yield "huge enum", {"enum": [f"value {number}" for number in range(50_000)]}
    yield "huge enum of numbers", {"enum": list(range(50_000))}
    yield "long enum texts", {"enum": [f"{number}" + "x" * 5_000 for number in range(150)]}
    yield (
        "2,000 required properties",
        {
            "type": "object",
            "properties": {name: {} for name in NAMES[:2_000]},
            "required": NAMES[:2_000],
        },
    )
    yield "5,000 optional properties", {"type": "object", "properties": {name: {} for name in NAMES}}
    yield (
        "5,000 closed properties",
        {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in NAMES},
            "additionalProperties": False,
        },
    )
    yield "many alternatives", {"anyOf": [{"type": "object", "required": [name]} for name in NAMES[:1_000]]}
    yield (
        "many tagged alternatives",
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}
                for name in NAMES[:500]
            ]
        },
    )
    yield "many untagged alternatives", {"oneOf": [{"type": "object", "required": [name]} for name in NAMES[:2_000]]}
    yield "products", {"allOf": [{"anyOf": [{"minimum": n}, {"maximum": -n}]} for n in range(30)]}
    yield (
        "products of objects",
        {"allOf": [{"anyOf": [{"properties": {f"{a}{b}": {"type": "null"}}} for a in "ab"]} for b in NAMES[:14]]},
    )
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    yield "references that double", {"$defs": {**doubling, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"}
    listed = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    yield "arrays that double", {"$defs": {**listed, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"}
    yield (
        "alternatives that double",
        {
            "$defs": {f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {}},
            "$ref": "#/$defs/d0",
        },
    )
    yield "itself", {"$ref": "#"}
    yield "a circle", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    yield "a circle of allOf", {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"minimum": 1}]}}, "$ref": "#/$defs/a"}
    yield "a circle of oneOf", {"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}] * 3}}, "$ref": "#/$defs/a"}
    yield "endless objects", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)}
    yield "a long chain of references", {"$defs": {**chain, "d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}
    lists = {f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(5_000)}
    yield "a long chain of arrays", {"$defs": {**lists, "d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}
    parts = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}], "minimum": n} for n in range(5_000)}
    yield "a long chain of allOf", {"$defs": {**parts, "d5000": {"type": "number"}}, "$ref": "#/$defs/d0"}
    yield "half a surrogate", b'{"enum": ["\\ud800"], "properties": {"\\udfff": {}}}'
    yield "unicode", {"properties": {"\u202e\u0000\uffff🎉": {"const": "\u2028\u0085\x7f"}}, "required": ["e\u0301"]}
    yield (
        "llguidance's own options",
        {"x-guidance": {"lenient": True, "whitespace_pattern": ".*"}, "not": {"type": "null"}},
    )
    yield "patterns of names", {"patternProperties": {f"^(a|b)*{letter}": {} for letter in "abcdefghijkl"}}
    several = [{"pattern": f"^(.*[a-m]){{{count}}}.*$"} for count in range(2, 40)]
    yield "patterns of one text", {"type": "string", "allOf": several}
    yield "patterns of one property", {"allOf": [{"type": "object", "properties": {"a": each}} for each in several]}
    yield (
        "patterns by references",
        {
            "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}", **several[n]} for n in range(30)} | {"d30": {}},
            "$ref": "#/$defs/d0",
        },
    )
    yield "many optional properties", {"type": "object", "properties": {name: {} for name in NAMES[:240]}}
    yield "determined text", {"type": "array", "minItems": 10**6, "items": {"const": "x" * 10_000}}
    yield "formats", {"type": "array", "prefixItems": [{"type": "string", "format": "uri", "maxLength": 500}] * 200}
    yield (
        "two formats",
        {"allOf": [{"type": "string", "format": name} for name in ("uri", "email", "ipv6", "date-time")]},
    )


def _patterns() -> Iterator[tuple[str, str]]:
    yield "nested stars", "(x+x+)+y"
    yield "stars of stars", "(" * 50 + "a" + "*)" * 50
    yield "counts of counts", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"
    yield "a subset construction", "(a|b)*a(a|b){200}"
    yield "two subset constructions", "((a|b)*a(a|b){100})((c|d)*c(c|d){100})"
    yield "letters", r"(\p{L}{1,200}){1,200}x"
    yield "many dots", ".*" * 200 + "="
    yield "a thousand dots", ".*" * 1_000 + "="
    yield "more dots", ".*" * 6_000 + "="
    yield "optional ones", "(a?){1000}a{1000}"
    yield "a million", "a{1000000}"
    yield "a hundred thousand", "(abc){100000}"
    yield "many groups", "(" * 5_000 + ")" * 5_000
    yield "unclosed groups", "(" * 20_000
    yield "unclosed classes", "[" * 20_000
    yield "many alternatives", "|".join(f"word{number}" for number in range(990))
    yield "many classes", "[a-z0-9]" * 2_400
    yield "unicode classes", r"[\w\W\d\D\s\S\p{L}\P{L}]{1,500}" * 10
    yield "any case", "(?i)" + "äöüßſK" * 500
    yield "as many quantifiers as allowed", "a?b*" * 500
    yield "look-ahead", "(?=a)" * 1_000
    yield (
        "emails",
        r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$",
    )
    yield "nothing", r"[^\s\S]"
    yield "control characters", "\x00\x1b[\x00-\x1f]"


def _grammars() -> Iterator[tuple[str, str]]:
    yield "lark brackets", "start: " + "(" * 60_000
    yield "lark recursion", "start: start start start | start start | start | " + '"a"'
    yield "lark doubling rules", "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(60)) + 'a60: "a"'
    yield (
        "lark doubling terminals",
        "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(60)) + 'A60: "a"',
    )
    yield (
        "lark terminals that nearly double",
        "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(14)) + "A14: /[a-z]+x/",
    )
    yield "lark intersections", "start: T\nT: " + " & ".join(f"/(.*[a-m]){{{n}}}.*/" for n in range(2, 20))
    yield "lark negations", "start: T\nT: " + "~(" * 90 + '"a"' + ")" * 90
    yield "lark counts", 'start: ((("a"{1,9999}){1,9999}){1,9999}){1,9999}'
    yield "lark counts of rules", 'start: b{1,9999}\nb: c{1,9999}\nc: d{1,9999}\nd: "a" | "b" start'
    yield (
        "lark many rules",
        "start: a0\n" + "\n".join(f'a{n}: "x" a{n + 1} | "y"' for n in range(990)) + '\na990: "z"',
    )
    yield "lark ignores everything", 'start: "a"\n%ignore /.*/'
    yield "lark substrings", "start: %regex " + json.dumps({"substring_chars": "ab" * 15_000})
    yield "lark markers", "start: <[0-1000]>"
    yield "ebnf brackets", "root ::= " + "(" * 60_000
    yield "ebnf recursion", "root ::= root root root | root root | root |"
    yield "ebnf stars", "root ::= " + "(" * 90 + '"a"' + ")*" * 90
    yield "ebnf doubling", "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1} a{n + 1}\n" for n in range(60)) + 'a60 ::= "a"'
    yield (
        "ebnf many rules",
        "root ::= a0\n" + "\n".join(f'a{n} ::= "x" a{n + 1} | "y"' for n in range(990)) + '\na990 ::= "z"',
    )
    yield "ebnf counts", 'root ::= ((("a"{1,9999}){1,9999}){1,9999}){1,9999}'
    yield "ebnf classes", "root ::= " + "[a-z]* " * 8_000


def _choices() -> Iterator[tuple[str, list[str]]]:
    yield "ten thousand", [f"choice {number}" for number in range(10_000)]
    yield "long ones", [f"{number:02}" + "x" * 4_000 for number in range(49)]
    yield "prefixes", ["a" * number for number in range(1, 600)]
    yield "too many", ["a"] * 10_001
    yield "unicode", ["\u202e\x00🎉", "e\u0301", "é", "\ufeff"]


def _tags() -> Iterator[tuple[str, Any]]:
    def structures(triggers: list[str]) -> Any:
        listed = [{"begin": trigger, "schema": {"type": "object"}, "end": "end"} for trigger in triggers]
        return {"structures": listed, "triggers": triggers}

    yield "a thousand triggers", structures([f"<{number:04}>" for number in range(1_000)])
    yield "fifty triggers", structures([f"<{number:04}>" for number in range(50)])
    yield "a long trigger", structures(["ab" * 500])
    yield "triggers that overlap", structures(["aab", "aba", "baa", "abb"])
    yield (
        "a thousand structures",
        {
            "structures": [{"begin": f"<{name}>", "schema": {"type": "object"}, "end": ""} for name in NAMES[:1_000]],
            "triggers": ["<"],
        },
    )
