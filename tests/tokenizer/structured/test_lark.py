import json

import pytest

from services.tokenizer.structured.lark import MAX_DEPTH, MAX_REPEAT
from tests.tokenizer.structured.answers import allows, form_refusal, grammar_of

# From vLLM's documentation, https://docs.vllm.ai/en/latest/features/structured_outputs.html, in Lark
SQL = """
?start: select_statement
?select_statement: "SELECT " column_list " FROM " table_name
?column_list: column_name ("," " "? column_name)*
?table_name: identifier
?column_name: identifier
?identifier: /[a-zA-Z_][a-zA-Z0-9_]*/
"""
CALCULATION = """
start: expr          // a comment
expr: term (("+" | "-") term)*
term: INT
    | "(" expr ")"   # another
%import common.INT
%import common.WS
%ignore WS
"""

# As guidance's client writes it.
SEPARATED = (
    'start: %json {"properties": {"a": {"items": {"type": "integer"}, "type": "array"}}, "required": ["a"],'
    ' "additionalProperties": false, "type": "object", "x-guidance": {"whitespace_flexible": false,'
    ' "whitespace_pattern": null, "item_separator": ", ", "key_separator": ": ", "lenient": false}}'
)

ACCEPTED: list[tuple[str, list[str], list[str]]] = [
    (SQL, ["SELECT a, b FROM t"], ["SELECT", "SELECT a; FROM t"]),
    (CALCULATION, ["1", "12 + (3 -4)"], ["1 +", "(1"]),
    ('start: "x=" j\nj: %json {"type": "object",\n"required": ["a"]}\n', ['x={"a": 1}'], ["x={}"]),
    ("start: x\nx[lazy]: /.*b/", ["aab"], ["aabb"]),
    (SEPARATED, ['{"a": [1, 2]}'], ['{"a":[1, 2]}', '{"a": [1,2]}', '{ "a": [1, 2]}']),
    ("start: x\nx[lazy, capture]: /.*b/", ["aab"], ["aabb"]),
    ('start: x\nx[capture="name"]: /a+/', ["aa"], ["b"]),
    ('%llguidance {}\n\nstart: sky\nsky[capture]: SKY\n\nSKY: "sunny"\n     | "rainy"\n\n', ["rainy"], ["cloudy"]),
    ('start: "ab"i', ["AB"], ["ac"]),
    ('start: "a".."c"', ["b"], ["d"]),
    ('start: ["a"] "b"\n  | "c"', ["ab", "b", "c"], ["a"]),
    (r'start: "\x78\u00e9\"}" "\\"', ['xé"}\\'], []),
    ("start: A B\nA: /a/\nB: /b/i", ["aB"], ["AB"]),
    ("start: /a\\/[b\\/]/", ["a//", "a/b"], []),
    ('start: A~2..3\nA: "a"', ["aa", "aaa"], ["a"]),
    ('start: "a"{2,3}', ["aa"], ["a"]),
    ('start: A\nA: /[a-z]+/ & ~"no"', ["yes"], ["no"]),
    ('start: %regex {"substring_words": "a b c"}', ["b c"], ["a c"]),
    ('%llguidance {}\nstart: "a" # }\n', ["a"], []),
    ('start: A\n\nA: (\n"a"\n|\n"b")\n', ["a", "b"], []),
]


@pytest.mark.parametrize(("grammar", "answers", "others"), ACCEPTED, ids=[case[0][:30] for case in ACCEPTED])
def test_a_grammar_means_what_it_says(grammar: str, answers: list[str], others: list[str]) -> None:
    written = grammar_of(grammar=grammar)
    assert [text for text in answers if not allows(written, text)] == []
    assert [text for text in others if allows(written, text)] == []


def test_its_json_has_the_requests_whitespace() -> None:
    grammar = 'start: %json {"type": "object"}'
    assert not allows(grammar_of(grammar=grammar, disable_any_whitespace=True), '{"a": 1}')
    assert not allows(grammar_of(grammar=grammar), '{"a":   1}')


REFUSED = [
    ("start: <|endoftext|>", "special tokens are not supported: <|endoftext|>"),
    ("start: <[0]>", "special tokens are not supported: <[0]>"),
    ("start: <[*]>", "special tokens"),
    ('start: "a" }\n\nevil: <[0]>', "special tokens"),
    ('start: "a" }\nevil: "b" {', "brackets do not match"),
    ('start: ("a"', "brackets do not match"),
    ("start: @other", "references to other grammars"),
    ('%lark {start: "a"}', "%lark is not supported"),
    ('%declare A\nstart: "a"', "%declare is not supported"),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "%llguidance is not supported"),
    ("start: x\nx[max_tokens=3]: /.*b/", 'the attribute "max_tokens" is not supported'),
    (
        'start: %json {"x-guidance": {"whitespace_flexible": false, "key_separator": "="}}',
        "x-guidance: '=' is no separator of JSON",
    ),
    ('start: x\nx[lazy="x"]: /.*b/', 'the attribute "=" is not supported'),
    ("start: x\nx[lazy, temperature=0.3]: /.*b/", 'the attribute "temperature" is not supported'),
    ('start: x\nx[stop="a"]: /.*b/', 'the attribute "stop" is not supported'),
    ('start: x::_\nx::_: "a"', '"::" is not supported'),
    ("start: 'a'", "line 1: \"'a'\" is no Lark"),
    ('start: "a"\nb: $', "line 2: '$' is no Lark"),
    ('start: "a', "is no Lark"),
    ("start: /a", "is no Lark"),
    (r'start: "\q"', r'the escape "\q" is not supported'),
    (r'start: "\ud800"', "is no character"),
    ("start: /(?=a)b/", "a look-ahead"),
    ("start: /a/x", 'the flag "x"'),
    (f'start: "a"{{1,{MAX_REPEAT + 1}}}', "a count is larger than"),
    ("start: " + "(" * (MAX_DEPTH + 1) + '"a"' + ")" * (MAX_DEPTH + 1), "nested over"),
    ("start: %json {", "after %json"),
    ('start: %json {"not": {"type": "null"}}', 'the keyword "not" is not supported'),
    ("start: %json " + '{"items": ' * 150 + "{}" + "}" * 150, "nested more than"),
    (
        "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)) + '\nT40: "a"',
        "a terminal has more than",
    ),
]


@pytest.mark.parametrize(("grammar", "message"), REFUSED, ids=[grammar[:30] for grammar, _ in REFUSED])
def test_what_is_not_supported_is_refused_by_name(grammar: str, message: str) -> None:
    assert message in form_refusal(grammar=grammar)


def test_strings_keep_what_looks_like_a_marker() -> None:
    marker = "<[0]> @x %lark { }"
    assert allows(grammar_of(grammar=f"start: {json.dumps(marker)}"), marker)
