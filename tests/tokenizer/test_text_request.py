"""One request between a shim's mailbox and an engine's link: what is submitted, and what the shim gets."""

import asyncio
import contextlib
from typing import Any

import pytest

import demo
from services.rpc.columns import pack_f32, pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.pieces import CONTENT, unpacked
from services.tokenizer.engine_client import EngineClient, TokenLogprobColumns
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.text_request import TextRequest, put_errors
from services.tokenizer.vocabulary import Vocabulary
from tests.fakes import SERVICE
from tests.telemetry.fake_tracing import FakeSpan
from tests.tokenizer.parts import END, FakeEngineLink, Row, answer_formats, connected, ids_of, rows_of

VOCABULARY = Vocabulary(demo.CHECKPOINT)


class Listener:
    def __init__(self) -> None:
        self.started_handles: list[int] = []
        self.ended_handles: list[int] = []
        self.parsed_calls: list[tuple[int, int]] = []

    def parsed(self, num_calls: int, num_broken: int) -> None:
        self.parsed_calls.append((num_calls, num_broken))

    def started(self, handle: int) -> None:
        self.started_handles.append(handle)

    def ended(self, handle: int) -> None:
        self.ended_handles.append(handle)


class Played:
    """A request with an engine that the test plays. Handles of `choices` are the shim's."""

    def __init__(
        self,
        *choices: pb.Choice,
        engines: EngineClient | None = None,
        stop: list[str] | None = None,
        resolution: text_pb2.ResolvedOutput | None = None,
        prompt: list[int] | None = None,
        **fields: Any,
    ) -> None:
        """`resolution`: what the output specification resolved to; None: nothing."""
        if engines is None:
            engines, self.link = connected()
            self.link.peer.engine.vocab_size = 2**16
        self.engines = engines
        self.mailbox, self.listener = TextMailbox(1, SERVICE), Listener()
        self.span = FakeSpan("tokenizer.request", "", None, "here")
        self.prompt = prompt or ids_of("a prompt")
        defaults = {"attempt": 1, "output": text_pb2.OutputSpec(stop=stop or [])}
        submit = text_pb2.TextSubmit(choices=choices, **{**defaults, **fields})
        resolved = resolution or text_pb2.ResolvedOutput()
        plan = answer_formats("hermes", "qwen3").plan(submit.output, self.prompt)
        self.request = TextRequest(
            submit, self.prompt, resolved, plan, VOCABULARY, self.mailbox, engines, self.listener, self.span
        )
        replay = self.request.replay(asyncio.Lock())
        with contextlib.suppress(StopIteration):
            while True:  # a turn of the event loop each
                replay.send(None)

    def start(self) -> engine_pb2.Submit:
        """Starts the request; returns what the engine gets."""
        self.request.start()
        (entry,) = self.link.entries
        self.link.entries.clear()
        return entry.submit

    def receive(self, **step: Any) -> None:
        self.engines.receive(self.link, engine_pb2.EngineUp(step=engine_pb2.StepBatch(epoch=5, **step)))

    def receive_tokens(self, handle: int, start_index: int, token_ids: list[int], *, logprobs: bool = False) -> None:
        """Tokens with their own logprobs alone, if any."""
        columns = {"logprob_token_ids": pack_u32(token_ids), "logprobs": pack_f32([-1.0] * len(token_ids))}
        self.receive(
            handles=pack_u32([handle]),
            start_indices=pack_u32([start_index]),
            counts=pack_u32([len(token_ids)]),
            token_ids=pack_u32(token_ids),
            logprob_widths=pack_u32([int(logprobs)]),
            **(columns if logprobs else {}),
        )

    def batch(self) -> text_pb2.TextBatch:
        return self.mailbox.take().batch


async def test_the_engine_gets_the_encoded_prompt_and_handles_of_its_own() -> None:
    played = Played(
        pb.Choice(handle=501, choice=0),
        pb.Choice(handle=502, choice=1),
        request_id="r",
        cache_salt="salt",
        cache_group="group",
        priority=-2,
        sampling=pb.SamplingParams(max_tokens=9),
    )
    submit = played.start()
    assert unpack_u32(submit.prompt_token_ids) == played.prompt
    assert [(choice.handle, choice.choice) for choice in submit.choices] == [(1, 0), (2, 1)]
    assert (submit.request_id, submit.priority, submit.attempt) == ("r", -2, 1)
    assert (submit.cache_group, submit.cache_salt) == ("group", "salt")
    assert (submit.sampling.max_tokens, submit.traceparent, submit.HasField("seed")) == (9, "here", False)


async def test_accepted_brings_the_prompts_ids_to_the_shim_once() -> None:
    played = Played(pb.Choice(handle=501), pb.Choice(handle=502))
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=handle, seed=8, cached_tokens=3) for handle in (1, 2)])
    first, second = played.batch().accepted
    assert [(one.handle, one.seed, one.cached_tokens) for one in (first, second)] == [(501, 8, 3), (502, 8, 3)]
    assert (unpack_u32(first.prompt_token_ids), second.prompt_token_ids) == (played.prompt, b"")


async def test_a_shim_that_sent_the_ids_does_not_get_them_back() -> None:
    prompt = pack_u32(ids_of("a prompt"))
    played = Played(pb.Choice(handle=501), prompt_token_ids=prompt)
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert not played.batch().accepted[0].prompt_token_ids
    longer = Played(pb.Choice(handle=501), prompt_token_ids=pack_u32([7]) + prompt)
    longer.start()
    longer.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert longer.batch().accepted[0].prompt_token_ids == prompt, "the prompt was truncated"


async def test_what_the_output_resolved_to_goes_to_the_engine_and_once_to_the_shim() -> None:
    resolved = text_pb2.ResolvedOutput(bad_words_token_ids=[pack_u32([7]), pack_u32([8, 9])])
    played = Played(pb.Choice(handle=501), pb.Choice(handle=502), resolution=resolved)
    assert list(played.start().sampling.bad_words_token_ids) == [pack_u32([7]), pack_u32([8, 9])]
    played.receive(accepted=[engine_pb2.Accepted(handle=handle, seed=8) for handle in (1, 2)])
    first, second = played.batch().accepted
    assert (first.resolved, second.HasField("resolved")) == (resolved, False)
    again = Played(pb.Choice(handle=501), resolved=resolved, resolution=resolved)
    assert list(again.start().sampling.bad_words_token_ids) == list(resolved.bad_words_token_ids)
    again.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert not again.batch().accepted[0].HasField("resolved"), "the shim has it"


async def test_without_anything_resolved_the_field_is_absent() -> None:
    played = Played(pb.Choice(handle=501))
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert not played.batch().accepted[0].HasField("resolved")


async def test_the_engines_sampling_parameters_are_passed_on_if_it_sends_them() -> None:
    played = Played(pb.Choice(handle=501), return_sampling=True)
    assert played.start().return_sampling
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8, sampling=pb.SamplingParams(top_k=7))])
    assert played.batch().accepted[0].sampling == pb.SamplingParams(top_k=7)
    other = Played(pb.Choice(handle=501))
    assert not other.start().return_sampling
    other.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8)])
    assert not other.batch().accepted[0].HasField("sampling")


async def test_tokens_become_rows_and_the_end_carries_the_usage() -> None:
    played = Played(pb.Choice(handle=501))
    played.start()
    played.receive(accepted=[engine_pb2.Accepted(handle=1, seed=8, cached_tokens=3)])
    ids = ids_of("one two")
    played.receive_tokens(1, 0, ids)
    played.receive(terminals=[engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)])
    batch = played.batch()
    assert rows_of(batch) == [Row(501, 0, ids, [(CONTENT, "one two")], [])]
    assert not batch.piece_kinds and not batch.logprob_counts
    (terminal,) = batch.terminals
    assert (terminal.handle, terminal.reason, terminal.numerics_id) == (501, pb.FINISH_REASON_LENGTH, "n1")
    assert (terminal.prompt_tokens, terminal.output_tokens, terminal.cached_tokens) == (len(played.prompt), len(ids), 3)
    assert (played.listener.ended_handles, played.span.ended) == ([501], [(None, "")])


async def test_an_incomplete_character_comes_with_the_terminal_message() -> None:
    played = Played(pb.Choice(handle=501))
    played.start()
    played.receive_tokens(1, 0, [*ids_of("a"), *ids_of("🙂")[:-1]])
    played.receive(terminals=[engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)])
    batch = played.batch()
    (row,), (terminal,) = rows_of(batch), batch.terminals
    assert row.content == "a"
    assert unpacked(terminal.pieces, terminal.piece_kinds) == [(CONTENT, "\ufffd")]


async def test_an_engines_error_and_stop_token_reach_the_shim() -> None:
    played = Played(pb.Choice(handle=501), pb.Choice(handle=502))
    played.start()
    error = TandemError("INTERNAL", "a bad step").to_proto()
    played.receive(
        terminals=[
            engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_ERROR, error=error),
            engine_pb2.Terminal(handle=2, reason=pb.FINISH_REASON_STOP, stop_token_id=77),
        ]
    )
    failed, stopped = played.batch().terminals
    assert (failed.reason, failed.error.message, failed.HasField("stop_token_id")) == (
        pb.FINISH_REASON_ERROR,
        "a bad step",
        False,
    )
    assert (stopped.stop_token_id, stopped.HasField("error")) == (77, False)


async def test_a_stop_string_ends_its_choice_and_aborts_it_at_the_engine() -> None:
    played = Played(pb.Choice(handle=501), pb.Choice(handle=502), stop=[" two"])
    played.start()
    ids = ids_of("one two three")
    played.receive_tokens(1, 0, ids, logprobs=True)
    batch = played.batch()
    kept = len(ids_of("one two"))
    (row,) = rows_of(batch)
    assert (row.token_ids, row.content, len(row.logprobs)) == (ids[:kept], "one", kept)
    (terminal,) = batch.terminals
    assert (terminal.handle, terminal.reason, terminal.stop_string) == (501, pb.FINISH_REASON_STOP, " two")
    assert terminal.output_tokens == kept
    assert [entry.abort.handle for entry in played.link.entries] == [1]
    assert (played.listener.ended_handles, played.span.ended) == ([501], [])
    played.receive(terminals=[engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_ABORT)])
    played.receive_tokens(2, 0, ids_of("one"))
    batch = played.batch()
    assert ([row.handle for row in rows_of(batch)], len(batch.terminals)) == ([502], 0), "the other choice goes on"


async def test_logprobs_carry_text_bytes_and_offsets() -> None:
    played = Played(pb.Choice(handle=501))
    played.start()
    ids = ids_of("a🙂")
    columns = TokenLogprobColumns(2, [one for i in ids for one in (i, ids[0])], [-1.0] * 2 * len(ids))
    played.request.tokens(1, 0, ids, columns)
    (row,) = rows_of(played.batch())
    logprobs = row.logprobs
    assert [one.text_offset for one in logprobs] == [0] + [1] * (len(ids) - 1)
    assert b"".join(one.sampled.token_bytes for one in logprobs) == "a🙂".encode()
    assert logprobs[1].sampled.token == "\ufffd", "a part of a character"
    assert all([top.token for top in one.top] == ["a"] for one in logprobs)


async def test_resumed_tokens_are_submitted_and_their_text_is_not_sent_again() -> None:
    first, rest = ids_of("one"), ids_of(" two")
    resumed = pb.Choice(handle=501, resumed_token_ids=pack_u32(first), cached_tokens=3)
    played = Played(resumed, attempt=2, seed=8)
    submit = played.start()
    assert (submit.attempt, submit.seed, unpack_u32(submit.choices[0].resumed_token_ids)) == (2, 8, first)
    played.receive_tokens(1, len(first), rest)
    played.receive(terminals=[engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)])
    batch = played.batch()
    assert rows_of(batch) == [Row(501, len(first), rest, [(CONTENT, " two")], [])]
    assert (batch.terminals[0].output_tokens, batch.terminals[0].cached_tokens) == (len(first) + len(rest), 3)


async def test_a_resumed_choice_that_a_stop_string_has_ended_is_not_submitted() -> None:
    ids = ids_of("one two")
    done = pb.Choice(handle=501, resumed_token_ids=pack_u32(ids))
    played = Played(done, pb.Choice(handle=502), attempt=2, stop=[" two"])
    submit = played.start()
    assert len(submit.choices) == 1 and not submit.choices[0].resumed_token_ids
    assert [(one.handle, one.stop_string) for one in played.batch().terminals] == [(501, " two")]
    alone = Played(done, attempt=2, stop=[" two"])
    alone.request.start()
    assert not alone.link.entries
    assert [one.handle for one in alone.batch().terminals] == [501]
    assert alone.span.ended


async def test_without_an_engine_a_new_request_raises_and_a_resumed_one_waits() -> None:
    client, link = EngineClient((), make_hello("tokenizer")), FakeEngineLink()
    with pytest.raises(TandemError) as caught:
        Played(pb.Choice(handle=501), engines=client).request.start()
    assert caught.value.code == "UNAVAILABLE"
    Played(pb.Choice(handle=501), engines=client, attempt=2).request.start()
    client.link_up(link)  # type: ignore[arg-type]
    assert [entry.submit.attempt for entry in link.entries] == [2]


async def test_an_abort_ends_one_choice_without_a_terminal_message() -> None:
    played = Played(pb.Choice(handle=501), pb.Choice(handle=502))
    played.start()
    played.request.abort(999)
    assert not played.link.entries
    played.request.abort(502)
    assert [entry.abort.handle for entry in played.link.entries] == [2]
    assert not played.batch().terminals
    assert (played.listener.ended_handles, played.span.ended) == ([502], [])
    played.request.abort(501)
    assert (played.listener.ended_handles, played.span.ended) == ([502, 501], [(None, "")])


async def test_a_suspects_first_token_is_reported_once() -> None:
    played = Played(pb.Choice(handle=501), alone=True)
    played.request.start()
    played.request.tokens(1, 0, ids_of("one"), TokenLogprobColumns(0, [], []))
    played.request.tokens(1, 1, ids_of(" two"), TokenLogprobColumns(0, [], []))
    assert played.listener.started_handles == [501]
    other = Played(pb.Choice(handle=502))
    other.start()
    other.receive_tokens(1, 0, ids_of("one"))
    assert not other.listener.started_handles


@pytest.mark.parametrize(("ignore_eos", "content"), [(False, "bye"), (True, "bye<|im_end|>")])
async def test_the_models_end_token_is_no_text_unless_it_is_ignored(ignore_eos: bool, content: str) -> None:
    played = Played(pb.Choice(handle=501), sampling=pb.SamplingParams(ignore_eos=ignore_eos))
    played.start()
    played.receive_tokens(1, 0, [*ids_of("bye"), END])
    assert [row.content for row in rows_of(played.batch())] == [content]


def test_put_errors_sends_one_terminal_message_per_choice() -> None:
    mailbox = TextMailbox(1, SERVICE)
    put_errors([5, 6], TandemError("UNAVAILABLE", "try again", retryable=True), mailbox)
    terminals = mailbox.take().batch.terminals
    assert [(one.handle, one.reason, one.error.code) for one in terminals] == [
        (5, pb.FINISH_REASON_ERROR, "UNAVAILABLE"),
        (6, pb.FINISH_REASON_ERROR, "UNAVAILABLE"),
    ]


async def test_the_engine_gets_the_grammar_and_the_shim_for_a_resume() -> None:
    played = Played(pb.Choice(handle=1), resolution=text_pb2.ResolvedOutput(grammar="start: /a/"))
    submit = played.start()
    assert submit.grammar == "start: /a/"
    played.receive(accepted=[engine_pb2.Accepted(handle=submit.choices[0].handle)])
    assert played.batch().accepted[0].resolved.grammar == "start: /a/"


async def test_an_error_of_the_grammar_names_the_clients_field() -> None:
    output = text_pb2.OutputSpec(structured=text_pb2.StructuredOutput(json_object=True, field="response_format"))
    played = Played(pb.Choice(handle=1), output=output)
    handle = played.start().choices[0].handle
    error = pb.Error(code="INVALID_ARGUMENT", message="the grammar: too complex", param="grammar")
    played.receive(terminals=[engine_pb2.Terminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error)])
    (terminal,) = played.batch().terminals
    assert (terminal.error.param, terminal.error.message) == ("response_format", "the grammar: too complex")
