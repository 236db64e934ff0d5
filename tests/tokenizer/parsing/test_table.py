"""The short forms of a table: a state's name for a rule, one rule for a list, one way to be recognised for several."""

from typing import Any

from services.tokenizer.parsing.read_table import table_of
from services.tokenizer.parsing.table import Detect, Rule

BEGIN: dict[str, Any] = {"to": "call", "do": ["call"]}
CALL: dict[str, Any] = {"to": "content", "do": ["end"]}
MINE: dict[str, Any] = {
    "tools": ["mine", "my_alias"],
    "markers": {"open": "<call>", "colon": ":", "close": "</call>"},
    "states": {
        "content": {"read": "content", "on": {"open": "name"}},
        "name": {"read": "name", "on": {"colon": [{**BEGIN, "when": "x"}, {"to": "content"}]}},
        "call": {"read": "json", "on": {"done": CALL, "close": CALL}},
    },
}


def test_a_marker_leads_to_a_state_by_a_rule_or_by_the_first_rule_that_matches() -> None:
    table = table_of(MINE)
    assert table.states["content"].rules("open") == (Rule("name"),)
    assert table.states["call"].rules("done") == (Rule("content", ("end",)),)
    assert [rule.when for rule in table.states["name"].rules("colon")] == ["x", ""]


def test_a_table_is_called_by_its_first_name() -> None:
    assert table_of(MINE).name == "mine"
    thoughts = {**MINE, "tools": [], "reasoning": ["thoughts"]}
    assert table_of({**thoughts, "markers": {}, "states": {}}).name == "thoughts"


def test_a_table_with_both_kinds_of_names_describes_whole_answers() -> None:
    assert table_of({**MINE, "reasoning": ["thoughts"]}).is_whole
    assert not table_of(MINE).is_whole


def test_a_format_may_be_recognised_in_several_ways() -> None:
    one, other = {"template": ["<call>"]}, {"model_types": ["mine"]}
    assert table_of(MINE).detections == ()
    assert table_of({**MINE, "detect": one}).detections == (Detect(template=("<call>",)),)
    assert [way.model_types for way in table_of({**MINE, "detect": [one, other]}).detections] == [(), ("mine",)]
