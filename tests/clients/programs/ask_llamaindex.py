"""LlamaIndex' OpenAILike, as a chat model, as a completion model and as the model of a FunctionAgent."""

from forms import QUESTION as FORM_QUESTION
from forms import asking_for, asking_for_calls
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic_forms import Report, check_instance
from report import (
    ANSWER,
    API_KEY,
    BASE_URL,
    MODEL,
    PROMPT,
    QUESTION,
    SECOND_ANSWER,
    SECOND_QUESTION,
    SECONDS,
    check,
    check_logprobs,
    check_usage,
    equal,
    main,
    task,
)
from weather import THINKING, Weather, round_trip

MESSAGES = [ChatMessage(role=MessageRole.USER, content=QUESTION)]


def model(chat=True, **fields):
    common = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}
    return OpenAILike(**common | {"is_chat_model": chat, "context_window": 2048, "temperature": 0, **fields})


def check_raw(raw, finish_reason="stop"):
    equal(raw.choices[0].finish_reason, finish_reason, "finish_reason")
    check_usage(raw.usage.prompt_tokens, raw.usage.completion_tokens, raw.usage.total_tokens)


@task
def plain_chat():
    answer = model().chat(MESSAGES)
    equal(
        (type(answer), answer.message.role, answer.message.content), (ChatResponse, "assistant", ANSWER), "the answer"
    )
    check_raw(answer.raw)


@task
def chat_stream():
    *_, last = chunks = list(model().stream_chat(MESSAGES))
    equal("".join(chunk.delta or "" for chunk in chunks), ANSWER, "the deltas")
    equal(last.message.content, ANSWER, "the text")


@task
async def async_chat_stream():
    stream = await model().astream_chat(MESSAGES)
    equal("".join([chunk.delta or "" async for chunk in stream]), ANSWER, "the deltas")


@task
def chat_logprobs():
    answer = model(logprobs=True, top_logprobs=2).chat(MESSAGES)
    best = [entries[0].logprob for entries in answer.logprobs]
    check_logprobs(best, answer.raw.usage.completion_tokens)


@task
def second_turn():
    first = model().chat(MESSAGES).message
    answer = model().chat([*MESSAGES, first, ChatMessage(role=MessageRole.USER, content=SECOND_QUESTION)])
    equal(answer.message.content, SECOND_ANSWER, "the text")


@task
def system_prompt():
    answer = model().chat([ChatMessage(role=MessageRole.SYSTEM, content="Be brief."), *MESSAGES])
    equal(answer.message.content, ANSWER, "the text")


@task
def complete_with_a_chat_model():
    answer = model().complete(QUESTION)
    equal((type(answer), answer.text), (CompletionResponse, ANSWER), "the answer")


@task
def function_calling_model_without_tools():
    """LlamaIndex sends the fields of tools that are at their defaults here."""
    answer = model(is_function_calling_model=True).chat_with_tools([], user_msg=QUESTION)
    equal(answer.message.content, ANSWER, "the text")


@task
def plain_completion():
    answer = model(chat=False, max_tokens=40).complete(PROMPT)
    equal(answer.text, ANSWER, "the text")
    check_raw(answer.raw)


@task
def completion_stream():
    *_, last = chunks = list(model(chat=False, max_tokens=40).stream_complete(PROMPT))
    equal("".join(chunk.delta or "" for chunk in chunks), ANSWER, "the deltas")
    equal(last.text, ANSWER, "the text")


@task
def completion_logprobs():
    answer = model(chat=False, max_tokens=40, logprobs=True, top_logprobs=2).complete(PROMPT)
    best = [max(entry.logprob for entry in entries) for entries in answer.logprobs]
    check_logprobs(best, answer.raw.usage.completion_tokens)


def agent(url, weather, streaming, **fields):
    asked = model(api_base=url, is_function_calling_model=True, **fields)
    return FunctionAgent(llm=asked, tools=[weather.async_tool()], streaming=streaming)


async def run(agent, weather):
    """Returns the events of an agent's run, after a check of the tool's call and of the sentence."""
    handler = agent.run(weather.question)
    events = [event async for event in handler.stream_events()]
    (called,) = (event for event in events if isinstance(event, ToolCallResult))
    weather.check_call(called.tool_name, called.tool_kwargs)
    equal(called.tool_output.content, weather.result, "the result")
    weather.check_answer((await handler).response.content.strip())
    return events


@task
async def tool_round_trip():
    with round_trip(stream=False) as (url, weather):
        await run(agent(url, weather, False), weather)


@task
async def tool_round_trip_streamed():
    with round_trip(stream=True) as (url, weather):
        events = await run(agent(url, weather, True), weather)
        texts = [event.delta for event in events if isinstance(event, AgentStream)]
        weather.check_answer("".join(texts))
        check(len(texts) > 2, f"deltas {texts}")


@task
async def tool_round_trip_with_reasoning():
    with round_trip(stream=False, thinking=True) as (url, weather):
        await run(agent(url, weather, False, additional_kwargs={"extra_body": THINKING}), weather)


@task
def structured_model():
    """By a call of a function that the request names, and by response_format."""
    for calling, field in ((True, "tool_choice"), (False, "response_format")):
        with asking_for(field) as url:
            fields = {"is_function_calling_model": calling, "should_use_structured_outputs": not calling}
            asked = model(api_base=url, max_tokens=600, **fields)
            check_instance(asked.as_structured_llm(Report).chat([ChatMessage(FORM_QUESTION)]).raw)


@task
async def structured_predict():
    with asking_for("tool_choice") as url:
        asked = model(api_base=url, max_tokens=600, is_function_calling_model=True)
        check_instance(await asked.astructured_predict(Report, PromptTemplate(FORM_QUESTION)))


@task
def required_call():
    with asking_for_calls("required") as url:
        weather = Weather()
        asked = model(api_base=url, max_tokens=600, is_function_calling_model=True)
        tools = [FunctionTool.from_defaults(weather.tool())]
        answer = asked.chat_with_tools(tools, user_msg=weather.question, tool_required=True)
        (call,) = asked.get_tool_calls_from_response(answer)[:1]
    weather.check_call(call.tool_name, call.tool_kwargs)


main()
