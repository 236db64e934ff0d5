"""A request that resumes in a session of another tokenizer: the engine and the shim get what they would have got."""

import json
from typing import Any

import pytest

from services.rpc.call import Call
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.pieces import CONTENT, Piece, add_pieces, unpacked
from tests.tokenizer.parts import ids_of, rows_of
from tests.tokenizer.sessions import Stream, Tokenizer


class Shim(Call[text_pb2.TextSubmit]):
    """A shim's call, which keeps what a resume needs, and folds the pieces of its first choice."""

    def __init__(self, submit: text_pb2.TextSubmit) -> None:
        super().__init__(submit)
        self.pieces: list[Piece] = []
        self.ended = False

    def fail(self, error: TandemError) -> None:
        raise AssertionError(error)

    def attempt(self, stream: Stream) -> text_pb2.TextSubmit:
        """Submits the call on this stream; returns the submit."""
        submit: text_pb2.TextSubmit = self.next_submit(alone=False, on_cleared=lambda: None)
        stream._receive(text_pb2.TextEntry(submit=submit))
        return submit

    def read(self, stream: Stream) -> None:
        """Takes the stream's next message."""
        batch = stream.session.mailbox.take().batch
        for accepted in batch.accepted:
            self.record_accepted(accepted)
        for row in rows_of(batch):
            self.record_tokens(row.handle, row.start_index, pack_u32(row.token_ids))
            add_pieces(self.pieces, row.pieces)
        for terminal in batch.terminals:
            assert terminal.reason == pb.FINISH_REASON_LENGTH, terminal
            add_pieces(self.pieces, unpacked(terminal.pieces, terminal.piece_kinds))
            self.ended = True


def engine_step(ids: list[int], start: int, **more: Any) -> engine_pb2.EngineUp:
    return engine_pb2.EngineUp(
        step=engine_pb2.StepBatch(
            epoch=5,
            handles=pack_u32([1]),
            start_indices=pack_u32([start]),
            counts=pack_u32([len(ids)]),
            token_ids=pack_u32(ids),
            logprob_widths=pack_u32([0]),
            **more,
        )
    )


WORDS = " ".join(f"word{index}" for index in range(50))
RESUMED: dict[str, dict[str, Any]] = {
    "bad words": {"output": text_pb2.OutputSpec(bad_words=["the", "🙂"])},
    "truncation": {"text": WORDS, "truncation": text_pb2.Truncation(max_tokens=9)},
    "truncation of a chat": {
        "chat": text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": WORDS}]).encode()),
        "truncation": text_pb2.Truncation(drop_end=True),
        "sampling": pb.SamplingParams(max_tokens=20),
    },
    "token ids": {"prompt_token_ids": pack_u32([7, 8, 9] * 40), "truncation": text_pb2.Truncation(max_tokens=7)},
    "group and salt": {"cache_group": "group", "cache_salt": "salt"},
    "spaces and stop": {"output": text_pb2.OutputSpec(stop=["x y"], spaces_between_special_tokens=False)},
}


@pytest.mark.parametrize("cut", [0, 1, 4])
@pytest.mark.parametrize("fields", RESUMED.values(), ids=RESUMED)
async def test_a_resumed_request_reaches_the_engine_and_the_shim_as_before(fields: dict[str, Any], cut: int) -> None:
    """The shim's tokenizer dies after `cut` tokens; another one, with another engine, goes on."""
    ids = ids_of("one 🙂 two <|im_end|>x")
    answers, prompts, bad_words = [], [], []
    for death in (None, cut):
        more = dict(fields)
        if "chat" not in more and "prompt_token_ids" not in more:
            more["text"] = text_pb2.TextInput(text=more.get("text", "one"))
        shim = Shim(text_pb2.TextSubmit(request_id="r", choices=[pb.Choice(handle=501)], **more))
        start = 0
        for upto in [death, len(ids)] if death is not None else [len(ids)]:
            tokenizer = Tokenizer()
            tokenizer.link.peer.engine.vocab_size = 2**16
            stream = tokenizer.stream()
            submit = shim.attempt(stream)
            await stream.encoded()
            (engine,) = tokenizer.submitted()
            prompts.append(unpack_u32(engine.prompt_token_ids))
            assert (engine.cache_group, engine.cache_salt) == (more.get("cache_group", ""), more.get("cache_salt", ""))
            bad_words.append(list(engine.sampling.bad_words_token_ids))
            assert unpack_u32(engine.choices[0].resumed_token_ids) == ids[:start]
            ended = [engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)] if upto == len(ids) else []
            accepted = [engine_pb2.Accepted(handle=1, seed=3)]
            step = engine_step(ids[start:upto], start, accepted=accepted, terminals=ended)
            tokenizer.engines.receive(tokenizer.link, step)  # type: ignore[arg-type]
            shim.read(stream)
            start = upto
        assert shim.ended
        answers.append(shim.pieces)
    assert submit.WhichOneof("input") == "prompt_token_ids" and submit.output == shim._submit.output
    assert submit.HasField("resolved") == bool(bad_words[0])
    assert prompts[1:] == [prompts[0]] * 2 and bad_words[1:] == [bad_words[0]] * 2
    assert answers[0] == answers[1]
    assert answers[0] == [(CONTENT, "one 🙂 two x")]
