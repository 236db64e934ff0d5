"""Reads the pattern of whitespace in JSON that a client may give."""

import re

from services.rpc.errors import invalid
from services.tokenizer.structured.regex import whole_regex

MAX_CHARACTERS = 200
_PARTS = re.compile(
    r"(?: |\\[nrts]|\\x(?:20|09|0[aAdD])|\\u00(?:20|09|0[aAdD])|[\n\r\t]|\(\?:|[\[\]()|?*+]|\{\d*,?\d*\})*"
)


def json_whitespace(pattern: str, where: str) -> str:
    """Returns the regular expression in Rust's form. `\\s` stands for the four characters that JSON skips.

    Raises TandemError (INVALID_ARGUMENT) if it could match anything else.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise invalid(f"{where}: the whitespace pattern is longer than {MAX_CHARACTERS} characters", where)
    if not _PARTS.fullmatch(pattern):
        message = "the whitespace pattern may have blanks, \\n, \\r, \\t, \\s, [ ], ( ), | and quantifiers only"
        raise invalid(f"{where}: {message}", where)
    return whole_regex(re.sub(r"\\s", _skipped, pattern), where)


def _skipped(match: re.Match[str]) -> str:
    """Returns what stands for `\\s` at its place: in a class of characters, or alone."""
    before = match.string[: match.start()]
    characters = r" \t\n\r"
    return characters if before.rfind("[") > before.rfind("]") else f"[{characters}]"
