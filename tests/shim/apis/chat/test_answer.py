"""The response and the chunks of chat completions."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.rpc.generated import common_pb2 as pb
from services.rpc.pieces import CONTENT, REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME, Piece
from services.shim.apis.answer import Json
from services.shim.apis.chat.answer import ChatAnswer
from tests.shim.apis.answers import chunks_of, full_of, logprobs, make
from tests.shim.harness import Shim


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


async def test_a_full_chat_completion(shim: Shim) -> None:
    """What vLLM sends as null is there: clients read these keys as attributes."""
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    shim.event(handle, 0, [7, 8], "Hello")
    shim.end(handle, content="!", prompt_tokens=5, output_tokens=2, cached_tokens=4)
    found = await full_of(answer)
    assert found.pop("created") > 0
    nulls = dict.fromkeys(["refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content"])
    assert found == {
        "id": "id-1",
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "fake-numerics",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", **nulls},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        **dict.fromkeys(["service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"]),
    }


async def test_the_chunks_of_a_chat_stream(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    assert answer.head()["object"] == "chat.completion.chunk"
    role = {"role": "assistant", "content": ""}
    assert answer.first_chunks() == [
        {"choices": [{"index": 0, "delta": role, "logprobs": None, "finish_reason": None}]}
    ]
    shim.event(handle, 0, [7], "He")
    assert await answer.next_chunks() == [
        {"choices": [{"index": 0, "delta": {"content": "He"}, "logprobs": None, "finish_reason": None}]}
    ]
    shim.event(handle, 1, [8])
    assert await answer.next_chunks() == [], "a token with held-back text makes no chunk"
    shim.end(handle)
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert await answer.next_chunks() == [{"choices": [last]}]
    assert await answer.next_chunks() is None


async def test_every_choice_has_a_role_first(shim: Shim) -> None:
    generation, _ = shim.start(3)
    chunks = make(ChatAnswer, generation, response_role="bot").first_chunks()
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 2]
    assert {chunk["choices"][0]["delta"]["role"] for chunk in chunks} == {"bot"}


async def test_prompt_token_ids(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.accept(handle, [1, 2])
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    stream = make(ChatAnswer, generation, token_ids=True).first_chunks()
    assert stream[0]["prompt_token_ids"] == [1, 2]
    full = await full_of(make(ChatAnswer, generation, token_ids=True))
    assert full["prompt_token_ids"] == [1, 2] and full["choices"][0]["token_ids"] == [7]


async def test_logprobs(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "é", logprobs=[logprobs("é", -0.5, ("é", -0.5), ("x", -math.inf))])
    shim.end(handle)
    (choice,) = (await full_of(make(ChatAnswer, generation)))["choices"]
    sampled = {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}
    other = {"token": "x", "logprob": -9999.0, "bytes": [0x78]}
    assert choice["logprobs"] == {"content": [{**sampled, "top_logprobs": [sampled, other]}]}


async def test_tokens_as_ids(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "a", logprobs=[logprobs("a", -0.5, ("b", -1.0))])
    shim.end(handle)
    (choice,) = (await full_of(make(ChatAnswer, generation, tokens_as_token_ids=True)))["choices"]
    (entry,) = choice["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])
    assert [top["token"] for top in entry["top_logprobs"]] == ["token_id:98"]
    assert choice["message"]["content"] == "a"


LENGTH = pb.FINISH_REASON_LENGTH
# A thought, a sentence, two calls; the pieces of each row.
ROWS: list[list[Piece]] = [
    [(REASONING, "I look ")],
    [(REASONING, "it up."), (CONTENT, "One moment. ")],
    [(TOOL_CALL, "call_1"), (TOOL_NAME, "weather"), (TOOL_ARGUMENTS, '{"city": ')],
    [(TOOL_ARGUMENTS, '"Köln"}'), (TOOL_CALL_END, ""), (TOOL_CALL, "call_2"), (TOOL_NAME, "time")],
    [(TOOL_ARGUMENTS, "{}"), (TOOL_CALL_END, "")],
]
THOUGHT = {"reasoning": "I look it up.", "reasoning_content": "I look it up."}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
]
CALL_ROWS: list[list[Piece]] = [[(TOOL_CALL, "call_1"), (TOOL_NAME, "f"), (TOOL_ARGUMENTS, "{}"), (TOOL_CALL_END, "")]]


def send(shim: Shim, handle: int, rows: Sequence[list[Piece]], *, first: int = 0) -> None:
    """Sends one token per row, from index `first`."""
    for at, pieces in enumerate(rows, first):
        texts, kinds = [text for _, text in pieces], bytes([kind for kind, _ in pieces])
        shim.event(handle, at, [at], *texts, kinds=kinds, logprobs=[logprobs(f"t{at}", -1.0 - at)])


async def whole(shim: Shim, rows: Sequence[list[Piece]], reason: Any = None, **options: Any) -> Json:
    """Returns the choice of a full response."""
    generation, (handle,) = shim.start(1)
    send(shim, handle, rows)
    shim.end(handle, reason or pb.FINISH_REASON_STOP)
    (choice,) = (await full_of(make(ChatAnswer, generation, **options)))["choices"]
    return dict(choice)


async def streamed(
    shim: Shim, rows: Sequence[list[Piece]], reason: Any = None, *, lazy: bool = False, **options: Any
) -> list[Json]:
    """Returns the choices of a stream's chunks, read after every row, or, if `lazy`, all at the end."""
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation, **options)
    chunks = answer.first_chunks()
    for at, pieces in enumerate(rows):
        send(shim, handle, [pieces], first=at)
        chunks += [] if lazy else await answer.next_chunks() or []
    shim.end(handle, reason or pb.FINISH_REASON_STOP)
    while (more := await answer.next_chunks()) is not None:
        chunks += more
    return [choice for chunk in chunks for choice in chunk["choices"]]


async def test_a_message_with_calls(shim: Shim) -> None:
    choice = await whole(shim, ROWS)
    nulls = dict.fromkeys(["refusal", "annotations", "audio", "function_call"])
    expected = {"role": "assistant", "content": "One moment. ", **THOUGHT, **nulls, "tool_calls": CALLS}
    assert choice["message"] == expected
    assert choice["finish_reason"] == "tool_calls" and choice["stop_reason"] is None


@pytest.mark.parametrize(
    ("rows", "content"),
    [
        ([], ""),
        ([[(CONTENT, "a")]], "a"),
        ([[(REASONING, "a")]], None),
        ([[(REASONING, "a"), (CONTENT, "b")]], "b"),
        (CALL_ROWS, None),
        ([[(CONTENT, "b")], *CALL_ROWS], "b"),
    ],
)
async def test_content_is_null_where_nothing_was_said(shim: Shim, rows: list[list[Piece]], content: str | None) -> None:
    for shown in (True, False):
        message = (await whole(shim, rows, show_reasoning=shown))["message"]
        assert message["content"] == content
        assert ("tool_calls" in message) == (rows[-1:] == CALL_ROWS)


async def test_deltas_with_calls(shim: Shim) -> None:
    """As OpenAI streams them: name and id first, then arguments, then a chunk with the finish reason alone."""
    *choices, last = await streamed(shim, ROWS)
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "I look ", "reasoning_content": "I look "},
        {"reasoning": "it up.", "reasoning_content": "it up."},
        {"content": "One moment. "},
        {"tool_calls": [{"index": 0, **CALLS[0], "function": {"name": "weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Köln"}'}}]},
        {"tool_calls": [{"index": 1, **CALLS[1], "function": {"name": "time", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
    ]
    assert {choice["finish_reason"] for choice in choices} == {None}
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


@pytest.mark.parametrize("older", [False, True])
async def test_only_a_choice_that_stopped_ends_with_its_calls(shim: Shim, older: bool) -> None:
    name = "function_call" if older else "tool_calls"
    for reason, rows, expected in (
        (pb.FINISH_REASON_STOP, CALL_ROWS, name),
        (LENGTH, CALL_ROWS, "length"),
        (LENGTH, [CALL_ROWS[0][:3]], "length"),
        (pb.FINISH_REASON_STOP, [[(CONTENT, "a")]], "stop"),
        (pb.FINISH_REASON_STOP, [[(REASONING, "a")]], "stop"),
    ):
        assert (await whole(shim, rows, reason, older_function_call=older))["finish_reason"] == expected
        for lazy in (False, True):
            choices = await streamed(shim, rows, reason, lazy=lazy, older_function_call=older)
            found = [choice["finish_reason"] for choice in choices]
            assert found == [None] * (len(found) - 1) + [expected]


@pytest.mark.parametrize("older", [False, True])
async def test_a_call_that_was_asked_for_by_name_ends_with_stop(shim: Shim, older: bool) -> None:
    """As OpenAI has it; the call is written as any other."""
    for reason, expected in ((pb.FINISH_REASON_STOP, "stop"), (LENGTH, "length")):
        choice = await whole(shim, CALL_ROWS, reason, named_call=True, older_function_call=older)
        assert choice["finish_reason"] == expected
        assert choice["message"]["function_call" if older else "tool_calls"]
        choices = await streamed(shim, CALL_ROWS, reason, named_call=True, older_function_call=older)
        assert [one["finish_reason"] for one in choices][-1] == expected


async def test_the_older_function_call(shim: Shim) -> None:
    rows = [[(CONTENT, "Well. ")], *CALL_ROWS]
    message = (await whole(shim, rows, older_function_call=True))["message"]
    assert message["function_call"] == {"name": "f", "arguments": "{}"} and "tool_calls" not in message
    assert message["content"] == "Well. "
    deltas = [choice["delta"] for choice in await streamed(shim, rows, older_function_call=True)]
    assert deltas[1:] == [
        {"content": "Well. "},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
        {},
    ]


async def test_reasoning_that_is_not_shown(shim: Shim) -> None:
    """Its tokens count all the same, in usage and logprobs."""
    generation, (handle,) = shim.start(1)
    send(shim, handle, ROWS)
    shim.end(handle, output_tokens=5, reasoning_tokens=2)
    full = await full_of(make(ChatAnswer, generation, show_reasoning=False))
    (choice,) = full["choices"]
    assert choice["message"]["reasoning"] is None and choice["message"]["reasoning_content"] is None
    assert choice["message"]["content"] == "One moment. " and choice["message"]["tool_calls"] == CALLS
    assert full["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert len(choice["logprobs"]["content"]) == 5
    choices = await streamed(shim, ROWS, show_reasoning=False)
    assert "reasoning" not in str(choices) and "look" not in str(choices)
    assert tokens_of(choices) == ["t0", "t1", "t2", "t3", "t4"]


def tokens_of(choices: list[Json]) -> list[str]:
    """Returns the tokens that logprobs name."""
    return [entry["token"] for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]


@pytest.mark.parametrize("shown", [True, False])
async def test_logprobs_and_ids_cover_all_tokens_in_order(shim: Shim, shown: bool) -> None:
    """Of markers, reasoning and calls, too, whether they have text or not."""
    rows = [[], *ROWS, [], [(REASONING, "a")], []]
    names = [f"t{at}" for at in range(len(rows))]
    assert tokens_of([await whole(shim, rows, show_reasoning=shown)]) == names
    for lazy in (False, True):
        choices = await streamed(shim, rows, lazy=lazy, show_reasoning=shown, token_ids=True)
        assert tokens_of(choices) == names
        ids = [token_id for choice in choices for token_id in choice.get("token_ids", [])]
        assert ids == list(range(len(rows)))


async def test_choices_have_calls_of_their_own(shim: Shim) -> None:
    """Indices count per choice; a choice without calls stops as ever."""
    generation, handles = shim.start(3)
    answer = make(ChatAnswer, generation, continuous_usage=True)
    for at, pieces in enumerate(ROWS):
        for handle in handles[:2]:
            send(shim, handle, [pieces], first=at)
    send(shim, handles[2], [[(CONTENT, "No.")]])
    for handle in handles:
        shim.end(handle, output_tokens=5, reasoning_tokens=2)
    choices = [choice for chunk in await chunks_of(answer) for choice in chunk["choices"]]
    for number in range(2):
        calls = [
            call
            for one in choices
            if one["index"] == number
            for call in one["delta"].get("tool_calls", [])
            if "id" in call
        ]
        assert [(call["index"], call["id"]) for call in calls] == [(0, "call_1"), (1, "call_2")]
    reasons = {one["index"]: one["finish_reason"] for one in choices if one["finish_reason"]}
    assert reasons == {0: "tool_calls", 1: "tool_calls", 2: "stop"}
    assert answer.usage()["completion_tokens_details"] == {"reasoning_tokens": 6}


@pytest.mark.parametrize("older", [False, True])
async def test_openais_client_reads_messages_and_streams(shim: Shim, older: bool) -> None:
    """Its own types; put together by itself, a stream is the message."""
    rows = [*ROWS[:2], *CALL_ROWS] if older else ROWS
    for lazy in (False, True):
        generation, (handle,) = shim.start(1)
        send(shim, handle, rows)
        shim.end(handle)
        full = await full_of(make(ChatAnswer, generation, older_function_call=older))
        completion = ChatCompletion.model_validate(full)
        state: Any = ChatCompletionStreamState()
        done = []
        for choice in await streamed(shim, rows, lazy=lazy, older_function_call=older):
            head = {**full, "object": "chat.completion.chunk", "usage": None, "choices": [choice]}
            events = state.handle_chunk(ChatCompletionChunk.model_validate(head))
            done += [event.arguments for event in events if event.type == "tool_calls.function.arguments.done"]
        found, expected = state.get_final_completion().choices[0], completion.choices[0]
        assert found.finish_reason == expected.finish_reason == ("function_call" if older else "tool_calls")
        assert found.message.content == expected.message.content == "One moment. "
        assert found.message.reasoning == expected.message.reasoning == "I look it up."
        calls = [
            [call.model_dump(include=set(CALLS[0])) for call in one.message.tool_calls or []]
            for one in (found, expected)
        ]
        assert older or [json.loads(json.dumps(one)) for one in calls[1]] == CALLS
        assert [one["function"]["arguments"] for one in calls[0]] == [one["function"]["arguments"] for one in calls[1]]
        assert done == ([] if older else ['{"city": "Köln"}', "{}"]), "each call is told as done"


async def test_the_fingerprint_is_that_of_the_engine_that_accepted_the_request(shim: Shim) -> None:
    """It may have restarted with another one since the tokenizer's hello."""
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    assert answer.head()["system_fingerprint"] == "fake-numerics", "what is known so far"
    shim.accept(handle, numerics_id="other")
    shim.end(handle)
    assert answer.head()["system_fingerprint"] == "other"
    assert (await full_of(answer))["system_fingerprint"] == "other"
