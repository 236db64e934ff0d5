"""The round trip of a tool that the tasks of all clients share: a question about the weather, the demo model's call of
`get_weather`, a planted result, and the sentence that the model makes of it.

Imports only the standard library.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from played import call, script
from recorder import Exchange, recorder
from report import URL, Failed, check, equal

# The demo model knows these (demo/facts.py).
CITIES = ("Paris", "Berlin", "Oslo", "New Delhi", "London", "Hamburg", "Chicago", "Zurich", "Osaka", "Prague")
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")
# Not 11, 22 and 33: after some prompts the demo model repeats such digits once more.
DEGREES = [degrees for degrees in range(36) if degrees % 11]
NAME, DESCRIPTION = "get_weather", "Get the weather in a city."
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}  # vLLM's field: the model reasons first
SECOND_THOUGHT = "The tool has answered."


class Weather:
    """One question, with a result that is planted at random. `calls` has the cities that the tool was called with.

    `played`: the question has a script for the worker that plays given tokens, because the client's own prompt is too
    much for the demo model.
    """

    def __init__(self, *, played: bool = False) -> None:
        self.city = random.choice(CITIES)
        degrees, sky = random.choice(DEGREES), random.choice(SKIES)
        self.question = f"What is the weather in {self.city}?"
        self.thought = f"I look up {self.city}."
        self.result = f"{degrees} degrees, {sky}"
        self.sentence = f"It is {sky} in {self.city}, with {degrees} degrees."
        self.calls: list[str] = []
        if played:
            self.question += f" {script(call(NAME, city=self.city), f'In {self.city}: {{result}}.')}"
            self.sentence = f"In {self.city}: {self.result}."

    def tool(self) -> Callable[[str], str]:
        """Returns the tool as a function, which clients make a schema of."""

        def get_weather(city: str) -> str:
            self.calls.append(city)
            return self.result

        get_weather.__doc__ = DESCRIPTION
        return get_weather

    def async_tool(self) -> Callable[[str], Any]:
        tool = self.tool()

        async def get_weather(city: str) -> str:
            return tool(city)

        get_weather.__doc__ = DESCRIPTION
        return get_weather

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.question}]

    def check_call(self, name: str, arguments: Any) -> None:
        """Checks a call that the client shows; arguments as an object or as JSON."""
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        equal((name, parsed), (NAME, {"city": self.city}), "the call")

    def check_answer(self, text: object) -> None:
        equal(text, self.sentence, "the final text")


@contextlib.contextmanager
def round_trip(
    *, stream: bool, thinking: bool = False, played: bool = False, offered: str = NAME
) -> Iterator[tuple[str, Weather]]:
    """Yields (base URL, a question). Then checks that the tool was called once, and what passed between the client and
    the server: the call, its id that comes back with the result, the sentence, finish reasons, and the reasoning.

    `offered`: the tool's name where the client makes one of its own.
    """
    weather = Weather(played=played)
    with recorder(URL) as (url, recording):
        try:
            yield f"{url}/v1", weather
        except Exception as error:
            problems = [one.problem for one in recording.exchanges() if one.problem]
            if problems:
                raise Failed(f"the server's answer is {' and '.join(problems)}; {error}") from error
            raise
        equal(weather.calls, [weather.city], "the calls of the tool")
        check_exchanges(recording.exchanges(), weather, stream, thinking, offered)


def check_exchanges(exchanges: list[Exchange], weather: Weather, stream: bool, thinking: bool, offered: str) -> None:
    for one in exchanges:
        equal(bool(one.request.get("stream")), stream, "stream")
        check(one.choice is not None, f"the server's answer is {one.problem}")
    equal(len(exchanges), 2, "the number of requests")
    first, second = exchanges
    equal([tool["function"]["name"] for tool in first.request["tools"]], [offered], "the tools")
    _check_result(second, weather, _check_call(first, weather))
    equal((_text(second, "content"), second.choice["finish_reason"]), (weather.sentence, "stop"), "the sentence")
    thoughts = (weather.thought, SECOND_THOUGHT) if thinking else ("", "")
    for name in ("reasoning", "reasoning_content"):
        equal((_text(first, name), _text(second, name)), thoughts, name)


def _text(one: Exchange, name: str) -> str:
    return (one.choice["message"].get(name) or "").strip()


def _check_call(first: Exchange, weather: Weather) -> dict[str, Any]:
    equal((first.choice["finish_reason"], _text(first, "content")), ("tool_calls", ""), "the first answer")
    (made,) = first.choice["message"]["tool_calls"]
    weather.check_call(made["function"]["name"], made["function"]["arguments"])
    return made


def _check_result(second: Exchange, weather: Weather, made: dict[str, Any]) -> None:
    """Checks that the second request has the call and, with its id, the planted result."""
    messages = second.request["messages"]
    (said,) = [one for one in messages if one.get("tool_calls")]
    (echoed,) = said["tool_calls"]
    equal(echoed["id"], made["id"], "the call's id in the history")
    weather.check_call(echoed["function"]["name"], echoed["function"]["arguments"])
    (result,) = [one for one in messages if one["role"] == "tool"]
    equal(result["tool_call_id"], made["id"], "the result's id")
    check(weather.result in json.dumps(result["content"]), f"the result is {result['content']}")
