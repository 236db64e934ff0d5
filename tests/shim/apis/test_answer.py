"""What all APIs' answers share: streamed or not they say the same; usage, pieces, token ids, effective parameters."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.rpc.columns import pack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, REASONING
from services.shim.apis.all import APIS
from services.shim.apis.answer import Answer, Json
from services.shim.apis.chat.answer import ChatAnswer
from services.shim.apis.completions.answer import CompletionAnswer
from services.shim.generation import Generation
from services.shim.metrics import ShimMetrics
from services.shim.telemetry import RequestTelemetry
from services.telemetry.spans import NO_SPAN
from tests.shim.apis.answers import chunks_of, full_of, logprobs, make
from tests.shim.harness import Shim

LENGTH = pb.FINISH_REASON_LENGTH
both = pytest.mark.parametrize("kind", [api.answer for api in APIS], ids=[api.answer.__name__ for api in APIS])


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
async def test_a_stream_and_a_full_response_say_the_same(shim: Shim, kind: type[Answer]) -> None:
    """Two choices of two prompts each, read after every message."""
    answers = []
    for streamed in (True, False):
        generation, handles = shim.start(2, 2) if kind is CompletionAnswer else shim.start(4)
        answer = make(kind, generation, token_ids=True, effective_parameters=True)
        for handle in handles:
            shim.accept(handle, [1], seed=5, sampling=pb.SamplingParams(max_tokens=3))
        found: list[Json] = [*answer.first_chunks()] if streamed else []
        for step in range(3):
            for number, handle in enumerate(handles):
                shim.event(handle, step, [10 * number + step], f"{number}-{step} ", logprobs=[logprobs("t", -step)])
                if streamed:
                    found += await answer.next_chunks() or []
        for handle in handles:
            shim.end(handle, prompt_tokens=3, output_tokens=3)
        if streamed:
            while (more := await answer.next_chunks()) is not None:
                found += more
            answers.append([merged(found, index) for index in range(4)])
        else:
            full = await full_of(answer)
            answers.append([merged([{"choices": [choice]} for choice in full["choices"]], index) for index in range(4)])
        assert answer.usage()["completion_tokens"] == 12
        assert answer.usage()["prompt_tokens"] == 3 * len(generation.calls), "a prompt counts once"
    assert answers[0] == answers[1]
    text, token_ids, _, reason, effective = answers[0][2]
    assert (text, token_ids, reason) == ("2-0 2-1 2-2 ", [20, 21, 22], "stop")
    assert effective["seed"] == 5 and effective["max_tokens"] == 3


def merged(chunks: list[Json], index: int) -> tuple[str, list[int], list[float], Any, Any]:
    """Text, token ids, logprobs, finish reason and effective parameters of one choice."""
    content, token_ids, reason, effective = "", [], None, None
    values: list[float] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        message = choice.get("delta") or choice.get("message") or {}
        content += choice.get("text", "") + message.get("content", "")
        token_ids += choice.get("token_ids", [])
        if (found := choice["logprobs"]) is not None:
            values += found.get("token_logprobs") or [entry["logprob"] for entry in found["content"]]
        assert reason is None, "nothing follows the finish reason"
        reason = choice["finish_reason"]
        effective = choice.get("effective_parameters", effective)
    return content, token_ids, values, reason, effective


def text_of_delta(choice: Json) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


@both
async def test_pieces_of_several_kinds_are_never_merged(shim: Shim, kind: type[Answer]) -> None:
    """However late the response takes them: the order stays, and each chunk has text of one kind. Completions have no
    kind but content."""
    generation, (handle,) = shim.start(1)
    answer = make(kind, generation)
    shim.event(handle, 0, [1], "a")
    shim.event(handle, 1, [2], "b", "c", "d", kinds=bytes([CONTENT, REASONING, REASONING]))
    shim.event(handle, 2, [3], "e", kinds=bytes([REASONING]))
    shim.event(handle, 3, [4], "f")
    shim.end(handle, content="g")
    (update,) = generation._updates._pending.values()
    assert update.pieces == [(CONTENT, "ab"), (REASONING, "cde"), (CONTENT, "fg")]
    choices = [chunk["choices"][0] for chunk in await answer.next_chunks() or []]
    if kind is ChatAnswer:
        assert "content" not in choices[1]["delta"]
        assert choices.pop(1)["delta"]["reasoning"] == "cde"
    assert [text_of_delta(choice) for choice in choices] == ["ab", "fg"]
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]


@both
async def test_pieces_of_a_full_response_keep_their_kinds(shim: Shim, kind: type[Answer]) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(kind, generation)
    shim.event(handle, 0, [1], "a", "x", kinds=bytes([CONTENT, REASONING]))
    (update,) = await generation.take()
    answer._accumulate(update)
    shim.event(handle, 1, [2], "y", "b", kinds=bytes([REASONING, CONTENT]))
    shim.end(handle)
    full = await full_of(answer)
    assert answer._choices[0].pieces == [(CONTENT, "a"), (REASONING, "xy"), (CONTENT, "b")]
    (choice,) = full["choices"]
    content = choice["text"] if "text" in choice else choice["message"]["content"]
    assert content == "ab", "the content is that of its kind alone"


@both
async def test_logprobs_and_ids_go_with_the_first_chunk_of_an_update(shim: Shim, kind: type[Answer]) -> None:
    generation, (handle,) = shim.start(1)
    shim.accept(handle, [1])
    answer = make(kind, generation, token_ids=True)
    entries = [logprobs("a", -0.5), logprobs("b", -0.25)]
    shim.event(handle, 0, [5, 6], "a", "b", "c", kinds=bytes([CONTENT, REASONING, CONTENT]), logprobs=entries)
    first, *others = [chunk["choices"][0] for chunk in await answer.next_chunks() or []]
    assert first["token_ids"] == [5, 6] and first["logprobs"] is not None and others
    assert [one for one in others if "token_ids" in one or one["logprobs"] is not None] == []


@both
async def test_a_token_without_text_makes_a_chunk_only_if_it_shows(shim: Shim, kind: type[Answer]) -> None:
    for options, count in (({}, 0), ({"token_ids": True}, 1)):
        generation, (handle,) = shim.start(1)
        answer = make(kind, generation, **options)
        shim.event(handle, 0, [7])
        assert len(await answer.next_chunks() or []) == count
        shim.end(handle)
        assert len(await answer.next_chunks() or []) == 1
        assert await answer.next_chunks() is None


@both
async def test_the_prompts_ids_when_the_shim_sent_them(shim: Shim, kind: type[Answer]) -> None:
    """The tokenizer does not send them back; return_token_ids and the usage know them all the same."""
    submit = text_pb2.TextSubmit(choices=[pb.Choice(handle=99)], prompt_token_ids=pack_u32([4, 5, 6]))
    telemetry = RequestTelemetry("r", ShimMetrics(CollectorRegistry()).of("fake"), NO_SPAN)
    generation = Generation(shim.client, [submit], telemetry, shim.open_generations)
    shim.accept(99)
    shim.event(99, 0, [7], "a")
    answer = make(kind, generation, token_ids=True, continuous_usage=True)
    first = (answer.first_chunks() + (await answer.next_chunks() or []))[0]
    assert (first if kind is ChatAnswer else first["choices"][0])["prompt_token_ids"] == [4, 5, 6]
    assert first["usage"]["prompt_tokens"] == 3
    shim.end(99)
    full = await full_of(make(kind, generation, token_ids=True))
    assert (full if kind is ChatAnswer else full["choices"][0])["prompt_token_ids"] == [4, 5, 6]


@both
async def test_usage(shim: Shim, kind: type[Answer]) -> None:
    generation, handles = shim.start(2, 2)
    for handle in handles:
        shim.event(handle, 0, [1, 2], "a")
        shim.end(handle, prompt_tokens=5, output_tokens=2, cached_tokens=4, reasoning_tokens=1)
    answer = make(kind, generation)
    expected = {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 4} if kind is ChatAnswer else None,
    }
    assert (await full_of(answer))["usage"] == answer.usage() == expected


@both
async def test_usage_without_details(shim: Shim, kind: type[Answer]) -> None:
    generation, (handle,) = shim.start(1)
    shim.end(handle, prompt_tokens=5, output_tokens=2, cached_tokens=4)
    full = await full_of(make(kind, generation, prompt_tokens_details=False))
    assert full["usage"]["prompt_tokens_details"] is None and full["usage"]["total_tokens"] == 7


@both
async def test_counts_in_every_chunk(shim: Shim, kind: type[Answer]) -> None:
    """Those of the chunk's own choice so far."""
    generation, handles = shim.start(2)
    shim.accept(handles[0], [1, 2, 3])
    answer = make(kind, generation, continuous_usage=True)
    assert answer.counts_in_chunks
    first = answer.first_chunks()
    assert [chunk["usage"]["completion_tokens"] for chunk in first] == [0] * len(first)
    counts = []
    for handle, start, ids in ((handles[0], 0, [1, 2]), (handles[1], 0, [3]), (handles[0], 2, [4])):
        shim.event(handle, start, ids, "a")
        (chunk,) = await answer.next_chunks() or []
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == 3 and usage["total_tokens"] == 3 + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] is None, "known at the end only"
        counts.append((chunk["choices"][0]["index"], usage["completion_tokens"]))
    assert counts == [(0, 2), (1, 1), (0, 3)]


@both
async def test_effective_parameters(shim: Shim, kind: type[Answer]) -> None:
    """Only with the option, and in a stream only in a choice's last chunk."""
    sampling = pb.SamplingParams(
        temperature=0.5, top_p=0.25, top_k=20, min_p=0.125, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, max_tokens=9, min_tokens=2,
    )  # fmt: skip
    expected = {
        "seed": -1, "temperature": 0.5, "top_p": 0.25, "top_k": 20, "min_p": 0.125, "presence_penalty": 1.0,
        "frequency_penalty": -1.0, "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2,
    }  # fmt: skip
    for shown in (True, False):
        for streamed in (True, False):
            generation, (handle,) = shim.start(1)
            shim.accept(handle, [1], seed=2**64 - 1, sampling=sampling)
            answer = make(kind, generation, effective_parameters=shown)
            shim.event(handle, 0, [7], "a")
            if not streamed:
                shim.end(handle)
                (choice,) = (await full_of(answer))["choices"]
            else:
                before = answer.first_chunks() + (await answer.next_chunks() or [])
                assert not [one for chunk in before for one in chunk["choices"] if "effective_parameters" in one]
                shim.end(handle)
                (choice,) = (await answer.next_chunks() or [])[-1]["choices"]
            assert choice.get("effective_parameters") == (expected if shown else None)


@both
async def test_effective_parameters_of_several_prompts(shim: Shim, kind: type[Answer]) -> None:
    generation, handles = shim.start(2, 2)
    for number, handle in enumerate(handles):
        shim.accept(handle, [1], seed=number // 2, sampling=pb.SamplingParams(max_tokens=5 + number // 2))
        shim.end(handle)
    choices = (await full_of(make(kind, generation, effective_parameters=True)))["choices"]
    found = [(one["effective_parameters"]["seed"], one["effective_parameters"]["max_tokens"]) for one in choices]
    assert found == [(0, 5), (0, 5), (1, 6), (1, 6)]


@both
@pytest.mark.parametrize(
    ("stop", "reason"),
    [({"stop_string": "END"}, "END"), ({"stop_token_id": 9}, 9), ({"stop_token_id": 0}, 0), ({}, None)],
)
async def test_the_stop_reason(shim: Shim, kind: type[Answer], stop: dict[str, Any], reason: Any) -> None:
    generation, (handle,) = shim.start(1)
    shim.end(handle, **stop)
    (choice,) = (await full_of(make(kind, generation)))["choices"]
    assert choice["stop_reason"] == reason and choice["finish_reason"] == "stop"


@both
async def test_the_error_of_one_choice_is_that_of_the_request(shim: Shim, kind: type[Answer]) -> None:
    for streamed in (True, False):
        generation, handles = shim.start(2)
        answer = make(kind, generation)
        shim.event(handles[0], 0, [7], "a")
        shim.fail(handles[1], TandemError("INTERNAL", "the worker is gone"))
        with pytest.raises(TandemError, match="the worker is gone"):
            await (chunks_of(answer) if streamed else full_of(answer))
