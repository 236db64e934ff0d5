"""Updates as vLLM's responses: streamed and whole, with logprobs, stop reasons, aborts and errors."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from smg_grpc_proto import vllm_engine_pb2 as vllm

from services.rpc import response_mailbox
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.apis.numbers import LOWEST_LOGPROB
from services.shim.gateway import answer
from services.shim.gateway.answer import streamed, whole
from tests.shim.harness import Shim


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


async def read(responses: AsyncIterator[vllm.GenerateResponse]) -> list[vllm.GenerateResponse]:
    async with asyncio.timeout(10):
        return [response async for response in responses]


async def no_pause(num_responses: int) -> None:
    assert num_responses > 0


def token_logprobs(token_id: int, *top: int) -> text_pb2.TokenLogprobs:
    entries = [text_pb2.TokenLogprob(token_id=one, logprob=-float(one)) for one in top]
    return text_pb2.TokenLogprobs(sampled=text_pb2.TokenLogprob(token_id=token_id, logprob=-0.5), top=entries)


async def test_a_stream_has_new_ids_and_one_complete_per_choice(shim: Shim) -> None:
    generation, (first, second) = shim.start(2)
    shim.accept(first, [1, 2, 3], cached_tokens=2)
    shim.event(first, 0, [7], "a")
    responses = streamed(generation, no_pause)
    chunk = (await anext(responses)).chunk
    assert (list(chunk.token_ids), chunk.index, chunk.completion_tokens) == ([7], 0, 1)
    assert (chunk.prompt_tokens, chunk.cached_tokens) == (3, 2)
    shim.event(first, 1, [8, 9], "bc")
    shim.event(second, 0, [5], "x")
    shim.end(first, prompt_tokens=3, output_tokens=3, cached_tokens=2)
    shim.end(second, pb.FINISH_REASON_LENGTH, prompt_tokens=3, output_tokens=1)
    rest = await read(responses)
    chunks = [(one.chunk.index, list(one.chunk.token_ids)) for one in rest if one.HasField("chunk")]
    assert chunks == [(0, [8, 9]), (1, [5])]
    completes = {one.complete.index: one.complete for one in rest if one.HasField("complete")}
    assert [completes[0].finish_reason, completes[1].finish_reason] == ["stop", "length"]
    assert not completes[0].output_ids and not completes[1].output_ids
    assert (completes[0].prompt_tokens, completes[0].completion_tokens, completes[0].cached_tokens) == (3, 3, 2)


async def test_a_whole_answer_is_one_complete_per_choice_in_order(shim: Shim) -> None:
    generation, (first, second) = shim.start(2)
    shim.event(second, 0, [5], "x")
    shim.end(second, output_tokens=1)
    shim.event(first, 0, [7, 8], "ab")
    shim.event(first, 2, [9], "c")
    shim.end(first, output_tokens=3)
    completes = [one.complete for one in await read(whole(generation))]
    assert [(one.index, list(one.output_ids), one.completion_tokens) for one in completes] == [
        (0, [7, 8, 9], 3),
        (1, [5], 1),
    ]


async def test_logprobs(shim: Shim) -> None:
    for stream in (True, False):
        generation, (handle,) = shim.start(1)
        shim.event(handle, 0, [7, 8], "ab", logprobs=[token_logprobs(7, 1, 2), token_logprobs(8, 3, 4)])
        shim.end(handle)
        first = (await read(streamed(generation, no_pause) if stream else whole(generation)))[0]
        found = first.chunk.output_logprobs if stream else first.complete.output_logprobs
        assert (list(found.token_ids), list(found.token_logprobs)) == ([7, 8], [-0.5, -0.5])
        assert [list(top.token_ids) for top in found.top_logprobs] == [[1, 2], [3, 4]]
        assert [list(top.values) for top in found.top_logprobs] == [[-1, -2], [-3, -4]]


async def test_logprobs_of_the_answer_alone_have_no_top(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    impossible = text_pb2.TokenLogprobs(sampled=text_pb2.TokenLogprob(token_id=7, logprob=float("-inf")))
    shim.event(handle, 0, [7], "a", logprobs=[impossible])
    shim.end(handle)
    (response,) = await read(whole(generation))
    found = response.complete.output_logprobs
    assert not found.top_logprobs and list(found.token_logprobs) == [LOWEST_LOGPROB]


async def test_without_logprobs_there_are_none(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    (response,) = await read(whole(generation))
    assert not response.complete.HasField("output_logprobs")


async def test_what_ended_a_choice(shim: Shim) -> None:
    generation, handles = shim.start(3)
    shim.end(handles[0], stop_string="END")
    shim.end(handles[1], stop_token_id=0)
    shim.end(handles[2])
    completes = [one.complete for one in await read(streamed(generation, no_pause))]
    assert [one.WhichOneof("matched_stop") for one in completes] == ["matched_stop_str", "matched_token_id", None]
    assert completes[0].matched_stop_str == "END"


async def test_an_abort_completes_every_open_choice(shim: Shim) -> None:
    generation, (first, second) = shim.start(2)
    shim.accept(first, [1, 2, 3], cached_tokens=2)
    shim.end(second)
    shim.event(first, 0, [7, 8], "ab")
    generation.abort()
    responses = await read(streamed(generation, no_pause))
    completes = {one.complete.index: one.complete for one in responses if one.HasField("complete")}
    assert [completes[0].finish_reason, completes[1].finish_reason] == ["abort", "stop"]
    assert (completes[0].prompt_tokens, completes[0].completion_tokens, completes[0].cached_tokens) == (3, 2, 2)
    assert [list(one.chunk.token_ids) for one in responses if one.HasField("chunk")] == [[7, 8]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_choice_is_an_error(shim: Shim, stream: bool) -> None:
    generation, (first, _) = shim.start(2)
    shim.fail(first, invalid("the prompt is empty", "prompt"))
    with pytest.raises(TandemError, match="the prompt is empty"):
        await read(streamed(generation, no_pause) if stream else whole(generation))


async def test_a_pause_follows_each_turn_but_the_last(shim: Shim) -> None:
    generation, handles = shim.start(2)
    pauses: list[int] = []

    async def pause(num_responses: int) -> None:
        pauses.append(num_responses)
        for handle in handles:
            shim.event(handle, 1, [8], "b")
            shim.end(handle)

    for handle in handles:
        shim.event(handle, 0, [7], "a")
    responses = await read(streamed(generation, pause))
    assert pauses == [2]
    assert sum(one.HasField("chunk") for one in responses) == 4


async def test_a_large_update_is_several_chunks(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was slow for long gets messages that it can take."""
    monkeypatch.setattr(answer, "MAX_ENTRIES", 8)
    for logprobs, lengths in ((False, [8, 2]), (True, [2, 2, 2, 2, 2])):  # a token with two top logprobs is 4 entries
        generation, (handle,) = shim.start(1)
        found = [token_logprobs(token_id, 1, 2) for token_id in range(10)] if logprobs else []
        shim.event(handle, 0, list(range(10)), "ten", logprobs=found)
        shim.end(handle)
        *chunks, _ = await read(streamed(generation, no_pause))
        assert [len(one.chunk.token_ids) for one in chunks] == lengths
        assert [token for one in chunks for token in one.chunk.token_ids] == list(range(10))
        sampled = [token for one in chunks for token in one.chunk.output_logprobs.token_ids]
        assert sampled == (list(range(10)) if logprobs else [])


async def test_a_whole_answer_too_large_for_a_message(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_mailbox, "MAX_MESSAGE_BYTES", 20)
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, list(range(30)), "thirty")
    shim.end(handle)
    with pytest.raises(TandemError, match="a message has at most 20: set stream") as caught:
        await read(whole(generation))
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "stream")
