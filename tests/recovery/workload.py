"""Sixteen answers of every kind that are asked for at once, and what a client has of each of them at any moment."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.api import CHAT, TEXT, Json, choices_of, fold

LENGTH = 500
WARM_PREFIX = "The town hall of Köln stands by the old market. " * 6
SEEDED: Json = {"temperature": 1, "max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}


def _chat(question: str, **more: Any) -> tuple[str, Json]:
    return CHAT, {"messages": [{"role": "user", "content": question}], **SEEDED, **more}


def _text(prompt: Any, **more: Any) -> tuple[str, Json]:
    return TEXT, {"prompt": prompt, **SEEDED, **more}


def requests(stops: list[str]) -> dict[str, tuple[str, Json]]:
    """By name; `stops` are strings in which the answers named "stop..." will end, in their order."""
    first, second = stops or ["no such text", "nor this"]
    return {
        "chat stream": _chat("Which way to Köln?", seed=1, **STREAM),
        "chat whole": _chat("Which way to Köln?", seed=2),
        "chat greedy": _chat("What is 2 + 3?", temperature=0, **STREAM),
        "chat tools": _chat("What is the weather?", seed=3, tools=[TOOL], **STREAM),
        "chat two": _chat("Tell me a story", seed=4, n=2, **STREAM),
        "chat two whole": _chat("Tell me a story", seed=5, n=2, logprobs=True),
        "chat logprobs": _chat("What is a cat?", seed=6, logprobs=True, top_logprobs=3, **STREAM),
        "warm": _chat(WARM_PREFIX, seed=7, cache_salt="warm", **STREAM),
        "stop": _text("Count to ten, slowly", seed=8, stop=[first], **STREAM),
        "stop whole": _text("Once upon a time", seed=9, stop=[second, "never seen"], include_stop_str_in_output=True),
        "text logprobs": _text("Which way?", seed=10, logprobs=2, **STREAM),
        "text logprobs whole": _text("Which way?", seed=11, logprobs=1, n=2),
        "penalties": _text("one two three", seed=12, frequency_penalty=0.5, presence_penalty=0.5, **STREAM),
        "penalties whole": _text("one two three", seed=13, repetition_penalty=1.1, min_p=0.01, top_k=300),
        "special": _text([40, 41, 42, 43], seed=14, skip_special_tokens=False, top_p=0.95, **STREAM),
        "two prompts": _text(["left", "right"], seed=15, min_tokens=LENGTH // 2, **STREAM),
    }


PATIENCE_SECONDS = 60.0
STOPPED = ("stop", "stop whole")
LONG_PROMPT = [100 + place * 7919 % 900 for place in range(1800)]
LONG = _text(LONG_PROMPT, seed=16, max_tokens=20, **STREAM)


async def patient_post(client: httpx.AsyncClient, path: str, body: Json) -> httpx.Response:
    """New work is refused while nobody is there to take it: a client asks again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (response := await client.post(path, json=body)).status_code == 503:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)  # a server in this very event loop never comes back unless it is let run
    assert response.status_code == 200, response.text
    return response


@dataclass
class Answer:
    """What the client of one request has so far."""

    name: str
    path: str
    body: Json
    events: list[Json] = field(default_factory=list)  # of a stream
    whole: Json | None = None
    over: bool = False
    promised: bool = False  # the client had tokens before the first kill, so that `cached_tokens` was settled

    @property
    def num_tokens(self) -> int:
        """Those that the client can see: none before the end of an answer that is not streamed."""
        return sum(len(one.get("token_ids", ())) for event in self.events for one in event["choices"])

    @property
    def live(self) -> bool:
        return not self.over and self.num_tokens > 0

    async def ask(self, client: httpx.AsyncClient) -> None:
        if self.body.get("stream"):
            while not await self._stream(client):
                pass
            assert self.over, "the stream ended without [DONE]"
        else:
            response = await patient_post(client, self.path, self.body)
            self.whole, self.over = response.json(), True

    async def _stream(self, client: httpx.AsyncClient) -> bool:
        """False for 503, as in `patient_post`."""
        async with client.stream("POST", self.path, json=self.body) as response:
            if response.status_code == 503:
                return False
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                self._take(line)
        return True

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.over = True
        elif line:
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            self.events.append(event)

    def fold(self) -> Json:
        """Everything that the client has in the end."""
        if self.whole is not None:
            return {"choices": choices_of(self.whole), "usage": self.whole["usage"]}
        prompt_ids = [event["prompt_token_ids"] for event in self.events if "prompt_token_ids" in event]
        return {"choices": fold(self.events), "usage": self.events[-1]["usage"], "prompt_token_ids": prompt_ids}


def differences(actual: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Where two folds differ, be it in the last bit of a logprob."""
    if isinstance(expected, dict) and isinstance(actual, dict) and actual.keys() == expected.keys():
        for key in expected:
            yield from differences(actual[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif actual != expected:
        yield f"{place}: {actual!r} instead of {expected!r}"
