"""The effect of every field about the form of an answer on a server of random weights: STRUCTURED_EFFECTS has a check
for each, as field_effects.py.

The forms are bounded, so that even such a model comes to their end.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.e2e.api import GREEDY, SEEDED, Json, choice, error_of, ids_by_bytes
from tests.e2e.field_effects import BARE, plain
from tests.e2e.harness import Server

SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}, "of": {"enum": ["cat", "dog"]}},
    "required": ["n", "of"],
    "additionalProperties": False,
}
REGEX, WORDS = "[a-c]{5}-[0-9]{3}", ["left", "straight on", "right"]
LARK, EBNF = 'start: "<" /[a-f]{4}/ ">"', 'root ::= "<" hex hex ">"\nhex ::= [a-f]'
TAG: Json = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
SPACES = {" ": 10, "\t": 20, "\n": 10}  # biases of whitespace, so that it appears wherever it may
Check = Callable[[Server, str], None]
Test = Callable[[str], Any]


def is_of_schema(text: str) -> None:
    value = json.loads(text)
    assert value.keys() == {"n", "of"} and 10 <= value["n"] <= 99 and value["of"] in ("cat", "dog")


def is_object(text: str) -> None:
    assert text.lstrip().startswith("{")


def matches(pattern: str) -> Test:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return check


def in_words(text: str) -> None:
    assert text in WORDS


def tagged(text: str) -> None:
    """What follows a trigger is a structure."""
    for part in text.split("<f")[1:]:
        inside, end, _ = part.removeprefix(">").partition("</f>")
        assert part.startswith(">")
        is_of_schema(inside) if end else is_object(inside or "{")


def forms(*pairs: tuple[Any, Test], of: str) -> Check:
    """Returns a check that answers have the form of each value of the field `of`, greedy and not, under ignore_eos."""

    def check(server: Server, path: str) -> None:
        for value, test in pairs:
            for sampling in (GREEDY, SEEDED):
                answer = choice(server, path, **sampling, **{of: value}, max_tokens=200)
                test(answer["text"])
                if test not in (is_object, tagged):
                    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", None)

    return check


def response_format(server: Server, path: str) -> None:
    named = {"name": "n", "schema": SCHEMA, "strict": True}
    lenient = {"name": "n", "schema": SCHEMA | {"not": {"required": ["x"]}}}
    forms(
        ({"type": "json_schema", "json_schema": named}, is_of_schema),
        ({"type": "json_schema", "json_schema": lenient}, is_of_schema),
        ({"type": "json_object"}, is_object),
        ({"type": "structural_tag", **TAG}, tagged),
        of="response_format",
    )(server, path)
    assert plain(server, path, response_format={"type": "text"}) == plain(server, path)
    body = {**BARE[path], "response_format": {"type": "json_schema", "json_schema": lenient | {"strict": True}}}
    error = error_of(server.post(path, body), 400)
    assert error["param"].startswith("response_format") and '"not"' in error["message"]
    body["response_format"]["json_schema"]["strict"] = False
    assert server.post(path, {**body, "max_tokens": 1}).headers["tandem-ignored-keywords"] == "/: not"


def whitespace(server: Server, path: str, **fields: Any) -> set[str]:
    """Returns the runs of whitespace in JSON of SCHEMA, which is biased to have some."""
    bias = {str(ids_by_bytes()[text.encode()]): value for text, value in SPACES.items()}
    text = plain(server, path, **fields, logit_bias=bias, max_tokens=400)["text"]
    is_of_schema(text)
    return set(re.findall(r"\s+", text))


def structured_outputs(server: Server, path: str) -> None:
    forms(
        ({"json": SCHEMA}, is_of_schema),
        ({"json": json.dumps(SCHEMA)}, is_of_schema),
        ({"regex": REGEX}, matches(REGEX)),
        ({"choice": WORDS}, in_words),
        ({"grammar": LARK}, matches("<[a-f]{4}>")),
        ({"grammar": EBNF}, matches("<[a-f]{2}>")),
        ({"json_object": True}, is_object),
        ({"structural_tag": TAG}, tagged),
        ({"structural_tag": json.dumps(TAG)}, tagged),
        of="structured_outputs",
    )(server, path)
    assert whitespace(server, path, structured_outputs={"json": SCHEMA})
    assert not whitespace(server, path, structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    tabs = whitespace(server, path, structured_outputs={"json": SCHEMA, "whitespace_pattern": r"\t{3}"})
    assert tabs == {"\t\t\t"}
    loose = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    closed = {"json": loose, "disable_additional_properties": True}
    forms((closed, is_of_schema), of="structured_outputs")(server, path)


def guided_whitespace_pattern(server: Server, path: str) -> None:
    assert whitespace(server, path, guided_json=SCHEMA, guided_whitespace_pattern=r"\t{2}") == {"\t\t"}


STRUCTURED_EFFECTS: dict[str, Check] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    "guided_json": forms((SCHEMA, is_of_schema), of="guided_json"),
    "guided_regex": forms((REGEX, matches(REGEX)), of="guided_regex"),
    "guided_choice": forms((WORDS, in_words), of="guided_choice"),
    "guided_grammar": forms((LARK, matches("<[a-f]{4}>")), (EBNF, matches("<[a-f]{2}>")), of="guided_grammar"),
    "structural_tag": forms((TAG, tagged), of="structural_tag"),
    "guided_whitespace_pattern": guided_whitespace_pattern,
}
