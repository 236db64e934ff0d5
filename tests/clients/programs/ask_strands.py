"""Strands: an agent without tools, which sends `tools: []`, and one with a tool. It streams by default; it has no
logprobs."""

from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    SECONDS,
    check,
    check_usage,
    equal,
    main,
    task,
)
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from weather import NAME, SECOND_THOUGHT, THINKING, round_trip


def agent(system_prompt=None, stream=True, base_url=BASE_URL, tools=(), **params):
    client = {"base_url": base_url, "api_key": API_KEY, "timeout": SECONDS, "max_retries": 0}
    model = OpenAIModel(client_args=client, model_id=MODEL, params={"temperature": 0} | params, stream=stream)
    return Agent(model=model, callback_handler=None, system_prompt=system_prompt, tools=list(tools))


def check_result(result, wanted=ANSWER):
    equal(result.stop_reason, "end_turn", "stop_reason")
    equal(result.message["content"], [{"text": wanted}], "the content")


@task
def plain_chat():
    """Strands streams."""
    result = agent()(QUESTION)
    check_result(result)
    usage = result.metrics.accumulated_usage
    check_usage(usage["inputTokens"], usage["outputTokens"], usage["totalTokens"])


@task
def chat_without_stream():
    check_result(agent(stream=False)(QUESTION))


@task
async def chat_stream():
    deltas, result = [], None
    async for event in agent().stream_async(QUESTION):
        deltas += [event["data"]] if "data" in event else []
        result = event.get("result", result)
    equal("".join(deltas), ANSWER, "the deltas")
    check_result(result)
    check(len(deltas) > 2, f"deltas {deltas}")


@task
def second_turn():
    """The agent sends its own history."""
    asked = agent(system_prompt="Be brief.")
    check_result(asked(QUESTION))
    check_result(asked(SECOND_QUESTION), SECOND_ANSWER)


@task
def params_at_their_defaults():
    params = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "n": 1, "top_p": 1, "user": "someone"}
    check_result(agent(**params, parallel_tool_calls=True, store=False, service_tier="auto")(QUESTION))


def check_tool(weather, messages, thoughts=()):
    """Checks an agent's messages: question, call, result, sentence; and its thoughts."""
    contents = [block for message in messages for block in message["content"]]
    (call,) = (block["toolUse"] for block in contents if "toolUse" in block)
    (result,) = (block["toolResult"] for block in contents if "toolResult" in block)
    weather.check_call(call["name"], call["input"])
    found = (result["toolUseId"], result["status"], result["content"])
    equal(found, (call["toolUseId"], "success", [{"text": weather.result}]), "the result")
    reasoning = [
        block["reasoningContent"]["reasoningText"]["text"] for block in contents if "reasoningContent" in block
    ]
    equal([text.strip() for text in reasoning], list(thoughts), "the thoughts")


def tool_round_trip(stream, thinking=False):
    with round_trip(stream=stream, thinking=thinking) as (url, weather):
        params = {"extra_body": THINKING} if thinking else {}
        asked = agent(stream=stream, base_url=url, tools=[tool(weather.tool())], **params)
        result = asked(weather.question)
        equal(result.stop_reason, "end_turn", "stop_reason")
        (text,) = (block["text"] for block in result.message["content"] if "text" in block)
        weather.check_answer(text.strip())
        check_tool(weather, asked.messages, (weather.thought, SECOND_THOUGHT) if thinking else ())


@task
def tool_round_trip_streamed():
    tool_round_trip(stream=True)


@task
def tool_round_trip_without_stream():
    tool_round_trip(stream=False)


@task
def tool_round_trip_with_reasoning_streamed():
    tool_round_trip(stream=True, thinking=True)


@task
def tool_round_trip_with_reasoning_without_stream():
    tool_round_trip(stream=False, thinking=True)


@task
async def tool_round_trip_in_events():
    with round_trip(stream=True) as (url, weather):
        texts, inputs = [], []
        async for event in agent(base_url=url, tools=[tool(weather.tool())]).stream_async(weather.question):
            texts += [event["data"]] if "data" in event else []
            inputs += [event["delta"]["toolUse"]["input"]] if "toolUse" in event.get("delta", {}) else []
        weather.check_answer("".join(texts))
        weather.check_call(NAME, "".join(inputs))
        check(len(texts) > 2 and len(inputs) > 1, f"deltas {texts} and {inputs}")


main()
