import pytest

from services.tokenizer.structured.lark import MAX_REPEAT
from tests.tokenizer.structured.answers import allows, form_refusal, grammar_of

# From vLLM's documentation, https://docs.vllm.ai/en/latest/features/structured_outputs.html
SQL = """
    root ::= select_statement

    select_statement ::= "SELECT " column " from " table " where " condition

    column ::= "col_1 " | "col_2 "

    table ::= "table_1 " | "table_2 "

    condition ::= column "= " number

    number ::= "1 " | "2 "
"""
# As llama.cpp's grammars/json.gbnf has it
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
"""

ACCEPTED: list[tuple[str, list[str], list[str]]] = [
    (SQL, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT", "SELECT col_3  from table_2  where col_2 = 1 "]),
    (JSON, ['{"a": [1, 2.5e3, "x\\n", {}], "b": null}', "{}"], ['{"a"}', "[1]"]),
    ('root ::= "(" root ")" | "a"', ["((a))", "a"], ["((a)"]),
    ('root ::= expr\nexpr ::= term ("+" term)*\nterm ::= num ("*" num)*\nnum ::= [0-9]+', ["1+22*3"], ["1+"]),
    ("root ::= 'a'+ \"b\"", ["aab"], ["b"]),
    ('root ::= "a" |', ["", "a"], ["b"]),
    ('root ::= ( | "a") "b"', ["b", "ab"], ["a"]),
    ("root ::= ", [""], ["a"]),
    ('root ::= "a"{1,3} "b"{2} "c"{ 1, }', ["aabbc", "abbccc"], ["abc"]),
    (r"root ::= [^a-c\]] [à-ü\u00e9]", ["dà"], ["aà", "]à"]),
    ("root ::= . .", ["ab"], ["a\n"]),
    (r'root ::= "\x41\u00e9\n\"#" # "not this"', ['Aé\n"#'], []),
    ('root ::= A-b a_B\nA-b ::= "x"\na_B ::= "y"', ["xy"], []),
]


@pytest.mark.parametrize(("grammar", "answers", "others"), ACCEPTED, ids=[case[0][:30] for case in ACCEPTED])
def test_a_grammar_means_what_it_says(grammar: str, answers: list[str], others: list[str]) -> None:
    written = grammar_of(grammar=grammar)
    assert [text for text in answers if not allows(written, text)] == []
    assert [text for text in others if allows(written, text)] == []


REFUSED = [
    ('start ::= "a"', 'no rule "root"'),
    ("root ::= other", 'the rule "other" is not defined'),
    ('root ::= "a"\nroot ::= "b"', 'the rule "root" is defined twice'),
    ('root ::= ("a"', "brackets do not match"),
    ('root ::= "a")', "brackets do not match"),
    ('root ::= "a" | *', '"*" has nothing to repeat'),
    ('root ::= {2} "a"', '"{2}" has nothing to repeat'),
    ('root ::= "a"{,}', "has no number"),
    (f'root ::= "a"{{{MAX_REPEAT + 1}}}', "a count is larger than"),
    ("root ::= <|endoftext|>", "line 1: '<|endoftext|>' is no EBNF"),
    ('"a"\nroot ::= "b"', "line 1:"),
    ("root ::= [b-a]", "ends before it starts"),
    (r'root ::= "\q"', r'the escape "\q" is not supported'),
    ("root ::= " + "(" * 200 + ")" * 200, "nested too deep"),
]


@pytest.mark.parametrize(("grammar", "message"), REFUSED, ids=[grammar[:30] for grammar, _ in REFUSED])
def test_what_is_not_ebnf_is_refused(grammar: str, message: str) -> None:
    assert message in form_refusal(grammar=grammar)


def test_rules_that_double_again_and_again_stay_small() -> None:
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
    assert len(grammar_of(grammar=f'root ::= r0\n{rules}\nr40 ::= "a"')) < 2_000
