"""The pieces that a parser writes."""

from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME
from services.tokenizer.parsing.calls import PieceWriter
from tests.tokenizer.parsing.table_runs import deadline


def test_texts_of_a_kind_are_one_piece() -> None:
    writer = PieceWriter(str)
    for kind, text in ((REASONING, "a"), (REASONING, "b"), (CONTENT, ""), (CONTENT, "c")):
        writer.add(kind, text)
    writer.begin_call("f")
    writer.add_arguments("{")
    writer.add_arguments("}")
    writer.end_call()
    writer.add(CONTENT, "d")
    assert writer.take() == [
        (REASONING, "ab"), (CONTENT, "c"), (TOOL_CALL, "0"), (TOOL_NAME, "f"), (TOOL_ARGUMENTS, "{}"),
        (TOOL_CALL_END, ""), (CONTENT, "d"),
    ]  # fmt: skip
    assert writer.take() == []


def test_a_long_text_takes_time_in_proportion() -> None:
    """A resume adds the text of all tokens so far, and takes the pieces once."""
    writer = PieceWriter(str)
    with deadline(5):
        for _ in range(500_000):
            writer.add(CONTENT, "four")
    assert writer.take() == [(CONTENT, "four" * 500_000)]
