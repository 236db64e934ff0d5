"""Regular expressions of clients (Python's and JavaScript's form) in the form that llguidance compiles (Rust's).

A text that the result matches, matches the client's expression in Python and in JavaScript: `\\d`, `\\w` and `\\s`
stand for ASCII only, and `\\D`, `\\W` and `\\S` exclude what either excludes. Not there: looking around,
backreferences, word boundaries, possessive quantifiers, `^` and `$` in the middle.
"""

import re
from dataclasses import dataclass, field

from services.rpc.errors import TandemError, invalid
from services.rpc.output_limits import MAX_REGEX_CHARACTERS

MAX_DEPTH = 100  # of brackets
MAX_COUNT = 100_000  # in {m,n}
MAX_QUANTIFIERS = 1_000

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\x0b"}  # in a class that does not exclude
# What any dialect counts as one. In a schema's pattern, llguidance takes \d and \w for ASCII, so neither stands here.
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{Alphabetic}\p{M}\p{N}\p{Pc}\x{200c}\x{200d}",
    "s": r"\s\x1c-\x1f\x{feff}",
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|u\{([0-9a-fA-F]{1,6})\}")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-3][0-7]{2}")
_PROPERTY = re.compile(r"[pP](?:[LMNPSZC]|\{\^?[A-Za-z_ =-]{1,60}\})")
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\(\?(?::|P?<([A-Za-z_][A-Za-z_0-9]*)>|([a-zA-Z]*)(?:-([a-zA-Z]+))?:)")
_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_REFUSED = {
    "(?=": "a look-ahead",
    "(?!": "a look-ahead",
    "(?<=": "a look-behind",
    "(?<!": "a look-behind",
    "(?P=": "a backreference",
    "(?>": "an atomic group",
    "(?(": "a condition",
    "(?|": "a branch reset",
    "(?R": "a recursion",
}


@dataclass
class _Group:
    prefix: str = "(?:"
    alternatives: list[list["str | _Group"]] = field(default_factory=lambda: [[]])
    quantifier: str = ""


def whole_regex(pattern: str, where: str) -> str:
    """Returns an expression of Rust for texts that the pattern matches from their start to their end.

    It has no "/" and no line break. Raises TandemError (INVALID_ARGUMENT) that names the client's field `where`.
    """
    return _Reader(pattern, where, where).read(search=False)


def search_regex(pattern: str, where: str, path: str = "") -> str:
    """Returns an expression of Rust for texts in which the pattern matches somewhere, as JSON Schema has it.

    `path` is the pattern's in the schema of the field `where`.
    """
    return _Reader(pattern, where, f"{where}: {path}" if path else where).read(search=True)


class _Reader:
    def __init__(self, pattern: str, where: str, label: str) -> None:
        self._text = pattern
        self._where = where
        self._label = label
        self._position = 0
        self._num_quantifiers = 0

    def read(self, search: bool) -> str:
        if len(self._text) > MAX_REGEX_CHARACTERS:
            raise self._error(f"the regular expression is longer than {MAX_REGEX_CHARACTERS} characters", place=False)
        flags = ""
        if match := _FLAGS.match(self._text):
            flags = self._flags(match[1])
            self._position = match.end()
        root = self._alternatives(0)
        if self._position < len(self._text):
            raise self._error('")" has no "("')
        text = "|".join(self._sequence(items, True, True, search) for items in root.alternatives)
        return f"(?{flags}:{text})" if flags else text

    def _error(self, message: str, place: bool = True) -> TandemError:
        at = f" at character {self._position + 1}" if place else ""
        return invalid(f"{self._label}: {message}{at}", self._where)

    def _flags(self, names: str) -> str:
        if refused := set(names) - set("isau"):
            raise self._error(f'the flag "{min(refused)}" is not supported')
        return "".join(sorted(set(names) & set("is")))

    def _alternatives(self, depth: int) -> _Group:
        """Reads up to the end or the bracket that closes; leaves it."""
        if depth > MAX_DEPTH:
            raise self._error(f"brackets are nested more than {MAX_DEPTH} deep")
        group = _Group()
        text = self._text
        while self._position < len(text) and text[self._position] != ")":
            if text[self._position] == "|":
                self._position += 1
                group.alternatives.append([])
            elif match := _COMMENT.match(text, self._position):
                self._position = match.end()
            else:
                group.alternatives[-1].append(self._item(depth))
        return group

    def _item(self, depth: int) -> "str | _Group":
        char = self._text[self._position]
        if char in "^$" or self._text.startswith((r"\A", r"\Z", r"\z"), self._position):
            self._position += 1 if char in "^$" else 2
            if self._quantifier():
                raise self._error("a quantifier has nothing to repeat")
            return "^" if char == "^" or self._text[self._position - 1] == "A" else "$"
        if char == "(":
            group = self._group(depth)
            group.quantifier = self._quantifier()
            return group
        if char in "*+?" or (char == "{" and self._count()):
            raise self._error("a quantifier has nothing to repeat")
        return self._atom(char) + self._quantifier()

    def _group(self, depth: int) -> _Group:
        text = self._text
        prefix = "(?:"
        if text.startswith("(?", self._position):
            for start, name in _REFUSED.items():
                if text.startswith(start, self._position):
                    raise self._error(f"{name} is not supported")
            match = _GROUP.match(text, self._position)
            if match is None:
                raise self._error("this kind of group is not supported")
            if match[2] or match[3]:
                off = self._flags(match[3] or "")
                prefix = "(?" + self._flags(match[2]) + (f"-{off}" if off else "") + ":"
            self._position = match.end()
        else:
            self._position += 1
        group = self._alternatives(depth + 1)
        if not text.startswith(")", self._position):
            raise self._error('")" is missing')
        self._position += 1
        group.prefix = prefix
        return group

    def _count(self) -> "re.Match[str] | None":
        """Returns the {m,n} here; {} is text."""
        match = _COUNT.match(self._text, self._position)
        return match if match and match[0] != "{}" else None

    def _quantifier(self) -> str:
        """Reads a quantifier, if there is one. A lazy one matches the same texts."""
        char = self._text[self._position : self._position + 1]
        if char and char in "*+?":
            self._position += 1
            quantifier = char
        elif char == "{" and (match := self._count()):
            low, high = int(match[1] or 0), int(match[3]) if match[3] else None
            if max(low, high or 0) > MAX_COUNT:
                raise self._error(f"a count is larger than {MAX_COUNT}")
            if high is not None and high < low:
                raise self._error("a count's maximum is less than its minimum")
            self._position = match.end()
            quantifier = f"{{{low}}}" if not match[2] else f"{{{low},{'' if high is None else high}}}"
        else:
            return ""
        self._num_quantifiers += 1
        if self._num_quantifiers > MAX_QUANTIFIERS:
            raise self._error(f"there are more than {MAX_QUANTIFIERS} quantifiers")
        if self._text.startswith("?", self._position):
            self._position += 1
        elif self._text.startswith(("*", "+"), self._position):
            raise self._error("a quantifier after a quantifier is not supported")
        return quantifier

    def _atom(self, char: str) -> str:
        if char == "[":
            return self._class()
        self._position += 1
        if char == ".":
            return "."
        if char != "\\":
            return _literal(char)
        name = self._text[self._position : self._position + 1]
        if name.lower() in _CLASSES and name:
            self._position += 1
            return f"[{_CLASSES[name]}]" if name in _CLASSES else f"[^{_WIDE[name.lower()]}]"
        if match := _PROPERTY.match(self._text, self._position):
            self._position = match.end()
            return f"\\{match[0]}"
        return _literal(self._escaped())

    def _escaped(self) -> str:
        """Reads what follows a backslash; returns the character that it stands for."""
        text, start = self._text, self._position
        name = text[start : start + 1]
        if not name:
            raise self._error("a backslash ends the expression")
        if match := _HEX.match(text, start):
            code = int(next(group for group in match.groups() if group), 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise self._error("this is no character")
            self._position = match.end()
            return chr(code)
        if match := _OCTAL.match(text, start):
            self._position = match.end()
            return chr(int(match[0], 8))
        if name.isdigit() or name in "kg":
            raise self._error("a backreference is not supported")
        if name in "bB":
            raise self._error("a word boundary is not supported")
        if name not in _CONTROLS and name.isascii() and name.isalpha():
            raise self._error(f'the escape "\\{name}" is not supported')
        self._position += 1
        return _CONTROLS.get(name, name)

    def _class(self) -> str:
        self._position += 1
        excludes = self._text.startswith("^", self._position)
        self._position += excludes
        parts: list[str] = []
        first = True
        while first or not self._text.startswith("]", self._position):
            if self._position >= len(self._text):
                raise self._error('"]" is missing')
            parts.append(self._class_item(excludes))
            first = False
        self._position += 1
        return f"[{'^' * excludes}{''.join(parts)}]"

    def _class_item(self, excludes: bool) -> str:
        low = self._class_character(excludes)
        text = self._text
        if len(low) != 1 or not text.startswith("-", self._position) or text.startswith("-]", self._position):
            return low if len(low) != 1 else _literal(low)
        self._position += 1
        if self._position >= len(text):
            raise self._error('"]" is missing')
        high = self._class_character(excludes)
        if len(high) != 1:
            raise self._error("a range ends in a class of characters")
        if high < low:
            raise self._error("a range ends before it starts")
        return f"{_literal(low)}-{_literal(high)}"

    def _class_character(self, excludes: bool) -> str:
        """Returns one character, or what a class of characters stands for, which is longer."""
        char = self._text[self._position]
        self._position += 1
        if char != "\\":
            return char
        name = self._text[self._position : self._position + 1]
        if name == "b":
            self._position += 1
            return "\b"
        if name and name.lower() in _CLASSES:
            self._position += 1
            inner = (_WIDE if excludes == (name in _CLASSES) else _CLASSES)[name.lower()]
            return inner if name in _CLASSES else f"[^{inner}]"
        if match := _PROPERTY.match(self._text, self._position):
            self._position = match.end()
            return f"\\{match[0]}"
        return self._escaped()

    def _sequence(self, items: list["str | _Group"], starts: bool, ends: bool, search: bool) -> str:
        """Returns the items' expression. `starts`, `ends`: whether nothing else is before them, or after them."""
        first = next((index for index, item in enumerate(items) if item != "^"), len(items))
        last = next((index for index in range(len(items), first, -1) if items[index - 1] != "$"), first)
        before, after = items[:first], items[last:]
        middle = items[first:last]
        if (before and not starts) or (after and not ends) or "^" in middle or "$" in middle:
            raise self._error('"^" and "$" are only supported at the start and the end', place=False)
        texts = [
            item
            if isinstance(item, str)
            else self._written(item, starts and index == 0, ends and index == len(middle) - 1, search)
            for index, item in enumerate(middle)
        ]
        return ("^" if before and search else "") + "".join(texts) + ("$" if after and search else "")

    def _written(self, group: _Group, starts: bool, ends: bool, search: bool) -> str:
        whole = not group.quantifier
        texts = (self._sequence(items, starts and whole, ends and whole, search) for items in group.alternatives)
        return f"{group.prefix}{'|'.join(texts)}){group.quantifier}"


def _literal(char: str) -> str:
    """Returns one character as Rust's expression, in a class or out of it, without "/" and line breaks."""
    return char if (char.isalnum() and char.isascii()) or char in " _" else f"\\x{{{ord(char):x}}}"
