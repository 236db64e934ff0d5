r"""Reads the few regular expressions that response templates are made of: texts, gaps and named groups in a row.

Known: plain and escaped characters, \s*, \s+ and optional line breaks as a gap, .*? and [^x]* as anything, (?P<name>…)
with one repetition at most: a search with several may take time without end, on a text that the model chooses.
"""

import re
from dataclasses import dataclass


class Untranslatable(Exception):
    """A response template, or a part of it, has no table. The message says what is not known."""


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Gap:
    """Whitespace, or none."""


@dataclass(frozen=True)
class Anything:
    """Any text."""


@dataclass(frozen=True)
class Group:
    """A named group; `pattern`: the regular expression in it."""

    name: str
    pattern: str


Element = Text | Gap | Anything | Group
_ELEMENT = re.compile(
    r"""(?P<gap>\\s[*+?]\??|(?:\\n|\n|\x20)[*?]\??)
    |(?P<any>(?:\.|\[\^[^\]\\]+\])[*+]\??)
    |\(\?P<(?P<group>\w+)>(?P<inside>(?:[^()\\]|\\.)+)\)
    |(?P<text>\\n|\\t|\\[^\w\s]|[^\\.^$*+?{}\[\]|()])(?![*+?{])
    """,
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # escaped, or one of several
_REPETITION = re.compile(r"[*+?{]\??")
_ESCAPES = {r"\n": "\n", r"\t": "\t"}


def elements_of(pattern: str) -> list[Element]:
    """Returns the elements of a regular expression; neighbouring characters are one text. Raises Untranslatable."""
    found: list[Element] = []
    at = 0
    while at < len(pattern):
        match = _ELEMENT.match(pattern, at)
        if match is None:
            raise Untranslatable(f"the regular expression {pattern!r} is none of those that are understood")
        at = match.end()
        if match["text"]:
            before = found.pop().text if found and isinstance(found[-1], Text) else ""  # type: ignore[union-attr]
            found.append(Text(before + _ESCAPES.get(match["text"], match["text"].removeprefix("\\") or "\\")))
        elif match["gap"]:
            found.append(Gap())
        elif match["any"]:
            found.append(Anything())
        else:
            found.append(_group(match["group"], match["inside"]))
    return found


def _group(name: str, pattern: str) -> Group:
    if len(_REPETITION.findall(_CHARACTER.sub("", pattern))) > 1:
        raise Untranslatable(f"the group {name!r} repeats more than one thing: {pattern!r}")
    return Group(name, pattern)
