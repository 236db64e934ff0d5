"""check_table: what is wrong in a table is named with its place; a table that passes never stops the parser."""

import json
import tomllib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.parsing.catalog import TABLES
from services.tokenizer.parsing.read_table import table_of
from services.tokenizer.parsing.table import Read, Table
from tests.tokenizer.parsing.table_runs import KINDS, deadline, pieces_of

BUILT_IN = {file.stem: tomllib.loads(file.read_text()) for file in sorted(TABLES.glob("*.toml"))}
ANSWER = [
    '{"name": "f", "arguments": {"a": "x"}}',
    "[f(a=1)]",
    "{}",
    "[",
    "]",
    "{",
    "f",
    " ",
    "\n",
    "text",
    '"',
    "to=f",
]

# A table with JSON calls, one with parameters, and what is wrong with them after a change.
JSON_CALLS: dict[str, Any] = {
    "tools": ["mine"],
    "markers": {"open": "<call>", "close": "</call>"},
    "states": {
        "content": {"read": "content", "on": {"open": "call"}},
        "call": {"read": "json_call", "on": {"close": "content", "done": {"to": "content", "do": ["end"]}}},
    },
}
PARAMETERS: dict[str, Any] = {
    "tools": ["mine"],
    "markers": {"open": "<f ", "key": "<k ", "gt": ">", "end_value": "</k>", "end": "</f>"},
    "states": {
        "content": {"read": "content", "on": {"open": "name"}},
        "name": {"read": "name", "on": {"gt": {"to": "inside", "do": ["call"]}}},
        "inside": {"read": "layout", "on": {"key": "key", "end": {"to": "content", "do": ["end"]}}},
        "key": {"read": "name", "on": {"gt": {"to": "value", "do": ["key"]}}},
        "value": {"read": "value", "on": {"end_value": {"to": "inside", "do": ["value"]}}},
    },
}
Change = Callable[[dict[str, Any]], Any]
WRONG: list[tuple[dict[str, Any], Change, str]] = [
    (JSON_CALLS, lambda t: t.pop("tools"), "name neither in `tools` nor in `reasoning`"),
    (JSON_CALLS, lambda t: t.update(tools=["none"]), "'none' cannot be the name"),
    (JSON_CALLS, lambda t: t.update(tools=["a b"]), "'a b' cannot be the name"),
    (JSON_CALLS, lambda t: t.update(thinking={"end": "</call>"}), "thinking: the table has no name in `reasoning`"),
    (JSON_CALLS, lambda t: t["markers"].update(other=""), "markers.other: it is empty or begins with whitespace"),
    (JSON_CALLS, lambda t: t["markers"].update(other="<call>"), "markers.other: it has the text of open"),
    (JSON_CALLS, lambda t: t["markers"].update(done="x"), "markers.done: the name means"),
    (JSON_CALLS, lambda t: t["markers"].update(other="x"), "markers.other: no state has a rule"),
    (JSON_CALLS, lambda t: t.update(turn=["user"]), "turn: there is no marker 'user'"),
    (JSON_CALLS, lambda t: t.update(start="begin"), "start: there is no state 'begin'"),
    (JSON_CALLS, lambda t: t.update(start="call"), "start: no answer can begin in a state that reads json_call"),
    (JSON_CALLS, lambda t: t["states"]["content"].update(read="layout"), "states.content.read: this state reads"),
    (JSON_CALLS, lambda t: t["states"]["call"].update(read="reasoning"), "states.call.read: the state 'reasoning'"),
    (JSON_CALLS, lambda t: t["states"]["call"]["on"].pop("done"), "json_call ends by itself, so `done` needs a rule"),
    (JSON_CALLS, lambda t: t["states"]["call"]["on"].update(opne="content"), "call.on: there is no marker 'opne'"),
    (JSON_CALLS, lambda t: t["states"]["call"]["on"].update(close=[]), "states.call.on.close: it has no rule"),
    (JSON_CALLS, lambda t: t["states"]["call"]["on"].update(close="contents"), "there is no state 'contents'"),
    (JSON_CALLS, lambda t: t["states"].update(lost={"read": "layout"}), "states.lost: no rule leads there"),
    (JSON_CALLS, lambda t: t["states"]["content"].update(trim=True), "states.content.trim: it is for value"),
    (JSON_CALLS, lambda t: t["states"]["content"].update(known=True), "states.content.known: it is for json_call"),
    (
        JSON_CALLS,
        lambda t: t["states"]["content"]["on"].update(open={"to": "call", "keep": True}),
        "states.content.on.open.keep: what call reads, json_call, cannot begin with this marker",
    ),
    (
        JSON_CALLS,
        lambda t: t["states"]["call"]["on"].update(done={"to": "content", "do": ["call"]}),
        'states.call.on.done: `done` is the end of a JSON object or a Python list; it may only `do` "end"',
    ),
    (PARAMETERS, lambda t: t.update(tools=[], reasoning=["mine"]), "name.on.gt.do: calls need a name in `tools`"),
    (PARAMETERS, lambda t: t["states"]["name"]["on"]["gt"].update(when="("), "states.name.on.gt.when: not a regular"),
    (PARAMETERS, lambda t: t["states"]["name"]["on"]["gt"].update(do=[]), "'end' comes with nothing open, not a call"),
    (PARAMETERS, lambda t: t["states"]["key"]["on"]["gt"].update(do=[]), "states.value: value is reached with a call"),
    (
        PARAMETERS,
        lambda t: t["states"]["value"]["on"]["end_value"].update(do=[]),
        "states.inside.on.end.do: 'end' comes with a parameter open, not a call",
    ),
    (
        PARAMETERS,
        lambda t: t["states"]["value"]["on"]["end_value"].update(do=["end"]),
        "states.value.on.end_value.do: 'end' comes with a parameter open, not a call",
    ),
    (PARAMETERS, lambda t: t["states"]["inside"]["on"]["end"].update(do=["call"]), "inside.on.end.do: layout reads no"),
    (JSON_CALLS, lambda t: t["states"]["call"]["on"].update(close={"to": "content", "name": "f"}), "close.name: it is"),
    (PARAMETERS, lambda t: t["states"]["inside"]["on"]["end"].update(when="x"), "inside.on.end.when: layout reads no"),
    (
        JSON_CALLS,
        lambda t: t["states"].update(call={"read": "skip", "on": {"close": "call"}}),
        "states.call: no rule leads from there to content or reasoning",
    ),
]  # fmt: skip


def copied(data: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(data))
    return copy


@pytest.mark.parametrize(("data", "change", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_what_is_wrong_is_named_with_its_place(data: dict[str, Any], change: Change, message: str) -> None:
    table_of(copied(data))
    broken = copied(data)
    change(broken)
    with pytest.raises(ValueError) as found:
        table_of(broken)
    assert message in str(found.value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_tables_pass(name: str) -> None:
    assert table_of(BUILT_IN[name]).source


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every (container, key) in plain data."""
    if isinstance(data, dict | list):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from places(data[key])


def mutate(data: dict[str, Any], random: Random) -> None:
    """Changes one thing: removes it, puts a value of its neighbourhood or a strange one there, or adds a rule."""
    everywhere = list(places(data))
    container, key = random.choice(everywhere)
    kind = random.randrange(5)
    states, markers = data.get("states"), data.get("markers")
    if kind == 0:
        del container[key]
    elif kind == 1:
        other, of = random.choice(everywhere)
        container[key] = json.loads(json.dumps(other[of]))
    elif kind == 2:
        strange = [None, True, 7, -1.5, "", " ", "[[a", "(" * 50, "a{9999999999}", "content", [], {}, [[]], {"": 1}]
        container[key] = random.choice(strange)
    elif isinstance(states, dict) and isinstance(markers, dict) and states and markers:
        state = states[random.choice(list(states))]
        if kind == 3 and isinstance(state, dict):
            state["read"] = random.choice([read.value for read in Read])
        elif isinstance(state, dict):
            do = random.choices(["call", "key", "value", "end"], k=random.randrange(3))
            rule = {"to": random.choice(list(states)), "do": do, "keep": random.random() < 0.5}
            on = state.setdefault("on", {})
            if isinstance(on, dict):
                on[random.choice(list(markers))] = rule


def run(table: Table, random: Random) -> None:
    """Follows random answers by the table: as tool calls, as reasoning, and both."""
    texts = [*table.markers.values()]
    for _ in range(3):
        parts = random.choices([*texts, *texts, *ANSWER], k=random.randrange(1, 20))
        parts = parts if random.random() < 0.7 else list("".join(parts))
        added = {text for text in texts if random.random() < 0.5}
        for tools in {id(one): one for one in (table if table.tools else None, None)}.values():
            reasoning = table if table.reasoning else None
            if tools is not None or reasoning is not None:
                pieces = pieces_of(tools, reasoning, parts, added=added, stopped=random.random() < 0.5)
                assert {kind for kind, _ in pieces} <= KINDS


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BUILT_IN)), st.integers(0, 2**32), st.integers(0, 4))
def test_a_table_is_refused_in_words_or_can_be_followed(name: str, seed: int, num_changes: int) -> None:
    """Random changes of the built-in tables: no other exception than ValueError, and no parser that does not end."""
    random, data = Random(seed), copied(BUILT_IN[name])
    with deadline(10):
        for _ in range(num_changes):
            mutate(data, random)
        try:
            table = table_of(msgspec.json.decode(json.dumps(data)))
        except ValueError as error:
            assert str(error)
            return
        run(table, random)
