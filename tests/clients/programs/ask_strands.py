"""Strands: an agent without tools, which sends `tools: []` and streams by default. It has no logprobs."""

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
from strands import Agent
from strands.models.openai import OpenAIModel


def agent(system_prompt=None, streaming=True, **params):
    client = {"base_url": BASE_URL, "api_key": API_KEY, "timeout": SECONDS, "max_retries": 0}
    model = OpenAIModel(client_args=client, model_id=MODEL, params={"temperature": 0} | params, streaming=streaming)
    return Agent(model=model, callback_handler=None, system_prompt=system_prompt)


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
    check_result(agent(streaming=False)(QUESTION))


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


main()
