"""Random answers in a format, and random soups of its markers, as strategies of hypothesis."""

from typing import Any

from hypothesis import strategies as st

from tests.tokenizer.parsing.drive import function
from tests.tokenizer.parsing.forms import Format, RandomAnswer, RandomCall

SEEDS = st.integers(0, 2**31)
WORDS = ["Grüße", "Ω", "𝔘🙂", "a", "the weather", '"', "'", "\\", "\n", " ", "{", "}", "[", "]", "<", "</", ">", "=",
         ":", "\\n", "null", "1.5", "\t", "é", "functools", ",", '":', "(", ")", "#", "\\u00e9", "\r\n"]  # fmt: skip
SOUP = ["{", "}", "[", "]", '"', '":', ",", ", ", " ", "\n", ">", "=", "(", ")", ";", "<", "assistant",
        "to=functions."]  # fmt: skip
CALL_SOUP = ['{"name": "f"', ', "arguments": {', '"arguments": "', '{"name": ', "}}", '"f"', "f(", "a=", "null", "'",
             "\\"]  # fmt: skip


def texts(words: list[str], size: int = 12) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(st.sampled_from(words), st.text(max_size=3)), max_size=size).map("".join).filter(_is_fine)


def _is_fine(text: str) -> bool:
    return "⟦" not in text and "⟧" not in text and not any(0xD800 <= ord(one) < 0xE000 for one in text)


def answers(form: Format, *, as_text: bool) -> st.SearchStrategy[RandomAnswer]:
    """Returns random answers. `as_text`: the markers are ordinary text, so prose can't have them."""
    pieces = WORDS + [marker[: len(marker) // 2 + 1] for marker in form.markers]
    prose = texts(pieces if as_text else pieces + list(form.added))
    strings = texts(pieces + form.markers, 6)
    numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
    values = st.recursive(
        st.one_of(strings, numbers, st.booleans(), st.none()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
        max_leaves=6,
    )
    names = st.sampled_from(form.names)
    keys = st.sampled_from(["city", "a", "unit_of", "x1", "_y"])
    call = st.builds(RandomCall, names, st.dictionaries(keys, values, max_size=4))
    return st.builds(
        RandomAnswer,
        prose if form.reasoning else st.just(""),
        prose if form.before else st.just(""),
        st.lists(call, max_size=3 if form.more else 1),
        prose if form.after else st.just(""),
    )


def tools_of(answer: RandomAnswer) -> list[Any]:
    """Returns tools with schemas that fit the calls' values, where one schema can."""
    types: dict[str, dict[str, Any]] = {}
    for call in answer.calls:
        parameters = types.setdefault(call.name, {})
        for key, value in call.arguments.items():
            parameters[key] = {"type": sorted({_type(value), *parameters.get(key, {}).get("type", [])})}
    return [function(name, **parameters) for name, parameters in types.items()]


def _type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def soups(form: Format, *, calls: bool) -> st.SearchStrategy[str]:
    """Returns the format's markers, numbered words and signs at random. `calls`: with parts of JSON and Python calls,
    of which the rest is layout that is lost."""
    markup = [f"⟦{marker}⟧" for marker in form.markers if marker not in form.skips or calls]
    parts = st.sampled_from([*markup, *markup, *SOUP, "WORD ", "WORD", *(CALL_SOUP if calls else [])])
    return st.lists(parts, max_size=40).map(_numbered)


def _numbered(parts: list[str]) -> str:
    return "".join(part.replace("WORD", f"w{index}w") for index, part in enumerate(parts))
