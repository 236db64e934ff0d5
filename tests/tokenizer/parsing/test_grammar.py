"""build_grammar: two tables become one state machine, bound to the tokens."""

import pytest

from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.grammar import build_grammar
from services.tokenizer.parsing.table import CONTENT, Read
from tests.tokenizer.parsing.drive import grammar_of

CATALOG = built_in()


def test_markers_that_are_added_tokens_count_by_id_and_others_by_text() -> None:
    grammar = build_grammar(CATALOG.tools["hermes"], CATALOG.reasoning["qwen3"], {"<think>": 5, "<other>": 6}, [])
    assert grammar.marker_ids == {5: "<think>"}
    assert grammar.text_markers == ("</think>", "</tool_call>", "<tool_call>")


def test_reasoning_can_begin_where_content_can_and_a_call_within_reasoning() -> None:
    grammar = grammar_of("hermes", "qwen3")
    assert {"<think>", "<tool_call>"} <= grammar.start.transitions.keys()
    reasoning = grammar.start.transitions["<think>"][0].to
    assert reasoning.read is Read.REASONING
    assert {"</think>", "<tool_call>"} <= reasoning.transitions.keys()
    assert reasoning.transitions["</think>"][0].to is grammar.start


def test_content_behind_reasoning_is_where_the_calls_table_starts() -> None:
    grammar = grammar_of("pythonic", "qwen3")
    assert grammar.start.read is Read.START and grammar.content.read is Read.CONTENT
    assert grammar.start.otherwise is grammar.content
    assert "<think>" in grammar.start.transitions


def test_one_table_for_calls_and_reasoning_leaves_out_what_is_not_wanted() -> None:
    whole, calls, reasoning = grammar_of("openai", "openai_gptoss"), grammar_of("openai", None), grammar_of(
        None, "openai_gptoss"
    )  # fmt: skip
    for grammar, kinds in (
        (whole, {Read.JSON, Read.REASONING, Read.CONTENT}),
        (calls, {Read.JSON, Read.CONTENT}),
        (reasoning, {Read.REASONING, Read.CONTENT}),
    ):
        header = grammar.start.transitions["<|channel|>"][0].to
        assert {rule.to.read for rule in header.transitions["<|message|>"]} == kinds


def test_turns_begin_with_the_formats_markers_or_else_with_special_tokens() -> None:
    added = {"<|start|>": 1, "<|im_start|>": 2, "<think>": 3}
    assert build_grammar(CATALOG.tools["openai"], None, added, [1, 2]).turn_ids == {1}
    assert build_grammar(None, CATALOG.reasoning["qwen3"], added, [1, 2, 3]).turn_ids == {1, 2}


@pytest.mark.parametrize(
    ("text", "found", "group"),
    [
        ("a <tool_call>{", "<tool_call>", None), ("a <tool_", "<tool_", "part"), ("a <", "<", "part"),
        ("a < b", None, None), ("</tool_call", None, None), ("<tool_call", "<tool_call", "part"),
        ("<<tool_call>", "<tool_call>", None),
    ],
)  # fmt: skip
def test_the_pattern_finds_markers_and_beginnings_at_the_end(text: str, found: str | None, group: str | None) -> None:
    pattern = grammar_of("hermes", None).start.pattern
    assert pattern is not None
    match = pattern.search(text)
    assert (match[0] if match else None, match.lastgroup if match else None) == (found, group)


def test_a_marker_that_begins_another_one_waits_at_the_end_of_the_text() -> None:
    opened = grammar_of("mistral", None).start.transitions["[TOOL_CALLS]"][0].to
    assert opened.pattern is not None
    waits, counts = opened.pattern.search("["), opened.pattern.search("[{")
    assert waits is not None and waits.lastgroup == "part"
    assert counts is not None and counts[0] == "[" and counts.lastgroup is None


def test_content_without_markers_has_no_pattern() -> None:
    assert grammar_of(None, "granite").content.pattern is None
    assert grammar_of("hermes", None, ["<tool_call>", "</tool_call>"]).start.pattern is None
    assert CONTENT == Read.CONTENT
