"""vLLM's dotted flags: `--structured-outputs-config.max_whitespace 8` sets one key of a JSON object.

Any option whose value is a JSON object has them. They are joined before argparse reads the command line.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from services.options.setting import UsageError

_DOTTED_HERE = "\0"  # no argument of a process has it
_DOTTED = re.compile(r"(--[a-z][a-z-]*)\.([^=]+)(?:=(.*))?", re.DOTALL)


def joined(argv: list[str], flags: Iterable[str]) -> list[str]:
    """Returns the command line with the dotted flags of each of `flags` joined into one flag, in the place of each of
    them: what follows must not become a value of the flag before.

    A dotted flag overrides the same key of the flag itself. A value that is not JSON is a string. Raises UsageError for
    a dotted flag without a value, and beside a flag that is no JSON object.
    """
    known = set(flags)
    rest: list[str] = []
    keys: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        found = _DOTTED.fullmatch(word)
        if found is None or found[1] not in known:
            rest.append(word)
            continue
        value = found[3] if found[3] is not None else next(words, None)
        if value is None:
            raise UsageError(f"{word}: expected one argument")
        keys.setdefault(found[1], {})[found[2]] = _value(value)
        rest.append(f"{found[1]}={_DOTTED_HERE}")
    for flag, dotted in keys.items():
        rest = _with_one_value(rest, flag, dotted)
    return rest


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_one_value(argv: list[str], flag: str, dotted: dict[str, Any]) -> list[str]:
    """Returns the command line with each `flag` set to its last whole value, with the dotted keys over it."""
    rest, whole, places = [], None, []
    words = iter(argv)
    for word in words:
        if word == flag:
            whole = next(words, None)
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
            whole = whole if value == _DOTTED_HERE else value
        else:
            rest.append(word)
            continue
        places.append(len(rest))
        rest.append("")
    for place in places:
        rest[place] = f"{flag}={json.dumps(_merged(flag, whole, dotted))}"
    return rest


def _merged(flag: str, whole: str | None, dotted: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of the flag's own value, with the dotted ones over them. A dot in a key goes one object
    deeper."""
    merged = _value(whole) if whole is not None else {}
    if not isinstance(merged, dict):
        raise UsageError(f"{flag}: {whole!r} is not valid: not a JSON object")
    for path, value in dotted.items():
        *parents, name = path.replace("-", "_").split(".")
        inner = merged
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {}
            inner = inner[parent]
        inner[name] = value
    return merged
