"""Grammars in EBNF (GBNF), as vLLM and llama.cpp have it, written as Lark.

`root ::= …` is the start. Texts in quotes, classes of characters, `.`, brackets, `|`, `?`, `*`, `+`, `{m,n}` and
comments from `#`. A rule that is not recursive becomes a terminal: as a whole it means exactly what it says. Around
recursive rules llguidance is greedy: a terminal takes as many characters as it can.
https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

import json
import re
from dataclasses import dataclass, field

from services.rpc.errors import TandemError, invalid
from services.tokenizer.structured.lark import MAX_DEPTH, MAX_EXPANDED, MAX_QUANTIFIERS, MAX_REPEAT, MAX_RULES
from services.tokenizer.structured.literals import unquoted
from services.tokenizer.structured.regex import whole_regex

MAX_ALL_EXPANDED = 20_000  # parts of all terminals
DEFINES = re.compile(r"^[ \t]*[A-Za-z_][A-Za-z0-9_-]*[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<skip>\#[^\n]*|\s+)
    |(?P<rule>[A-Za-z_][A-Za-z0-9_-]*)(?=\s*::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    |(?P<defines>::=)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<class>\[(?:\\.|[^\]\\])+\])
    |(?P<any>\.)
    |(?P<count>\{\s*\d*\s*,?\s*\d*\s*\})
    |(?P<operator>[()|*+?])""",
    re.VERBOSE | re.ASCII,
)


@dataclass
class _Rule:
    name: str  # the client's
    tokens: list[tuple[str, str]] = field(default_factory=list)  # kind, text

    @property
    def references(self) -> set[str]:
        return {text for kind, text in self.tokens if kind == "name"}


def lark_of_ebnf(text: str, where: str) -> str:
    """Returns the grammar as Lark. Raises TandemError (INVALID_ARGUMENT)."""
    rules = _rules(text, where)
    if len(rules) > MAX_RULES:
        raise invalid(f"{where}: there are more than {MAX_RULES} rules", where)
    repeats = sum(kind == "count" or text in ("*", "+", "?") for rule in rules.values() for kind, text in rule.tokens)
    if repeats > MAX_QUANTIFIERS:
        raise invalid(f"{where}: there are more than {MAX_QUANTIFIERS} quantifiers", where)
    if "root" not in rules:
        raise invalid(f'{where}: the EBNF grammar has no rule "root"', where)
    for rule in rules.values():
        if missing := rule.references - rules.keys():
            raise invalid(f'{where}: the rule "{min(missing)[:50]}" is not defined', where)
    terminals = _terminals(rules)
    names = {name: f"{'T' if name in terminals else 't'}{index}" for index, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[rule.name]}: {_body(rule, names, where)}" for rule in rules.values()]
    return "\n".join(lines)


def _rules(text: str, where: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    rule: _Rule | None = None
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match.lastgroup not in ("skip", "rule") and rule is None):
            line = text.count("\n", 0, position) + 1
            raise invalid(f"{where}: line {line}: {text[position : position + 20]!r} is no EBNF", where)
        position = match.end()
        kind = str(match.lastgroup)
        if kind == "rule":
            if match[0] in rules:
                raise invalid(f'{where}: the rule "{match[0][:50]}" is defined twice', where)
            rule = rules[match[0]] = _Rule(match[0])
        elif kind not in ("skip", "defines") and rule is not None:
            rule.tokens.append((kind, match[0]))
    return rules


def _terminals(rules: dict[str, _Rule]) -> set[str]:
    """Returns the names of the rules that are regular and small: nothing that they reach is recursive."""
    sizes: dict[str, int] = {}
    changed = True
    while changed:  # each round finds at least one more
        changed = False
        for rule in rules.values():
            if rule.name not in sizes and all(name in sizes for name in rule.references):
                size = sum(sizes[text] if kind == "name" else 1 for kind, text in rule.tokens) + 1
                if size <= MAX_EXPANDED and size + sum(sizes.values()) <= MAX_ALL_EXPANDED:
                    sizes[rule.name] = size
                    changed = True
    return set(sizes)


def _body(rule: _Rule, names: dict[str, str], where: str) -> str:
    """Returns a rule's expression, with brackets around it. An alternative may be empty."""
    parts: list[str] = []
    depth = 0
    expects = True  # a part, before an operator could repeat it
    for kind, text in rule.tokens:
        depth += (text == "(" and kind == "operator") - (text == ")" and kind == "operator")
        if depth < 0 or depth > MAX_DEPTH:
            raise _error(rule, "brackets do not match" if depth < 0 else "brackets are nested too deep", where)
        repeats = kind == "count" or (kind == "operator" and text in "*+?")
        if repeats and expects:
            raise _error(rule, f'"{text}" has nothing to repeat', where)
        if kind == "operator" and text in "|)" and expects:
            parts.append('""')
        parts.append(_part(rule, kind, text, names, where))
        expects = kind == "operator" and text in "(|"
    if depth:
        raise _error(rule, "brackets do not match", where)
    if expects:
        parts.append('""')
    return " ".join(parts)


def _part(rule: _Rule, kind: str, text: str, names: dict[str, str], where: str) -> str:
    match kind:
        case "name":
            return names[text]
        case "text":
            return json.dumps(unquoted(text[1:-1], where))
        case "class":
            return f"/{whole_regex(text, where)}/"
        case "any":
            return "/./"
        case "count":
            low, comma, high = re.fullmatch(r"\{(\d*)(,?)(\d*)\}", re.sub(r"\s", "", text)).groups()  # type: ignore[union-attr]
            if not low and not high:
                raise _error(rule, f'"{text}" has no number', where)
            if max(int(low or 0), int(high or 0)) > MAX_REPEAT:
                raise _error(rule, f"a count is larger than {MAX_REPEAT}", where)
            return f"{{{low or 0}{comma}{high}}}"
    return text


def _error(rule: _Rule, message: str, where: str) -> TandemError:
    return invalid(f'{where}: the rule "{rule.name[:50]}": {message}', where)
