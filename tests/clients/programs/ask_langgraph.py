"""LangGraph's react agent on langchain-openai's ChatOpenAI."""

import warnings

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from report import API_KEY, MODEL, SECONDS, check, equal, main, task
from weather import THINKING, round_trip

# It names its successor, which ask_langchain.py asks.
warnings.filterwarnings("ignore", "create_react_agent has been moved")


def agent(url, weather, **fields):
    common = {"model": MODEL, "base_url": url, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}
    return create_react_agent(ChatOpenAI(**common, temperature=0, **fields), [weather.tool()])


def asked(weather):
    return {"messages": [("user", weather.question)]}


def check_messages(weather, messages):
    """Checks the agent's state: question, call, result, sentence."""
    question, called, result, last = messages
    (call,) = called.tool_calls
    weather.check_call(call["name"], call["args"])
    equal(called.response_metadata["finish_reason"], "tool_calls", "finish_reason")
    equal((question.type, result.type, result.tool_call_id), ("human", "tool", call["id"]), "the messages")
    weather.check_answer(last.content.strip())


@task
def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_messages(weather, agent(url, weather).invoke(asked(weather))["messages"])


@task
def tool_round_trip_streamed():
    """The modes `messages` and `values` show deltas and the state."""
    with round_trip(stream=True) as (url, weather):
        texts, arguments, state = [], [], None
        modes = ["messages", "values"]
        for mode, event in agent(url, weather).stream(asked(weather), stream_mode=modes):
            if mode == "values":
                state = event
            elif event[0].type == "AIMessageChunk":
                texts.append(event[0].content)
                arguments += [part["args"] for part in event[0].tool_call_chunks]
        check_messages(weather, state["messages"])
        weather.check_answer("".join(texts))
        weather.check_call("get_weather", "".join(one or "" for one in arguments))
        check(len(arguments) > 2, f"the arguments come as {arguments}")


@task
async def async_tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        check_messages(weather, (await agent(url, weather).ainvoke(asked(weather)))["messages"])


@task
def tool_round_trip_with_reasoning():
    """ChatOpenAI drops fields that OpenAI does not have, so the reasoning is seen between client and server only."""
    with round_trip(stream=False, thinking=True) as (url, weather):
        check_messages(weather, agent(url, weather, extra_body=THINKING).invoke(asked(weather))["messages"])


main()
