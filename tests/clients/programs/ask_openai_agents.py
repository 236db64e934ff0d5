"""OpenAI's agents SDK with its chat-completions model."""

import agents
import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from openai.types.responses import ResponseFunctionCallArgumentsDeltaEvent, ResponseTextDeltaEvent
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import NAME, THINKING, round_trip

agents.set_tracing_disabled(True)


def agent(url, weather, **settings):
    client = openai.AsyncOpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)
    return Agent(
        name="demo",
        model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
        model_settings=ModelSettings(temperature=0, **settings),
        tools=[function_tool(weather.tool())],
    )


def check_result(weather, result, reasons=False):
    kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
    equal(kinds, ["tool_call_item", "tool_call_output_item", "message_output_item"], "the items")
    call, output, _ = (item for item in result.new_items if item.type != "reasoning_item")
    weather.check_call(call.raw_item.name, call.raw_item.arguments)
    equal((output.raw_item["call_id"], output.output), (call.raw_item.call_id, weather.result), "the result")
    weather.check_answer(result.final_output.strip())
    thoughts = [item.raw_item for item in result.new_items if item.type == "reasoning_item"]
    equal(bool(thoughts), reasons, "the client shows reasoning")


@task
async def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_result(weather, await Runner.run(agent(url, weather), weather.question))


@task
async def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        result = Runner.run_streamed(agent(url, weather), weather.question)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        check_result(weather, result)
        texts = [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)]
        weather.check_answer("".join(texts))
        arguments = [event.delta for event in events if isinstance(event, ResponseFunctionCallArgumentsDeltaEvent)]
        weather.check_call(NAME, "".join(arguments))
        check(len(texts) > 2 and len(arguments) > 1, f"deltas {texts} and {arguments}")


@task
async def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        result = await Runner.run(agent(url, weather, extra_body=THINKING), weather.question)
        check_result(weather, result, reasons=True)


@task
async def tool_round_trip_with_reasoning_streamed():
    with round_trip(stream=True, thinking=True) as (url, weather):
        result = Runner.run_streamed(agent(url, weather, extra_body=THINKING), weather.question)
        async for _ in result.stream_events():
            pass
        check_result(weather, result, reasons=True)


@task
async def without_parallel_calls():
    with round_trip(stream=False) as (url, weather):
        check_result(weather, await Runner.run(agent(url, weather, parallel_tool_calls=False), weather.question))


main()
