"""What comes before an answer: the echoed prompt, and the logprobs of its tokens."""

from services.rpc.columns import pack_f32, pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.pieces import CONTENT, unpacked
from tests.tokenizer.parts import Row, ids_of, rows_of
from tests.tokenizer.test_text_request import VOCABULARY, Played

LEAD = text_pb2.ResolvedOutput(lead="a prompt")


def text_of(row: Row) -> str:
    return "".join(text for _, text in row.pieces)


async def test_an_echo_comes_with_the_first_token_and_is_no_stop_string() -> None:
    output = text_pb2.OutputSpec(echo=True, stop=["prompt"])
    played = Played(pb.Choice(handle=501), output=output, resolution=LEAD)
    played.start()
    one, two = ids_of(" one"), ids_of(" two")
    played.receive_tokens(1, 0, one, logprobs=True)
    (row,) = rows_of(played.batch())
    assert text_of(row) == "a prompt one" and row.logprobs[0].text_offset == len("a prompt")
    played.receive_tokens(1, len(one), two)
    assert text_of(rows_of(played.batch())[0]) == " two"


async def test_a_resume_echoes_only_if_no_token_was_received() -> None:
    output = text_pb2.OutputSpec(echo=True)
    for resumed, expected in (([], "a prompt one"), (ids_of(" zero"), " one")):
        played = Played(
            pb.Choice(handle=501, resumed_token_ids=pack_u32(resumed)), output=output, resolution=LEAD, attempt=2
        )
        played.start()
        played.receive_tokens(1, len(resumed), ids_of(" one"))
        assert text_of(rows_of(played.batch())[0]) == expected


async def test_an_answer_without_tokens_is_the_prompt_alone() -> None:
    output = text_pb2.OutputSpec(echo=True, prompt_only=True)
    played = Played(pb.Choice(handle=501), output=output, resolution=LEAD)
    played.start()
    played.receive_tokens(1, 0, [5], logprobs=True)
    played.receive(terminals=[engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_STOP, stop_token_id=5)])
    batch = played.batch()
    (terminal,) = batch.terminals
    assert rows_of(batch) == [] and unpacked(terminal.pieces, terminal.piece_kinds) == [(CONTENT, "a prompt")]
    assert (terminal.reason, terminal.output_tokens) == (pb.FINISH_REASON_LENGTH, 0)
    assert not terminal.HasField("stop_token_id")


async def test_logprobs_of_the_prompt_get_their_texts_and_the_shims_handle() -> None:
    played = Played(pb.Choice(handle=501), sampling=pb.SamplingParams(prompt_logprobs=1))
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert played.batch().accepted[0].first_prompt_token == VOCABULARY.token_bytes(played.prompt[0])
    ids = [played.prompt[1], 70, played.prompt[2], 70]
    columns = {"token_ids": pack_u32(ids), "logprobs": pack_f32([-1.0] * 4), "ranks": pack_u32([1, 2])}
    played.receive(prompt_logprobs=[pb.PromptLogprobs(handle=1, start_index=1, width=2, **columns)])
    (found,) = played.batch().prompt_logprobs
    assert (found.logprobs.handle, found.logprobs.start_index, found.logprobs.token_ids) == (501, 1, pack_u32(ids))
    assert dict(zip(unpack_u32(found.token_ids), found.tokens, strict=True)) == {
        token_id: VOCABULARY.token_bytes(token_id) for token_id in ids
    }
    assert not found.text_offsets
