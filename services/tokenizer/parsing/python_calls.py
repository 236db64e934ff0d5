r"""Reads a Python list of calls, [f(a=1, b="x"), g()], and writes the arguments as JSON while they come.

Literals: strings, numbers, True, False, None (also as JSON writes them), lists, tuples and dictionaries. Nothing is
evaluated. https://docs.python.org/3/reference/lexical_analysis.html#string-and-bytes-literals
"""

import json
import re
import unicodedata
from collections.abc import Callable

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.json_scanner import MAX_DEPTH
from services.tokenizer.parsing.json_text import escaped

_NOT_SPACE = re.compile(r"\S")
_WORD_END = re.compile(r"[^\w.\-]")  # a tool's name may have hyphens, which no name of Python has
_ATOM_END = re.compile(r"[^\w.+\-]")
_STRING_ENDS = {quote: re.compile(f"[{quote}\\\\]") for quote in "'\""}
_NUMBER = re.compile(r"[+-]?(\d[\d_]*)?(\.\d[\d_]*|\.)?([eE][+-]?\d+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    "\n": "",  # a line that goes on
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_CODE = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits
_OPENS = {"[": "]", "(": ")", "{": "}"}


class PythonCalls:
    """Reads the list, as a CallReader; a call that has ended stays a call."""

    def __init__(self, writer: PieceWriter, is_function: Callable[[str], bool] | None) -> None:
        self._writer = writer
        self._is_function = is_function
        self._expects: Callable[[PythonCalls, str, int], int] = PythonCalls._open  # unbound: no cycle
        self._word: list[str] = []  # of a name, key or atom
        self._name = ""
        self._key = ""
        self._begun = False  # the current call
        self._closers: list[str] = []  # of the open brackets of a value
        self._filled: list[bool] = []  # per bracket, and for the call itself: whether it has an element
        self._is_key = False  # the next element is a key of a dictionary
        self._quote = ""
        self._escape = ""
        self.failed = self.broken = self.done = False

    complete = False  # as long as a call is open
    may_end = False

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def read(self, text: str) -> int:
        """Returns at each call's end as well."""
        at, ended = 0, self._writer.num_ended
        while at < len(text) and not (self.done or self.failed or self.broken) and self._writer.num_ended == ended:
            at = self._expects(self, text, at)
        return at

    def cut(self) -> None:
        if self._begun:
            self._write("".join(self._word))

    def _fail(self, at: int, word: str = "") -> int:
        """`word`: what was read and is not in the arguments yet."""
        self.broken, self.failed = self._begun, not self._begun
        if self._begun:
            self._write(word)
        return at

    def _next_sign(self, text: str, at: int) -> tuple[str, int]:
        """Returns the next character that is not whitespace, and its index; "" and the text's length without one."""
        match = _NOT_SPACE.search(text, at)
        return (match[0], match.start()) if match is not None else ("", len(text))

    def _collected(self, end: re.Pattern[str], text: str, at: int) -> tuple[str | None, int]:
        """Collects a word up to a character that `end` finds. Returns (None, length) as long as it goes on."""
        match = end.search(text, at)
        self._word.append(text[at : match.start()] if match is not None else text[at:])
        if match is None:
            return None, len(text)
        word = "".join(self._word)
        self._word.clear()
        return word, match.start()

    def _open(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if sign == "[":
            self._expects = PythonCalls._call
        elif sign:
            return self._fail(at)
        return at + len(sign)

    def _call(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if sign == "]" and self._writer.num_calls:
            self.done = True
            return at + 1
        if sign and not (sign.isalpha() or sign == "_"):
            return self._fail(at)
        if sign:
            self._expects = PythonCalls._function
        return at

    def _function(self, text: str, at: int) -> int:
        name, at = self._collected(_WORD_END, text, at)
        if name is None:
            return at
        if text[at] != "(" or (self._is_function is not None and not self._is_function(name)):
            return self._fail(at)
        self._name, self._filled, self._closers = name, [False], []
        self._expects = PythonCalls._argument
        return at + 1

    def _argument(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if sign == ")":
            self._begin()
            return self._end_call(at + 1)
        if sign and not (sign.isalpha() or sign == "_"):
            return self._fail(at)
        if sign:
            self._expects = PythonCalls._argument_name
        return at

    def _argument_name(self, text: str, at: int) -> int:
        name, at = self._collected(_WORD_END, text, at)
        if name is not None:
            self._key, self._expects = name, PythonCalls._equals
        return at

    def _equals(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if not sign:
            return at
        if sign != "=":  # an argument without a name
            return self._fail(at, self._key)
        self._begin()
        self._write("{" if not self._filled[-1] else ", ")
        self._filled[-1] = True
        self._write(f'"{self._key}": ')
        self._expects = PythonCalls._value
        return at + 1

    def _begin(self) -> None:
        if not self._begun:
            self._writer.begin_call(self._name)
            self._begun = True

    def _end_call(self, at: int) -> int:
        self._write("}" if self._filled[-1] else "{}")
        self._writer.end_call()
        self._begun = False
        self._expects = PythonCalls._after_call
        return at

    def _after_call(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if sign == ",":
            self._expects = PythonCalls._call
        elif sign == "]":
            self.done = True
        elif sign:
            return self._fail(at)
        return at + len(sign)

    def _value(self, text: str, at: int) -> int:
        """Reads the first character of a literal, or the end of a bracket after a comma."""
        sign, at = self._next_sign(text, at)
        if not sign:
            return at
        if self._closers and sign == self._closers[-1]:
            return self._close(at + 1)
        if self._closers and not self._is_value_of_key():
            self._write(", " if self._filled[-1] else "")
            self._filled[-1] = True
        if sign in "'\"":
            self._quote = sign
            self._write('"')
            self._expects = PythonCalls._string
            return at + 1
        if sign in _OPENS:
            return self._open_bracket(sign, at)
        if not (sign.isalnum() or sign in "+-._"):
            return self._fail(at)
        self._expects = PythonCalls._atom
        return at

    def _is_value_of_key(self) -> bool:
        return self._closers[-1] == "}" and not self._is_key

    def _open_bracket(self, sign: str, at: int) -> int:
        if self._is_key or len(self._closers) >= MAX_DEPTH:
            return self._fail(at)
        self._closers.append(_OPENS[sign])
        self._filled.append(False)
        self._is_key = sign == "{"
        self._write("{" if sign == "{" else "[")
        return at + 1

    def _close(self, at: int) -> int:
        self._write("}" if self._closers.pop() == "}" else "]")
        self._filled.pop()
        self._is_key = False
        self._expects = PythonCalls._after_value
        return at

    def _atom(self, text: str, at: int) -> int:
        word, end = self._collected(_ATOM_END, text, at)
        if word is None:
            return end
        value = _CONSTANTS.get(word) or _number(word)
        if value is None:
            return self._fail(end, word)
        self._write(json.dumps(value) if self._is_key else value)
        self._expects = PythonCalls._after_value
        return end

    def _string(self, text: str, at: int) -> int:
        if self._escape:
            return self._escaped(text, at)
        match = _STRING_ENDS[self._quote].search(text, at)
        end = match.start() if match is not None else len(text)
        self._write(escaped(text[at:end]))
        if match is None:
            return end
        if match[0] == "\\":
            self._escape = "\\"
        else:
            self._quote = ""
            self._write('"')
            self._expects = PythonCalls._after_value
        return end + 1

    def _escaped(self, text: str, at: int) -> int:
        """Reads one more character of an escape."""
        self._escape += text[at]
        written = _escape_value(self._escape)
        if written is not None:
            self._write(written)
            self._escape = ""
        return at + 1

    def _after_value(self, text: str, at: int) -> int:
        sign, at = self._next_sign(text, at)
        if not sign:
            return at
        if not self._closers:
            if sign == ",":
                self._expects = PythonCalls._argument
                return at + 1
            return self._end_call(at + 1) if sign == ")" else self._fail(at)
        if self._is_key:
            if sign != ":":
                return self._fail(at)
            self._write(": ")
            self._is_key = False
        elif sign == self._closers[-1]:
            return self._close(at + 1)
        elif sign == ",":
            self._is_key = self._closers[-1] == "}"
        else:
            return self._fail(at)
        self._expects = PythonCalls._value
        return at + 1

    def _write(self, text: str) -> None:
        self._writer.add_arguments(text)


def _number(word: str) -> str | None:
    """Returns a Python number as JSON writes it; None if it is none."""
    match = _NUMBER.fullmatch(word)
    if match is None or not (match[1] or match[2]):
        return None
    try:
        whole = match[2] is None and match[3] is None
        return str(int(word)) if whole and len(word) < 4000 else json.dumps(float(word), allow_nan=False)
    except ValueError:
        return None


def _escape_value(escape: str) -> str | None:
    """Returns the JSON text of an escape of a Python string; None if more characters belong to it."""
    kind, digits = escape[1], escape[2:]
    if kind in _CODE:
        if len(digits) < _CODE[kind] and all(one in "0123456789abcdefABCDEF" for one in digits):
            return None
        return _character(digits, 16) if len(digits) == _CODE[kind] else escaped(escape)
    if kind == "N":
        if not digits or (digits[0] == "{" and digits[-1] != "}" and len(digits) < 100):
            return None
        try:
            return escaped(unicodedata.lookup(digits[1:-1]))
        except KeyError:
            return escaped(escape)
    return escaped(_ESCAPES.get(kind, "\0" if kind == "0" else escape))


def _character(digits: str, base: int) -> str:
    try:
        code = int(digits, base)
        # Half of a surrogate pair is no character, but its escape is JSON, and two of them are a character.
        return f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else escaped(chr(code))
    except (ValueError, OverflowError):
        return escaped(f"\\x{digits}")
