"""litellm, as its provider openai and as its provider hosted_vllm."""

import json

import litellm
from forms import MESSAGES as FORM_MESSAGES
from forms import REPORT_TOOL, RESPONSE_FORMAT, SCHEMA, asking_for, asking_for_calls, check_report, check_text, named
from pydantic_forms import Report
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
from weather import SECOND_THOUGHT, THINKING, TOOL, round_trip

MESSAGES = [{"role": "user", "content": QUESTION}]
COMMON = {"api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}


def chat(provider="openai", **fields):
    fields = COMMON | {"messages": MESSAGES, "temperature": 0} | fields
    return litellm.completion(model=f"{provider}/{MODEL}", **fields)


def check_answer(answer, wanted=ANSWER):
    equal(type(answer), litellm.ModelResponse, "the type")
    choice = answer.choices[0]
    equal((choice.message.content, choice.finish_reason), (wanted, "stop"), "the choice")
    check_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


@task
def plain_chat():
    check_answer(chat())


@task
def plain_chat_as_hosted_vllm():
    check_answer(chat("hosted_vllm"))


@task
def chat_stream():
    for provider in ("openai", "hosted_vllm"):
        chunks = list(chat(provider, stream=True, stream_options={"include_usage": True}))
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER, f"the text of {provider}")
        check_answer(litellm.stream_chunk_builder(chunks, messages=MESSAGES))


@task
async def async_chat_stream():
    stream = await litellm.acompletion(model=f"openai/{MODEL}", messages=MESSAGES, temperature=0, stream=True, **COMMON)
    equal("".join([chunk.choices[0].delta.content or "" async for chunk in stream]), ANSWER, "the text")


@task
def chat_logprobs():
    for provider in ("openai", "hosted_vllm"):
        answer = chat(provider, logprobs=True, top_logprobs=2)
        entries = answer.choices[0].logprobs.content
        check_logprobs((entry.logprob for entry in entries), answer.usage.completion_tokens)


@task
def second_turn():
    """The first answer goes back as litellm's own object, and as it dumps it."""
    first = chat().choices[0].message
    for echoed in (first, first.model_dump()):
        check_answer(chat(messages=[*MESSAGES, echoed, {"role": "user", "content": SECOND_QUESTION}]), SECOND_ANSWER)


@task
def fields_at_their_defaults():
    fields = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_p": 1, "logit_bias": {}, "logprobs": False}
    fields |= {"user": "someone", "parallel_tool_calls": True, "response_format": {"type": "text"}, "tools": []}
    check_answer(chat(**fields))


@task
def cache_control():
    """litellm's callers mark what a provider may cache."""
    part = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}
    check_answer(chat(messages=[{"role": "user", "content": [part]}]))


@task
def plain_completion():
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", **COMMON, **fields)
    equal((answer.choices[0].text, answer.choices[0].finish_reason), (ANSWER, "stop"), "the choice")
    check_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)


@task
def completion_stream():
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "stream": True}
    chunks = litellm.text_completion(model=f"text-completion-openai/{MODEL}", **COMMON, **fields)
    equal("".join(chunk.choices[0].text or "" for chunk in chunks), ANSWER, "the text")


@task
def completion_logprobs():
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "logprobs": 2}
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", **COMMON, **fields)
    check_logprobs(answer.choices[0].logprobs.token_logprobs, answer.usage.completion_tokens)


@task
def too_long_a_context():
    """litellm knows this error by the server's words, and routers fall back on it."""
    try:
        chat(messages=[{"role": "user", "content": QUESTION * 999}])
    except litellm.ContextWindowExceededError:
        pass
    except litellm.BadRequestError as error:
        check(False, f"not a ContextWindowExceededError: {error}")
    else:
        check(False, "no error")


def turns(weather, message):
    """Returns the messages with litellm's own message of the call, and the tool's result."""
    (call,) = message.tool_calls
    weather.check_call(call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
    return [*weather.messages(), message, result | {"content": weather.tool()(weather.city)}]


def reasoning_of(message):
    return (getattr(message, "reasoning_content", None) or "").strip()


def choice_of(provider, url, messages, stream, thinking):
    fields = {"api_base": url, "messages": messages, "tools": [TOOL], "stream": stream}
    answer = chat(provider, **fields, **({"extra_body": THINKING} if thinking else {}))
    answer = litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer
    return answer.choices[0]


def check_round_trip(stream, thinking=False):
    for provider in ("openai", "hosted_vllm"):
        with round_trip(stream=stream, thinking=thinking) as (url, weather):
            first = choice_of(provider, url, weather.messages(), stream, thinking)
            last = choice_of(provider, url, turns(weather, first.message), stream, thinking)
        equal([first.finish_reason, last.finish_reason], ["tool_calls", "stop"], "the finish reasons")
        thoughts = [weather.thought, SECOND_THOUGHT] if thinking else ["", ""]
        equal([reasoning_of(one.message) for one in (first, last)], thoughts, "the reasoning")
        weather.check_answer(last.message.content.strip())


@task
def tool_round_trip():
    check_round_trip(stream=False)


@task
def tool_round_trip_streamed():
    check_round_trip(stream=True)


@task
def tool_round_trip_with_reasoning():
    check_round_trip(stream=False, thinking=True)


@task
def tool_round_trip_with_reasoning_streamed():
    check_round_trip(stream=True, thinking=True)


@task
def json_by_schema():
    """As a class, and as OpenAI's field; litellm checks the answer of a class itself."""
    for provider in ("openai", "hosted_vllm"):
        for form in (Report, RESPONSE_FORMAT):
            with asking_for("response_format") as url:
                answer = chat(provider, api_base=url, messages=FORM_MESSAGES, response_format=form, max_tokens=600)
            check_text(answer.choices[0].message.content)
            equal(answer.choices[0].finish_reason, "stop", "finish_reason")


@task
def json_by_schema_streamed():
    for provider in ("openai", "hosted_vllm"):
        chunks = chat(provider, messages=FORM_MESSAGES, response_format=Report, max_tokens=600, stream=True)
        check_text("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


@task
def guided_fields_of_hosted_vllm():
    answer = chat("hosted_vllm", messages=FORM_MESSAGES, extra_body={"guided_choice": ["sunny", "rainy"]})
    check(answer.choices[0].message.content in ("sunny", "rainy"), f"the answer is {answer}")


@task
def calls_that_must_come():
    """litellm removes `strict` and additionalProperties from the tools of hosted_vllm: more keys may come there."""
    for provider in ("openai", "hosted_vllm"):
        for choice in ("required", named("report")):
            with asking_for_calls(choice) as url:
                fields = {"tools": [REPORT_TOOL], "tool_choice": choice, "parallel_tool_calls": False}
                answer = chat(provider, api_base=url, messages=FORM_MESSAGES, max_tokens=600, **fields)
            (call,) = answer.choices[0].message.tool_calls
            values = json.loads(call.function.arguments)
            if provider == "hosted_vllm":
                values = {key: value for key, value in values.items() if key in SCHEMA["required"]}
            check_report(values)


main()
