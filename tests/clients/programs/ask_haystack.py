"""haystack: an Agent on OpenAIChatGenerator."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import DESCRIPTION, NAME, PARAMETERS, THINKING, round_trip


def agent(url, weather, callback=None, **settings):
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token(API_KEY),
        model=MODEL,
        api_base_url=url,
        generation_kwargs={"temperature": 0, **settings},
        max_retries=0,
        timeout=SECONDS,
    )
    tool = Tool(name=NAME, description=DESCRIPTION, parameters=PARAMETERS, function=weather.tool())
    return Agent(chat_generator=generator, tools=[tool], streaming_callback=callback)


def asked(weather):
    return [ChatMessage.from_user(weather.question)]


def check_messages(weather, messages):
    _, called, returned, last = messages
    call, result = called.tool_call, returned.tool_call_result
    weather.check_call(call.tool_name, call.arguments)
    equal((result.origin.id, result.result, result.error), (call.id, weather.result, False), "the result")
    equal([one.meta["finish_reason"] for one in (called, last)], ["tool_calls", "stop"], "the finish reasons")
    weather.check_answer(last.text.strip())


@task
def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_messages(weather, agent(url, weather).run(messages=asked(weather))["messages"])


@task
def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        chunks = []
        check_messages(weather, agent(url, weather, chunks.append).run(messages=asked(weather))["messages"])
        texts = [chunk.content for chunk in chunks if chunk.content]
        weather.check_answer("".join(texts))
        parts = [part.arguments or "" for chunk in chunks for part in chunk.tool_calls or []]
        weather.check_call(NAME, "".join(parts))
        check(len(texts) > 2 and len(parts) > 1, f"deltas {texts} and {parts}")


@task
async def async_tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_messages(weather, (await agent(url, weather).run_async(messages=asked(weather)))["messages"])


@task
def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        check_messages(weather, agent(url, weather, extra_body=THINKING).run(messages=asked(weather))["messages"])


main()
