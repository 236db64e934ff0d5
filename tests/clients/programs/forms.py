"""The form of answers that the tasks of all clients ask for: a weather report as JSON.

Its schema bounds it, so that any model comes to its end, within 600 tokens with the whitespace that may be in it. The
values are the model's own: only the form is checked.

Imports only the standard library.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from recorder import recorder
from report import URL, Failed, check, equal

QUESTION = "What is the weather in Paris? Answer as JSON."
MESSAGES = [{"role": "user", "content": QUESTION}]
CITIES, SKIES = ("Paris", "Berlin", "Oslo"), ("sunny", "cloudy", "rainy")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": list(CITIES)},
        "sky": {"type": "string", "enum": list(SKIES)},
        "degrees": {"type": "integer", "minimum": 0, "maximum": 40},
        "certain": {"type": "boolean"},
    },
    "required": ["city", "sky", "degrees", "certain"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA, "strict": True}}
REPORT_TOOL = {
    "type": "function",
    "function": {"name": "report", "description": "Reports the weather.", "parameters": SCHEMA, "strict": True},
}


def check_report(values: dict[str, Any]) -> None:
    equal(set(values), set(SCHEMA["required"]), "the keys of the report")
    check(values["city"] in CITIES and values["sky"] in SKIES, f"the report is {values}")
    check(type(values["degrees"]) is int and 0 <= values["degrees"] <= 40, f"the report is {values}")
    check(isinstance(values["certain"], bool), f"the report is {values}")


def check_text(text: str) -> None:
    """Checks an answer that is a report as JSON."""
    try:
        values = json.loads(text)
    except ValueError:
        check(False, f"the text is {text!r}, not JSON")
    check_report(values)


@contextlib.contextmanager
def asking_for(*fields: str) -> Iterator[str]:
    """Yields a base URL of the server. Then checks that the client asked it at least once, and with one of these fields
    each time."""
    with recorder(URL) as (url, recording):
        try:
            yield f"{url}/v1"
        except Exception as error:
            problems = [one.problem for one in recording.exchanges() if one.problem]
            if problems:
                raise Failed(f"the server's answer is {' and '.join(problems)}; {error}") from error
            raise
        exchanges = recording.exchanges()
        check(exchanges, "the server was not asked")
        for one in exchanges:
            check(set(fields) & one.request.keys(), f"the request has {sorted(one.request)}, none of {fields}")


@contextlib.contextmanager
def asking_for_calls(choice: object) -> Iterator[str]:
    """Yields a base URL of the server. Then checks that the client asked for a call by this tool_choice each time, and
    that the answer is one or several calls with the finish reason that OpenAI has for it."""
    with recorder(URL) as (url, recording):
        yield f"{url}/v1"
        exchanges = recording.exchanges()
        check(exchanges, "the server was not asked")
        for one in exchanges:
            equal(one.request.get("tool_choice"), choice, "tool_choice")
            check(one.choice is not None, f"the server's answer is {one.problem}")
            check(one.choice["message"].get("tool_calls"), f"the answer is {one.choice}")
            equal(one.choice["finish_reason"], "tool_calls" if choice == "required" else "stop", "finish_reason")


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}
