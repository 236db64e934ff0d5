"""Answers in a given form with langchain: `with_structured_output` by each of its methods, and calls that must come."""

from functools import partial

import openai
from forms import QUESTION, SCHEMA, asking_for, asking_for_calls, check_report, named
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic_forms import Report, check_instance
from report import API_KEY, MODEL, SECONDS, check, equal
from weather import Weather


def model(url, **fields):
    common = {"model": MODEL, "base_url": url, "api_key": API_KEY, "max_retries": 0, "timeout": SECONDS}
    return ChatOpenAI(**common, temperature=0, max_tokens=600, **fields)


def structured_output(method, field, strict=None):
    with asking_for(field) as url:
        bound = model(url).with_structured_output(Report, method=method, strict=strict, include_raw=True)
        found = bound.invoke(QUESTION)
        check_instance(found["parsed"])
        equal(found["parsing_error"], None, "the error")
        *_, last = model(url).with_structured_output(Report, method=method, strict=strict).stream(QUESTION)
        check_instance(last)


def structured_output_of_a_schema():
    schema = {"title": "report", "description": "Reports the weather.", **SCHEMA}
    for method, field in (("json_schema", "response_format"), ("function_calling", "tool_choice")):
        with asking_for(field) as url:
            check_report(model(url).with_structured_output(schema, method=method).invoke(QUESTION))


def json_mode():
    """It asks for any object: whether that has the fields, or an end, is the model's business."""
    with asking_for("response_format") as url:
        bound = model(url).with_structured_output(Report, method="json_mode", include_raw=True)
        try:
            text = bound.invoke(QUESTION)["raw"].content
        except openai.LengthFinishReasonError as error:
            text = error.completion.choices[0].message.content
    check(text.lstrip().startswith("{"), f"the text is {text!r}")


def any_tool():
    with asking_for_calls("required") as url:
        weather = Weather()
        bound = model(url).bind_tools([weather.tool()], tool_choice="any")
        call = bound.invoke(weather.question).tool_calls[0]
    weather.check_call(call["name"], call["args"])


def tool_by_name():
    with asking_for_calls(named("Report")) as url:
        bound = model(url).bind_tools([Weather().tool(), Report], tool_choice="Report")
        (call,) = bound.invoke(QUESTION).tool_calls
    equal(call["name"], "Report", "the call")
    check_report(call["args"])


def agent_with_a_response_format(strategy, *fields):
    with asking_for(*fields) as url:
        agent = create_agent(model(url), response_format=strategy(Report))
        check_instance(agent.invoke({"messages": [HumanMessage(QUESTION)]})["structured_response"])


FORM_TASKS = {
    "structured output by json_schema": partial(structured_output, "json_schema", "response_format"),
    "structured output by json_schema, strict": partial(structured_output, "json_schema", "response_format", True),
    "structured output by function_calling": partial(structured_output, "function_calling", "tool_choice"),
    "structured output of a schema": structured_output_of_a_schema,
    "structured output by json_mode": json_mode,
    "any tool": any_tool,
    "tool by name": tool_by_name,
    "agent with the provider's strategy": partial(agent_with_a_response_format, ProviderStrategy, "response_format"),
    "agent with the tools' strategy": partial(agent_with_a_response_format, ToolStrategy, "tools"),
}
