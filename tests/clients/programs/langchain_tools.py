"""Tools with langchain: `bind_tools` of a model, and `create_agent`."""

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from report import API_KEY, MODEL, SECONDS, check, equal
from weather import NAME, THINKING, round_trip


def model(url, **fields):
    common = {"model": MODEL, "base_url": url, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}
    return ChatOpenAI(**common, temperature=0, **fields)


def check_call(weather, message):
    (call,) = message.tool_calls
    weather.check_call(call["name"], call["args"])
    equal((message.invalid_tool_calls, message.content), ([], ""), "what is not a call")
    equal(message.response_metadata["finish_reason"], "tool_calls", "finish_reason")
    return call


def check_messages(weather, messages):
    """Checks the agent's state: question, call, result, sentence."""
    question, called, result, last = messages
    equal((question.type, result.type), ("human", "tool"), "the messages")
    equal(result.tool_call_id, check_call(weather, called)["id"], "the result's id")
    weather.check_answer(last.content.strip())


def asked(weather):
    return {"messages": [HumanMessage(weather.question)]}


def tool_round_trip_of_a_model():
    with round_trip(stream=False) as (url, weather):
        tool = weather.tool()
        bound = model(url).bind_tools([tool])
        called = bound.invoke(weather.question)
        call = check_call(weather, called)
        result = ToolMessage(tool(**call["args"]), tool_call_id=call["id"])
        weather.check_answer(bound.invoke([HumanMessage(weather.question), called, result]).content)


def tool_round_trip_of_a_model_streamed():
    with round_trip(stream=True) as (url, weather):
        tool = weather.tool()
        bound = model(url).bind_tools([tool])
        chunks = list(bound.stream(weather.question))
        called = sum(chunks[1:], chunks[0])
        arguments = [part["args"] for chunk in chunks for part in chunk.tool_call_chunks]
        check(len(arguments) > 2, f"the arguments come as {arguments}")
        call = check_call(weather, called)
        result = ToolMessage(tool(**call["args"]), tool_call_id=call["id"])
        chunks = list(bound.stream([HumanMessage(weather.question), called, result]))
        weather.check_answer("".join(chunk.content for chunk in chunks))


def tool_round_trip_of_an_agent():
    with round_trip(stream=False) as (url, weather):
        agent = create_agent(model(url), [weather.tool()])
        check_messages(weather, agent.invoke(asked(weather))["messages"])


def tool_round_trip_of_an_agent_streamed():
    with round_trip(stream=True) as (url, weather):
        agent = create_agent(model(url), [weather.tool()])
        texts, arguments, state = [], [], None
        for mode, event in agent.stream(asked(weather), stream_mode=["messages", "values"]):
            if mode == "values":
                state = event
            elif event[0].type == "AIMessageChunk":
                texts.append(event[0].content)
                arguments += [part["args"] or "" for part in event[0].tool_call_chunks]
        check_messages(weather, state["messages"])
        weather.check_answer("".join(texts))
        weather.check_call(NAME, "".join(arguments))


def tool_round_trip_of_an_agent_with_reasoning():
    """ChatOpenAI drops fields that OpenAI does not have, so only the server's answers show the reasoning."""
    with round_trip(stream=False, thinking=True) as (url, weather):
        agent = create_agent(model(url, extra_body=THINKING), [weather.tool()])
        check_messages(weather, agent.invoke(asked(weather))["messages"])


TOOL_TASKS = {
    "tool round trip of a model": tool_round_trip_of_a_model,
    "tool round trip of a model, streamed": tool_round_trip_of_a_model_streamed,
    "tool round trip of an agent": tool_round_trip_of_an_agent,
    "tool round trip of an agent, streamed": tool_round_trip_of_an_agent_streamed,
    "tool round trip with reasoning": tool_round_trip_of_an_agent_with_reasoning,
}
