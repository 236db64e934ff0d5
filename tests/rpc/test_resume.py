"""A resumed request has the same answer: streams cut at every message, gaps, repeats, dead epochs, late aborts.

Each choice must have the same content, token ids, logprobs, finish reason and usage as in an undisturbed run, and
exactly one terminal message.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.shim.generation import Generation
from tests.e2e.api import CHAT, INPUT, TEXT, Json, choices_of, events_of, fold
from tests.fakes import oracle
from tests.recovery.workload import patient_post
from tests.rpc.pipeline import VOCAB_SIZE, Fold, Pipeline, Proxy, silent_telemetry


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


def workload(pipeline: Pipeline, stop: str) -> list[text_pb2.TextSubmit]:
    """Returns short and long requests, two choices, logprobs, and a stop string that ends an answer in the middle."""
    return [
        pipeline.submit("What is 2 + 3?", max_tokens=12),
        pipeline.submit("Hello!", n=2, max_tokens=8, logprobs=2),
        pipeline.submit("Count to ten, slowly", max_tokens=14, stop=[stop]),
        pipeline.submit("x", max_tokens=1),
        pipeline.submit("Which way?", max_tokens=9, bad_words=["the", "e", "a b"], min_tokens=5),
        pipeline.submit("one two three four five", max_tokens=8, truncation=text_pb2.Truncation(max_tokens=3)),
    ]


async def undisturbed(pipeline: Pipeline) -> tuple[str, list[Fold]]:
    """Returns a stop string that occurs in an answer, and the folds that every disturbed run must have."""
    whole = await pipeline.fold(pipeline.submit("Count to ten, slowly", max_tokens=14))
    ((_, text),) = whole[0].pieces
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    # The first run fills the prefix cache, so that all later ones have the same hits.
    await pipeline.fold(*workload(pipeline, stop))
    folds = await pipeline.fold(*workload(pipeline, stop))
    assert [fold.terminals[0]["reason"] for fold in folds].count(pb.FINISH_REASON_STOP) == 1
    return stop, folds


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_a_stream_cut_at_every_message_boundary_changes_no_fold(pipeline: Pipeline, edge: str) -> None:
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
    assert cuts >= 5, "too few cuts to test the boundaries"


KINDS: dict[str, Json] = {
    "plain": {},
    "two": {"n": 2, "seed": 3},
    "logprobs": {"logprobs": 2},
    "stop": {"stop": ["no such text"]},
    "effective": {"return_effective_parameters": True, "bad_words": ["the"], "truncate_prompt_tokens": 5, "seed": 3},
}


async def over_http(pipeline: Pipeline, stops: dict[str, str]) -> dict[str, Json]:
    """Returns the complete answers of concurrent HTTP requests of every kind, at both endpoints, streamed and not."""
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


@pytest.mark.parametrize("edge", ["engine_proxy", pytest.param("text_proxy", marks=pytest.mark.long)])
async def test_http_answers_of_every_kind_are_the_same_after_every_cut(pipeline: Pipeline, edge: str) -> None:
    stops = {}
    for name, answer in (await over_http(pipeline, {})).items():
        if " stop " in name:
            text = answer["choices"][0]["text"]
            stops[name] = text[len(text) // 2 :][:2]
    await over_http(pipeline, stops)
    expected = await over_http(pipeline, stops)
    reasons = [answer["choices"][0]["finish_reason"] for answer in expected.values()]
    assert (reasons.count("stop"), reasons.count("length")) == (4, 16)
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
    assert cuts > 10, "too few cuts to test the boundaries"


async def test_requests_that_arrive_while_the_link_is_down_are_served_later(pipeline: Pipeline) -> None:
    expected = await over_http(pipeline, {})
    expected = await over_http(pipeline, {})  # with the prefixes in the cache
    link = pipeline.client.links[0]
    pipeline.text_proxy.cut_after = 0
    ended = asyncio.create_task(pipeline.fold(pipeline.submit("x", max_tokens=1)))
    async with asyncio.timeout(10):
        while link.peer is not None:  # noqa: ASYNC110 - only the link's owner has an event
            await asyncio.sleep(0)
    assert await over_http(pipeline, {}) == expected
    assert (await ended)[0].terminals


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_streams_that_are_cut_repeatedly_change_no_fold(pipeline: Pipeline, edge: str) -> None:
    """Each stream carries three messages: the hello, the accepted choices, and at least one token."""
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
    """A late message of an earlier incarnation has other tokens for open handles."""
    stop, expected = await undisturbed(pipeline)

    def with_dead_epoch(index: int, message: bytes) -> list[bytes]:
        dead = engine_pb2.EngineUp.FromString(message)
        dead.step.epoch -= 1
        dead.step.token_ids = bytes(len(dead.step.token_ids))
        return [dead.SerializeToString(), message]

    pipeline.engine_proxy.alter = with_dead_epoch
    assert await pipeline.fold(*workload(pipeline, stop)) == expected


async def test_the_tokens_are_those_of_the_model(pipeline: Pipeline) -> None:
    generation = Generation(pipeline.client, [pipeline.submit("Hello!", max_tokens=1)], silent_telemetry(), set())
    await asyncio.wait_for(generation.wait_accepted(), 10)
    prompt = unpack_u32(generation.calls[0].prompt_token_ids)
    fold = (await pipeline.fold(pipeline.submit("Hello!", max_tokens=9)))[0]
    assert unpack_u32(fold.token_ids) == oracle(prompt, 9, VOCAB_SIZE)


async def test_late_and_unknown_aborts_change_nothing(pipeline: Pipeline) -> None:
    stop, expected = await undisturbed(pipeline)
    link = pipeline.client.links[0]
    ended = pipeline.submit("x", max_tokens=1)
    await pipeline.fold(ended)
    for handle in (ended.choices[0].handle, 10**6):
        link.put(text_pb2.TextEntry(abort=pb.Abort(handle=handle)))
    assert await pipeline.fold(*workload(pipeline, stop)) == expected


@pytest.mark.parametrize("edge", ["engine_proxy", "text_proxy"])
async def test_cuts_before_the_first_token_fail_no_request(socket_dir: Path, edge: str) -> None:
    """Six streams are cut at the first message after the hello. Peers with the same epoch cause no strike."""
    async with Pipeline(socket_dir).running() as pipeline:
        submits = [("Hello!", 2), ("Count to ten", 1)]
        await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits))
        expected = await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits))
        proxy: Proxy = getattr(pipeline, edge)
        proxy.reset()
        seen: dict[int, int] = {0: 1}  # stream -> messages; the first stream is past its hello

        def cut(index: int, message: bytes) -> list[bytes]:
            seen[proxy.num_streams] = seen.get(proxy.num_streams, 0) + 1
            if seen[proxy.num_streams] == 1 or proxy.num_streams > 6:
                return [message]
            proxy.cut_after = index
            return []

        proxy.alter = cut
        assert await pipeline.fold(*(pipeline.submit(text, n=n, max_tokens=8) for text, n in submits)) == expected
        assert proxy.num_streams > 6 and not proxy.num_start_locks, "there was no suspect"
