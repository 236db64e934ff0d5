import copy
import json
from typing import Any

import pytest

from services.rpc.generated import text_pb2
from services.tokenizer.structured.content import content_fragment
from tests.tokenizer.structured.answers import FIELD, allows, form_refusal, grammar_of

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=foo>", "schema": NUMBER, "end": "</function>"},
        {"begin": "<function=bar>", "schema": {"type": "string"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
TEXTS = ["", "hello", "<function", 'hi <function=foo>{"a": 1}</function> and <function=bar>"x"</function>.']


def tag(**changes: Any) -> bytes:
    return json.dumps({**TAG, **changes}).encode()


@pytest.mark.parametrize("triggers", [["<function="], ["<function=f", "<function=b"], ["<function=", "<function=f"]])
def test_structures_follow_their_trigger(triggers: list[str]) -> None:
    grammar = grammar_of(structural_tag=tag(triggers=triggers))
    assert [text for text in TEXTS if not allows(grammar, text)] == []
    for text in ("<function=f", "<function=foo>{}</function>", '<function=foo>"x"</function>', '<function=bar>"x"'):
        assert not allows(grammar, text)


def test_only_structures_that_begin_with_the_trigger_follow_it() -> None:
    structures = [{"begin": "<a>", "schema": True, "end": ">"}, {"begin": "[b]", "schema": True, "end": "!"}]
    grammar = grammar_of(structural_tag=tag(structures=structures, triggers=["<", "["]))
    assert allows(grammar, "x<a>1>[b]2!")
    assert not allows(grammar, "x[a>1>")


REFUSED: list[tuple[Any, str]] = [
    ({"format": {"type": "any_text"}}, '"format" is not supported'),
    ([], '"structures" must be a list'),
    ({"structures": [], "triggers": ["a"]}, "at least one structure"),
    ({"structures": TAG["structures"], "triggers": []}, "at least one structure and one trigger"),
    ({"structures": TAG["structures"], "triggers": [1]}, '"triggers" a list of texts'),
    ({"structures": TAG["structures"], "triggers": [""]}, "must not be empty"),
    ({"structures": TAG["structures"], "triggers": ["<tool"]}, "structure 0 does not begin with a trigger"),
    ({"structures": TAG["structures"], "triggers": ["<function=", "["]}, 'no structure begins with the trigger "["'),
    ({"structures": [{"begin": "a", "end": ""}], "triggers": ["a"]}, 'the "schema" of structure 0'),
    ({"structures": [{"begin": "a", "schema": {}}], "triggers": ["a"]}, "structure 0 must have"),
    ({"structures": ["a"], "triggers": ["a"]}, "structure 0 must have"),
    (
        {"structures": [{"begin": t, "schema": {}, "end": ""} for t in ("x<f", "<f")], "triggers": ["x<f", "<f"]},
        "contains another one",
    ),
    ({"structures": [{"begin": "a" * 1001, "schema": {}, "end": ""}], "triggers": ["a"]}, "longer than"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_fit_together_is_refused(value: Any, message: str) -> None:
    assert message in form_refusal(structural_tag=json.dumps(value).encode())


def test_keywords_have_their_path_in_the_tag() -> None:
    value: Any = copy.deepcopy(TAG)
    value["structures"][1]["schema"] = {"items": {"uniqueItems": True}}
    text = json.dumps(value).encode()
    path = "/structures/1/schema/items: "
    assert form_refusal(structural_tag=text) == f'{path}the keyword "uniqueItems" is not supported'
    structured = text_pb2.StructuredOutput(structural_tag=text, field=FIELD)
    assert content_fragment(structured).ignored_keywords == (f"{path}uniqueItems",)
