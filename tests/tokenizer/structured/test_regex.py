import re

import pytest
import regex

from services.rpc.errors import TandemError
from services.rpc.output_limits import MAX_REGEX_CHARACTERS
from services.tokenizer.structured.regex import MAX_COUNT, MAX_DEPTH, search_regex, whole_regex
from tests.tokenizer.structured.answers import allows

# pattern, texts that match as a whole, texts that do not
WHOLE = [
    ("^ab$", ["ab"], ["abc", "xab"]),
    (r"\Aab\Z", ["ab"], ["ab\n"]),
    ("^a|b$", ["a", "b"], ["ab"]),
    ("(^a|b)c$", ["ac", "bc"], ["c"]),
    ("(a$|b$)", ["a", "b"], ["a$"]),
    (r"\d{3}-\d{4}", ["555-1234"], ["555-123", "٣٣٣-1234"]),
    (r"[\w.]+@[\w.]+\.com", ["a.b@c.com"], ["a@b.cm", "é@b.com"]),
    (r"[^\d\s]+", ["aé"], ["a1", "a b", "٣"]),
    (r"[^\W\d]", ["a", "_"], ["1", "-"]),
    (r"\W", ["-"], ["a", "é", "²"]),
    (r"\S+", ["aé"], ["a b", "\x1c"]),
    (r"\D", ["a"], ["1", "٣"]),
    ("(?i)abc", ["ABC"], ["abd"]),
    ("(?i:a)b", ["Ab"], ["AB"]),
    ("(?s).", ["\n"], ["ab"]),
    (".", ["a", "é"], ["\n", ""]),
    ("a+?b*?", ["aab", "a"], ["b"]),
    ("a{2}", ["aa"], ["a", "aaa"]),
    ("a{2,}", ["aa", "aaaa"], ["a"]),
    ("a{,3}", ["", "aaa"], ["aaaa"]),
    ("a{,}", ["", "aaaa"], ["b"]),
    ("a{}", ["a{}"], ["a"]),
    (r'{"a": \d+}', ['{"a": 12}'], ["a"]),
    ("[]a]+", ["]a"], ["b"]),
    ("[^]]", ["a"], ["]"]),
    ("[[&&--~~]+", ["&[~"], ["a"]),
    ("[a-c-]+", ["a-c"], ["d"]),
    ("[+-.]", [",", "-"], ["/"]),
    (r"[\b]", ["\b"], ["b"]),
    ("é+[à-ü]", ["éà"], ["ea"]),
    ("a/b", ["a/b"], []),
    (r"a\/b", ["a/b"], []),
    ("a\nb", ["a\nb"], ["ab"]),
    (r"(?P<year>\d{4})-(?<month>\d\d)", ["2020-10"], ["2020"]),
    (r"\u00e9\x41\101\t", ["éAA\t"], []),
    (r"\p{Lu}[\p{Ll}]", ["Ab"], ["AB"]),
    ("a(?#a comment)b", ["ab"], []),
    ("a|", ["a", ""], ["b"]),
    ("()", [""], ["a"]),
]


@pytest.mark.parametrize(("pattern", "matches", "others"), WHOLE, ids=[pattern for pattern, _, _ in WHOLE])
def test_a_whole_answer_matches(pattern: str, matches: list[str], others: list[str]) -> None:
    grammar = f"start: /{whole_regex(pattern, 'regex')}/"
    assert [text for text in matches if not allows(grammar, text)] == []
    assert [text for text in others if allows(grammar, text)] == []


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python's re will have sets in sets
@pytest.mark.parametrize(("pattern", "matches", "others"), WHOLE, ids=[pattern for pattern, _, _ in WHOLE])
def test_the_cases_say_what_python_says(pattern: str, matches: list[str], others: list[str]) -> None:
    python = regex if "(?<m" in pattern or r"\p" in pattern else re  # what re has no form for
    narrower = {"٣٣٣-1234", "é@b.com"}  # the result is ASCII only
    assert all(python.fullmatch(pattern, text) for text in matches)
    assert not any(python.fullmatch(pattern, text) for text in others if text not in narrower)


REFUSED = [
    ("a^b", "at the start and the end"),
    ("a$b", "at the start and the end"),
    ("(^)*a", "at the start and the end"),
    ("(?=a)b", "a look-ahead is not supported at character 1"),
    ("x(?!a)", "a look-ahead is not supported at character 2"),
    ("(?<=a)b", "a look-behind"),
    ("(?<!a)b", "a look-behind"),
    (r"(a)\1", "a backreference is not supported at character 5"),
    ("(?P<a>b)(?P=a)", "a backreference"),
    (r"\bfoo", "a word boundary"),
    ("(?>a)", "an atomic group"),
    ("(?(1)a)", "a condition"),
    ("(?|a)", "a branch reset"),
    ("(?&a)", "this kind of group"),
    ("(?x)a b", 'the flag "x"'),
    ("(?m)^a", 'the flag "m"'),
    ("a++", "a quantifier after a quantifier"),
    ("a**", "a quantifier after a quantifier"),
    ("*a", "nothing to repeat"),
    ("a|{2}", "nothing to repeat"),
    ("^*", "nothing to repeat"),
    ("a{2,1}", "maximum is less than its minimum"),
    (f"a{{{MAX_COUNT + 1}}}", "a count is larger than"),
    ("[", '"]" is missing'),
    ("[a-", '"]" is missing'),
    ("[b-a]", "ends before it starts"),
    (r"[a-\d]", "ends in a class"),
    ("(", '")" is missing'),
    (")", '")" has no "("'),
    ("a\\", "a backslash ends"),
    (r"\ud800", "no character"),
    (r"\y", r'the escape "\y" is not supported'),
    ("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
    ("a" * (MAX_REGEX_CHARACTERS + 1), "longer than"),
]


@pytest.mark.parametrize(("pattern", "message"), REFUSED, ids=[pattern[:20] for pattern, _ in REFUSED])
def test_what_is_not_supported_is_refused_by_name(pattern: str, message: str) -> None:
    with pytest.raises(TandemError, match=re.escape(message)) as caught:
        whole_regex(pattern, "regex")
    assert caught.value.param == "regex"


def test_a_search_keeps_its_anchors() -> None:
    assert search_regex("^a|b$", "f") == "^a|b$"
    assert search_regex("(^a|b)c", "f") == "(?:^a|b)c"


def test_the_result_has_no_slash_and_no_line_break() -> None:
    written = whole_regex("/\n[/\n]", "f")
    assert "/" not in written
    assert "\n" not in written
