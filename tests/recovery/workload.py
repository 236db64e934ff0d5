"""Thirty concurrent requests of every kind, and the part of each answer that its client has received so far."""

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
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Json = {"tools": [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]}
THINK: Json = {"chat_template_kwargs": {"enable_thinking": True}}
# The demo model's tokens of its calls and thoughts: hardly anything but markers, JSON and parts of them.
CALL_IDS = [3, 4, 5, 6, 56, 71, 207, 266, 267, 286, 287, 346, 354, 356, 362, 366, 372, 438, 724]
# Forms that are hardly complete before LENGTH tokens.
NUMBERS: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 300}
JSON_FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS, "strict": True}}
COUNTED: Json = {"type": "object", "properties": {"to": NUMBERS}, "required": ["to"], "additionalProperties": False}
COUNT: Json = {"type": "function", "function": {"name": "count", "strict": True, "parameters": COUNTED}}
STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}


def _chat(question: str, **more: Any) -> tuple[str, Json]:
    return CHAT, {"messages": [{"role": "user", "content": question}], **SEEDED, **more}


def _text(prompt: Any, **more: Any) -> tuple[str, Json]:
    return TEXT, {"prompt": prompt, **SEEDED, **more}


def requests(stops: list[str]) -> dict[str, tuple[str, Json]]:
    """Returns path and body by name. `stops` are the stop strings of the requests "stop" and "stop whole"."""
    first, second = stops or ["no such text", "nor this"]
    return {
        "chat stream": _chat("Which way to Köln?", seed=1, **STREAM),
        "chat whole": _chat("Which way to Köln?", seed=2),
        "chat greedy": _chat("What is 2 + 3?", temperature=0, **STREAM),
        "chat tools": _chat("What is the weather?", seed=3, tools=[TOOL], **STREAM),
        "calls": _chat("What is the weather in Paris?", seed=23, n=2, **WEATHER, **THINK, **STREAM),
        "calls whole": _chat("What is the weather in Rome?", seed=24, n=2, **WEATHER, allowed_token_ids=CALL_IDS),
        "markers": _chat(
            "Weather in Oslo?", seed=25, n=3, **WEATHER, allowed_token_ids=CALL_IDS, stop=["}}}"], **STREAM
        ),
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
        "bias": _text("one two", seed=17, logit_bias={"40": 3, "300": -100}, frequency_penalty=0.5, **STREAM),
        "allowed": _chat("Which way?", seed=18, allowed_token_ids=list(range(30, 400, 3)), **STREAM),
        "bad words": _chat("Tell me a story", seed=19, bad_words=["the", "e", " a", "in the"], **STREAM),
        "bad words whole": _text("one two", seed=20, bad_words=["one", "th"], logprobs=0, logprob_token_ids=[5, 9, 40]),
        "min tokens": _text("x", seed=21, ignore_eos=False, logit_bias={"2": 9}, min_tokens=LENGTH // 2, **STREAM),
        "json": _text("one two", seed=26, guided_json=NUMBERS, **STREAM),
        "json whole": _chat("Count!", seed=27, n=2, response_format=JSON_FORMAT, logprobs=True),
        "regex": _text("one two", seed=28, guided_regex="([a-z]{3,9}[.,!] ?){400}", **STREAM),
        "required": _chat("Count!", seed=29, tools=[COUNT], tool_choice="required", n=2, **STREAM),
        "thought json": _chat("Count!", seed=30, response_format=JSON_FORMAT, **THINK, **STREAM),
        "truncated": _text("left and right " * 60, seed=22, truncate_prompt_tokens=30, **STREAM),
    }


PATIENCE_SECONDS = 60.0
STOPPED = ("stop", "stop whole")
LONG_PROMPT = [100 + place * 7919 % 900 for place in range(1800)]
LONG = _text(LONG_PROMPT, seed=16, max_tokens=20, **STREAM)


async def patient_post(client: httpx.AsyncClient, path: str, body: Json) -> httpx.Response:
    """Posts a request, again after each 503: new requests are refused while a process restarts."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (response := await client.post(path, json=body)).status_code == 503:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)  # a server in this event loop needs time to run
    assert response.status_code == 200, response.text
    return response


@dataclass
class Answer:
    """One request, and the part of its answer that the client has received."""

    name: str
    path: str
    body: Json
    events: list[Json] = field(default_factory=list)  # if streamed
    whole: Json | None = None
    ended: bool = False
    cached_tokens_known: bool = False  # the client had tokens before the first kill, so `cached_tokens` must not change

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the client has received: 0 for an answer that is not streamed."""
        return sum(len(one.get("token_ids", ())) for event in self.events for one in event["choices"])

    @property
    def live(self) -> bool:
        return not self.ended and self.num_tokens > 0

    async def run(self, client: httpx.AsyncClient) -> None:
        if self.body.get("stream"):
            while not await self._stream(client):
                pass
            assert self.ended, "the stream ended without [DONE]"
        else:
            response = await patient_post(client, self.path, self.body)
            self.whole, self.ended = response.json(), True

    async def _stream(self, client: httpx.AsyncClient) -> bool:
        """Reads the stream to its end. Returns False for 503, after which the caller retries."""
        async with client.stream("POST", self.path, json=self.body) as response:
            if response.status_code == 503:
                return False
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                self._receive(line)
        return True

    def _receive(self, line: str) -> None:
        if line == "data: [DONE]":
            self.ended = True
        elif line:
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            self.events.append(event)

    def fold(self) -> Json:
        """Returns the complete answer: choices, usage and, if it was streamed, the prompt's token ids."""
        if self.whole is not None:
            return {"choices": choices_of(self.whole), "usage": self.whole["usage"]}
        prompt_ids = [event["prompt_token_ids"] for event in self.events if "prompt_token_ids" in event]
        return {"choices": fold(self.events), "usage": self.events[-1]["usage"], "prompt_token_ids": prompt_ids}


def differences(actual: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Yields one line for each difference between two answers, also in the last bit of a logprob."""
    if isinstance(expected, dict) and isinstance(actual, dict) and actual.keys() == expected.keys():
        for key in expected:
            yield from differences(actual[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(actual) == len(expected):
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif actual != expected:
        yield f"{place}: {actual!r} instead of {expected!r}"
