"""A request with tool calls and reasoning, from the engine's tokens to the shim's pieces, resumed at every token."""

import pytest

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.pieces import REASONING, TOOL_CALL, TOOL_CALL_END, Piece, add_pieces, unpacked
from services.tokenizer import text_request
from tests.tokenizer.parts import END, ids_of
from tests.tokenizer.test_text_request import Played

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
ANSWER = f"<think>\nhm\n</think>\n\nSo.\n{CALL}\n{CALL}"
OUTPUT = text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_AUTO, separate_reasoning=True)
STOP = engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_STOP)


def submitted(resumed: list[int] | None = None, output: text_pb2.OutputSpec = OUTPUT, choice: int = 1) -> Played:
    sent = pb.Choice(handle=501, choice=choice, resumed_token_ids=pack_u32(resumed or []))
    played = Played(sent, output=output, **({"attempt": 2, "seed": 9} if resumed else {}))
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=9)])
    played.mailbox.take()
    return played


def generated(played: Played, token_ids: list[int], start_index: int = 0) -> tuple[list[Piece], text_pb2.TextTerminal]:
    """Plays the engine's tokens and its end, one message each; returns all pieces and the terminal message."""
    pieces: list[Piece] = []
    for offset, token_id in enumerate(token_ids):
        played.receive_tokens(1, start_index + offset, [token_id])
        batch = played.batch()
        add_pieces(pieces, unpacked(batch.pieces, batch.piece_kinds))
    played.receive(terminals=[STOP])
    (terminal,) = played.batch().terminals
    add_pieces(pieces, unpacked(terminal.pieces, terminal.piece_kinds))
    return pieces, terminal


@pytest.mark.parametrize("at_once", [1, 5, 1024])
async def test_resumed_at_every_token_the_pieces_the_ids_and_the_usage_are_the_same(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_request, "MAX_REPLAYED", at_once)
    ids = [*ids_of(ANSWER), END]
    whole, terminal = generated(submitted(), ids)
    assert [kind for kind, _ in whole].count(TOOL_CALL_END) == 2
    assert terminal.reasoning_tokens == len(ids_of("\nhm\n"))
    for cut in range(1, len(ids)):
        played = submitted()
        before: list[Piece] = []
        for index, token_id in enumerate(ids[:cut]):
            played.receive_tokens(1, index, [token_id])
            batch = played.batch()
            add_pieces(before, unpacked(batch.pieces, batch.piece_kinds))
        after, resumed = generated(submitted(ids[:cut]), ids[cut:], cut)
        add_pieces(before, after)
        assert before == whole, cut
        assert resumed.SerializeToString(deterministic=True) == terminal.SerializeToString(deterministic=True)


async def test_ids_differ_between_calls_choices_and_prompts_but_not_between_runs() -> None:
    def call_ids(played: Played) -> list[str]:
        return [text for kind, text in generated(played, ids_of(ANSWER))[0] if kind == TOOL_CALL]

    first = call_ids(submitted())
    assert call_ids(submitted()) == first
    found = {*first, *call_ids(submitted(choice=2))}
    assert len(found) == 4
    assert all(one.startswith("call_") and len(one) == 29 and one.isascii() for one in found)


async def test_the_only_call_ends_the_choice_at_the_engine() -> None:
    output = text_pb2.OutputSpec(tool_choice=text_pb2.TOOL_CHOICE_AUTO, single_tool_call=True)
    played = submitted(output=output)
    ids = ids_of(f"{CALL}\n{CALL}")
    played.link.entries.clear()
    played.receive_tokens(1, 0, ids)
    (entry,) = played.link.entries
    assert entry.HasField("abort")
    batch = played.batch()
    (terminal,) = batch.terminals
    assert terminal.reason == pb.FINISH_REASON_STOP and terminal.WhichOneof("stop_reason") is None
    assert terminal.output_tokens == len(unpack_u32(batch.token_ids)) < len(ids)
    assert played.listener.ended_handles == [501] and played.listener.parsed_calls == [(1, 0)]


@pytest.mark.parametrize(("prompt", "is_open"), [("a", False), ("<think>\n", True), ("<think></think>", False)])
async def test_the_budget_of_reasoning_goes_to_the_engine_as_token_ids(prompt: str, is_open: bool) -> None:
    output = text_pb2.OutputSpec(thinking_token_budget=5)
    played = Played(pb.Choice(handle=501), output=output, prompt=ids_of(prompt))
    budget = played.start().sampling.thinking_budget
    assert (budget.max_tokens, budget.starts_open) == (5, is_open)
    assert unpack_u32(budget.start_token_ids) == ids_of("<think>")
    assert unpack_u32(budget.end_token_ids) == ids_of("</think>")


async def test_without_tools_and_reasoning_the_text_is_content() -> None:
    pieces, terminal = generated(submitted(output=text_pb2.OutputSpec()), ids_of(ANSWER))
    assert pieces == [(0, ANSWER)] and terminal.reasoning_tokens == 0
    kinds = {
        kind for kind, _ in generated(submitted(output=text_pb2.OutputSpec(separate_reasoning=True)), ids_of(ANSWER))[0]
    }
    assert kinds == {0, REASONING}
