"""Tools and reasoning with OpenAI's Python client: a task for each way to ask for them."""

from functools import partial

import openai
from openai.types.chat import ChatCompletionMessage
from report import ANSWER, API_KEY, BASE_URL, MODEL, QUESTION, SECONDS, check, check_usage, equal
from weather import DESCRIPTION, NAME, PARAMETERS, SECOND_THOUGHT, THINKING, TOOL, Weather, round_trip


def client(url):
    return openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)


def ask(url, messages, **fields):
    fields = {"temperature": 0, "tools": [TOOL]} | fields
    return client(url).chat.completions.create(model=MODEL, messages=messages, **fields)


def reasoning_of(message):
    """Returns vLLM's field, which the client keeps although OpenAI does not know it."""
    return (message.model_extra.get("reasoning") or "").strip()


def turns(weather, call, echoed):
    """Returns the messages with the call, as the client has it, and the tool's result."""
    weather.check_call(call.function.name, call.function.arguments)
    result = weather.tool()(weather.city)
    return [*weather.messages(), echoed, {"role": "tool", "tool_call_id": call.id, "content": result}]


def tool_round_trip(thinking=False):
    fields = {"extra_body": THINKING} if thinking else {}
    with round_trip(stream=False, thinking=thinking) as (url, weather):
        answer = ask(url, weather.messages(), **fields)
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls
        equal((choice.finish_reason, choice.message.content, call.type), ("tool_calls", None, "function"), "the call")
        equal(reasoning_of(choice.message), weather.thought if thinking else "", "the reasoning")
        check_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
        last = ask(url, turns(weather, call, choice.message), **fields).choices[0]
        equal(last.finish_reason, "stop", "finish_reason")
        equal(reasoning_of(last.message), SECOND_THOUGHT if thinking else "", "the reasoning")
        weather.check_answer(last.message.content.strip())


def collected(stream):
    """Returns (message, finish reason) of a stream, put together as OpenAI's guide does it:
    https://platform.openai.com/docs/guides/function-calling#streaming"""
    calls, content, reasoning, reasons = {}, "", "", []
    for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += choice.delta.model_extra.get("reasoning") or ""
        for part in choice.delta.tool_calls or []:
            if part.index not in calls:
                calls[part.index] = part
            else:
                calls[part.index].function.arguments += part.function.arguments
        reasons.append(choice.finish_reason)
    equal(set(reasons[:-1]), {None}, "the finish reasons before the last")
    message = {"role": "assistant", "content": content or None, "reasoning": reasoning.strip()}
    message |= {"tool_calls": [call.model_dump(exclude={"index"}) for call in calls.values()]} if calls else {}
    return ChatCompletionMessage.model_validate(message), reasons[-1]


def tool_round_trip_streamed(thinking=False):
    fields = {"stream": True} | ({"extra_body": THINKING} if thinking else {})
    with round_trip(stream=True, thinking=thinking) as (url, weather):
        message, reason = collected(ask(url, weather.messages(), **fields))
        (call,) = message.tool_calls
        equal((reason, message.content, call.type), ("tool_calls", None, "function"), "the call")
        equal(reasoning_of(message), weather.thought if thinking else "", "the reasoning")
        last, reason = collected(ask(url, turns(weather, call, message), **fields))
        equal((reason, last.tool_calls), ("stop", None), "the end")
        equal(reasoning_of(last), SECOND_THOUGHT if thinking else "", "the reasoning")
        weather.check_answer(last.content.strip())


def tool_round_trip_with_stream_helper():
    fields = {"model": MODEL, "temperature": 0, "tools": [TOOL]}
    with round_trip(stream=True) as (url, weather):
        with client(url).chat.completions.stream(messages=weather.messages(), **fields) as stream:
            seen = list(stream)
            message = stream.get_final_completion().choices[0].message
        (done,) = [event for event in seen if event.type == "tool_calls.function.arguments.done"]
        deltas = [event.arguments_delta for event in seen if event.type == "tool_calls.function.arguments.delta"]
        equal("".join(deltas), done.arguments, "the deltas of the arguments")
        check(len(deltas) > 1, f"the arguments come as {deltas}")
        (call,) = message.tool_calls
        equal((done.name, done.arguments), (call.function.name, call.function.arguments), "the call when it is done")
        with client(url).chat.completions.stream(messages=turns(weather, call, message), **fields) as stream:
            last = stream.get_final_completion().choices[0].message
        weather.check_answer(last.content)


def tool_round_trip_with_parse_helper():
    """The helper takes strict tools only, and parses their arguments."""
    function = TOOL["function"] | {"strict": True, "parameters": PARAMETERS | {"additionalProperties": False}}
    fields = {"model": MODEL, "temperature": 0, "tools": [{"type": "function", "function": function}]}
    with round_trip(stream=False) as (url, weather):
        parse = client(url).chat.completions.parse
        message = parse(messages=weather.messages(), **fields).choices[0].message
        (call,) = message.tool_calls
        equal(call.function.parsed_arguments, {"city": weather.city}, "the parsed arguments")
        weather.check_answer(parse(messages=turns(weather, call, message), **fields).choices[0].message.content)


async def async_tool_round_trip():
    fields = {"model": MODEL, "temperature": 0, "tools": [TOOL], "parallel_tool_calls": False}
    with round_trip(stream=False) as (url, weather):
        async with openai.AsyncOpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS) as other:
            message = (await other.chat.completions.create(messages=weather.messages(), **fields)).choices[0].message
            (call,) = message.tool_calls
            last = await other.chat.completions.create(messages=turns(weather, call, message.model_dump()), **fields)
        weather.check_answer(last.choices[0].message.content)


def functions(stream=False):
    """OpenAI's older fields: `functions`, `function_call`, and a message of role function."""
    function = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
    fields = {"tools": openai.NOT_GIVEN, "functions": [function]}
    weather = Weather()
    answer = ask(BASE_URL, weather.messages(), stream=stream, **fields)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        calls = [one.delta.function_call for one in choices if one.delta.function_call]
        name = "".join(call.name or "" for call in calls)
        arguments, reason = "".join(call.arguments or "" for call in calls), choices[-1].finish_reason
    else:
        (choice,) = answer.choices
        call, reason = choice.message.function_call, choice.finish_reason
        name, arguments = call.name, call.arguments
    equal(reason, "function_call", "finish_reason")
    weather.check_call(name, arguments)
    said = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}}
    result = {"role": "function", "name": name, "content": weather.result}
    last = ask(BASE_URL, [*weather.messages(), said, result], **fields).choices[0]
    equal((last.finish_reason, last.message.function_call), ("stop", None), "the end")
    weather.check_answer(last.message.content)


def no_call_with_tool_choice_none():
    """The call stays text, with its tags."""
    (choice,) = ask(BASE_URL, Weather().messages(), tool_choice="none").choices
    equal((choice.finish_reason, choice.message.tool_calls), ("stop", None), "the answer")
    check("<tool_call>" in choice.message.content, f"the text is {choice.message.content!r}")


def reasoning_left_out():
    """`include_reasoning: false`; the usage counts its tokens all the same."""
    fields = {"tools": openai.NOT_GIVEN, "extra_body": THINKING | {"include_reasoning": False}}
    answer = ask(BASE_URL, [{"role": "user", "content": QUESTION}], **fields)
    message = answer.choices[0].message
    equal((message.content.strip(), reasoning_of(message)), (ANSWER, ""), "content and reasoning")
    check(answer.usage.completion_tokens_details.reasoning_tokens > 0, f"usage {answer.usage}")


TOOL_TASKS = {
    "tool round trip": tool_round_trip,
    "tool round trip streamed": tool_round_trip_streamed,
    "tool round trip with reasoning": partial(tool_round_trip, thinking=True),
    "tool round trip with reasoning, streamed": partial(tool_round_trip_streamed, thinking=True),
    "tool round trip with stream helper": tool_round_trip_with_stream_helper,
    "tool round trip with parse helper": tool_round_trip_with_parse_helper,
    "async tool round trip": async_tool_round_trip,
    "functions": functions,
    "functions streamed": partial(functions, stream=True),
    "no call with tool choice none": no_call_with_tool_choice_none,
    "reasoning left out": reasoning_left_out,
}
