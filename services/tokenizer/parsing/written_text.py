"""Text of a format as expressions of a grammar: markers that are added tokens by their ids, all else as text.

The parser finds a marker that is an added token by its id alone, so no text may stand for it. A line break is optional:
checkpoints of a format differ in them, and parsers take it as layout.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from services.grammar.fragment import literal, token

ANY = "/(?s:.*)/"
LAYOUT = r"/[ \n]{1,2}/"  # what may stand between reasoning and what follows
_SLOT = r"\$(?:name|arguments|parameters|key|value)\b"


class Piece(NamedTuple):
    """A part of a template: a marker, a slot such as `$name`, or other text. `token_id`: of a marker that is an added
    token, else -1."""

    text: str
    is_marker: bool = False
    is_slot: bool = False
    token_id: int = -1

    @property
    def expression(self) -> str:
        """The piece as it is written; of a slot: nothing."""
        if self.token_id >= 0:
            return token(self.token_id)
        return "" if self.is_slot else text_expression(self.text)


class Markup:
    """The markers of one format in a model's vocabulary. `added`: ids of the tokenizer's added tokens by their text."""

    def __init__(self, markers: Collection[str], added: Mapping[str, int]) -> None:
        self.markers = frozenset(markers)
        self.added = added
        longest = sorted((text for text in markers if text), key=len, reverse=True)
        self._parts = re.compile("|".join([f"(?P<slot>{_SLOT})", *map(re.escape, longest)]))

    def pieces(self, template: str) -> list[Piece]:
        """Returns the template's parts, in order."""
        found, at = list[Piece](), 0
        for match in self._parts.finditer(template):
            if match.start() > at:
                found.append(Piece(template[at : match.start()]))
            is_slot = match.lastgroup == "slot"
            found.append(Piece(match[0], not is_slot, is_slot, -1 if is_slot else self.added.get(match[0], -1)))
            at = match.end()
        return [*found, Piece(template[at:])] if at < len(template) else found

    def expression(self, template: str) -> str:
        """Returns the expression of a template without slots; empty for an empty one."""
        return joined(piece.expression for piece in self.pieces(template))


def text_expression(text: str) -> str:
    """Returns the expression of a text, in which line breaks are optional."""
    return joined('"\\n"?' if part == "\n" else literal(part) for part in re.split("(\n)", text) if part)


def joined(expressions: Iterable[str]) -> str:
    """Returns the expressions one after the other; those that are empty are left out."""
    return " ".join(expression for expression in expressions if expression)


def without(texts: Iterable[str], expression: str = ANY, excluded: Iterable[str] = ()) -> str:
    """Returns an expression, for a terminal, of what `expression` matches that has none of the texts in it, and that
    none of the expressions `excluded` matches. One complement of all takes far less of llguidance's fuel than one of
    each."""
    inside = " | ".join(literal(text) for text in dict.fromkeys(texts))
    exclusions = [*([f"({ANY} ({inside}) {ANY})"] if inside else []), *excluded]
    return f"{expression} & (~({' | '.join(exclusions)}))" if exclusions else expression


class RuleBook:
    """Rules and terminals by the names that it gives them; each definition has one name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, str], str] = {}  # by kind and definition

    def rule(self, expression: str) -> str:
        """Returns the name of a rule with this definition."""
        return self._name("rule", expression)

    def terminal(self, expression: str) -> str:
        """Returns the name of a terminal with this definition: one text, whose end is where it is the longest."""
        return self._name("terminal", expression).upper()

    def _name(self, kind: str, expression: str) -> str:
        return self._names.setdefault((kind, expression), f"{self._prefix}_{len(self._names)}")

    @property
    def rules(self) -> tuple[str, ...]:
        """The definitions, a line each."""
        return tuple(
            f"{name.upper() if kind == 'terminal' else name}: {expression}"
            for (kind, expression), name in self._names.items()
        )
