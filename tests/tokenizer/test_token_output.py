"""An answer without text: the same tokens, logprobs and ends as one with text, and nothing is decoded."""

from typing import Any

import pytest

from services.rpc.columns import pack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.tokenizer import text_request
from services.tokenizer.token_output import TokenOutput
from tests.tokenizer.parts import END, Row, ids_of, rows_of
from tests.tokenizer.test_text_request import Played

ONLY_IDS = text_pb2.OutputSpec(token_ids_only=True)


def test_tokens_pass_as_they_are() -> None:
    output = TokenOutput()
    released = output.push([5, 6, 5])
    assert (released.num_tokens, released.pieces, released.offsets) == (3, [], [0, 0, 0])
    assert output.push([7]).num_tokens == 1 and output.num_tokens == 4
    assert output.flush(stopped=True) == [] and not output.is_over and output.stop_string is None


def played(output: text_pb2.OutputSpec, *, resumed: list[int] | None = None) -> tuple[list[Row], text_pb2.TextTerminal]:
    """Returns the rows and the terminal message of an answer "Hello Köln" with logprobs."""
    request = Played(pb.Choice(handle=3, resumed_token_ids=pack_u32(resumed or [])), output=output)
    handle = request.start().choices[0].handle
    ids = ids_of("Hello Köln")
    for at in range(len(resumed or []), len(ids)):
        request.receive_tokens(handle, at, [ids[at]], logprobs=True)
    request.receive(terminals=[engine_pb2.Terminal(handle=handle, reason=pb.FINISH_REASON_STOP, stop_token_id=END)])
    batch = request.mailbox.take().batch
    (terminal,) = batch.terminals
    return rows_of(batch), terminal


async def test_ids_and_logprobs_are_those_of_an_answer_with_text() -> None:
    with_text, its_end = played(text_pb2.OutputSpec())
    rows, end = played(ONLY_IDS)
    assert "".join(row.content for row in with_text) + "".join(its_end.pieces) == "Hello Köln"
    assert [row.token_ids for row in rows] == [row.token_ids for row in with_text]
    assert not any(row.pieces for row in rows) and not end.pieces
    assert (end.output_tokens, end.reason, end.stop_token_id) == (its_end.output_tokens, its_end.reason, END)
    for one, other in zip(rows, with_text, strict=True):
        for entry, texted in zip(one.logprobs, other.logprobs, strict=True):
            assert (entry.sampled.token_id, entry.sampled.logprob) == (texted.sampled.token_id, texted.sampled.logprob)
            assert not entry.sampled.token and not entry.sampled.token_bytes and texted.sampled.token


async def test_a_resume_goes_on() -> None:
    ids = ids_of("Hello Köln")
    rows, end = played(ONLY_IDS, resumed=ids[:2])
    assert [token_id for row in rows for token_id in row.token_ids] == ids[2:] and rows[0].start_index == 2
    assert end.output_tokens == len(ids)


async def test_a_stop_string_ends_it_all_the_same() -> None:
    """Its text is made, and not sent."""
    request = Played(pb.Choice(handle=3), output=text_pb2.OutputSpec(token_ids_only=True, stop=["lo"]))
    handle = request.start().choices[0].handle
    ids = ids_of("Hello Köln")
    request.receive_tokens(handle, 0, ids)
    batch = request.mailbox.take().batch
    (terminal,) = batch.terminals
    (row,) = rows_of(batch)
    assert terminal.stop_string == "lo" and 0 < len(row.token_ids) < len(ids)
    assert not row.pieces and not terminal.pieces


async def test_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a detokenizer was made")

    monkeypatch.setattr(text_request, "ChoiceOutput", decode)
    assert played(ONLY_IDS)[0]
    with pytest.raises(AssertionError, match="a detokenizer"):
        played(text_pb2.OutputSpec())
