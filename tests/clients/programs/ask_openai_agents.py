"""OpenAI's agents SDK with its chat-completions model: tools, output types, and a call that must come."""

import agents
import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from forms import QUESTION as FORM_QUESTION
from forms import asking_for, asking_for_calls, named
from openai.types.responses import ResponseFunctionCallArgumentsDeltaEvent, ResponseTextDeltaEvent
from pydantic_forms import Report, check_instance
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import NAME, THINKING, Weather, round_trip

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


def former(url, **fields):
    client = openai.AsyncOpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    return Agent(name="demo", model=model, **fields)


@task
async def output_type():
    settings = ModelSettings(temperature=0, max_tokens=600)
    with asking_for("response_format") as url:
        result = await Runner.run(former(url, output_type=Report, model_settings=settings), FORM_QUESTION)
        check_instance(result.final_output)
        streamed = Runner.run_streamed(former(url, output_type=Report, model_settings=settings), FORM_QUESTION)
        async for _ in streamed.stream_events():
            pass
        check_instance(streamed.final_output)


@task
async def required_tool():
    """The agent stops at the tool's result: otherwise it would ask for calls again and again."""
    for choice in ("required", NAME):
        weather = Weather()
        with asking_for_calls(choice if choice == "required" else named(NAME)) as url:
            settings = ModelSettings(temperature=0, max_tokens=600, tool_choice=choice, parallel_tool_calls=False)
            tools = {"tools": [function_tool(weather.tool())], "tool_use_behavior": "stop_on_first_tool"}
            result = await Runner.run(former(url, model_settings=settings, **tools), weather.question)
        equal((weather.calls, result.final_output), ([weather.city], weather.result), "the call and its result")


main()
