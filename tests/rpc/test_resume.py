"""The contract under broken streams: cut at every message boundary, gaps, repeats, messages of the dead, late aborts.

Each choice must have the same fold as undisturbed: content, token ids, logprobs, finish reason, usage; and exactly one
terminal message.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.generated.text_pb2_grpc import TextServiceStub
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.link import Link
from services.rpc.transport import open_channel
from services.shim.generation import Generation
from services.shim.tokenizer_client import TokenizerClient
from tests.e2e.api import CHAT, INPUT, TEXT, Json, choices_of, events_of, fold
from tests.fakes import oracle
from tests.recovery.workload import patient_post
from tests.rpc.pipeline import VOCAB_SIZE, Fold, Pipeline, Proxy, silent_record
from tests.rpc.streams import next_terminal, open_stream


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


def workload(pipeline: Pipeline, stop: str) -> list[text_pb2.TextSubmit]:
    """Short and long, two choices, logprobs, a stop string that cuts an answer in the middle."""
    return [
        pipeline.submit("What is 2 + 3?", max_tokens=12),
        pipeline.submit("Hello!", n=2, max_tokens=8, logprobs=2),
        pipeline.submit("Count to ten, slowly", max_tokens=14, stop=[stop]),
        pipeline.submit("x", max_tokens=1),
    ]


async def undisturbed(pipeline: Pipeline) -> tuple[str, list[Fold]]:
    """A stop string that really occurs, and the folds that every disturbed run must give."""
    whole = await pipeline.fold(pipeline.submit("Count to ten, slowly", max_tokens=14))
    text = whole[0].content
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    # Once before, so that every later run finds the same prefixes in the cache.
    await pipeline.fold(*workload(pipeline, stop))
    folds = await pipeline.fold(*workload(pipeline, stop))
    assert [fold.terminals[0]["reason"] for fold in folds].count(pb.FINISH_REASON_STOP) == 1
    return stop, folds


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_a_stream_cut_at_every_message_boundary_gives_the_same_fold(pipeline: Pipeline, edge: str) -> None:
    stop, expected = await undisturbed(pipeline)
    proxy: Proxy = getattr(pipeline, edge)
    proxy.reset()
    await pipeline.fold(*workload(pipeline, stop))
    messages, cuts = proxy.num_up, 0
    for boundary in range(messages):
        proxy.reset()
        proxy.cut_after = boundary
        folds = await pipeline.fold(*workload(pipeline, stop))
        assert folds == expected, f"cut after message {boundary} of {messages}"
        assert all(len(fold.terminals) == 1 for fold in folds)
        cuts += proxy.num_up >= boundary and proxy.num_streams > 0  # messages merge, so a run may have fewer
    assert cuts >= 5, "too few boundaries to say anything"


KINDS: dict[str, Json] = {
    "plain": {},
    "two": {"n": 2, "seed": 3},
    "logprobs": {"logprobs": 2},
    "stop": {"stop": ["no such text"]},
}


async def over_http(pipeline: Pipeline, stops: dict[str, str]) -> dict[str, Json]:
    """What HTTP clients have in the end of every kind, at both endpoints, streamed and whole, all at once."""
    names = [f"{path} {kind} {how}" for path in (CHAT, TEXT) for kind in KINDS for how in ("stream", "whole")]

    async def ask(http: httpx.AsyncClient, name: str) -> Json:
        path, kind, how = name.split()
        body = {**INPUT[path], "max_tokens": 9, "ignore_eos": True, "return_token_ids": True, **KINDS[kind]}
        if path == CHAT and kind == "logprobs":
            body |= {"logprobs": True, "top_logprobs": 2}
        if name in stops:
            body["stop"] = [stops[name], "no such text"]
        if how == "whole":
            answer = (await patient_post(http, path, body)).json()
            return {"choices": choices_of(answer), "usage": answer["usage"]}
        more = {"stream": True, "stream_options": {"include_usage": True}}
        response = await patient_post(http, path, body | more)
        events = events_of(response.iter_lines())
        return {"choices": fold(events), "usage": events[-1]["usage"]}

    async with pipeline.http() as http, asyncio.timeout(30):
        return dict(zip(names, await asyncio.gather(*(ask(http, name) for name in names)), strict=True))


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_http_answers_of_every_kind_are_the_same_after_every_cut(pipeline: Pipeline, edge: str) -> None:
    stops = {}
    for name, answer in (await over_http(pipeline, {})).items():
        if " stop " in name:
            text = answer["choices"][0]["text"]
            stops[name] = text[len(text) // 2 :][:2]
    await over_http(pipeline, stops)
    expected = await over_http(pipeline, stops)
    reasons = [answer["choices"][0]["finish_reason"] for answer in expected.values()]
    assert (reasons.count("stop"), reasons.count("length")) == (4, 12)
    proxy: Proxy = getattr(pipeline, edge)
    proxy.reset()
    await over_http(pipeline, stops)
    messages = proxy.num_up
    cuts = 0
    for boundary in range(messages):
        proxy.reset()
        proxy.cut_after = boundary
        assert await over_http(pipeline, stops) == expected, f"cut after message {boundary} of {messages}"
        cuts += proxy.num_streams > 0  # messages merge, so a run may have fewer
    assert cuts > 10, "too few boundaries to say anything"


async def test_clients_that_come_while_the_link_is_down_are_served_when_it_is_up(pipeline: Pipeline) -> None:
    expected = await over_http(pipeline, {})
    expected = await over_http(pipeline, {})  # with the prefixes in the cache
    link = pipeline.client.links[0]
    pipeline.text_proxy.cut_after = 0
    ended = asyncio.create_task(pipeline.fold(pipeline.submit("x", max_tokens=1)))
    async with asyncio.timeout(10):
        while link.peer is not None:  # noqa: ASYNC110 - a link tells its owner alone
            await asyncio.sleep(0)
    assert await over_http(pipeline, {}) == expected
    assert (await ended)[0].terminals


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_streams_that_are_cut_again_and_again_come_to_the_same_end(pipeline: Pipeline, edge: str) -> None:
    """Three messages each: the hello, what was accepted, and at least one token."""
    stop, expected = await undisturbed(pipeline)
    proxy: Proxy = getattr(pipeline, edge)
    proxy.reset()
    proxy.cut_after, proxy.cut_each = 1, 3
    assert await pipeline.fold(*workload(pipeline, stop)) == expected
    assert proxy.num_streams > 3


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_repeated_messages_change_nothing(pipeline: Pipeline, edge: str) -> None:
    stop, expected = await undisturbed(pipeline)
    proxy: Proxy = getattr(pipeline, edge)
    proxy.alter = lambda index, message: [message, message]
    assert await pipeline.fold(*workload(pipeline, stop)) == expected


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_a_gap_resumes_the_request(pipeline: Pipeline, edge: str) -> None:
    stop, expected = await undisturbed(pipeline)
    proxy: Proxy = getattr(pipeline, edge)
    proxy.reset()
    lost: list[int] = []

    def lose_the_fourth(index: int, message: bytes) -> list[bytes]:
        if not lost and index == 4:
            lost.append(index)
            return []
        return [message]

    proxy.alter = lose_the_fourth
    assert await pipeline.fold(*workload(pipeline, stop)) == expected
    assert lost and proxy.num_streams == 1, "the caller saw the gap and opened a new stream"


async def test_messages_of_a_dead_epoch_are_dropped(pipeline: Pipeline) -> None:
    """A late message of an earlier incarnation claims other tokens for open handles; nobody believes it."""
    stop, expected = await undisturbed(pipeline)

    def with_ghost(index: int, message: bytes) -> list[bytes]:
        ghost = engine_pb2.EngineUp.FromString(message)
        ghost.step.epoch -= 1
        ghost.step.token_ids = bytes(len(ghost.step.token_ids))
        return [ghost.SerializeToString(), message]

    pipeline.engine_proxy.alter = with_ghost
    assert await pipeline.fold(*workload(pipeline, stop)) == expected


async def test_the_tokens_are_those_of_the_model(pipeline: Pipeline) -> None:
    generation = Generation(pipeline.client, [pipeline.submit("Hello!", max_tokens=1)], silent_record(), set())
    await asyncio.wait_for(generation.wait_accepted(), 10)
    prompt = unpack_u32(generation.calls[0].prompt_token_ids)
    fold = (await pipeline.fold(pipeline.submit("Hello!", max_tokens=9)))[0]
    assert unpack_u32(fold.token_ids) == oracle(prompt, 9, VOCAB_SIZE)


async def test_late_and_unknown_aborts_disturb_nobody(pipeline: Pipeline) -> None:
    stop, expected = await undisturbed(pipeline)
    link = pipeline.client.links[0]
    ended = pipeline.submit("x", max_tokens=1)
    await pipeline.fold(ended)
    for handle in (ended.choices[0].handle, 10**6):
        link.put(text_pb2.TextEntry(abort=pb.Abort(handle=handle)))
    assert await pipeline.fold(*workload(pipeline, stop)) == expected


async def test_a_higher_attempt_supersedes_and_a_lower_one_is_dropped(pipeline: Pipeline) -> None:
    """The same caller comes back on a new stream before anybody noticed the end of the old one."""
    hello = make_hello("tokenizer")
    submit = engine_pb2.Submit(
        request_id="r", attempt=1, prompt_token_ids=bytes([5, 0, 0, 0]), seed=1, choices=[pb.Choice(handle=1)],
        sampling=pb.SamplingParams(max_tokens=200, ignore_eos=True),
    )  # fmt: skip
    async with open_channel(pipeline.engine_address) as channel, asyncio.timeout(20):
        first, second, third = [await open_stream(channel, hello) for _ in range(3)]
        await first.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        assert (await first.read()).step.accepted
        resumed = engine_pb2.Submit()
        resumed.CopyFrom(submit)
        resumed.attempt = 2
        await second.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=resumed)]))
        assert (await next_terminal(first)).reason == pb.FINISH_REASON_ABORT
        await third.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        finished = await next_terminal(second)
        assert (finished.reason, finished.output_tokens) == (pb.FINISH_REASON_LENGTH, 200)


async def test_a_higher_attempt_on_the_same_stream_takes_the_handle_over(pipeline: Pipeline) -> None:
    """The caller sees one terminal message, of the attempt that counts, and its abort reaches that one."""
    submit = engine_pb2.Submit(
        request_id="r", attempt=1, prompt_token_ids=bytes([5, 0, 0, 0]), seed=1, choices=[pb.Choice(handle=1)],
        sampling=pb.SamplingParams(max_tokens=200, ignore_eos=True),
    )  # fmt: skip
    async with open_channel(pipeline.engine_address) as channel, asyncio.timeout(20):
        stream = await open_stream(channel, make_hello("tokenizer"))
        for attempt in (1, 2):
            submit.attempt = attempt
            await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        terminal = await next_terminal(stream)
        assert (terminal.reason, terminal.output_tokens) == (pb.FINISH_REASON_LENGTH, 200)
        submit.attempt = 3
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        submit.attempt = 4
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(abort=pb.Abort(handle=1))]))
        assert (await next_terminal(stream)).reason == pb.FINISH_REASON_ABORT


async def test_a_handle_that_comes_twice_counts_once(pipeline: Pipeline) -> None:
    submit = pipeline.submit("Hello!", max_tokens=3)
    submit.attempt = 1
    submit.choices.append(submit.choices[0])
    async with open_channel(pipeline.tokenizer_address) as channel, asyncio.timeout(20):
        stream = TextServiceStub(channel).Connect()
        await stream.write(text_pb2.TextDown(hello=make_hello("shim"), entries=[text_pb2.TextEntry(submit=submit)]))
        terminals: list[text_pb2.TextTerminal] = []
        while not terminals:
            terminals += (await stream.read()).batch.terminals
        assert [terminal.output_tokens for terminal in terminals] == [3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": 99}, "protocol 2 here.*99 there"),
        ({"role": "worker"}, "role shim expected, 'worker' there"),
        ({"tokenizer_digest": "f" * 64}, "tokenizer_digest [0-9a-f]{16} here.*ffffffffffffffff there"),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused_with_both_values(
    pipeline: Pipeline, changes: dict[str, object], message: str
) -> None:
    hello = make_hello("shim")
    for name, value in changes.items():
        setattr(hello, name, value)
    client = TokenizerClient((pipeline.tokenizer_address,), hello)
    with pytest.raises(HelloMismatch, match=message):
        await asyncio.wait_for(client.links[0].run(), 10)


async def test_the_caller_refuses_a_hello_as_well(pipeline: Pipeline) -> None:
    """A tokenizer that is pointed at another tokenizer instead of an engine."""
    client = TokenizerClient((pipeline.tokenizer_address,), make_hello("shim"))
    link: Link[text_pb2.TextEntry, text_pb2.TextUp] = Link(
        pipeline.tokenizer_address, TextServiceStub, text_pb2.TextDown, make_hello("shim"), "engine", client
    )
    with pytest.raises(HelloMismatch, match="role engine expected, 'tokenizer' there"):
        await asyncio.wait_for(link.run(), 10)
