"""Requests of programs, their joined answers, and calls that are cut at every message."""

import asyncio
from typing import Any

from services.rpc.generated import engine_pb2, text_pb2
from tests.rpc.call_proxy import CallProxy

SECONDS = 20.0
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
Answer = dict[str, Any]


def ask_text(**fields: Any) -> text_pb2.GenerateTextRequest:
    sampling = {**GREEDY, "max_tokens": 10, **fields.pop("sampling", {})}
    prompt: dict[str, Any] = {"text": text_pb2.TextInput(text="Count to ten, slowly")}
    return text_pb2.GenerateTextRequest(**(prompt | {"stream": True, "seed": 7, **fields}), sampling=sampling)


def ask_engine(**fields: Any) -> engine_pb2.GenerateTokensRequest:
    sampling = {**GREEDY, "max_tokens": 10, **fields.pop("sampling", {})}
    prompt = {"prompt_token_ids": range(20, 40), "stream": True, "seed": 7}
    return engine_pb2.GenerateTokensRequest(**(prompt | fields), sampling=sampling)


def text_requests(stop: str) -> dict[str, text_pb2.GenerateTextRequest]:
    chat = text_pb2.ChatInput(messages_json=b'[{"role":"user","content":"Hello!"}]', add_generation_prompt=True)
    return {
        "plain": ask_text(),
        "two choices": ask_text(n=2, sampling={"logprobs": 2, "temperature": 1.0}),
        "stop string": ask_text(output=text_pb2.OutputSpec(stop=[stop])),
        "chat, bad words": ask_text(chat=chat, output=text_pb2.OutputSpec(bad_words=["the", "e"])),
        "token ids, truncated": ask_text(
            token_ids=text_pb2.TokenIds(ids=range(9)),
            truncation=text_pb2.Truncation(max_tokens=4),
            return_sampling=True,
        ),
    }


def engine_requests(stop: int) -> dict[str, engine_pb2.GenerateTokensRequest]:
    return {
        "plain": ask_engine(),
        "two choices": ask_engine(n=2, sampling={"logprobs": 1, "temperature": 1.0}),
        "stop token": ask_engine(sampling={"stop_token_ids": [stop]}),
    }


async def answer(client: Any, request: Any, **options: Any) -> Answer:
    """Returns the joined responses of a request. Checks the form of each."""
    found: Answer = {"choices": {}}
    async with asyncio.timeout(SECONDS):
        async for response in client.generate(request, **options):
            assert "usage" not in found, "a response followed the last one"
            assert response.HasField("started") == ("started" not in found)
            if response.HasField("started"):
                found["started"] = response.started
            for delta in response.choices:
                add(found["choices"].setdefault(delta.index, {"ids": [], "logprobs": [], "text": ""}), delta)
            if response.HasField("usage"):
                found["usage"] = response.usage
    return found


def add(choice: Answer, delta: Any) -> None:
    assert "reason" not in choice, "a delta followed the end of the choice"
    choice["ids"] += delta.token_ids
    choice["logprobs"] += delta.logprobs
    if isinstance(delta, text_pb2.TextDelta):
        choice["text"] += "".join(piece.text for piece in delta.pieces)
    if delta.finish_reason:
        choice["reason"] = delta.finish_reason
        choice["stop"] = delta.stop_token_id or getattr(delta, "stop_string", "")


async def cut_everywhere(client: Any, proxy: CallProxy, direct: Any, requests: dict[str, Any]) -> None:
    """Cuts the first call of each request at each of its messages, then every call after each message."""
    num_calls: list[int] = []
    for name, request in requests.items():
        await answer(direct, request)  # fills the prefix cache
        expected = await answer(direct, request)
        assert expected["usage"].output_tokens == sum(len(one["ids"]) for one in expected["choices"].values())
        proxy.reset()
        assert await answer(client, request) == expected
        num_messages, num_cuts = proxy.calls[0].num_messages, 0
        for boundary in range(num_messages + 1):
            proxy.reset()
            proxy.cut = lambda call, number, at=boundary: call == 0 and number == at  # type: ignore[misc]
            assert await answer(client, request) == expected, f"{name}: cut at message {boundary}"
            num_cuts += proxy.calls[0].num_messages == boundary  # messages merge, so a run may have fewer
        assert num_cuts >= 2
        proxy.reset()
        proxy.cut = lambda call, number: number == 1
        assert await answer(client, request) == expected, f"{name}: every call has one message"
        num_calls.append(len(proxy.calls))
        await whole_answers(client, proxy, direct, request)
    assert max(num_calls) > 7, "more deaths than a request without new tokens may cause"


async def whole_answers(client: Any, proxy: CallProxy, direct: Any, request: Any) -> None:
    """Compares the only response of the client with that of the service, with and without a cut."""
    whole = type(request)()
    whole.CopyFrom(request)
    whole.stream = False
    (expected,) = [response async for response in direct.stub.Generate(whole, timeout=SECONDS)]
    for cut in (False, True):
        proxy.reset()
        proxy.cut = lambda call, number, cut=cut: cut and call < 2 and number == 2  # type: ignore[misc]
        assert [response async for response in client.generate(whole)] == [expected]
        assert (len(proxy.calls) > 1) == cut
