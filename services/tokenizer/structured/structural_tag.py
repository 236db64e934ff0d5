"""Free text with structures in it: after a trigger, one of the structures that begin with it must follow.

vLLM's `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`. Triggers are texts: a special token of the
model's is none.
"""

import json
from typing import Any

from services.grammar.fragment import Fragment, literal
from services.rpc.errors import TandemError, invalid
from services.tokenizer.structured.json_schema import prepared_schema
from services.tokenizer.structured.settings import JsonForm

MAX_STRUCTURES = 300
MAX_TRIGGERS = 32
MAX_CHARACTERS = 1_000  # of a trigger, a begin or an end


def tag_fragment(tag: Any, strict: bool, where: str, form: JsonForm) -> tuple[Fragment, tuple[str, ...]]:
    """Returns the text with its structures, and the ignored keywords of the schemas. Raises TandemError."""
    structures, triggers = _read(tag, where)
    ignored: list[str] = []
    rules = [f"CONTENT_TEXT: /(?s:.*)/ & ~( /(?s:.*)/ ({_either(triggers)}) /(?s:.*)/ )"]
    tags = []
    for index, trigger in enumerate(triggers):
        others = [other for other in triggers if other != trigger]
        text = f"/(?s:.*)/ & ~( /(?s:.*)/ ({_either(others)}) /(?s:.*)/ )" if others else "/(?s:.*)/"
        rules.append(f"CONTENT_BEFORE_{index}: {text}")
        rules.append(f"content_trigger_{index}[lazy]: CONTENT_BEFORE_{index} {literal(trigger)}")
        options = [number for number, structure in enumerate(structures) if structure["begin"].startswith(trigger)]
        if not options:
            raise invalid(f'{where}: no structure begins with the trigger "{trigger[:50]}"', where)
        for number in options:
            structure = structures[number]
            path = f"/structures/{number}/schema"
            schema, left_out = prepared_schema(structure["schema"], strict, where, form, path)
            ignored += left_out
            begin, end = literal(structure["begin"][len(trigger) :]), literal(structure["end"])
            rules.append(f"content_structure_{number}: {begin} content_schema_{number} {end}")
            rules.append(f"content_schema_{number}: %json {schema}")
        follows = " | ".join(f"content_structure_{number}" for number in options)
        tags.append(f"content_trigger_{index} ({follows})")
    rules.append(f"content_tags: ({' | '.join(tags)})* CONTENT_TEXT")
    return Fragment("content_tags", tuple(rules)), tuple(ignored)


def _either(texts: list[str]) -> str:
    return " | ".join(json.dumps(text) for text in texts)


def _read(tag: Any, where: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the structures and triggers, once they are known to be well-formed and to fit together."""

    def error(message: str) -> TandemError:
        return invalid(f"{where}: {message}", where)

    if isinstance(tag, dict) and "format" in tag:
        raise error('"format" is not supported, only "structures" and "triggers"')
    if not isinstance(tag, dict) or not isinstance(tag.get("structures"), list) or not _texts(tag.get("triggers")):
        raise error('"structures" must be a list of objects, "triggers" a list of texts')
    structures, triggers = tag["structures"], tag["triggers"]
    if not structures or not triggers:
        raise error("at least one structure and one trigger are needed")
    if len(structures) > MAX_STRUCTURES or len(triggers) > MAX_TRIGGERS:
        raise error(f"there are more than {MAX_STRUCTURES} structures or {MAX_TRIGGERS} triggers")
    for index, structure in enumerate(structures):
        if not isinstance(structure, dict) or not _texts([structure.get("begin"), structure.get("end")]):
            raise error(f'structure {index} must have the texts "begin" and "end", and a "schema"')
        if not isinstance(structure.get("schema"), (dict, bool)):
            raise error(f'the "schema" of structure {index} must be an object or a boolean')
        if not structure["begin"].startswith(tuple(triggers)):
            raise error(f"structure {index} does not begin with a trigger")
    texts = [*triggers, *(structure[key] for structure in structures for key in ("begin", "end"))]
    if any(len(text) > MAX_CHARACTERS for text in texts) or not all(triggers):
        raise error(f"a trigger must not be empty, and no trigger, begin or end be longer than {MAX_CHARACTERS}")
    shortest = [one for one in dict.fromkeys(triggers) if not any(_begins(one, other) for other in triggers)]
    for one in shortest:
        if any(other != one and other in one for other in shortest):
            raise error(f'the trigger "{one[:50]}" contains another one')
    return structures, shortest


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _begins(text: str, start: str) -> bool:
    return text != start and text.startswith(start)
