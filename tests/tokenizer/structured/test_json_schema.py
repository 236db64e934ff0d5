"""Random schemas, and random answers that follow them: `jsonschema` finds every one valid."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from services.grammar.errors import GrammarError
from services.rpc.errors import TandemError
from tests.tokenizer.structured.answers import allows, schema_grammar
from tests.tokenizer.structured.random_walk import random_answer

NAMES = st.sampled_from(["a", "b", "kind", "é", 'say "x"', "not", "$ref"])
WORDS = st.sampled_from(["x", "y z", "é🎉", "", '"', "\n", "\\"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.sampled_from([0.5, -1.25]), WORDS)


def bounded(low: str, high: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Returns bounds, of which either may be missing."""
    pairs = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return st.tuples(pairs, st.sets(st.sampled_from([low, high]))).map(
        lambda drawn: {key: value for key, value in zip((low, high), drawn[0], strict=True) if key in drawn[1]}
    )


def leaves() -> st.SearchStrategy[Any]:
    numbers = st.builds(
        lambda kind, bounds, rest: {"type": kind, **bounds, **rest},
        st.sampled_from(["integer", "number"]),
        st.one_of(bounded("minimum", "maximum", 40), bounded("exclusiveMinimum", "maximum", 9)),
        st.sampled_from([{}, {}, {"multipleOf": 3}, {"multipleOf": 0.5}]),
    )
    texts = st.builds(
        lambda lengths, rest: {"type": "string", **lengths, **rest},
        bounded("minLength", "maxLength", 6),
        st.sampled_from([{}, {}, {"pattern": r"^\w{1,4}$"}, {"pattern": "[ab]"}, {"title": "T", "x-y": {"not": 1}}]),
    )
    formats = st.sampled_from([{"type": "string", "format": name} for name in ("time", "uuid", "ipv4", "email")])
    plain = st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, True])
    constants = st.one_of(
        st.builds(lambda value: {"const": value}, SCALARS),
        st.builds(lambda v: {"enum": v}, st.lists(SCALARS, min_size=1)),
    )
    return st.one_of(numbers, texts, formats, plain, constants)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, counts, rest: {"type": "array", "items": items, **counts, **rest},
        inner,
        bounded("minItems", "maxItems", 3),
        st.one_of(st.just({}), st.builds(lambda first: {"prefixItems": first}, st.lists(inner, max_size=2))),
    )
    objects = st.builds(
        lambda properties, required, rest: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            **rest,
        },
        st.dictionaries(NAMES, inner, max_size=3),
        st.sets(NAMES),
        st.one_of(
            st.just({"additionalProperties": False}), st.builds(lambda more: {"additionalProperties": more}, inner)
        ),
    )
    maps = st.builds(
        lambda values, counts: {"type": "object", "additionalProperties": values, **counts},
        inner,
        bounded("minProperties", "maxProperties", 2),
    )
    several = st.lists(inner, min_size=1, max_size=3)
    combined = st.one_of(
        st.builds(lambda options: {"anyOf": options}, several),
        st.builds(lambda options: {"oneOf": options}, several),
        st.builds(lambda parts: {"allOf": parts}, st.lists(inner, min_size=1, max_size=2)),
    )
    return st.one_of(arrays, objects, objects, maps, combined)


SCHEMAS = st.recursive(leaves(), nested, max_leaves=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(SCHEMAS, st.integers(0, 2**32))
def test_every_answer_that_ends_is_valid(schema: Any, seed: int) -> None:
    try:
        answer = random_answer(schema_grammar(schema), seed)
    except (TandemError, GrammarError):
        assume(False)  # no value is valid, or alternatives may overlap
        return
    assume(answer is not None)
    value = json.loads(str(answer), object_pairs_hook=_without_repeats)
    assume(value is not _REPEATED)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


_REPEATED = object()


def _without_repeats(pairs: list[tuple[str, Any]]) -> Any:
    """A known limit: a property that the schema does not name may come twice."""
    if len({name for name, _ in pairs}) < len(pairs) or any(value is _REPEATED for _, value in pairs):
        return _REPEATED
    return dict(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_any_value_is_json(seed: int) -> None:
    answer = random_answer(schema_grammar(True), seed, max_tokens=2_000)
    assert answer is not None
    json.loads(answer)


@pytest.mark.parametrize(
    ("bounds", "bound", "within"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.001"),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 3.5}, "3", "3.01"),
        ({"exclusiveMinimum": 12345.0, "exclusiveMaximum": 12345.5}, "12345", "12345.001"),
        ({"exclusiveMinimum": -3.5, "exclusiveMaximum": -3}, "-3", "-3.01"),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, "-0", "-0.5"),
        ({"multipleOf": 0.5, "exclusiveMinimum": 0, "exclusiveMaximum": 0.9}, "0", "0.5"),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, "0", "0.5"),
        ({"allOf": [{"type": "integer"}, {"exclusiveMinimum": 0}, {"maximum": 5.5}]}, "0", "1"),
    ],
)
def test_an_exclusive_whole_number_near_the_other_bound(bounds: dict[str, Any], bound: str, within: str) -> None:
    grammar = schema_grammar({"type": "number", **bounds})
    assert allows(grammar, within)
    assert not allows(grammar, bound)


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        (r"\W", "-", "aé日²٣"),
        (r"[^\w]", "-", "aé日²٣"),
        (r"\D", "aé²", "1٣"),
        (r"[^\d]", "aé²", "1٣"),
        (r"\S", "aé", " \u00a0\u2028"),
        (r"\w", "a1_", "é٣"),
        (r"\d", "1", "٣²"),
    ],
)
def test_classes_of_characters_hold_in_any_dialect(pattern: str, matches: str, others: str) -> None:
    grammar = schema_grammar({"type": "string", "pattern": f"^{pattern}$"})
    allowed = [sign for sign in matches + others if allows(grammar, json.dumps(sign, ensure_ascii=False))]
    assert "".join(allowed) == matches
