"""An answer that is exactly one of some texts."""

import json
from collections.abc import Sequence

from services.grammar.fragment import Fragment
from services.rpc.errors import invalid
from services.rpc.output_limits import MAX_ALL_CHOICE_CHARACTERS, MAX_CHOICE_CHARACTERS, MAX_CHOICE_TEXTS


def choice_fragment(texts: Sequence[str], where: str, name: str) -> Fragment:
    """Returns one of the texts; `name` is the terminal's. Raises TandemError (INVALID_ARGUMENT).

    They are one terminal: as alternatives of a rule, thousands would be at llguidance's limit of items.
    """
    if not texts:
        raise invalid(f"{where}: at least one choice is needed", where)
    if len(texts) > MAX_CHOICE_TEXTS:
        raise invalid(f"{where}: {len(texts)} choices are more than {MAX_CHOICE_TEXTS}", where)
    for index, text in enumerate(texts):
        if not text:
            raise invalid(f"{where}: choice {index} is empty", where)
        if len(text) > MAX_CHOICE_CHARACTERS:
            raise invalid(f"{where}: choice {index} has more than {MAX_CHOICE_CHARACTERS} characters", where)
    if sum(map(len, texts)) > MAX_ALL_CHOICE_CHARACTERS:
        raise invalid(f"{where}: the choices have more than {MAX_ALL_CHOICE_CHARACTERS} characters in all", where)
    alternatives = " | ".join(json.dumps(text) for text in dict.fromkeys(texts))
    return Fragment(name, (f"{name}: {alternatives}",))
