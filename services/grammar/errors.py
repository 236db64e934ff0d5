"""Why a grammar cannot be used, or an answer cannot go on with it."""

import re

MAX_CHARACTERS = 300  # of a message; llguidance's own may quote a whole schema
_PLACE = re.compile(r"^at \d+\(\d+\): ")  # a line and column of the assembled grammar, which no client has seen


class GrammarError(ValueError):
    """A grammar is malformed, too large, or at its limit. The text is one line."""


def grammar_error(message: str) -> GrammarError:
    """Returns the error for a message of llguidance: its first line, shortened, without places and states."""
    line = _PLACE.sub("", message.strip().split("\n", 1)[0])
    return GrammarError(line if len(line) <= MAX_CHARACTERS else line[:MAX_CHARACTERS] + "…")
