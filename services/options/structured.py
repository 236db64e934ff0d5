"""The value of `--structured-outputs-config`: a JSON object with vLLM's keys, checked, and what each key may be."""

import json
from typing import Any

MAX_WHITESPACE = 1000
BACKENDS = ("auto", "guidance")
# Keys of vLLM's that change nothing here, with the values that ask for nothing else.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "backend": BACKENDS,
    "disable_fallback": (False, True),
    "enable_in_reasoning": (False,),
}
SWITCHES = ("disable_any_whitespace", "disable_additional_properties")


def structured_outputs(text: str) -> dict[str, Any]:
    """Returns the keys that have an effect: `disable_any_whitespace`, `disable_additional_properties` and
    `max_whitespace`, as far as they are given.

    Raises ValueError for anything but a JSON object of known keys with their values.
    """
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("not a JSON object")
    return {name: _checked(name, value) for name, value in given.items() if not _has_no_effect(name, value)}


def _has_no_effect(name: str, value: Any) -> bool:
    if name not in NO_EFFECT:
        return False
    allowed = NO_EFFECT[name]
    if not any(value is one if isinstance(one, bool) else value == one for one in allowed):
        raise ValueError(f"{name} is {json.dumps(value)}, but must be {' or '.join(map(json.dumps, allowed))}")
    return True


def _checked(name: str, value: Any) -> Any:
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {json.dumps(value)}, but must be true or false")
    elif name == "max_whitespace":
        if type(value) is not int or not 1 <= value <= MAX_WHITESPACE:
            raise ValueError(f"{name} is {json.dumps(value)}, but must be an integer from 1 to {MAX_WHITESPACE}")
    else:
        raise ValueError(
            f"the key {name!r} is not supported: use {', '.join([*NO_EFFECT, *SWITCHES, 'max_whitespace'])}"
        )
    return value
