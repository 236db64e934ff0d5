"""autogen: an AssistantAgent on OpenAIChatCompletionClient."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)
from autogen_ext.models.openai import OpenAIChatCompletionClient
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import THINKING, round_trip

# autogen asks for these of a model that it does not know.
INFO = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
INFO |= {"family": "unknown"}


def agent(url, weather, stream=False, **fields):
    common = {"model": MODEL, "base_url": url, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}
    client = OpenAIChatCompletionClient(**common, model_info=INFO, temperature=0, **fields)
    tools = [weather.async_tool()]
    return AssistantAgent("demo", client, tools=tools, reflect_on_tool_use=True, model_client_stream=stream)


def check_messages(weather, messages):
    (called,) = (one for one in messages if isinstance(one, ToolCallRequestEvent))
    (done,) = (one for one in messages if isinstance(one, ToolCallExecutionEvent))
    (call,), (result,) = called.content, done.content
    weather.check_call(call.name, call.arguments)
    equal((result.call_id, result.content, result.is_error), (call.id, weather.result, False), "the result")
    equal(type(messages[-1]), TextMessage, "the type of the last message")
    weather.check_answer(messages[-1].content.strip())


@task
async def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_messages(weather, (await agent(url, weather).run(task=weather.question)).messages)


@task
async def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        *events, result = [event async for event in agent(url, weather, stream=True).run_stream(task=weather.question)]
        check_messages(weather, result.messages)
        texts = [event.content for event in events if isinstance(event, ModelClientStreamingChunkEvent)]
        weather.check_answer("".join(texts))
        check(len(texts) > 2, f"deltas {texts}")


@task
async def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        check_messages(weather, (await agent(url, weather, extra_body=THINKING).run(task=weather.question)).messages)


main()
