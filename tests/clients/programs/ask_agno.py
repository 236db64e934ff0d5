"""agno: an agent on OpenAILike."""

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import SECOND_THOUGHT, THINKING, round_trip


def agent(url, weather, **fields):
    model = OpenAILike(id=MODEL, base_url=url, api_key=API_KEY, temperature=0, max_retries=0, timeout=SECONDS, **fields)
    return Agent(model=model, tools=[weather.tool()], telemetry=False)


def check_tools(weather, tools):
    (call,) = tools
    weather.check_call(call.tool_name, call.tool_args)
    equal(call.result, weather.result, "the result")


def check_result(weather, result):
    check_tools(weather, result.tools)
    weather.check_answer(result.content.strip())


@task
def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_result(weather, agent(url, weather).run(weather.question))


@task
def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        events = list(agent(url, weather).run(weather.question, stream=True, stream_events=True))
        texts = [event.content for event in events if event.event == "RunContent"]
        weather.check_answer("".join(texts))
        check(len(texts) > 2, f"deltas {texts}")
        check_tools(weather, [event.tool for event in events if event.event == "ToolCallCompleted"])


@task
async def async_tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_result(weather, await agent(url, weather).arun(weather.question))


@task
def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        result = agent(url, weather, extra_body=THINKING).run(weather.question)
        check_result(weather, result)
        thoughts = [(one.reasoning_content or "").strip() for one in result.messages if one.role == "assistant"]
        equal(thoughts, [weather.thought, SECOND_THOUGHT], "the reasoning")


main()
