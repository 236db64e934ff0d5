"""Markers that are tokens, between text that stop strings hold back."""

import pytest

from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL_END, TOOL_NAME, Piece, add_pieces
from services.tokenizer.answer_divider import AnswerDivider
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from tests.tokenizer.parts import END, answer_formats, ids_of, tokenizer

CALL = '<think>\nhm\n</think>\n\nWait.<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
PIECES = [
    (REASONING, "hm"),
    (CONTENT, "Wait."),
    (TOOL_NAME, "f"),
    (TOOL_ARGUMENTS, '{"a": "x"}'),
    (TOOL_CALL_END, ""),
]


def output(stop: list[str] | None = None, *, prompt: str = "a prompt", single: bool = False) -> ChoiceOutput:
    rules = OutputRules(stop or [], False, True, True, frozenset([END]), 0)
    prompt_ids = ids_of(prompt)
    spec = text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_AUTO, separate_reasoning=True, single_tool_call=single)
    answer_format = answer_formats("hermes", "qwen3").of_request(spec, prompt_ids)
    assert answer_format is not None
    return ChoiceOutput(tokenizer(), prompt_ids, rules, AnswerDivider(answer_format, 0))


def answer(out: ChoiceOutput, token_ids: list[int], group: int = 1, *, stopped: bool = True) -> list[Piece]:
    """The pieces of a whole answer, pushed in groups of tokens; without the ids of the calls."""
    pieces: list[Piece] = []
    for first in range(0, len(token_ids), group):
        add_pieces(pieces, out.push(token_ids[first : first + group]).pieces)
        if out.is_over:
            break
    add_pieces(pieces, out.flush(stopped=stopped))
    return [piece for piece in pieces if piece[0] != 2]


@pytest.mark.parametrize("group", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", [[], ["nowhere", "</think>x", "hm\n</think>\n\nWait!"]])
def test_stop_strings_and_groups_of_tokens_do_not_change_the_pieces(group: int, stop: list[str]) -> None:
    assert answer(output(stop), [*ids_of(CALL), END], group) == PIECES


def test_a_stop_string_sees_the_markers() -> None:
    out = output(["</think>\n\nW"])
    assert answer(out, ids_of(CALL)) == [(REASONING, "hm\n")]
    assert out.stop_string == "</think>\n\nW"


def test_a_stop_string_that_ends_within_a_marker_leaves_its_beginning() -> None:
    assert answer(output(["_call>\n{"]), ids_of(CALL)) == [(REASONING, "hm"), (CONTENT, "Wait.<tool")]


def test_the_first_call_ends_the_answer_if_it_is_the_only_one() -> None:
    out = output(single=True)
    released = out.push(ids_of(CALL + CALL))
    assert out.is_over and out.stop_string is None
    assert released.pieces[-1] == (TOOL_CALL_END, "")
    assert released.num_tokens < len(ids_of(CALL))
    assert out.flush(stopped=True) == []


def test_ordinary_text_that_reads_like_a_marker_is_content() -> None:
    letters = [token_id for letter in "<tool_call>" for token_id in ids_of(letter)]
    assert len(letters) == len("<tool_call>")
    assert answer(output(), letters) == [(CONTENT, "<tool_call>")]


def test_an_incomplete_character_ends_before_a_marker() -> None:
    half = ids_of("é")[:1]
    think, end = ids_of("<think>"), ids_of("</think>")
    assert len(ids_of("é")) > 1
    assert answer(output(), [*think, *half, *end, *ids_of("b")]) == [(REASONING, "\ufffd"), (CONTENT, "b")]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("<|im_start|>assistant\n", CONTENT),
        ("<|im_start|>assistant\n<think>\n", REASONING),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", CONTENT),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", CONTENT),
        ("<think>", REASONING),
    ],
)
def test_the_prompt_decides_where_the_answer_begins(prompt: str, kind: int) -> None:
    assert answer(output(prompt=prompt), ids_of("Hi")) == [(kind, "Hi")]


def test_tokens_of_reasoning_are_counted_without_markers() -> None:
    out = output()
    out.push(ids_of("<think>one two</think>three"))
    assert out.num_reasoning_tokens == len(ids_of("one two"))
