"""Answers in a given form with OpenAI's Python client: JSON by schema, vLLM's forms, and calls that must come."""

import json
import re
from functools import partial

import openai
from forms import MESSAGES, REPORT_TOOL, RESPONSE_FORMAT, SCHEMA, asking_for, asking_for_calls, check_text, named
from openai_calls import CLIENT, complete
from pydantic_forms import Report, check_instance
from report import API_KEY, MODEL, SECONDS, check, equal
from weather import NAME, THINKING, TOOL, Weather

REGEX, WORDS = "[a-c]{3}-[0-9]{2}", ["sunny", "rainy, with wind"]
LARK = 'start: "It is " ("sunny" | "rainy") "."'
EBNF = 'root ::= "It is " sky "."\nsky ::= "sunny" | "rainy"'
OPTIONS = {"model": MODEL, "temperature": 0, "max_tokens": 600}


def client(url):
    return openai.OpenAI(base_url=url, api_key=API_KEY, max_retries=0, timeout=SECONDS)


def ask(**fields):
    (choice,) = CLIENT.chat.completions.create(messages=MESSAGES, **OPTIONS | fields).choices
    return choice


def parse_helper():
    with asking_for("response_format") as url:
        answer = client(url).chat.completions.parse(messages=MESSAGES, response_format=Report, **OPTIONS)
    (choice,) = answer.choices
    equal((choice.finish_reason, choice.message.refusal), ("stop", None), "the end")
    check_instance(choice.message.parsed)


def parse_helper_of_the_stream():
    with asking_for("response_format") as url:
        stream = client(url).chat.completions.stream
        with stream(messages=MESSAGES, response_format=Report, **OPTIONS) as events:
            deltas = [event.delta for event in events if event.type == "content.delta"]
            final = events.get_final_completion().choices[0].message
    check_instance(final.parsed)
    equal("".join(deltas), final.content, "the deltas")


def json_by_schema():
    choice = ask(response_format=RESPONSE_FORMAT)
    check_text(choice.message.content)
    equal(choice.finish_reason, "stop", "finish_reason")


def json_by_schema_after_reasoning():
    choice = ask(response_format=RESPONSE_FORMAT, extra_body=THINKING, max_tokens=400)
    check_text(choice.message.content)
    check(choice.message.model_extra.get("reasoning"), "no reasoning")


def json_object():
    choice = ask(response_format={"type": "json_object"})
    check(choice.message.content.lstrip().startswith("{"), f"the text is {choice.message.content!r}")
    if choice.finish_reason == "stop":
        equal(type(json.loads(choice.message.content)), dict, "the type")


def ignored_keywords_in_a_header():
    lenient = {"name": "report", "schema": SCHEMA | {"not": {"required": ["other"]}}}
    create = CLIENT.chat.completions.with_raw_response.create
    raw = create(messages=MESSAGES, response_format={"type": "json_schema", "json_schema": lenient}, **OPTIONS)
    check_text(raw.parse().choices[0].message.content)
    check("not" in raw.headers.get("tandem-ignored-keywords", ""), f"headers {dict(raw.headers)}")
    try:
        ask(response_format={"type": "json_schema", "json_schema": lenient | {"strict": True}})
    except openai.BadRequestError as error:
        check('"not"' in error.message and error.param.startswith("response_format"), f"the error is {error}")
    else:
        check(False, "no error")


def vllms_forms(older):
    """`structured_outputs` and the older fields, of chats and of completions."""
    for name, value, pattern in (
        ("json", SCHEMA, r"\{.*\}"),
        ("regex", REGEX, REGEX),
        ("choice", WORDS, "|".join(WORDS)),
        ("grammar", LARK, r"It is (sunny|rainy)\."),
        ("grammar", EBNF, r"It is (sunny|rainy)\."),
    ):
        body = {f"guided_{name}": value} if older else {"structured_outputs": {name: value}}
        answer = complete(extra_body=body, max_tokens=600).choices[0]
        for text, reason in (
            (answer.text, answer.finish_reason),
            ((chat := ask(extra_body=body)).message.content, chat.finish_reason),
        ):
            check(re.fullmatch(pattern, text, re.DOTALL), f"{name}: the text is {text!r}")
            equal(reason, "stop", f"finish_reason of {name}")


def required_call():
    with asking_for_calls("required") as url:
        weather = Weather()
        create = client(url).chat.completions.create
        answer = create(messages=weather.messages(), tools=[TOOL], tool_choice="required", **OPTIONS)
    call = answer.choices[0].message.tool_calls[0]
    weather.check_call(call.function.name, call.function.arguments)


def named_call():
    """The model would call the other tool by itself."""
    with asking_for_calls(named("report")) as url:
        create = client(url).chat.completions.create
        answer = create(messages=MESSAGES, tools=[TOOL, REPORT_TOOL], tool_choice=named("report"), **OPTIONS)
    (call,) = answer.choices[0].message.tool_calls
    equal(call.function.name, "report", "the call")
    check_text(call.function.arguments)


def named_call_streamed():
    chunks = CLIENT.chat.completions.create(
        messages=MESSAGES, tools=[TOOL, REPORT_TOOL], tool_choice=named("report"), stream=True, **OPTIONS
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    parts = [call.function for choice in choices for call in choice.delta.tool_calls or ()]
    equal("".join(part.name or "" for part in parts), "report", "the call")
    check_text("".join(part.arguments or "" for part in parts))
    equal(choices[-1].finish_reason, "stop", "finish_reason")


def allowed_tools():
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("report")]}}
    choice = ask(tools=[TOOL, REPORT_TOOL], tool_choice=allowed, parallel_tool_calls=False)
    (call,) = choice.message.tool_calls
    equal((call.function.name, choice.finish_reason), ("report", "tool_calls"), "the call")


def required_call_with_parse_helper():
    tool = openai.pydantic_function_tool(Report, name="report")
    with asking_for_calls("required") as url:
        parse = client(url).chat.completions.parse
        answer = parse(messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False, **OPTIONS)
    (call,) = answer.choices[0].message.tool_calls
    check_instance(call.function.parsed_arguments)


def named_function():
    """OpenAI's older fields."""
    fields = {"functions": [TOOL["function"], REPORT_TOOL["function"]], "function_call": {"name": "report"}}
    choice = ask(**fields)
    equal((choice.message.function_call.name, choice.finish_reason), ("report", "stop"), "the call")
    check_text(choice.message.function_call.arguments)


def form_beside_tools():
    """With tools, the answer is a call or has the form."""
    choice = ask(tools=[TOOL], response_format=RESPONSE_FORMAT)
    if choice.message.tool_calls:
        equal(choice.message.tool_calls[0].function.name, NAME, "the call")
    else:
        check_text(choice.message.content)


def a_call_without_tools():
    try:
        ask(tool_choice="required")
    except openai.BadRequestError as error:
        equal(error.param, "tool_choice", "param")
    else:
        check(False, "no error")


FORM_TASKS = {
    "parse helper with a class": parse_helper,
    "parse helper with a class, streamed": parse_helper_of_the_stream,
    "json by schema": json_by_schema,
    "json by schema after reasoning": json_by_schema_after_reasoning,
    "json object": json_object,
    "ignored keywords in a header": ignored_keywords_in_a_header,
    "structured_outputs": partial(vllms_forms, False),
    "guided fields": partial(vllms_forms, True),
    "required call": required_call,
    "required call with parse helper": required_call_with_parse_helper,
    "named call": named_call,
    "named call streamed": named_call_streamed,
    "allowed tools": allowed_tools,
    "named function": named_function,
    "form beside tools": form_beside_tools,
    "a call without tools": a_call_without_tools,
}
