"""Parts of a grammar in llguidance's form of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Fragment:
    """A part of a grammar. `body` is an expression that can stand in a rule, without alternatives outside of brackets;
    `rules` are the definitions that it needs, a line each. Parts that are joined have different names of rules."""

    body: str
    rules: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole grammar, if the answer is this part."""
        return "\n".join((f"start: {self.body}", *dict.fromkeys(self.rules))) + "\n"


def literal(text: str) -> str:
    """Returns an expression for exactly this text. An empty text is an empty expression."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


def token(token_id: int) -> str:
    """Returns an expression for one token by its id: an added token, which no text stands for."""
    return f"<[{token_id}]>"
