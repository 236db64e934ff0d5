"""pydantic-ai: an agent on OpenAIChatModel, without and with a tool, and with an output type in each of its modes."""

from forms import QUESTION as FORM_QUESTION
from forms import asking_for, check_report
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from pydantic_forms import Report, check_instance
from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    SECONDS,
    URL,
    check,
    check_logprobs,
    equal,
    main,
    task,
)
from weather import SECOND_THOUGHT, THINKING, Weather, round_trip


def agent(base_url=BASE_URL, instructions=None, tools=(), **settings):
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key=API_KEY))
    settings = OpenAIChatModelSettings(temperature=0, timeout=SECONDS, **settings)
    return Agent(model, model_settings=settings, instructions=instructions, tools=tools, retries=0)


def response_of(result):
    response = result.all_messages()[-1]
    equal(type(response), ModelResponse, "the type")
    return response


@task
def plain_chat():
    result = agent().run_sync(QUESTION)
    equal(result.output, ANSWER, "the output")
    response = response_of(result)
    equal([type(part) for part in response.parts], [TextPart], "the parts")
    equal((response.finish_reason, response.model_name), ("stop", MODEL), "finish_reason and model")
    usage = response.usage
    check(usage.input_tokens > 0 and usage.output_tokens > 0, f"usage {usage}")


@task
async def chat_stream():
    async with agent().run_stream(QUESTION) as result:
        deltas = [delta async for delta in result.stream_text(delta=True, debounce_by=None)]
        equal("".join(deltas), ANSWER, "the deltas")
        check(len(deltas) > 2, f"deltas {deltas}")
        check(response_of(result).usage.output_tokens > 0, "no usage")


@task
async def chat_stream_with_continuous_usage():
    async with agent(openai_continuous_usage_stats=True).run_stream(QUESTION) as result:
        equal(await result.get_output(), ANSWER, "the output")
        equal(response_of(result).usage.output_tokens, (await agent().run(QUESTION)).usage.output_tokens, "the usage")


@task
def chat_logprobs():
    response = response_of(agent(openai_logprobs=True, openai_top_logprobs=2).run_sync(QUESTION))
    entries = response.provider_details["logprobs"]
    check_logprobs((entry["logprob"] for entry in entries), response.usage.output_tokens)


@task
def second_turn():
    first = agent(instructions="Be brief.").run_sync(QUESTION)
    result = agent(instructions="Be brief.").run_sync(SECOND_QUESTION, message_history=first.all_messages())
    equal(result.output, SECOND_ANSWER, "the output")


@task
def instructions_as_developer_message():
    provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
    counts = []
    for role in ("developer", "system"):
        model = OpenAIChatModel(MODEL, provider=provider, profile={"openai_system_prompt_role": role})
        result = Agent(model, instructions="Be brief.", model_settings={"temperature": 0}).run_sync(QUESTION)
        counts.append(result.usage.input_tokens)
    equal(counts[0], counts[1], "the number of prompt tokens")


@task
def settings_that_change_nothing():
    settings = {"openai_user": "someone", "openai_store": False, "openai_service_tier": "auto", "logit_bias": {}}
    settings |= {"openai_prompt_cache_key": "key", "parallel_tool_calls": True, "openai_text_verbosity": "medium"}
    settings |= {"openai_prediction": {"type": "content", "content": ANSWER}, "presence_penalty": 0, "top_p": 1}
    equal(agent(**settings).run_sync(QUESTION).output, ANSWER, "the output")


@task
def wrong_base_url():
    """Without /v1, the error names the route."""
    try:
        agent(base_url=URL).run_sync(QUESTION)
    except Exception as error:
        check("/chat/completions" in str(error), f"the error does not name the route: {error}")
        check("model_not_found" not in str(error), f"the error is about the model: {error}")
    else:
        check(False, "no error")


def check_tool(weather, messages, thoughts=()):
    """Checks an agent's messages: question, call, result, sentence; and its thoughts."""
    _, called, returned, last = messages
    (call,) = (part for part in called.parts if isinstance(part, ToolCallPart))
    weather.check_call(call.tool_name, call.args)
    equal((called.finish_reason, last.finish_reason), ("tool_call", "stop"), "the finish reasons")
    (result,) = (part for part in returned.parts if isinstance(part, ToolReturnPart))
    equal((result.tool_call_id, result.content), (call.tool_call_id, weather.result), "the result")
    parts = [part for response in (called, last) for part in response.parts if isinstance(part, ThinkingPart)]
    equal([part.content.strip() for part in parts], list(thoughts), "the thoughts")


@task
def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        result = agent(url, tools=[weather.tool()]).run_sync(weather.question)
        weather.check_answer(result.output)
        check_tool(weather, result.all_messages())


@task
async def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        async with agent(url, tools=[weather.tool()]).run_stream(weather.question) as result:
            deltas = [delta async for delta in result.stream_text(delta=True, debounce_by=None)]
            weather.check_answer("".join(deltas))
            check_tool(weather, result.all_messages())


@task
def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        result = agent(url, tools=[weather.tool()], extra_body=THINKING).run_sync(weather.question)
        weather.check_answer(result.output.strip())
        check_tool(weather, result.all_messages(), (weather.thought, SECOND_THOUGHT))


@task
async def tool_round_trip_with_reasoning_streamed():
    with round_trip(stream=True, thinking=True) as (url, weather):
        async with agent(url, tools=[weather.tool()], extra_body=THINKING).run_stream(weather.question) as result:
            weather.check_answer((await result.get_output()).strip())
            check_tool(weather, result.all_messages(), (weather.thought, SECOND_THOUGHT))


@task
def output_by_each_mode():
    for mode, fields in (
        (ToolOutput, ["tool_choice"]),
        (NativeOutput, ["response_format"]),
        (PromptedOutput, ["messages"]),
    ):
        with asking_for(*fields) as url:
            asked = agent(url, max_tokens=300)
            try:
                result = asked.run_sync(FORM_QUESTION, output_type=mode(Report))
            except UnexpectedModelBehavior:
                if mode is not PromptedOutput:  # nothing but the prompt asks for the schema then
                    raise
            else:
                check_instance(result.output)


@task
async def output_streamed():
    for mode, field in ((ToolOutput, "tool_choice"), (NativeOutput, "response_format")):
        with asking_for(field) as url:
            async with agent(url, max_tokens=300).run_stream(FORM_QUESTION, output_type=mode(Report)) as result:
                check_instance(await result.get_output())


@task
def output_beside_a_tool():
    """The model calls the tool or the output; either way it is a call."""
    with asking_for("tool_choice") as url:
        weather = Weather()
        asked = agent(url, tools=[weather.tool()], max_tokens=300)
        messages = []
        try:
            messages = asked.run_sync(
                weather.question, output_type=ToolOutput(Report), usage_limits=UsageLimits(request_limit=1)
            ).all_messages()
        except UsageLimitExceeded:
            equal(weather.calls, [weather.city], "the calls of the tool")
        for part in (part for message in messages for part in message.parts if isinstance(part, ToolCallPart)):
            check_report(part.args_as_dict())


main()
