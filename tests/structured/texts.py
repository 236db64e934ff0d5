"""Regular expressions, choices and grammars that answers follow. Data only.

Grammars: vLLM's examples (docs/features/structured_outputs.md, tests/conftest.py of vLLM), each with a regular
expression for the same texts; the others are ours.
"""

# Bounded: a random model comes to their end.
REGEXES = (
    r"(yes|no)", r"[0-9]{3}-[0-9]{4}", r"\d{4}-\d{2}-\d{2}", r"[A-Z][a-z]{2,10} [A-Z][a-z]{2,10}", r"(foo|bar){1,3}",
    r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)", r"#[0-9a-fA-F]{6}", r"a?b?c?d?e?",
    r"[^\n\"]{0,20}", r"\w{1,20}", r"(?:[a-z]{1,5}, ){2}[a-z]{1,5}", r"-?(0|[1-9]\d{0,5})(\.\d{1,3})?", r".{5}",
    r"\[(\d{1,2}(,\d{1,2}){0,3})?\]", r"\{\"a\": (true|false|null)\}", r"[\u0400-\u04ff]{1,8}", r"[ä-ü]{1,8}",
    r"(?i)hello( world)?", r"\x41\x42?", r"\(\)\[\]\{\}\.\*\+\?\\\|\^\$", r"[\]\-^]{1,3}", r"\t?\n\r?", r"🙂{1,3}",
    r"(a{1,3}|b{2}){1,2}", r"(?P<year>\d{4})/(?P<month>0[1-9]|1[0-2])", r"^anchored$",
    r"(a(b(c(d(e)?)?)?)?)?f", r"\S{3}\s\S{3}", r"[a-z0-9._]{1,12}@[a-z]{1,8}\.(com|org)", r"\D\W",
)  # fmt: skip
# Without a maximum: an answer may stop at max_tokens.
UNBOUNDED_REGEXES = (
    r"\w+@\w+\.com\n", r"[a-z]+", r"(\d+,)*\d+", r".*", r"[\s\S]*END", r"(ab|ba)+", r"([A-Z][a-z]* )+\.", r"a+b+c+",
    r"https?://[a-z0-9.-]+(/[a-z0-9._-]*)*", r"(?s).+\n.+",
)  # fmt: skip

CHOICES = (
    ("Positive", "Negative"), ("yes", "no", "maybe"), ("a", "aa", "aaa"), (" leading", "trailing "), ("one",),
    ("C:\\path", "/a/b", "\"quoted\"", "'single'"), ("東京", "Москва", "Zürich", "🙂🙃"), ("line\nbreak", "tab\there"),
    ("<|im_end|>", "<think>"), tuple(str(number) for number in range(300)), ("{", "}", "[", "]", "(", ")", "|", "/"),
    ("a|b", "a.b", "a*b", "$", "^"), ("x" * 300, "x" * 299), ("é" * 4096, "é"), ("\u00e9", "e\u0301"),
)  # fmt: skip

SQL = """
root ::= select_statement

select_statement ::= "SELECT " column " from " table " where " condition

column ::= "col_1 " | "col_2 "

table ::= "table_1 " | "table_2 "

condition ::= column "= " number

number ::= "1 " | "2 "
"""
SQL_LARK = """
start: select_statement
select_statement: "SELECT" column "from" table "where" condition
column: "col_1" | "col_2"
table: "table_1" | "table_2"
condition: column "=" number
number: "1" | "2"
"""
NAMES = """
root ::= greeting " " name "!"
greeting ::= "Hello" |
  "Hi"
name ::= ([A-Z] [a-z]{2,5})
"""
# A grammar, the regular expression of its texts, and whether it is bounded.
GRAMMARS: tuple[tuple[str, str, bool], ...] = (
    (SQL, r"SELECT col_[12]  from table_[12]  where col_[12] = [12] ", True),
    (SQL_LARK, r"SELECTcol_[12]fromtable_[12]wherecol_[12]=[12]", True),
    ('root ::= "a" | "b" rest\nrest ::= [0-9]{1,3} | "c"', r"a|b([0-9]{1,3}|c)", True),
    ('root ::= item ("," item)*  # a list\nitem ::= [a-z]+', r"[a-z]+(,[a-z]+)*", False),
    ('root ::= "say \\"" [^"\\n]{0,9} "\\""\n', r'say "[^"\n]{0,9}"', True),
    (NAMES, r"(Hello|Hi) [A-Z][a-z]{2,5}!", True),
    ('start: NAME ("=" VALUE)?\nNAME: /[a-z]{1,8}/\nVALUE: /[0-9]{1,4}/', r"[a-z]{1,8}(=[0-9]{1,4})?", True),
    ('start: pair ~ 2..3\npair: "(" /[xyz]/ ")"', r"(\([xyz]\)){2,3}", True),
)  # fmt: skip
# Grammars that count brackets, which no regular expression does; is_balanced knows their texts.
BALANCED = (
    'root ::= "(" root ")" | "x"',
    'start: e\ne: "(" e ")" | "x"',
)


def is_balanced(text: str) -> bool:
    """Returns whether the text is an x in brackets."""
    depth = text.count("(")
    return text == "(" * depth + "x" + ")" * depth
